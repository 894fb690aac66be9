#include "conv_plan.h"

#include <string.h>

#include "base/memory.h"
#include "check.h"

/* Engines that want more scratch memory are taken only where no other fits. */
enum { WORKSPACE_LIMIT = 256 << 20, MOST_DESCRIPTORS = 8, MOST_CONFIGS = 256 };

/* What is asked of the heuristics, round after round, until an engine fits. */
static const struct {
    cudnnBackendHeurMode_t mode;
    int64_t workspace_limit;
} rounds[] = {
    {CUDNN_HEUR_MODE_A, WORKSPACE_LIMIT},
    {CUDNN_HEUR_MODE_FALLBACK, WORKSPACE_LIMIT},
    {CUDNN_HEUR_MODE_A, INT64_MAX},
    {CUDNN_HEUR_MODE_FALLBACK, INT64_MAX},
};

enum { ROUNDS = sizeof rounds / sizeof *rounds, ID_X = 1, ID_W, ID_Y };

struct dp_conv_plan {
    const char *label;
    cudnnBackendDescriptor_t owned[MOST_DESCRIPTORS]; /* destroyed from the last to the first */
    int owned_count;
    cudnnBackendDescriptor_t execution, pack;
    const void *bound[4]; /* what the pack points at: x, w, y, workspace */
    int64_t workspace_bytes;
    uint32_t notes;
};

dp_conv_shape dp_conv_shape_of(const dp_op_desc *desc)
{
    const bool transposed = desc->kind == DP_OP_CONV_TRANSPOSE2D;
    dp_conv_shape s;
    memset(&s, 0, sizeof s);
    memcpy(s.x, transposed ? desc->out.dim : desc->in[0].dim, sizeof s.x);
    memcpy(s.y, transposed ? desc->in[0].dim : desc->out.dim, sizeof s.y);
    s.w[0] = s.y[1];
    s.w[1] = s.x[1];
    for (int i = 0; i < 2; i++) {
        s.w[2 + i] = desc->kernel[i];
        s.padding[i] = desc->padding[i];
        s.stride[i] = desc->stride[i];
    }
    return s;
}

/* ---- descriptors ---- */

static dp_status create(dp_conv_plan *p, cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out,
                        dp_error *err)
{
    if (p->owned_count == MOST_DESCRIPTORS)
        return dp_fail(err, DP_ERROR_INTERNAL, "%s: a convolution of too many descriptors", p->label);
    DP_CUDNN_TRY(p->label, err, cudnnBackendCreateDescriptor(type, out));
    p->owned[p->owned_count++] = *out;
    return DP_OK;
}

typedef struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    const void *values;
} attribute;

static dp_status set_all(const dp_conv_plan *p, cudnnBackendDescriptor_t d, const attribute *attributes,
                         size_t count, dp_error *err)
{
    for (size_t i = 0; i < count; i++) {
        const attribute *a = &attributes[i];
        DP_CUDNN_TRY(p->label, err, cudnnBackendSetAttribute(d, a->name, a->type, a->count, a->values));
    }
    return DP_OK;
}

static dp_status finish(const dp_conv_plan *p, cudnnBackendDescriptor_t d, const attribute *attributes,
                        size_t count, const char *what, dp_error *err)
{
    DP_TRY(set_all(p, d, attributes, count, err));
    cudnnStatus_t code = cudnnBackendFinalize(d);
    return code == CUDNN_STATUS_SUCCESS ? DP_OK : dp_cudnn_fail(err, p->label, what, code);
}

#define COUNT(array) (sizeof(array) / sizeof *(array))

static dp_status describe_tensor(dp_conv_plan *p, int64_t id, const int64_t dims[4],
                                 cudnnBackendDescriptor_t *out, dp_error *err)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const int64_t alignment = 16;
    const int64_t strides[4] = {dims[1] * dims[2] * dims[3], dims[2] * dims[3], dims[3], 1};
    const attribute attributes[] = {
        {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type},
        {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims},
        {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides},
        {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id},
        {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment},
    };
    DP_TRY(create(p, CUDNN_BACKEND_TENSOR_DESCRIPTOR, out, err));
    return finish(p, *out, attributes, COUNT(attributes), "a tensor's cudnnBackendFinalize", err);
}

static dp_status describe_window(dp_conv_plan *p, const dp_conv_shape *shape, cudnnBackendDescriptor_t *out,
                                 dp_error *err)
{
    const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t spatial = 2, dilation[2] = {1, 1};
    const attribute attributes[] = {
        {CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type},
        {CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode},
        {CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &spatial},
        {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, shape->padding},
        {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, shape->padding},
        {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, shape->stride},
        {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation},
    };
    DP_TRY(create(p, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, out, err));
    return finish(p, *out, attributes, COUNT(attributes), "a convolution's cudnnBackendFinalize", err);
}

static const struct {
    cudnnBackendDescriptorType_t operation;
    cudnnBackendAttributeName_t x, w, y, window, alpha, beta;
} names[DP_CONV_KINDS] = {
    [DP_CONV_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [DP_CONV_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [DP_CONV_FILTER] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

/* A graph of this one convolution. */
static dp_status describe_graph(dp_conv_plan *p, const dp_conv_target *target, const dp_conv_shape *shape,
                                cudnnBackendDescriptor_t *graph, dp_error *err)
{
    cudnnBackendDescriptor_t x, w, y, window, operation;
    const float alpha = 1, beta = 0;
    DP_TRY(describe_tensor(p, ID_X, shape->x, &x, err));
    DP_TRY(describe_tensor(p, ID_W, shape->w, &w, err));
    DP_TRY(describe_tensor(p, ID_Y, shape->y, &y, err));
    DP_TRY(describe_window(p, shape, &window, err));
    const int k = shape->kind;
    const attribute parts[] = {
        {names[k].x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x},
        {names[k].w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &w},
        {names[k].y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y},
        {names[k].window, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &window},
        {names[k].alpha, CUDNN_TYPE_FLOAT, 1, &alpha},
        {names[k].beta, CUDNN_TYPE_FLOAT, 1, &beta},
    };
    DP_TRY(create(p, names[k].operation, &operation, err));
    DP_TRY(finish(p, operation, parts, COUNT(parts), "an operation's cudnnBackendFinalize", err));
    const attribute whole[] = {
        {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operation},
        {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &target->handle},
    };
    DP_TRY(create(p, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, graph, err));
    return finish(p, *graph, whole, target->handle ? 2 : 1, "a graph's cudnnBackendFinalize", err);
}

/* ---- choosing an engine ---- */

#define NOTE(name) (UINT32_C(1) << CUDNN_NUMERICAL_NOTE_##name)

/* What no engine may do that computes the convolution. A tile of 13 x 13 costs several digits. */
static uint32_t unwanted_notes(const dp_conv_shape *shape)
{
    uint32_t unwanted =
        NOTE(NONDETERMINISTIC) | NOTE(REDUCED_PRECISION_REDUCTION) | NOTE(WINOGRAD_TILE_13x13);
    if (!shape->allow_tf32)
        unwanted |= NOTE(TENSOR_CORE) | NOTE(DOWN_CONVERT_INPUTS);
    if (shape->direct)
        unwanted |= NOTE(FFT) | NOTE(WINOGRAD) | NOTE(WINOGRAD_TILE_4x4) | NOTE(WINOGRAD_TILE_6x6);
    return unwanted;
}

/* The engine of a configuration, and its notes as bits. */
static dp_status read_engine(const dp_conv_plan *p, cudnnBackendDescriptor_t config, int64_t *number,
                             uint32_t *notes, dp_error *err)
{
    cudnnBackendDescriptor_t engine;
    cudnnBackendNumericalNote_t list[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t count = 0, one = 0;
    *notes = 0;
    DP_CUDNN_TRY(p->label, err, cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine));
    cudnnStatus_t code = cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                                  CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one, &engine);
    if (code == CUDNN_STATUS_SUCCESS)
        code = cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                        CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &count, list);
    if (code == CUDNN_STATUS_SUCCESS)
        code = cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &one,
                                        number);
    for (int64_t i = 0; code == CUDNN_STATUS_SUCCESS && i < count; i++)
        *notes |= UINT32_C(1) << list[i];
    cudnnBackendDestroyDescriptor(engine);
    return code == CUDNN_STATUS_SUCCESS
               ? DP_OK
               : dp_cudnn_fail(err, p->label, "cudnnBackendGetAttribute of an engine", code);
}

/* Sets p->execution if the configuration can be planned within the workspace; else leaves it NULL, which is
 * no failure: the next configuration may do. */
static dp_status try_config(dp_conv_plan *p, const dp_conv_target *target, cudnnBackendDescriptor_t config,
                            int64_t workspace_limit, dp_error *err)
{
    cudnnBackendDescriptor_t execution;
    int64_t one = 0, bytes = 0;
    const attribute attributes[] = {
        {CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &config},
        target->handle ? (attribute){CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &target->handle}
                       : (attribute){CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                     &target->properties},
    };
    DP_CUDNN_TRY(p->label, err,
                 cudnnBackendCreateDescriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &execution));
    dp_status status = set_all(p, execution, attributes, COUNT(attributes), err);
    bool fits = status == DP_OK && cudnnBackendFinalize(execution) == CUDNN_STATUS_SUCCESS &&
                cudnnBackendGetAttribute(execution, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                         CUDNN_TYPE_INT64, 1, &one, &bytes) == CUDNN_STATUS_SUCCESS &&
                bytes <= workspace_limit;
    if (!fits) {
        cudnnBackendDestroyDescriptor(execution);
        return status;
    }
    p->execution = execution;
    p->workspace_bytes = bytes;
    return DP_OK;
}

/* Goes through the configurations of a round; where `only` is not -1, through that one, and only if it has
 * the chosen engine. Keeps the one that fits, alive behind the plan. */
static dp_status pick_config(dp_conv_plan *p, const dp_conv_target *target, const dp_conv_shape *shape,
                             cudnnBackendDescriptor_t *configs, int count, int round, int only,
                             dp_conv_choice *choice, dp_error *err)
{
    for (int i = only < 0 ? 0 : only; i < (only < 0 ? count : only + 1) && i < count; i++) {
        int64_t engine;
        DP_TRY(read_engine(p, configs[i], &engine, &p->notes, err));
        if ((p->notes & unwanted_notes(shape)) || (only >= 0 && engine != choice->engine))
            continue;
        DP_TRY(try_config(p, target, configs[i], rounds[round].workspace_limit, err));
        if (!p->execution)
            continue;
        p->owned[p->owned_count++] = configs[i];
        configs[i] = NULL;
        *choice = (dp_conv_choice){.round = round, .position = i, .engine = engine};
        break;
    }
    return DP_OK;
}

/* Fills configs (MOST_CONFIGS of them) with what finalized heuristics recommend; the caller destroys *count
 * of them, whatever is returned. */
static dp_status fetch_configs(const dp_conv_plan *p, cudnnBackendDescriptor_t heuristics,
                               cudnnBackendDescriptor_t *configs, int *count, dp_error *err)
{
    int64_t offered = 0, got = 0;
    DP_CUDNN_TRY(p->label, err,
                 cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &offered, NULL));
    if (offered > MOST_CONFIGS)
        offered = MOST_CONFIGS;
    for (; *count < offered; ++*count)
        DP_CUDNN_TRY(p->label, err,
                     cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[*count]));
    if (*count == 0)
        return DP_OK;
    DP_CUDNN_TRY(p->label, err,
                 cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, offered, &got, configs));
    while (*count > got)
        cudnnBackendDestroyDescriptor(configs[--*count]);
    return DP_OK;
}

/* The configurations that cuDNN recommends in a mode, best first; none where it has no advice. */
static dp_status list_configs(const dp_conv_plan *p, const dp_conv_target *target,
                              cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
                              cudnnBackendDescriptor_t *configs, int *count, dp_error *err)
{
    cudnnBackendDescriptor_t heuristics;
    const attribute attributes[] = {
        {CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph},
        {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode},
        {CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &target->properties},
    };
    *count = 0;
    DP_CUDNN_TRY(p->label, err,
                 cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristics));
    dp_status status = set_all(p, heuristics, attributes, target->handle ? 2 : 3, err);
    if (status == DP_OK) {
        cudnnStatus_t code = cudnnBackendFinalize(heuristics);
        if (code == CUDNN_STATUS_SUCCESS)
            status = fetch_configs(p, heuristics, configs, count, err);
        else if (CUDNN_STATUS_CATEGORY(code) != CUDNN_STATUS_NOT_SUPPORTED)
            status = dp_cudnn_fail(err, p->label, "cudnnBackendFinalize of the heuristics", code);
    }
    cudnnBackendDestroyDescriptor(heuristics);
    return status;
}

static dp_status run_round(dp_conv_plan *p, const dp_conv_target *target, const dp_conv_shape *shape,
                           cudnnBackendDescriptor_t graph, int round, int only, dp_conv_choice *choice,
                           dp_error *err)
{
    cudnnBackendDescriptor_t configs[MOST_CONFIGS];
    int count;
    dp_status status = list_configs(p, target, graph, rounds[round].mode, configs, &count, err);
    if (status == DP_OK)
        status = pick_config(p, target, shape, configs, count, round, only, choice, err);
    for (int i = 0; i < count; i++)
        if (configs[i])
            cudnnBackendDestroyDescriptor(configs[i]);
    return status;
}

static dp_status choose(dp_conv_plan *p, const dp_conv_target *target, const dp_conv_shape *shape,
                        cudnnBackendDescriptor_t graph, dp_conv_choice *choice, dp_error *err)
{
    static const char *const kinds[DP_CONV_KINDS] = {"forward", "data gradient", "filter gradient"};
    if (choice->engine >= 0)
        DP_TRY(run_round(p, target, shape, graph, choice->round, choice->position, choice, err));
    for (int round = 0; round < ROUNDS && !p->execution; round++)
        DP_TRY(run_round(p, target, shape, graph, round, -1, choice, err));
    if (p->execution)
        return DP_OK;
    const int64_t *x = shape->x, *w = shape->w;
    return dp_fail(err, DP_ERROR_DEVICE,
                   "%s: cuDNN %zu has no deterministic engine for the %s of a convolution of "
                   "%lldx%lldx%lldx%lld with %lld filters of %lldx%lld",
                   p->label, cudnnGetVersion(), kinds[shape->kind], (long long)x[0], (long long)x[1],
                   (long long)x[2], (long long)x[3], (long long)w[0], (long long)w[2], (long long)w[3]);
}

/* ---- the plan ---- */

dp_status dp_conv_plan_create(const dp_conv_target *target, const dp_conv_shape *shape,
                              dp_conv_choice *choice, dp_conv_plan **out, dp_error *err)
{
    cudnnBackendDescriptor_t graph;
    *out = NULL;
    dp_conv_plan *p;
    DP_TRY(dp_calloc(1, sizeof *p, "a convolution's plan", &p, err));
    p->label = target->label;
    dp_status status = describe_graph(p, target, shape, &graph, err);
    if (status == DP_OK)
        status = choose(p, target, shape, graph, choice, err);
    if (status != DP_OK) {
        dp_conv_plan_free(p);
        return status;
    }
    *out = p;
    return DP_OK;
}

void dp_conv_plan_free(dp_conv_plan *p)
{
    if (!p)
        return;
    if (p->pack)
        cudnnBackendDestroyDescriptor(p->pack);
    if (p->execution)
        cudnnBackendDestroyDescriptor(p->execution);
    while (p->owned_count > 0)
        cudnnBackendDestroyDescriptor(p->owned[--p->owned_count]);
    dp_free(p);
}

size_t dp_conv_plan_workspace(const dp_conv_plan *plan)
{
    return (size_t)plan->workspace_bytes;
}

uint32_t dp_conv_plan_notes(const dp_conv_plan *plan)
{
    return plan->notes;
}

/* The descriptor of the pointers. Most calls of a plan come with the same ones, so the last is kept. */
static dp_status bind(dp_conv_plan *p, const void *const pointers[4], dp_error *err)
{
    static const int64_t ids[3] = {ID_X, ID_W, ID_Y};
    if (p->pack && memcmp(p->bound, pointers, sizeof p->bound) == 0)
        return DP_OK;
    if (p->pack)
        cudnnBackendDestroyDescriptor(p->pack);
    p->pack = NULL;
    DP_CUDNN_TRY(p->label, err,
                 cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &p->pack));
    const attribute attributes[] = {
        {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids},
        {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers},
        {CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &pointers[3]},
    };
    dp_status status =
        finish(p, p->pack, attributes, COUNT(attributes), "cudnnBackendFinalize of pointers", err);
    if (status == DP_OK) {
        memcpy(p->bound, pointers, sizeof p->bound);
    } else {
        cudnnBackendDestroyDescriptor(p->pack);
        p->pack = NULL;
    }
    return status;
}

dp_status dp_conv_plan_execute(dp_conv_plan *p, cudnnHandle_t handle, const void *x, const void *w,
                               const void *y, void *workspace, dp_error *err)
{
    DP_TRY(bind(p, (const void *const[4]){x, w, y, workspace}, err));
    DP_CUDNN_TRY(p->label, err, cudnnBackendExecute(handle, p->execution, p->pack));
    return DP_OK;
}
