/* Convolutions of few pixels as matrix products over the plain weights (im2col), in the order blocked by 8.
 * With few pixels most of the time of a convolution goes to bringing its weights into another order; a
 * product reads them as they lie, once.
 *
 * A deconvolution from x to y is the convolution from y to x, the other way: y is `in` here, and x is `out`.
 */
#ifndef DP_CPU_IM2COL_H
#define DP_CPU_IM2COL_H

#include <stdbool.h>
#include <stddef.h>

#include "cpu/conv_shape.h"

/* Whether it should be used for activations in the layout `tag`: a rule of the shape and of the machine's
 * vectors. */
bool dp_im2col_fits(const dp_conv_shape *shape, int tag);

size_t dp_im2col_workspace(const dp_conv_shape *shape, int threads);

/* Activations are blocked by 8, weights plain [O, C, kernel, kernel]. The workspace keeps the activations as
 * matrices from call to call. Two calls bring them there, in either order: */
void dp_im2col_take_in(int threads, const dp_conv_shape *shape, const float *in, void *workspace);
void dp_im2col_take_out(int threads, const dp_conv_shape *shape, const float *out, void *workspace);

/* The convolution of the `in` that was taken; the `out` that was taken is lost. */
void dp_im2col_forward(int threads, const dp_conv_shape *shape, const float *weights, float *out,
                       void *workspace);

/* The gradient of `in`, of the gradient that was taken as `out`; the `in` that was taken is lost. */
void dp_im2col_backward_data(int threads, const dp_conv_shape *shape, const float *weights,
                             float *in_gradient, void *workspace);

/* The gradient of the weights, of both that were taken; with accumulate it is added to what is there. */
void dp_im2col_backward_weights(int threads, const dp_conv_shape *shape, float *weights_gradient,
                                bool accumulate, void *workspace);

#endif
