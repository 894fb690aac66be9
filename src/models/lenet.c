#include "models/models.h"

/* Two 5x5 convolutions with 2x2 max-pooling, then two linear layers: LeNet's shape (LeCun et al. 1998) with
 * the ReLU, pooling and widths that are usual today. */
dp_value dp_build_lenet(dp_model *m, dp_value x, const dp_model_config *config)
{
    x = dp_max_pool2d(m, dp_relu(m, dp_conv2d(m, "conv1", x, 32, 5, 1, 2)), 2, 2, 0);
    x = dp_max_pool2d(m, dp_relu(m, dp_conv2d(m, "conv2", x, 64, 5, 1, 2)), 2, 2, 0);
    x = dp_relu(m, dp_linear(m, "fc1", dp_flatten(m, x), 512));
    return dp_linear(m, "fc2", x, config->outputs);
}
