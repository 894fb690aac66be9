#include "models/models.h"

/* torch.nn.Linear by itself: parameters "weight" and "bias". */
dp_value dp_build_linear(dp_model *m, dp_value x, const dp_model_config *config)
{
    return dp_linear(m, "", dp_flatten(m, x), config->outputs);
}
