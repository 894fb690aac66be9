/* Plans the convolutions of the model zoo with the real cuDNN and no GPU.
 *
 *     deviceless_plans [-v] [--more] DEVICE.json...
 *
 * For each device and each convolution, an engine must be found that always gives the same bits and does not
 * use tensor cores: forward, data gradient, filter gradient. The choice must be found again when it is asked
 * for by its place, as replicas do, a wrong output size must be refused, and TF32 and "direct" must change
 * what is allowed. -v prints what was chosen; --more plans other batch and image sizes, too. Exit status 1
 * after a failure.
 *
 * A device's file is what cuDNN dumps of a GPU (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION), or the same
 * written from public data. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/conv_plan.h"
#include "networks.h"

/* Beside the networks: LeNet, with odd chunks, and a thin one. */
static const layer layers[] = {
    {"lenet", 64, 1, 28, 32, 5, 1, 2},  {"lenet", 128, 1, 28, 32, 5, 1, 2},
    {"lenet", 43, 1, 28, 32, 5, 1, 2},  {"lenet", 1, 1, 28, 32, 5, 1, 2},
    {"lenet", 64, 32, 14, 64, 5, 1, 2}, {"lenet", 128, 32, 14, 64, 5, 1, 2},
    {"lenet", 43, 32, 14, 64, 5, 1, 2}, {"lenet", 1, 32, 14, 64, 5, 1, 2},
    {"thin", 3, 5, 17, 7, 3, 1, 1},
};

static dp_conv_shape shape_of(const layer *l, int kind)
{
    dp_conv_shape s;
    memset(&s, 0, sizeof s);
    int64_t out = (l->size + 2 * l->padding - l->kernel) / l->stride + 1;
    memcpy(s.x, (int64_t[4]){l->batch, l->in, l->size, l->size}, sizeof s.x);
    memcpy(s.w, (int64_t[4]){l->out, l->in, l->kernel, l->kernel}, sizeof s.w);
    memcpy(s.y, (int64_t[4]){l->batch, l->out, out, out}, sizeof s.y);
    for (int i = 0; i < 2; i++) {
        s.padding[i] = l->padding;
        s.stride[i] = l->stride;
    }
    s.kind = kind;
    return s;
}

static const char *const kinds[DP_CONV_KINDS] = {"forward", "data", "filter"};

static bool failed(const char *device, const layer *l, int kind, const char *text)
{
    printf("FAILED %s: %s, %lldx%lldx%lldx%lld, %lld filters of %lld, stride %lld, %s: %s\n", device,
           l->network, (long long)l->batch, (long long)l->in, (long long)l->size, (long long)l->size,
           (long long)l->out, (long long)l->kernel, (long long)l->stride, kinds[kind], text);
    return false;
}

/* Plans the layer, then once more by the place that the first plan wrote down. */
static bool plan_layer(const dp_conv_target *target, const layer *l, int kind, bool verbose)
{
    dp_conv_shape shape = shape_of(l, kind);
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
    if (verbose)
        printf("%-6s %-24s %lldx%lldx%lldx%lld to %lld, k%lld s%lld %s: engine %lld, round %d, place %d, "
               "workspace %zu\n",
               target->label, l->network, (long long)l->batch, (long long)l->in, (long long)l->size,
               (long long)l->size, (long long)l->out, (long long)l->kernel, (long long)l->stride, kinds[kind],
               (long long)choice.engine, choice.round, choice.position, bytes);
    dp_conv_choice again = choice;
    if (dp_conv_plan_create(target, &shape, &again, &plan, &err) != DP_OK)
        return failed(target->label, l, kind, err.message);
    bool same = again.round == choice.round && again.position == choice.position &&
                again.engine == choice.engine && dp_conv_plan_workspace(plan) == bytes;
    dp_conv_plan_free(plan);
    return same || failed(target->label, l, kind, "planned again, another engine came out");
}

static bool wrong_size_is_refused(const dp_conv_target *target)
{
    dp_conv_shape shape = shape_of(&layers[0], DP_CONV_FORWARD);
    shape.y[3]++;
    dp_conv_choice choice = {.engine = -1};
    dp_conv_plan *plan;
    dp_error err = {0};
    if (dp_conv_plan_create(target, &shape, &choice, &plan, &err) == DP_OK) {
        dp_conv_plan_free(plan);
        return failed(target->label, &layers[0], DP_CONV_FORWARD, "a wrong output size was accepted");
    }
    if (err.status != DP_ERROR_DEVICE || !strstr(err.message, "CUDNN_STATUS_BAD_PARAM") ||
        strchr(err.message, '\n'))
        return failed(target->label, &layers[0], DP_CONV_FORWARD, err.message);
    return true;
}

/* The notes of the engine for a shape; false after a failure. */
static bool notes_for(const dp_conv_target *target, const layer *l, bool tf32, bool direct, uint32_t *notes)
{
    dp_conv_shape shape = shape_of(l, DP_CONV_FORWARD);
    shape.allow_tf32 = tf32;
    shape.direct = direct;
    dp_conv_choice choice = {.engine = -1};
    dp_conv_plan *plan;
    dp_error err = {0};
    if (dp_conv_plan_create(target, &shape, &choice, &plan, &err) != DP_OK)
        return failed(target->label, l, DP_CONV_FORWARD, err.message);
    *notes = dp_conv_plan_notes(plan);
    dp_conv_plan_free(plan);
    return true;
}

/* With TF32 allowed tensor cores come first (from sm_80 on), and "direct" forbids Winograd. */
static bool filters_work(const dp_conv_target *target, int version)
{
    const uint32_t winograd = 1u << CUDNN_NUMERICAL_NOTE_WINOGRAD;
    static const layer usual = {"resnet18", 32, 64, 56, 64, 3, 1, 1}, *const l = &usual;
    uint32_t whole, tf32, direct;
    if (!notes_for(target, l, false, false, &whole) || !notes_for(target, l, true, false, &tf32) ||
        !notes_for(target, l, false, true, &direct))
        return false;
    if (version >= 800 && !(tf32 & 1u << CUDNN_NUMERICAL_NOTE_TENSOR_CORE))
        return failed(target->label, l, DP_CONV_FORWARD, "TF32 is allowed, but no tensor cores are used");
    if (version <= 800 && !(whole & winograd))
        return failed(target->label, l, DP_CONV_FORWARD, "no Winograd, so 'direct' cannot be tried");
    return !(direct & winograd) || failed(target->label, l, DP_CONV_FORWARD, "Winograd in spite of 'direct'");
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
    for (size_t k = 0; k < sizeof layers / sizeof *layers; k++)
        add_layer(&list, layers[k]);
    bool good = add_networks(&list, more);
    printf("cuDNN %zu\n", cudnnGetVersion());
    for (; i < argc; i++)
        good = plan_file(argv[i], &list, verbose) && good;
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}
