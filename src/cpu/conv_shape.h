/* The shape of a convolution, as all code for convolutions takes it. */
#ifndef DP_CPU_CONV_SHAPE_H
#define DP_CPU_CONV_SHAPE_H

#include "device/device.h"

typedef struct dp_conv_shape {
    int64_t batch, in_channels, in_height, in_width, out_channels, out_height, out_width;
    int kernel[2], stride[2], padding[2]; /* height, width */
} dp_conv_shape;

/* With the kernel of an operation, from `in` to `out`: its own tensors or, for a deconvolution, the other
 * way. */
static inline dp_conv_shape dp_conv_shape_of(const dp_op_desc *d, const dp_shape *in, const dp_shape *out)
{
    return (dp_conv_shape){.batch = in->dim[0],
                           .in_channels = in->dim[1],
                           .in_height = in->dim[2],
                           .in_width = in->dim[3],
                           .out_channels = out->dim[1],
                           .out_height = out->dim[2],
                           .out_width = out->dim[3],
                           .kernel = {d->kernel[0], d->kernel[1]},
                           .stride = {d->stride[0], d->stride[1]},
                           .padding = {d->padding[0], d->padding[1]}};
}

#endif
