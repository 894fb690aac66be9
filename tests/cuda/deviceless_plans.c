/* Plans every convolution and deconvolution of the named models with the real cuDNN and no GPU.
 *
 *     deviceless_plans [-v] [--more] DEVICE.json...
 *
 * For each device and each convolution, an engine must be found that always gives the same bits and does not
 * use tensor cores: forward, data gradient, filter gradient. The choice must be found again when it is asked
 * for by its place, as replicas do, a wrong output size must be refused, and TF32 and "direct" must change
 * what is allowed. -v prints what was chosen; --more plans more batch sizes, larger images and thin models,
 * too. Exit status 1 after a failure.
 *
 * A device's file is what cuDNN dumps of a GPU (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION), or the same
 * written from public data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/conv_plan.h"
#include "nn/graph.h"

/* ---- the convolutions: the models' own, each shape once ---- */

enum { MOST_LAYERS = 4096 };

typedef struct layer {
    const char *model; /* the first that has it */
    dp_conv_shape shape;
} layer;

typedef struct layer_list {
    layer layers[MOST_LAYERS];
    int count;
} layer_list;

static bool add_layer(layer_list *list, const char *model, const dp_conv_shape *shape)
{
    for (int i = 0; i < list->count; i++)
        if (memcmp(&list->layers[i].shape, shape, sizeof *shape) == 0)
            return true;
    if (list->count == MOST_LAYERS)
        return false;
    list->layers[list->count++] = (layer){model, *shape};
    return true;
}

/* batch 0: 32 samples, or 4 of a model that makes masks; times: of the model's usual image; width 0: its own.
 */
typedef struct variant {
    int64_t batch, times, width;
} variant;

static const variant usual[] = {{0, 1, 0}, {3, 1, 0}};
static const variant additional[] = {{1, 1, 0}, {43, 1, 0}, {2, 2, 0}, {5, 1, 6}};

static dp_status add_model(layer_list *list, const char *name, const variant *v, bool deconv, dp_error *err)
{
    dp_model_traits traits;
    DP_TRY(dp_model_traits_of(name, &traits, err));
    dp_model_config config = dp_model_defaults(name);
    config.input_rank = 3;
    config.outputs = traits.dense ? 1 : traits.usual_classes;
    config.deconv = deconv;
    if (traits.width)
        config.width = v->width;
    memcpy(config.input_shape, traits.usual_shape, sizeof config.input_shape);
    for (int i = 1; i < 3; i++)
        config.input_shape[i] *= v->times;
    dp_model *model;
    DP_TRY(dp_model_build(&config, &model, err));
    bool room = true;
    for (int i = 0; i < model->program_count; i++) {
        const dp_op_desc d = dp_node_desc(model, &model->program[i],
                                          v->batch       ? v->batch
                                          : traits.dense ? 4
                                                         : 32);
        if (d.kind != DP_OP_CONV2D && d.kind != DP_OP_CONV_TRANSPOSE2D)
            continue;
        const dp_conv_shape shape = dp_conv_shape_of(&d);
        room = room && add_layer(list, name, &shape);
    }
    dp_model_free(model);
    return room ? DP_OK : dp_fail(err, DP_ERROR_INTERNAL, "more than %d convolutions", (int)MOST_LAYERS);
}

static dp_status add_models(layer_list *list, const variant *variants, size_t count, dp_error *err)
{
    for (const char *const *name = dp_model_names(); *name; name++) {
        dp_model_traits traits;
        DP_TRY(dp_model_traits_of(*name, &traits, err));
        for (size_t i = 0; i < count; i++)
            for (int deconv = 0; deconv < (traits.decoder ? 2 : 1); deconv++)
                DP_TRY(add_model(list, *name, &variants[i], deconv, err));
    }
    return DP_OK;
}

/* ---- plans ---- */

static const char *const kinds[DP_CONV_KINDS] = {"forward", "data", "filter"};

static void print_layer(const char *device, const layer *l, int kind)
{
    const dp_conv_shape *s = &l->shape;
    printf("%s, %s: %lldx%lldx%lldx%lld to %lld, k%lldx%lld s%lld %s: ", device, l->model, (long long)s->x[0],
           (long long)s->x[1], (long long)s->x[2], (long long)s->x[3], (long long)s->w[0], (long long)s->w[2],
           (long long)s->w[3], (long long)s->stride[0], kinds[kind]);
}

static bool failed(const char *device, const layer *l, int kind, const char *text)
{
    printf("FAILED ");
    print_layer(device, l, kind);
    printf("%s\n", text);
    return false;
}

/* Plans the layer, then once more by the place that the first plan wrote down. */
static bool plan_layer(const dp_conv_target *target, const layer *l, int kind, bool verbose)
{
    dp_conv_shape shape = l->shape;
    shape.kind = kind;
    dp_conv_choice choice = {.engine = -1};
    dp_conv_plan *plan;
    dp_error err = {0};
    if (dp_conv_plan_create(target, &shape, &choice, &plan, &err) != DP_OK)
        return failed(target->label, l, kind, err.message);
    size_t bytes = dp_conv_plan_workspace(plan);
    uint32_t notes = dp_conv_plan_notes(plan);
    dp_conv_plan_free(plan);
    const uint32_t forbidden = 1u << CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC |
                               1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE |
                               1u << CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS;
    if (notes & forbidden)
        return failed(target->label, l, kind, "the engine is not deterministic or uses tensor cores");
    if (verbose) {
        print_layer(target->label, l, kind);
        printf("engine %lld, round %d, place %d, workspace %zu\n", (long long)choice.engine, choice.round,
               choice.position, bytes);
    }
    dp_conv_choice again = choice;
    if (dp_conv_plan_create(target, &shape, &again, &plan, &err) != DP_OK)
        return failed(target->label, l, kind, err.message);
    bool same = again.round == choice.round && again.position == choice.position &&
                again.engine == choice.engine && dp_conv_plan_workspace(plan) == bytes;
    dp_conv_plan_free(plan);
    return same || failed(target->label, l, kind, "planned again, another engine came out");
}

/* 64 filters of 3x3 on 32 maps of 64 channels. */
static layer plain_layer(void)
{
    const dp_op_desc desc = {.kind = DP_OP_CONV2D,
                             .in = {{4, {32, 64, 56, 56}}},
                             .out = {4, {32, 64, 56, 56}},
                             .kernel = {3, 3},
                             .stride = {1, 1},
                             .padding = {1, 1}};
    return (layer){"a convolution", dp_conv_shape_of(&desc)};
}

static bool wrong_size_is_refused(const dp_conv_target *target)
{
    layer l = plain_layer();
    l.shape.y[3]++;
    dp_conv_choice choice = {.engine = -1};
    dp_conv_plan *plan;
    dp_error err = {0};
    if (dp_conv_plan_create(target, &l.shape, &choice, &plan, &err) == DP_OK) {
        dp_conv_plan_free(plan);
        return failed(target->label, &l, DP_CONV_FORWARD, "a wrong output size was accepted");
    }
    if (err.status != DP_ERROR_DEVICE || !strstr(err.message, "CUDNN_STATUS_BAD_PARAM") ||
        strchr(err.message, '\n'))
        return failed(target->label, &l, DP_CONV_FORWARD, err.message);
    return true;
}

/* The notes of the engine for a shape; false after a failure. */
static bool notes_for(const dp_conv_target *target, bool tf32, bool direct, uint32_t *notes)
{
    layer l = plain_layer();
    l.shape.allow_tf32 = tf32;
    l.shape.direct = direct;
    dp_conv_choice choice = {.engine = -1};
    dp_conv_plan *plan;
    dp_error err = {0};
    if (dp_conv_plan_create(target, &l.shape, &choice, &plan, &err) != DP_OK)
        return failed(target->label, &l, DP_CONV_FORWARD, err.message);
    *notes = dp_conv_plan_notes(plan);
    dp_conv_plan_free(plan);
    return true;
}

/* With TF32 allowed tensor cores come first (from sm_80 on), and "direct" forbids Winograd. */
static bool filters_work(const dp_conv_target *target, int version)
{
    const uint32_t winograd = 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD;
    const layer l = plain_layer();
    uint32_t whole, tf32, direct;
    if (!notes_for(target, false, false, &whole) || !notes_for(target, true, false, &tf32) ||
        !notes_for(target, false, true, &direct))
        return false;
    if (version >= 800 && !(tf32 & 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE))
        return failed(target->label, &l, DP_CONV_FORWARD, "TF32 is allowed, but no tensor cores are used");
    if (version <= 800 && !(whole & winograd))
        return failed(target->label, &l, DP_CONV_FORWARD, "no Winograd, so 'direct' cannot be tried");
    return !(direct & winograd) ||
           failed(target->label, &l, DP_CONV_FORWARD, "Winograd in spite of 'direct'");
}

static bool plan_device(const dp_conv_target *target, const layer_list *list, int version, bool verbose)
{
    bool good = wrong_size_is_refused(target) && filters_work(target, version);
    for (int i = 0; i < list->count; i++)
        for (int kind = 0; kind < DP_CONV_KINDS; kind++)
            good = plan_layer(target, &list->layers[i], kind, verbose) && good;
    return good;
}

static bool read_text(const char *path, char *text, size_t size, size_t *length)
{
    FILE *f = fopen(path, "re");
    if (!f) {
        printf("FAILED: cannot read %s\n", path);
        return false;
    }
    *length = fread(text, 1, size - 1, f);
    text[*length] = '\0';
    fclose(f);
    return true;
}

static bool plan_file(const char *path, const layer_list *list, bool verbose)
{
    static char text[1 << 16];
    char label[16];
    size_t length;
    if (!read_text(path, text, sizeof text, &length))
        return false;
    const char *key = strstr(text, "\"deviceVer\":");
    int version = key ? atoi(key + strlen("\"deviceVer\":")) : 0;
    snprintf(label, sizeof label, "sm_%d", version / 10);
    dp_conv_target target = {.label = label};
    bool good = cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &target.properties) ==
                    CUDNN_STATUS_SUCCESS &&
                cudnnBackendSetAttribute(target.properties, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                         CUDNN_TYPE_CHAR, (int64_t)length, text) == CUDNN_STATUS_SUCCESS &&
                cudnnBackendFinalize(target.properties) == CUDNN_STATUS_SUCCESS;
    if (!good)
        printf("FAILED: cuDNN refuses %s\n", path);
    good = good && plan_device(&target, list, version, verbose);
    printf("%s %s: %d convolutions\n", good ? "ok" : "FAILED", label, list->count);
    if (target.properties)
        cudnnBackendDestroyDescriptor(target.properties);
    return good;
}

int main(int argc, char **argv)
{
    static layer_list list;
    bool verbose = false, more = false;
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        verbose = verbose || strcmp(argv[i], "-v") == 0;
        more = more || strcmp(argv[i], "--more") == 0;
    }
    if (i >= argc) {
        fprintf(stderr, "usage: deviceless_plans [-v] [--more] DEVICE.json...\n");
        return 2;
    }
    dp_error err = {0};
    if (add_models(&list, usual, sizeof usual / sizeof *usual, &err) != DP_OK ||
        (more && add_models(&list, additional, sizeof additional / sizeof *additional, &err) != DP_OK)) {
        printf("FAILED: %s\n", err.message);
        return EXIT_FAILURE;
    }
    bool good = true;
    printf("cuDNN %zu\n", cudnnGetVersion());
    for (; i < argc; i++)
        good = plan_file(argv[i], &list, verbose) && good;
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
