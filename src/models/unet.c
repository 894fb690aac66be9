/* U-Nets (Ronneberger, Fischer, Brox 2015) whose encoders are VGG-16 or ResNet: what the encoder saw at each
 * resolution is put beside what the decoder makes of the one below. */
#include <stdio.h>
#include <string.h>

#include "models/models.h"

enum { MAX_NAME = 48 };

static dp_value conv_relu(dp_model *m, const char *name, const char *leaf, dp_value x, int64_t channels)
{
    char conv[MAX_NAME];
    snprintf(conv, sizeof conv, "%s%s.conv", name, leaf);
    return dp_relu(m, dp_conv2d(m, conv, x, channels, 3, 1, 1));
}

/* Twice the height and width: bilinear and two convolutions, or one and a deconvolution. */
static dp_value decoder(dp_model *m, const char *name, dp_value x, int64_t middle, int64_t out, bool deconv)
{
    char up[MAX_NAME];
    if (!deconv)
        return conv_relu(m, name, ".block.2", conv_relu(m, name, ".block.1", dp_upsample2x(m, x), middle),
                         out);
    snprintf(up, sizeof up, "%s.block.1", name);
    x = conv_relu(m, name, ".block.0", x, middle);
    return dp_relu(m, dp_conv_transpose2d(m, up, x, out, 4, 2, 1));
}

dp_value dp_build_unet16(dp_model *m, dp_value x, const dp_model_config *c)
{
    int64_t f = c->filters;
    dp_value skip[DP_VGG_POOLS];
    dp_model_use_init(m, DP_INIT_KAIMING_NORMAL);
    x = dp_build_vgg_features(m, "encoder", x, c->width, skip);
    dp_model_use_init(m, DP_INIT_DEFAULT);
    x = decoder(m, "center", x, f * 16, f * 8, c->deconv);
    x = decoder(m, "dec5", dp_concat(m, x, skip[4]), f * 16, f * 8, c->deconv);
    x = decoder(m, "dec4", dp_concat(m, x, skip[3]), f * 16, f * 8, c->deconv);
    x = decoder(m, "dec3", dp_concat(m, x, skip[2]), f * 8, f * 2, c->deconv);
    x = decoder(m, "dec2", dp_concat(m, x, skip[1]), f * 4, f, c->deconv);
    x = conv_relu(m, "dec1", "", dp_concat(m, x, skip[0]), f);
    return dp_conv2d(m, "final", x, c->outputs, 1, 1, 0);
}

/* "unet_resnet34", "unet_resnet101". The encoder is a whole ResNet, its classifier included, so that its
 * weights are found by their names; the masks do not depend on the classifier. */
dp_value dp_build_unet_resnet(dp_model *m, dp_value x, const dp_model_config *c)
{
    const char *depth = c->name + strlen("unet_resnet");
    int64_t f = c->filters, channels = c->width;
    dp_value skip[4];
    dp_model_use_init(m, DP_INIT_KAIMING_NORMAL);
    x = dp_max_pool2d(m, dp_build_resnet_stem(m, "encoder.", x, c->width, false), 2, 2, 0);
    for (int stage = 0; stage < 4; stage++)
        x = skip[stage] = dp_build_resnet_stage(m, "encoder.", depth, stage, x, &channels, c->width);
    dp_build_resnet_head(m, "encoder.", x, 1000);
    x = decoder(m, "center", dp_max_pool2d(m, x, 2, 2, 0), f * 16, f * 8, c->deconv);
    x = decoder(m, "dec5", dp_concat(m, x, skip[3]), f * 16, f * 8, c->deconv);
    x = decoder(m, "dec4", dp_concat(m, x, skip[2]), f * 16, f * 8, c->deconv);
    x = decoder(m, "dec3", dp_concat(m, x, skip[1]), f * 8, f * 2, c->deconv);
    x = decoder(m, "dec2", dp_concat(m, x, skip[0]), f * 4, f * 4, c->deconv);
    x = decoder(m, "dec1", x, f * 4, f, c->deconv);
    x = dp_dropout2d(m, conv_relu(m, "dec0", "", x, f), c->dropout < 0 ? 0.2 : c->dropout);
    return dp_conv2d(m, "final", x, c->outputs, 1, 1, 0);
}
