/* 3x3 and 5x5 convolutions of stride 1 by Winograd's minimal filtering F(4x4, 3x3), on few small images
 * F(2x2, 3x3), and F(2x2, 5x5), in the orders blocked by 8 and 16, where oneDNN has none (it has 3x3 for
 * AVX-512). A quarter, 4 of 9, or 9 of 25 of the direct convolution's multiplications. */
#ifndef DP_CPU_WINOGRAD_H
#define DP_CPU_WINOGRAD_H

#include <stdbool.h>
#include <stddef.h>

#include "cpu/conv_shape.h"

/* Whether it should be used: a rule of the shape alone. */
bool dp_winograd_fits(const dp_conv_shape *shape);

/* Of any of the calls below. block: 8 or 16 channels of activations lie together. */
size_t dp_winograd_workspace(const dp_conv_shape *shape, int block, int threads);

/* Activations in blocks, weights plain [O, C, kernel, kernel]; bias may be NULL. */
void dp_winograd_forward(int threads, const dp_conv_shape *shape, int block, const float *in,
                         const float *weights, const float *bias, bool relu, float *out, void *workspace);
void dp_winograd_backward_data(int threads, const dp_conv_shape *shape, int block, const float *out_gradient,
                               const float *weights, float *in_gradient, void *workspace);
/* With accumulate the gradient is added to what is there. */
void dp_winograd_backward_weights(int threads, const dp_conv_shape *shape, int block, const float *in,
                                  const float *out_gradient, float *weights_gradient, bool accumulate,
                                  void *workspace);

#endif
