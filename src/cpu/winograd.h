/* 3x3 convolutions of stride 1 by Winograd's minimal filtering F(4x4, 3x3), in the order blocked by 8: for
 * machines where oneDNN has none (it needs AVX-512). A quarter of the direct convolution's multiplications.
 */
#ifndef DP_CPU_WINOGRAD_H
#define DP_CPU_WINOGRAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dp_winograd {
    int64_t batch, in_channels, in_height, in_width, out_channels, out_height, out_width;
    int padding[2];
} dp_winograd;

/* Whether it should be used: a rule of the shape alone. kernel, stride: height, width. */
bool dp_winograd_fits(const dp_winograd *shape, const int kernel[2], const int stride[2]);

size_t dp_winograd_workspace(const dp_winograd *shape, int threads); /* of any of the calls below */

/* Activations blocked by 8, weights plain [O, C, 3, 3]; bias may be NULL. */
void dp_winograd_forward(int threads, const dp_winograd *shape, const float *in, const float *weights,
                         const float *bias, bool relu, float *out, void *workspace);
void dp_winograd_backward_data(int threads, const dp_winograd *shape, const float *out_gradient,
                               const float *weights, float *in_gradient, void *workspace);
/* Either gradient may be NULL. With accumulate they are added to what is there. */
void dp_winograd_backward_weights(int threads, const dp_winograd *shape, const float *in,
                                  const float *out_gradient, float *weights_gradient, float *bias_gradient,
                                  bool accumulate, void *workspace);

#endif
