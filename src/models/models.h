/* The models by name: short builders, one file each, and the registry that finds them. */
#ifndef DP_MODELS_MODELS_H
#define DP_MODELS_MODELS_H

#include "dptrain/model.h"

/* A builder adds layers to an empty model with the given input and returns the output (negative after a
 * failure). */
dp_value dp_build_linear(dp_model *m, dp_value x, const dp_model_config *config);
dp_value dp_build_mlp(dp_model *m, dp_value x, const dp_model_config *config);
dp_value dp_build_lenet(dp_model *m, dp_value x, const dp_model_config *config);

#endif
