/* VGG-16 (Simonyan, Zisserman 2015) with torchvision's names. */
#include <stdio.h>

#include "models/models.h"

/* Channels in units of 1/64 of the widest first layer's, 0 for pooling. */
static const int layers[] = {1, 1, 0, 2, 2, 0, 4, 4, 4, 0, 8, 8, 8, 0, 8, 8, 8, 0};
enum { LAYERS = sizeof layers / sizeof layers[0] };

dp_value dp_build_vgg_features(dp_model *m, const char *name, dp_value x, int64_t width,
                               dp_value skips[DP_VGG_POOLS])
{
    char conv[32];
    int index = 0, pools = 0; /* as nn.Sequential counts: convolution, ReLU, pooling */
    for (int i = 0; i < LAYERS; i++)
        if (layers[i] == 0) {
            skips[pools++] = x;
            x = dp_max_pool2d(m, x, 2, 2, 0);
            index++;
        } else {
            snprintf(conv, sizeof conv, "%s.%d", name, index);
            x = dp_relu(m, dp_conv2d(m, conv, x, layers[i] * width, 3, 1, 1));
            index += 2;
        }
    return x;
}

dp_value dp_build_vgg16(dp_model *m, dp_value x, const dp_model_config *config)
{
    dp_value skips[DP_VGG_POOLS];
    double p = config->dropout < 0 ? 0.5 : config->dropout;
    int64_t hidden = 64 * config->width;
    dp_model_use_init(m, DP_INIT_KAIMING_NORMAL);
    x = dp_build_vgg_features(m, "features", x, config->width, skips);
    x = dp_flatten(m, dp_adaptive_avg_pool2d(m, x, 7, 7));
    dp_model_use_init(m, DP_INIT_NORMAL);
    x = dp_dropout(m, dp_relu(m, dp_linear(m, "classifier.0", x, hidden)), p);
    x = dp_dropout(m, dp_relu(m, dp_linear(m, "classifier.3", x, hidden)), p);
    return dp_linear(m, "classifier.6", x, config->outputs);
}
