/* y = x W^T + b by oneDNN's matrix product.
 *
 * Rows that are a multiple of 2 KiB long fall on the same few sets of the first cache, which makes products
 * that walk down a column of such a matrix 1.5 to 2 times slower (512 -> 512, batch 64, AVX2: 62 instead of
 * 94 GFLOP/s for the input's gradient, 54 instead of 87 for the weight's). Such matrices are copied to rows
 * that are one cache line longer inside backward. */
#include <string.h>

#include "base/memory.h"
#include "cpu/clones.h"
#include "cpu/internal.h"

enum { GRAIN = 64, PAD = 16, SMALLEST_PADDED = 512, SMALLEST_PADDED_BATCH = 32 };

typedef struct linear_op {
    dp_cpu_op common;
    int64_t batch, in, out;
    int64_t w_row, x_row, dy_row; /* row lengths of the copies that backward makes; 0: no copy */
} linear_op;

static bool row_collides(int64_t length)
{
    return length >= SMALLEST_PADDED && length % 256 == 0;
}

/* ---- copies to longer rows ---- */

typedef struct rows {
    const float *source;
    float *target;
    int64_t length, target_row;
} rows;

static void lengthen_range(const void *context, int64_t begin, int64_t end)
{
    const rows *v = context;
    for (int64_t i = begin; i < end; i++)
        memcpy(v->target + i * v->target_row, v->source + i * v->length, (size_t)v->length * sizeof(float));
}

static void lengthen(int threads, int64_t count, int64_t length, const float *source, int64_t target_row,
                     float *target)
{
    rows v = {source, target, length, target_row};
    dp_cpu_for(threads, count, 8, lengthen_range, &v);
}

/* ---- forward ---- */

typedef struct finish {
    const float *bias;
    float *y;
    int64_t out;
    bool relu;
} finish;

DP_CLONES static void finish_range(const void *context, int64_t begin, int64_t end)
{
    const finish *v = context;
    const float *restrict bias = v->bias;
    for (int64_t i = begin; i < end; i++) {
        float *restrict y = v->y + i * v->out;
        if (bias && v->relu) {
            for (int64_t j = 0; j < v->out; j++) {
                float s = y[j] + bias[j];
                y[j] = s <= 0 ? 0 : s;
            }
        } else if (bias) {
            for (int64_t j = 0; j < v->out; j++)
                y[j] += bias[j];
        } else {
            for (int64_t j = 0; j < v->out; j++)
                y[j] = y[j] <= 0 ? 0 : y[j];
        }
    }
}

static dp_status linear_forward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    linear_op *l = op->state;
    DP_TRY(dp_dnnl_sgemm(false, true, l->batch, l->out, l->in, args->in[0], l->in, args->param[0], l->in, 0,
                         args->out, l->out, err));
    finish v = {op->desc.params > 1 ? args->param[1] : NULL, args->out, l->out, op->desc.relu};
    if (v.bias || v.relu)
        dp_cpu_for(l->common.device->threads, l->batch, 8, finish_range, &v);
    return DP_OK;
}

/* ---- backward ---- */

/* One pass over dY: the mask of a fused ReLU, the copy to longer rows, the bias gradient. Threads share the
 * columns, so each sum runs down the batch in order. */
typedef struct gradient_pass {
    const float *y; /* NULL without ReLU */
    float *dy, *copy, *sum;
    int64_t batch, out, copy_row;
} gradient_pass;

DP_CLONES static void gradient_range(const void *context, int64_t begin, int64_t end)
{
    const gradient_pass *v = context;
    float *restrict sum = v->sum;
    for (int64_t i = 0; i < v->batch; i++) {
        float *restrict dy = v->dy + i * v->out;
        if (v->y) {
            const float *restrict y = v->y + i * v->out;
            for (int64_t j = begin; j < end; j++)
                dy[j] = y[j] <= 0 ? 0 : dy[j];
        }
        if (sum)
            for (int64_t j = begin; j < end; j++)
                sum[j] += dy[j];
        if (v->copy)
            memcpy(v->copy + i * v->copy_row + begin, dy + begin, (size_t)(end - begin) * sizeof(float));
    }
}

static dp_status linear_backward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    linear_op *l = op->state;
    int threads = l->common.device->threads;
    /* The copy of dY, then one of the weights or, when these have been used, of X. */
    float *dy_copy = l->dy_row ? args->workspace : NULL, *second = args->workspace;
    second += l->batch * l->dy_row;
    float *dw = args->param_gradient[0], *db = args->param_gradient[1];
    if (db && !args->accumulate)
        memset(db, 0, (size_t)l->out * sizeof(float));
    gradient_pass pass = {.y = op->desc.relu ? args->out : NULL,
                          .dy = args->out_gradient,
                          .copy = dw ? dy_copy : NULL,
                          .sum = db,
                          .batch = l->batch,
                          .out = l->out,
                          .copy_row = l->dy_row};
    if (pass.y || pass.copy || pass.sum)
        dp_cpu_for(threads, l->out, GRAIN, gradient_range, &pass);
    const float *dy = pass.copy ? pass.copy : args->out_gradient;
    int64_t dy_row = pass.copy ? l->dy_row : l->out;
    if (args->in_gradient[0]) {
        const float *w = args->param[0];
        if (l->w_row) {
            lengthen(threads, l->out, l->in, w, l->w_row, second);
            w = second;
        }
        DP_TRY(dp_dnnl_sgemm(false, false, l->batch, l->in, l->out, dy, dy_row, w,
                             l->w_row ? l->w_row : l->in, 0, args->in_gradient[0], l->in, err));
    }
    if (!dw)
        return DP_OK;
    const float *x = args->in[0];
    int64_t x_row = l->in;
    if (l->x_row) {
        lengthen(threads, l->batch, l->in, x, l->x_row, second);
        x = second;
        x_row = l->x_row;
    }
    return dp_dnnl_sgemm(true, false, l->out, l->in, l->batch, dy, dy_row, x, x_row,
                         args->accumulate ? 1.0f : 0.0f, dw, l->in, err);
}

dp_status dp_cpu_linear_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    (void)device;
    linear_op *l;
    DP_TRY(dp_calloc(1, sizeof *l, "a linear operation", &l, err));
    l->common =
        (dp_cpu_op){.forward = linear_forward, .backward = linear_backward, .destroy = dp_cpu_op_free};
    l->batch = request->desc->in[0].dim[0];
    l->in = dp_shape_sample_elements(&request->desc->in[0]);
    l->out = dp_shape_sample_elements(&request->desc->out);
    bool large_batch = l->batch >= SMALLEST_PADDED_BATCH;
    if (request->training && request->input_gradient[0] && large_batch && row_collides(l->in))
        l->w_row = l->in + PAD;
    if (request->training && request->param_gradient[0] && large_batch) {
        l->dy_row = row_collides(l->out) ? l->out + PAD : 0;
        l->x_row = row_collides(l->in) ? l->in + PAD : 0;
    }
    int64_t w_copy = l->out * l->w_row, x_copy = l->batch * l->x_row;
    int64_t floats = l->batch * l->dy_row + (w_copy > x_copy ? w_copy : x_copy);
    out->workspace_bytes = (size_t)floats * sizeof(float);
    out->backward_reads_input = request->training && request->param_gradient[0];
    out->backward_reads_output = request->training && request->desc->relu;
    out->state = l;
    return DP_OK;
}
