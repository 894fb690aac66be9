/* ResNet (He, Zhang, Ren, Sun 2016) with torchvision's names, and the variants for images of 32x32, which
 * begin with a 3x3 convolution and no pooling. */
#include <stdio.h>
#include <string.h>

#include "models/models.h"

enum { MAX_NAME = 64, STAGES = 4 };

typedef struct depth_spec {
    const char *digits;
    int blocks[STAGES];
    int expansion; /* 1: basic blocks; 4: bottlenecks */
} depth_spec;

static const depth_spec depths[] = {
    {"18", {2, 2, 2, 2}, 1},
    {"34", {3, 4, 6, 3}, 1},
    {"50", {3, 4, 6, 3}, 4},
    {"101", {3, 4, 23, 3}, 4},
};

static const depth_spec *find_depth(const char *digits)
{
    size_t count = sizeof depths / sizeof depths[0], length = strspn(digits, "0123456789");
    for (size_t i = 0; i < count; i++)
        if (strlen(depths[i].digits) == length && strncmp(depths[i].digits, digits, length) == 0)
            return &depths[i];
    return NULL;
}

static dp_value conv_norm(dp_model *m, const char *prefix, int index, dp_value x, int64_t channels,
                          int kernel, int stride)
{
    char conv[MAX_NAME + 16], norm[MAX_NAME + 16];
    snprintf(conv, sizeof conv, "%s.conv%d", prefix, index);
    snprintf(norm, sizeof norm, "%s.bn%d", prefix, index);
    return dp_batch_norm2d(m, norm, dp_conv2d_no_bias(m, conv, x, channels, kernel, stride, kernel / 2));
}

static dp_value shortcut(dp_model *m, const char *prefix, dp_value x, int64_t channels, int stride)
{
    char conv[MAX_NAME + 16], norm[MAX_NAME + 16];
    snprintf(conv, sizeof conv, "%s.downsample.0", prefix);
    snprintf(norm, sizeof norm, "%s.downsample.1", prefix);
    return dp_batch_norm2d(m, norm, dp_conv2d_no_bias(m, conv, x, channels, 1, stride, 0));
}

/* Two 3x3 convolutions, or 1x1, 3x3, 1x1, and the way around them. *in: channels of x, then of the result. */
static dp_value block(dp_model *m, const char *prefix, dp_value x, int64_t *in, int64_t width, int stride,
                      int expansion)
{
    int64_t out = width * expansion;
    dp_value h;
    if (expansion == 1) {
        h = dp_relu(m, conv_norm(m, prefix, 1, x, width, 3, stride));
        h = conv_norm(m, prefix, 2, h, width, 3, 1);
    } else {
        h = dp_relu(m, conv_norm(m, prefix, 1, x, width, 1, 1));
        h = dp_relu(m, conv_norm(m, prefix, 2, h, width, 3, stride));
        h = conv_norm(m, prefix, 3, h, out, 1, 1);
    }
    if (stride != 1 || *in != out)
        x = shortcut(m, prefix, x, out, stride);
    *in = out;
    return dp_relu(m, dp_add(m, h, x));
}

dp_value dp_build_resnet_stage(dp_model *m, const char *prefix, const char *depth, int stage, dp_value x,
                               int64_t *in, int64_t width)
{
    const depth_spec *spec = find_depth(depth);
    char name[MAX_NAME];
    for (int k = 0; k < spec->blocks[stage]; k++) {
        snprintf(name, sizeof name, "%slayer%d.%d", prefix, stage + 1, k);
        x = block(m, name, x, in, width << stage, k == 0 && stage > 0 ? 2 : 1, spec->expansion);
    }
    return x;
}

dp_value dp_build_resnet_stem(dp_model *m, const char *prefix, dp_value x, int64_t width, bool cifar)
{
    char conv[MAX_NAME + 16], norm[MAX_NAME + 16];
    snprintf(conv, sizeof conv, "%sconv1", prefix);
    snprintf(norm, sizeof norm, "%sbn1", prefix);
    x = cifar ? dp_conv2d_no_bias(m, conv, x, width, 3, 1, 1) : dp_conv2d_no_bias(m, conv, x, width, 7, 2, 3);
    return dp_relu(m, dp_batch_norm2d(m, norm, x));
}

dp_value dp_build_resnet_head(dp_model *m, const char *prefix, dp_value x, int64_t classes)
{
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%sfc", prefix);
    dp_model_use_init(m, DP_INIT_DEFAULT);
    return dp_linear(m, name, dp_flatten(m, dp_adaptive_avg_pool2d(m, x, 1, 1)), classes);
}

/* "resnet18", "resnet50_cifar", ... */
dp_value dp_build_resnet(dp_model *m, dp_value x, const dp_model_config *config)
{
    const char *depth = config->name + strlen("resnet");
    bool cifar = strstr(depth, "_cifar") != NULL;
    int64_t channels = config->width;
    dp_model_use_init(m, DP_INIT_KAIMING_NORMAL);
    x = dp_build_resnet_stem(m, "", x, config->width, cifar);
    if (!cifar)
        x = dp_max_pool2d(m, x, 3, 2, 1);
    for (int stage = 0; stage < STAGES; stage++)
        x = dp_build_resnet_stage(m, "", depth, stage, x, &channels, config->width);
    return dp_build_resnet_head(m, "", x, config->outputs);
}
