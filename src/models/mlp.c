#include <stdio.h>

#include "models/models.h"

/* fc1, relu, fc2, relu, ... fcN. */
dp_value dp_build_mlp(dp_model *m, dp_value x, const dp_model_config *config)
{
    char name[16];
    x = dp_flatten(m, x);
    for (int i = 0; i < config->hidden_count; i++) {
        snprintf(name, sizeof name, "fc%d", i + 1);
        x = dp_relu(m, dp_linear(m, name, x, config->hidden[i]));
    }
    snprintf(name, sizeof name, "fc%d", config->hidden_count + 1);
    return dp_linear(m, name, x, config->outputs);
}
