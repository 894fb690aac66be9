/* Convolutions of few pixels as matrix products over the plain weights, in the order blocked by 8. With few
 * pixels most of the time of a convolution goes to bringing its weights into another order; a product reads
 * them as they lie, once. */
#ifndef DP_CPU_LOWERED_H
#define DP_CPU_LOWERED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cpu/onednn.h"

/* Of a convolution from `in` to `out`; a deconvolution from x to y is the one from y to x, the other way. */
typedef struct dp_lowered {
    int64_t batch, in_channels, in_height, in_width, out_channels, out_height, out_width;
    int kernel[2], stride[2], padding[2];
} dp_lowered;

dp_lowered dp_lowered_of(const dp_dnnl_conv_config *config);

/* Whether it should be used: a rule of the shape alone. */
bool dp_lowered_fits(const dp_lowered *shape);

size_t dp_lowered_workspace(const dp_lowered *shape, int threads); /* of any of the calls below */

/* Activations blocked by 8, weights plain [O, C, kernel, kernel]. */
void dp_lowered_forward(int threads, const dp_lowered *shape, const float *in, const float *weights,
                        float *out, void *workspace);
void dp_lowered_backward_data(int threads, const dp_lowered *shape, const float *out_gradient,
                              const float *weights, float *in_gradient, void *workspace);
/* With accumulate the gradient is added to what is there. */
void dp_lowered_backward_weights(int threads, const dp_lowered *shape, const float *in,
                                 const float *out_gradient, float *weights_gradient, bool accumulate,
                                 void *workspace);

#endif
