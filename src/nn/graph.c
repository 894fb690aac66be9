/* The builder functions of dptrain/model.h. */
#include "nn/graph.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

enum { FAILED = -1, MAX_ELEMENTS_LOG2 = 40 };

dp_status dp_model_create(const char *name, dp_model **out, dp_error *err)
{
    DP_TRY(dp_calloc(1, sizeof **out, "a model", out, err));
    (*out)->input = (*out)->output = FAILED;
    dp_status status = dp_strdup(name, &(*out)->name, err);
    if (status != DP_OK) {
        dp_free(*out);
        *out = NULL;
    }
    return status;
}

void dp_model_free(dp_model *model)
{
    if (!model)
        return;
    for (int i = 0; i < model->param_count; i++)
        dp_free(model->params[i].name);
    dp_free(model->params);
    dp_free(model->nodes);
    dp_free(model->program);
    dp_free(model->values);
    dp_free(model->description);
    dp_free(model->name);
    dp_free(model);
}

/* The first failure is kept; later builder calls see it and return at once. */
__attribute__((format(printf, 3, 4))) static dp_value fail(dp_model *m, dp_status status, const char *format,
                                                           ...)
{
    if (m->failure.status == DP_OK) {
        va_list args;
        va_start(args, format);
        vsnprintf(m->failure.message, sizeof m->failure.message, format, args);
        va_end(args);
        m->failure.status = status;
    }
    return FAILED;
}

static bool usable(dp_model *m, dp_value x)
{
    if (m->failure.status != DP_OK)
        return false;
    if (m->finished)
        fail(m, DP_ERROR_USAGE, "model '%s' is finished: nothing can be added", m->name);
    else if (x < 0 || x >= m->value_count)
        fail(m, DP_ERROR_USAGE, "model '%s': %d is not a value of this model", m->name, x);
    return m->failure.status == DP_OK;
}

static dp_value add_value(dp_model *m, int rank, const int64_t *shape, int producer)
{
    int64_t elements = 1;
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 1 || elements > ((int64_t)1 << MAX_ELEMENTS_LOG2) / shape[i])
            return fail(m, DP_ERROR_USAGE, "model '%s': a dimension of %lld makes no tensor", m->name,
                        (long long)shape[i]);
        elements *= shape[i];
    }
    dp_status status =
        dp_realloc(&m->values, (size_t)m->value_count + 1, sizeof *m->values, "a model", &m->failure);
    if (status != DP_OK)
        return FAILED;
    dp_graph_value *v = &m->values[m->value_count];
    *v = (dp_graph_value){.rank = rank, .producer = producer};
    memcpy(v->shape, shape, (size_t)rank * sizeof *shape);
    return m->value_count++;
}

static dp_value add_node(dp_model *m, dp_node node, int rank, const int64_t *shape)
{
    node.output = add_value(m, rank, shape, m->node_count);
    if (node.output < 0)
        return FAILED;
    if (dp_realloc(&m->nodes, (size_t)m->node_count + 1, sizeof *m->nodes, "a model", &m->failure) != DP_OK)
        return FAILED;
    m->nodes[m->node_count++] = node;
    return node.output;
}

static int add_param(dp_model *m, const char *layer, const char *leaf, int rank, const int64_t *shape,
                     float bound)
{
    char full[256];
    int length = snprintf(full, sizeof full, "%s%s%s", layer, *layer ? "." : "", leaf);
    if (length < 0 || (size_t)length >= sizeof full)
        return fail(m, DP_ERROR_USAGE, "model '%s': the layer name '%.40s...' is too long", m->name, layer);
    for (int i = 0; i < m->param_count; i++)
        if (strcmp(m->params[i].name, full) == 0)
            return fail(m, DP_ERROR_USAGE, "model '%s': two parameters are named '%s'", m->name, full);
    if (dp_realloc(&m->params, (size_t)m->param_count + 1, sizeof *m->params, "a model", &m->failure) !=
        DP_OK)
        return FAILED;
    dp_param *p = &m->params[m->param_count];
    memset(p, 0, sizeof *p);
    if (dp_strdup(full, &p->name, &m->failure) != DP_OK)
        return FAILED;
    p->bound = bound;
    p->info = (dp_param_info){.name = p->name, .rank = rank, .elements = 1, .offset = m->elements};
    for (int i = 0; i < rank; i++) {
        p->info.shape[i] = shape[i];
        if (p->info.elements > ((int64_t)1 << MAX_ELEMENTS_LOG2) / shape[i]) {
            dp_free(p->name);
            return fail(m, DP_ERROR_USAGE, "model '%s': parameter '%s' would be too large", m->name, full);
        }
        p->info.elements *= shape[i];
    }
    m->elements += p->info.elements;
    return m->param_count++;
}

/* Weight and bias with PyTorch's default initial values: both uniform within 1/sqrt(fan_in). */
static bool add_weight_and_bias(dp_model *m, dp_node *node, const char *name, int rank, const int64_t *shape)
{
    int64_t fan_in = 1;
    for (int i = 1; i < rank; i++)
        fan_in *= shape[i];
    float bound = (float)(1.0 / sqrt((double)fan_in));
    node->param[0] = add_param(m, name, "weight", rank, shape, bound);
    node->param[1] = node->param[0] < 0 ? FAILED : add_param(m, name, "bias", 1, shape, bound);
    node->params = 2;
    return node->param[1] >= 0;
}

dp_value dp_model_input(dp_model *model, int rank, const int64_t *shape)
{
    if (model->failure.status != DP_OK)
        return FAILED;
    if (model->input >= 0)
        return fail(model, DP_ERROR_USAGE, "model '%s' has an input already", model->name);
    if (rank != 1 && rank != 3)
        return fail(model, DP_ERROR_USAGE,
                    "model '%s': an input has 1 dimension (features) or 3 (channels, height, width), not %d",
                    model->name, rank);
    model->input = add_value(model, rank, shape, -1);
    return model->input;
}

dp_value dp_linear(dp_model *model, const char *name, dp_value x, int64_t out_features)
{
    if (!usable(model, x))
        return FAILED;
    const dp_graph_value in = model->values[x];
    if (in.rank != 1)
        return fail(model, DP_ERROR_USAGE, "layer '%s' takes flat samples: put dp_flatten before it", name);
    if (out_features < 1)
        return fail(model, DP_ERROR_USAGE, "layer '%s' cannot have %lld outputs", name,
                    (long long)out_features);
    dp_node node = {.kind = DP_OP_LINEAR, .input = x};
    if (!add_weight_and_bias(model, &node, name, 2, (int64_t[]){out_features, in.shape[0]}))
        return FAILED;
    return add_node(model, node, 1, &out_features);
}

/* Output size of a window that slides over `size` elements; 0 or less where it does not fit. */
static int64_t slide(int64_t size, int kernel, int stride, int padding)
{
    int64_t room = size + 2 * (int64_t)padding - kernel;
    return room < 0 ? 0 : room / stride + 1;
}

static bool window_fits(dp_model *m, const char *what, const dp_graph_value *in, int kernel, int stride,
                        int padding, int64_t out[3])
{
    if (in->rank != 3)
        fail(m, DP_ERROR_USAGE, "%s takes images [channels, height, width], not flat samples", what);
    else if (kernel < 1 || stride < 1 || padding < 0 || padding >= kernel)
        fail(m, DP_ERROR_USAGE, "%s: kernel %d, stride %d and padding %d make no window", what, kernel,
             stride, padding);
    else {
        out[1] = slide(in->shape[1], kernel, stride, padding);
        out[2] = slide(in->shape[2], kernel, stride, padding);
        if (out[1] >= 1 && out[2] >= 1)
            return true;
        fail(m, DP_ERROR_USAGE, "%s: images of %lldx%lld are too small for a window of %dx%d", what,
             (long long)in->shape[1], (long long)in->shape[2], kernel, kernel);
    }
    return false;
}

dp_value dp_conv2d(dp_model *model, const char *name, dp_value x, int64_t out_channels, int kernel,
                   int stride, int padding)
{
    if (!usable(model, x))
        return FAILED;
    const dp_graph_value in = model->values[x];
    int64_t out[3] = {out_channels};
    if (!window_fits(model, name, &in, kernel, stride, padding, out))
        return FAILED;
    if (out_channels < 1)
        return fail(model, DP_ERROR_USAGE, "layer '%s' cannot have %lld channels", name,
                    (long long)out_channels);
    dp_node node = {.kind = DP_OP_CONV2D, .input = x, .kernel = kernel, .stride = stride, .padding = padding};
    if (!add_weight_and_bias(model, &node, name, 4, (int64_t[]){out_channels, in.shape[0], kernel, kernel}))
        return FAILED;
    return add_node(model, node, 3, out);
}

dp_value dp_relu(dp_model *model, dp_value x)
{
    if (!usable(model, x))
        return FAILED;
    const dp_graph_value in = model->values[x];
    return add_node(model, (dp_node){.kind = DP_OP_RELU, .input = x}, in.rank, in.shape);
}

dp_value dp_max_pool2d(dp_model *model, dp_value x, int kernel, int stride, int padding)
{
    if (!usable(model, x))
        return FAILED;
    const dp_graph_value in = model->values[x];
    int64_t out[3] = {in.shape[0]};
    if (!window_fits(model, "max_pool2d", &in, kernel, stride, padding, out))
        return FAILED;
    if (padding > kernel / 2)
        return fail(model, DP_ERROR_USAGE, "max_pool2d: padding %d is more than half of the window of %d",
                    padding, kernel);
    dp_node node = {
        .kind = DP_OP_MAX_POOL2D, .input = x, .kernel = kernel, .stride = stride, .padding = padding};
    return add_node(model, node, 3, out);
}

dp_value dp_flatten(dp_model *model, dp_value x)
{
    if (!usable(model, x))
        return FAILED;
    const dp_graph_value in = model->values[x];
    if (in.rank == 1)
        return x;
    int64_t features = in.shape[0] * in.shape[1] * in.shape[2];
    return add_node(model, (dp_node){.kind = DP_OP_FLATTEN, .input = x}, 1, &features);
}

dp_status dp_model_finish(dp_model *model, dp_value output, dp_error *err)
{
    if (model->failure.status != DP_OK)
        return dp_fail(err, model->failure.status, "%s", model->failure.message);
    if (model->finished || output < 0 || output >= model->value_count || output == model->input)
        return dp_fail(err, DP_ERROR_USAGE, "model '%s': %s", model->name,
                       model->finished ? "finished twice" : "the output must be made by a layer");
    model->output = output;
    DP_TRY(dp_model_make_program(model, err));
    model->finished = true;
    return DP_OK;
}

dp_status dp_model_set_description(dp_model *model, const char *json, dp_error *err)
{
    dp_free(model->description);
    model->description = NULL;
    return dp_strdup(json, &model->description, err);
}
