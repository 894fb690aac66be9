/* The weight gradient of convolutions with few input channels (a network's first layer). */
#ifndef DP_CPU_THIN_CONV_H
#define DP_CPU_THIN_CONV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* x is plain [N, C, H, W]; y and its gradient are blocked by 8 or 16 channels. */
typedef struct dp_thin_conv {
    int64_t batch, in_channels, in_height, in_width, out_channels, out_height, out_width;
    int kernel[2], stride[2], padding[2];
    int block; /* 8 or 16 */
} dp_thin_conv;

/* Whether this code is the one to use: at most 4 input channels, kernels at most 5 wide. */
bool dp_thin_conv_fits(const dp_thin_conv *shape);

size_t dp_thin_conv_workspace(const dp_thin_conv *shape);

/* out_gradient is masked in place by y > 0 where y is not NULL. weights_gradient [O, C, KH, KW] and
 * bias_gradient [O] may each be NULL. Every sum runs in the order of samples and rows, whatever `threads`. */
void dp_thin_conv_gradient(int threads, const dp_thin_conv *shape, const float *x, const float *y,
                           float *out_gradient, float *weights_gradient, float *bias_gradient,
                           bool accumulate, void *workspace);

#endif
