/* The models by name: short builders, one file each, and the registry that finds them. */
#ifndef DP_MODELS_MODELS_H
#define DP_MODELS_MODELS_H

#include "dptrain/model.h"

/* A builder adds layers to an empty model with the given input and returns the output (negative after a
 * failure). */
dp_value dp_build_linear(dp_model *m, dp_value x, const dp_model_config *config);
dp_value dp_build_mlp(dp_model *m, dp_value x, const dp_model_config *config);
dp_value dp_build_lenet(dp_model *m, dp_value x, const dp_model_config *config);
dp_value dp_build_resnet(dp_model *m, dp_value x, const dp_model_config *config);
dp_value dp_build_vgg16(dp_model *m, dp_value x, const dp_model_config *config);
dp_value dp_build_unet16(dp_model *m, dp_value x, const dp_model_config *config);
dp_value dp_build_unet_resnet(dp_model *m, dp_value x, const dp_model_config *config);

/* Parts that the U-Nets use as encoders. prefix: "" or "encoder."; depth: "18", "34", "50", "101" (what
 * follows the digits does not matter); stage: 0..3; *channels: of x, then of the result. */
dp_value dp_build_resnet_stem(dp_model *m, const char *prefix, dp_value x, int64_t width, bool cifar);
dp_value dp_build_resnet_stage(dp_model *m, const char *prefix, const char *depth, int stage, dp_value x,
                               int64_t *channels, int64_t width);
dp_value dp_build_resnet_head(dp_model *m, const char *prefix, dp_value x, int64_t classes);

enum { DP_VGG_POOLS = 5 };

/* skips: what goes into each pooling. */
dp_value dp_build_vgg_features(dp_model *m, const char *name, dp_value x, int64_t width,
                               dp_value skips[DP_VGG_POOLS]);

#endif
