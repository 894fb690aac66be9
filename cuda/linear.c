/* y = x W^T + b.
 *
 * cuBLAS sees column-major matrices: a row-major [rows, columns] array is a columns x rows matrix to it. So
 * y^T = W x^T, dx^T = W^T dy^T and dW^T = x^T dy. */
#include "base/memory.h"
#include "internal.h"
#include "kernels/kernels.h"

typedef struct linear_op {
    dp_cuda_op common;
    int64_t batch, in, out;
} linear_op;

static dp_status linear_forward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                                dp_error *err)
{
    const linear_op *l = op->state;
    const dp_cuda_gemm y = {.transpose_a = true,
                            .m = l->out,
                            .n = l->batch,
                            .k = l->in,
                            .a = args->param[0],
                            .row_a = l->in,
                            .b = args->in[0],
                            .row_b = l->in,
                            .c = args->out,
                            .row_c = l->out};
    DP_TRY(dp_cuda_gemm_run(device, stream, &y, dp_cuda_align(args->workspace), err));
    const float *bias = op->desc.params > 1 ? args->param[1] : NULL;
    if (bias || op->desc.relu)
        DP_CUDA_TRY(dp_cuda_state(device)->label, err,
                    dp_bias_columns(stream, args->out, bias, op->desc.relu, l->batch, l->out));
    return DP_OK;
}

/* dy goes through the mask of a fused ReLU, in place, and down the columns into the bias gradient. */
static dp_status finish_gradient(dp_device *device, const dp_op *op, cudaStream_t stream,
                                 const dp_op_args *args, dp_error *err)
{
    const linear_op *l = op->state;
    const char *label = dp_cuda_state(device)->label;
    const float *gate = op->desc.relu ? args->out : NULL;
    float *dy = args->out_gradient, *db = args->param_gradient[1];
    if (db) {
        float *partial = (float *)dp_cuda_align(args->workspace);
        DP_CUDA_TRY(label, err, dp_bias_gradient_columns(stream, dy, gate, partial, l->batch, l->out));
        DP_CUDA_TRY(label, err,
                    dp_bias_gradient_finish(stream, partial, dp_bias_gradient_groups(l->batch), l->out,
                                            args->accumulate, db));
    } else if (gate) {
        DP_CUDA_TRY(label, err, dp_gate(stream, gate, dy, dy, l->batch * l->out));
    }
    return DP_OK;
}

static dp_status linear_backward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                                 dp_error *err)
{
    const linear_op *l = op->state;
    void *workspace = dp_cuda_align(args->workspace);
    const float *dy = args->out_gradient;
    DP_TRY(finish_gradient(device, op, stream, args, err));
    if (args->in_gradient[0]) {
        const dp_cuda_gemm dx = {.m = l->in,
                                 .n = l->batch,
                                 .k = l->out,
                                 .a = args->param[0],
                                 .row_a = l->in,
                                 .b = dy,
                                 .row_b = l->out,
                                 .c = args->in_gradient[0],
                                 .row_c = l->in};
        DP_TRY(dp_cuda_gemm_run(device, stream, &dx, workspace, err));
    }
    if (!args->param_gradient[0])
        return DP_OK;
    const dp_cuda_gemm dw = {.transpose_b = true,
                             .m = l->in,
                             .n = l->out,
                             .k = l->batch,
                             .a = args->in[0],
                             .row_a = l->in,
                             .b = dy,
                             .row_b = l->out,
                             .beta = args->accumulate ? 1 : 0,
                             .c = args->param_gradient[0],
                             .row_c = l->in};
    return dp_cuda_gemm_run(device, stream, &dw, workspace, err);
}

static void linear_destroy(dp_cuda_op *op)
{
    dp_free(op);
}

dp_status dp_cuda_linear_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    const dp_op_desc *d = request->desc;
    int64_t batch = d->in[0].dim[0], in = dp_shape_sample_elements(&d->in[0]);
    int64_t columns = dp_shape_sample_elements(&d->out);
    const char *label = dp_cuda_state(device)->label;
    if (!dp_cuda_gemm_fits(batch) || !dp_cuda_gemm_fits(in) || !dp_cuda_gemm_fits(columns))
        return dp_fail(err, DP_ERROR_USAGE, "%s: a linear layer of %lld x %lld on %lld samples is too large",
                       label, (long long)in, (long long)columns, (long long)batch);
    DP_TRY(dp_cuda_gemm_open(device, err));
    linear_op *l;
    DP_TRY(dp_calloc(1, sizeof *l, "a linear operation", &l, err));
    l->common =
        (dp_cuda_op){.forward = linear_forward, .backward = linear_backward, .destroy = linear_destroy};
    l->batch = batch;
    l->in = in;
    l->out = columns;
    size_t partial = (size_t)(dp_bias_gradient_groups(batch) * columns) * sizeof(float);
    size_t blas = dp_cuda_gemm_workspace(columns, batch);
    if (request->training) {
        const size_t others[] = {partial, dp_cuda_gemm_workspace(in, batch),
                                 dp_cuda_gemm_workspace(in, columns)};
        for (int i = 0; i < 3; i++)
            blas = others[i] > blas ? others[i] : blas;
    }
    out->workspace_bytes = DP_CUDA_ALIGNMENT + blas;
    out->backward_reads_input = request->training && request->param_gradient[0];
    out->backward_reads_output = request->training && d->relu;
    out->state = l;
    return DP_OK;
}
