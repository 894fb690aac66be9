/* The weight gradient of convolutions with few input channels (a network's first layer). */
#ifndef DP_CPU_THIN_CONV_H
#define DP_CPU_THIN_CONV_H

#include <stdbool.h>
#include <stddef.h>

#include "cpu/conv_shape.h"

/* Whether this code is the one to use: at most 4 input channels, kernels at most 5 wide. block: of the
 * outputs, 8 or 16 channels. */
bool dp_thin_conv_fits(const dp_conv_shape *shape, int block);

size_t dp_thin_conv_workspace(const dp_conv_shape *shape, int block);

/* x is plain [N, C, H, W]; y and its gradient are blocked. out_gradient is masked in place by y > 0 where y
 * is not NULL. weights_gradient [O, C, KH, KW] and bias_gradient [O] may each be NULL. Every sum runs in the
 * order of samples and rows, whatever `threads`. */
void dp_thin_conv_gradient(int threads, const dp_conv_shape *shape, int block, const float *x, const float *y,
                           float *out_gradient, float *weights_gradient, float *bias_gradient,
                           bool accumulate, void *workspace);

#endif
