/* Where paths of a network meet: addition and concatenation. */
#include "base/memory.h"
#include "internal.h"
#include "kernels/kernels.h"

/* ---- addition ---- */

dp_status dp_cuda_add(dp_device *device, void *stream, float *target, const float *source, int64_t count,
                      dp_error *err)
{
    DP_CUDA_TRY(dp_cuda_state(device)->label, err, dp_add(stream, source, target, count));
    return DP_OK;
}

static dp_status add_forward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                             dp_error *err)
{
    DP_CUDA_TRY(
        dp_cuda_state(device)->label, err,
        dp_sum(stream, args->in[0], args->in[1], op->desc.relu, args->out, dp_shape_elements(&op->desc.out)));
    return DP_OK;
}

/* Both gradients are the output's behind the ReLU, and stay where that is. */
static dp_status add_backward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                              dp_error *err)
{
    if (op->desc.relu)
        DP_CUDA_TRY(dp_cuda_state(device)->label, err,
                    dp_gate(stream, args->out, args->out_gradient, args->out_gradient,
                            dp_shape_elements(&op->desc.out)));
    return DP_OK;
}

dp_status dp_cuda_add_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    (void)device;
    for (int i = 0; i < 2; i++)
        out->passes_gradient[i] = request->input_gradient[i];
    out->backward_reads_output = request->training && request->desc->relu;
    return dp_cuda_plain_create((dp_cuda_op){.forward = add_forward, .backward = add_backward}, "an addition",
                                out, err);
}

/* ---- concatenation ---- */

static dp_status concat_forward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                                dp_error *err)
{
    DP_CUDA_TRY(dp_cuda_state(device)->label, err,
                dp_concat(stream, args->in[0], args->in[1], args->out, op->desc.out.dim[0],
                          dp_shape_sample_elements(&op->desc.in[0]),
                          dp_shape_sample_elements(&op->desc.in[1])));
    return DP_OK;
}

static dp_status concat_backward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                                 dp_error *err)
{
    DP_CUDA_TRY(dp_cuda_state(device)->label, err,
                dp_split(stream, args->out_gradient, args->in_gradient[0], args->in_gradient[1],
                         op->desc.out.dim[0], dp_shape_sample_elements(&op->desc.in[0]),
                         dp_shape_sample_elements(&op->desc.in[1])));
    return DP_OK;
}

dp_status dp_cuda_concat_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    (void)device, (void)request;
    return dp_cuda_plain_create((dp_cuda_op){.forward = concat_forward, .backward = concat_backward},
                                "a concatenation", out, err);
}
