/* Planes to other sizes: bilinear to twice the size, and adaptive average pooling. */
#include "base/memory.h"
#include "internal.h"
#include "kernels/kernels.h"

/* ---- bilinear, twice the size ---- */

static dp_status upsample_forward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                                  dp_error *err)
{
    const int64_t *in = op->desc.in[0].dim;
    DP_CUDA_TRY(dp_cuda_state(device)->label, err,
                dp_upsample2x_forward(stream, args->in[0], args->out, in[0] * in[1], (int)in[2], (int)in[3]));
    return DP_OK;
}

static dp_status upsample_backward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                                   dp_error *err)
{
    const int64_t *in = op->desc.in[0].dim;
    if (args->in_gradient[0])
        DP_CUDA_TRY(dp_cuda_state(device)->label, err,
                    dp_upsample2x_backward(stream, args->out_gradient, args->in_gradient[0], in[0] * in[1],
                                           (int)in[2], (int)in[3]));
    return DP_OK;
}

dp_status dp_cuda_upsample_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    DP_TRY(dp_cuda_check_size(device, "upsampling", &request->desc->in[0], err));
    return dp_cuda_plain_create((dp_cuda_op){.forward = upsample_forward, .backward = upsample_backward},
                                "an upsampling", out, err);
}

/* ---- means over windows ---- */

typedef struct average_op {
    dp_cuda_op common;
    dp_average_shape shape;
} average_op;

static dp_status average_forward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                                 dp_error *err)
{
    const average_op *a = op->state;
    DP_CUDA_TRY(dp_cuda_state(device)->label, err,
                dp_average_forward(stream, &a->shape, args->in[0], args->out));
    return DP_OK;
}

static dp_status average_backward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                                  dp_error *err)
{
    const average_op *a = op->state;
    if (args->in_gradient[0])
        DP_CUDA_TRY(dp_cuda_state(device)->label, err,
                    dp_average_backward(stream, &a->shape, args->out_gradient, args->in_gradient[0]));
    return DP_OK;
}

dp_status dp_cuda_average_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    const dp_op_desc *d = request->desc;
    DP_TRY(dp_cuda_check_size(device, "average pooling", &d->in[0], err));
    DP_TRY(dp_cuda_check_size(device, "average pooling", &d->out, err));
    average_op *a;
    DP_TRY(dp_calloc(1, sizeof *a, "an average pooling", &a, err));
    a->common = (dp_cuda_op){
        .forward = average_forward, .backward = average_backward, .destroy = dp_cuda_plain_destroy};
    a->shape = (dp_average_shape){.planes = d->in[0].dim[0] * d->in[0].dim[1],
                                  .in = {(int)d->in[0].dim[2], (int)d->in[0].dim[3]},
                                  .out = {(int)d->out.dim[2], (int)d->out.dim[3]}};
    out->state = a;
    return DP_OK;
}
