#include "optim/optim.h"

#include <math.h>

dp_update_args dp_update_hyper(const dp_optimizer_config *config, double lr, int64_t step)
{
    const double beta1 = 0.9, beta2 = 0.999;
    return (dp_update_args){
        .kind = config->adamw ? DP_ADAMW : DP_SGD,
        .lr = (float)lr,
        .momentum = (float)config->momentum,
        .weight_decay = (float)config->weight_decay,
        .nesterov = config->nesterov,
        .beta1 = beta1,
        .beta2 = beta2,
        .eps = 1e-8f,
        .bias1 = (float)(1.0 - pow(beta1, (double)step)),
        .bias2 = (float)(1.0 - pow(beta2, (double)step)),
    };
}
