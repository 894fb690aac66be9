/* 3x3 and 5x5 convolutions of stride 1 by Winograd's minimal filtering F(4x4, 3x3), on few small images
 * F(2x2, 3x3), and F(2x2, 5x5), in the orders blocked by 8 and 16, where oneDNN has none (it has 3x3 for
 * AVX-512). A quarter, 4 of 9, or 9 of 25 of the direct convolution's multiplications. */
#ifndef DP_CPU_WINOGRAD_H
#define DP_CPU_WINOGRAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dp_winograd {
    int64_t batch, in_channels, in_height, in_width, out_channels, out_height, out_width;
    int padding[2];
    int kernel; /* height and width: 3 or 5 */
    int block;  /* 8 or 16 channels lie together */
} dp_winograd;

/* Whether it should be used: a rule of the shape alone. kernel, stride: height, width. */
bool dp_winograd_fits(const dp_winograd *shape, const int kernel[2], const int stride[2]);

size_t dp_winograd_workspace(const dp_winograd *shape, int threads); /* of any of the calls below */

/* Activations in blocks, weights plain [O, C, kernel, kernel]; bias may be NULL. */
void dp_winograd_forward(int threads, const dp_winograd *shape, const float *in, const float *weights,
                         const float *bias, bool relu, float *out, void *workspace);
void dp_winograd_backward_data(int threads, const dp_winograd *shape, const float *out_gradient,
                               const float *weights, float *in_gradient, void *workspace);
/* With accumulate the gradient is added to what is there. */
void dp_winograd_backward_weights(int threads, const dp_winograd *shape, const float *in,
                                  const float *out_gradient, float *weights_gradient, bool accumulate,
                                  void *workspace);

#endif
