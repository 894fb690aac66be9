/* ReLU, flatten and maximum pooling: operations that are one kernel each way. */
#include <limits.h>

#include "base/memory.h"
#include "internal.h"
#include "kernels/kernels.h"

void dp_cuda_plain_destroy(dp_cuda_op *op)
{
    dp_free(op);
}

dp_status dp_cuda_plain_create(dp_cuda_op callbacks, const char *what, dp_op *out, dp_error *err)
{
    dp_cuda_op *state;
    DP_TRY(dp_calloc(1, sizeof *state, what, &state, err));
    *state = callbacks;
    state->destroy = dp_cuda_plain_destroy;
    out->state = state;
    return DP_OK;
}

dp_status dp_cuda_check_size(const dp_device *device, const char *what, const dp_shape *shape, dp_error *err)
{
    int64_t elements = dp_shape_elements(shape);
    if (elements > INT_MAX)
        return dp_fail(err, DP_ERROR_USAGE, "%s: %s of %lld values is too large: %d are possible",
                       dp_cuda_state(device)->label, what, (long long)elements, INT_MAX);
    return DP_OK;
}

/* ---- ReLU ---- */

static dp_status relu_forward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                              dp_error *err)
{
    DP_CUDA_TRY(dp_cuda_state(device)->label, err,
                dp_relu_forward(stream, args->in[0], args->out, dp_shape_elements(&op->desc.out)));
    return DP_OK;
}

static dp_status relu_backward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                               dp_error *err)
{
    if (args->in_gradient[0])
        DP_CUDA_TRY(dp_cuda_state(device)->label, err,
                    dp_gate(stream, args->out, args->out_gradient, args->in_gradient[0],
                            dp_shape_elements(&op->desc.out)));
    return DP_OK;
}

dp_status dp_cuda_relu_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    (void)device;
    out->backward_reads_output = request->training;
    return dp_cuda_plain_create((dp_cuda_op){.forward = relu_forward, .backward = relu_backward}, "a ReLU",
                                out, err);
}

/* ---- flatten: every layout is plain, so a plan makes it an alias; whoever calls it gets a copy ---- */

static dp_status flatten_forward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                                 dp_error *err)
{
    return dp_cuda_copy(device, stream, device, args->out, device, args->in[0], op->out.bytes, err);
}

static dp_status flatten_backward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                                  dp_error *err)
{
    if (!args->in_gradient[0])
        return DP_OK;
    return dp_cuda_copy(device, stream, device, args->in_gradient[0], device, args->out_gradient,
                        op->out.bytes, err);
}

dp_status dp_cuda_flatten_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    (void)device, (void)request;
    return dp_cuda_plain_create((dp_cuda_op){.forward = flatten_forward, .backward = flatten_backward},
                                "a flatten", out, err);
}

/* ---- maximum pooling ---- */

typedef struct pool_op {
    dp_cuda_op common;
    dp_pool_shape shape;
    bool keep; /* positions of the maxima, in saved */
} pool_op;

static dp_status pool_forward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                              dp_error *err)
{
    const pool_op *p = op->state;
    DP_CUDA_TRY(dp_cuda_state(device)->label, err,
                dp_max_pool_forward(stream, &p->shape, args->in[0], args->out, p->keep ? args->saved : NULL));
    return DP_OK;
}

static dp_status pool_backward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                               dp_error *err)
{
    const pool_op *p = op->state;
    if (args->in_gradient[0])
        DP_CUDA_TRY(
            dp_cuda_state(device)->label, err,
            dp_max_pool_backward(stream, &p->shape, args->out_gradient, args->saved, args->in_gradient[0]));
    return DP_OK;
}

dp_status dp_cuda_pool_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    const dp_op_desc *d = request->desc;
    const int64_t *in = d->in[0].dim, *result = d->out.dim;
    if (in[0] * in[1] > INT_MAX || in[2] * in[3] > INT_MAX)
        return dp_fail(err, DP_ERROR_USAGE, "%s: pooling of %lldx%lldx%lldx%lld is too large",
                       dp_cuda_state(device)->label, (long long)in[0], (long long)in[1], (long long)in[2],
                       (long long)in[3]);
    pool_op *p;
    DP_TRY(dp_calloc(1, sizeof *p, "a pooling operation", &p, err));
    p->common =
        (dp_cuda_op){.forward = pool_forward, .backward = pool_backward, .destroy = dp_cuda_plain_destroy};
    p->shape = (dp_pool_shape){.planes = in[0] * in[1],
                               .in = {(int)in[2], (int)in[3]},
                               .out = {(int)result[2], (int)result[3]},
                               .kernel = {d->kernel[0], d->kernel[1]},
                               .stride = {d->stride[0], d->stride[1]},
                               .padding = {d->padding[0], d->padding[1]},
                               .relu = d->relu};
    p->keep = request->training && request->input_gradient[0];
    out->saved_bytes =
        p->keep ? (size_t)dp_shape_elements(&d->out) * dp_max_pool_position_bytes(&p->shape) : 0;
    out->state = p;
    return DP_OK;
}
