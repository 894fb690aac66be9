/* Batch normalisation, with the addition and the ReLU behind it that residual networks have.
 *
 * The gradient of the second input is the output's behind the ReLU, so it stays where that is
 * (passes_gradient). Saved: mean and 1 / sqrt(variance + epsilon) of each channel. Workspace: what the pieces
 * of a channel tell of it (kernels/batch_norm.cu). */
#include <limits.h>

#include "base/memory.h"
#include "internal.h"
#include "kernels/kernels.h"

typedef struct batch_norm_op {
    dp_cuda_op common;
    dp_batch_norm_shape shape;
    bool training, added;
} batch_norm_op;

static dp_status batch_norm_forward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                                    dp_error *err)
{
    const batch_norm_op *b = op->state;
    const char *label = dp_cuda_state(device)->label;
    const float *more = b->added ? args->in[1] : NULL, *weight = args->param[0], *bias = args->param[1];
    if (b->training)
        DP_CUDA_TRY(label, err,
                    dp_batch_norm_train(stream, &b->shape, args->in[0], more, weight, bias, args->out,
                                        args->workspace, args->saved, args->buffer[0], args->buffer[1]));
    else
        DP_CUDA_TRY(label, err,
                    dp_batch_norm_infer(stream, &b->shape, args->in[0], more, weight, bias, args->out,
                                        args->buffer[0], args->buffer[1]));
    return DP_OK;
}

static dp_status batch_norm_backward(dp_device *device, dp_op *op, cudaStream_t stream,
                                     const dp_op_args *args, dp_error *err)
{
    const batch_norm_op *b = op->state;
    const float *gate = b->added && op->desc.relu ? args->out : NULL;
    DP_CUDA_TRY(dp_cuda_state(device)->label, err,
                dp_batch_norm_backward(stream, &b->shape, args->in[0], gate, args->saved, args->param[0],
                                       args->param[1], args->out_gradient, args->workspace,
                                       args->in_gradient[0], args->accumulate, args->param_gradient[0],
                                       args->param_gradient[1]));
    return DP_OK;
}

static dp_status check_shape(const dp_device *device, const int64_t in[4], const dp_batch_norm_shape *shape,
                             dp_error *err)
{
    const int64_t each = shape->batch * shape->plane;
    if (each > 1 << 30 || shape->channels * dp_batch_norm_pieces(shape) > INT_MAX)
        return dp_fail(err, DP_ERROR_USAGE, "%s: batch normalisation of %lldx%lldx%lldx%lld is too large",
                       dp_cuda_state(device)->label, (long long)in[0], (long long)in[1], (long long)in[2],
                       (long long)in[3]);
    return DP_OK;
}

dp_status dp_cuda_batch_norm_create(dp_device *device, const dp_op_request *request, dp_op *out,
                                    dp_error *err)
{
    const dp_op_desc *d = request->desc;
    const dp_batch_norm_shape shape = {.batch = d->in[0].dim[0],
                                       .channels = d->in[0].dim[1],
                                       .plane = d->in[0].dim[2] * d->in[0].dim[3],
                                       .epsilon = (float)DP_BATCH_NORM_EPSILON,
                                       .momentum = (float)DP_BATCH_NORM_MOMENTUM,
                                       .rest = (float)(1 - DP_BATCH_NORM_MOMENTUM),
                                       .relu = d->relu};
    DP_TRY(check_shape(device, d->in[0].dim, &shape, err));
    batch_norm_op *b;
    DP_TRY(dp_calloc(1, sizeof *b, "a batch normalisation", &b, err));
    b->common = (dp_cuda_op){
        .forward = batch_norm_forward, .backward = batch_norm_backward, .destroy = dp_cuda_plain_destroy};
    b->shape = shape;
    b->training = request->training;
    b->added = d->inputs > 1;
    out->state = b;
    if (!b->training)
        return DP_OK;
    out->saved_bytes = 2 * (size_t)shape.channels * sizeof(float);
    out->workspace_bytes = out->saved_bytes * (size_t)dp_batch_norm_pieces(&shape);
    out->backward_reads_input = true;
    out->backward_reads_output = b->added && d->relu;
    out->passes_gradient[1] = b->added && request->input_gradient[1];
    return DP_OK;
}
