/* ReLU, flatten, and the small passes over memory that other operations use. */
#include <string.h>

#include "base/memory.h"
#include "cpu/clones.h"
#include "cpu/internal.h"
#include "cpu/layout.h"

/* Elements below which a second thread costs more than it saves. */
enum { GRAIN = 16384 };

typedef struct elements {
    const float *source, *gate;
    float *target;
} elements;

DP_CLONES static void relu_range(const void *context, int64_t begin, int64_t end)
{
    const elements *v = context;
    const float *restrict x = v->source;
    float *restrict y = v->target;
    for (int64_t i = begin; i < end; i++)
        y[i] = x[i] <= 0 ? 0 : x[i]; /* so a NaN stays one */
}

DP_CLONES static void gated_range(const void *context, int64_t begin, int64_t end)
{
    const elements *v = context;
    const float *restrict gate = v->gate, *restrict x = v->source;
    float *restrict y = v->target;
    for (int64_t i = begin; i < end; i++)
        y[i] = gate[i] <= 0 ? 0 : x[i];
}

DP_CLONES static void mask_range(const void *context, int64_t begin, int64_t end)
{
    const elements *v = context;
    const float *restrict gate = v->gate;
    float *restrict y = v->target;
    for (int64_t i = begin; i < end; i++)
        y[i] = gate[i] <= 0 ? 0 : y[i];
}

void dp_cpu_relu_mask(int threads, int64_t count, const float *output, float *gradient)
{
    elements v = {.gate = output, .target = gradient};
    dp_cpu_for(threads, count, GRAIN, mask_range, &v);
}

DP_CLONES static void add_range(const void *context, int64_t begin, int64_t end)
{
    const elements *v = context;
    const float *restrict source = v->source;
    float *restrict target = v->target;
    for (int64_t i = begin; i < end; i++)
        target[i] += source[i];
}

void dp_cpu_add(int threads, int64_t count, const float *source, float *target)
{
    elements v = {.source = source, .target = target};
    dp_cpu_for(threads, count, GRAIN, add_range, &v);
}

void dp_cpu_store(int64_t count, const float *source, float *target, bool accumulate)
{
    if (accumulate)
        dp_cpu_add(1, count, source, target);
    else
        memcpy(target, source, (size_t)count * sizeof(float));
}

void dp_cpu_op_free(dp_cpu_op *op)
{
    dp_free(op);
}

/* ---- ReLU ---- */

static dp_status relu_forward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    dp_cpu_op *state = op->state;
    elements v = {.source = args->in[0], .target = args->out};
    dp_cpu_for(state->device->threads, (int64_t)(op->out.bytes / sizeof(float)), GRAIN, relu_range, &v);
    return DP_OK;
}

static dp_status relu_backward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    dp_cpu_op *state = op->state;
    if (!args->in_gradient[0])
        return DP_OK;
    elements v = {.gate = args->out, .source = args->out_gradient, .target = args->in_gradient[0]};
    dp_cpu_for(state->device->threads, (int64_t)(op->out.bytes / sizeof(float)), GRAIN, gated_range, &v);
    return DP_OK;
}

dp_status dp_cpu_relu_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    (void)device;
    dp_cpu_op *state;
    DP_TRY(dp_calloc(1, sizeof *state, "a ReLU", &state, err));
    *state = (dp_cpu_op){.forward = relu_forward, .backward = relu_backward, .destroy = dp_cpu_op_free};
    out->state = state;
    out->out = request->in[0];
    out->backward_reads_output = request->training;
    return DP_OK;
}

/* ---- addition ---- */

typedef struct add_op {
    dp_cpu_op common;
    int tag, second_tag;
    size_t conversion; /* offset into workspace, behind the second input in the first's layout */
} add_op;

typedef struct addition {
    const float *a, *b;
    float *out;
} addition;

DP_CLONES static void sum_range(const void *context, int64_t begin, int64_t end)
{
    const addition *v = context;
    const float *restrict a = v->a, *restrict b = v->b;
    float *restrict y = v->out;
    for (int64_t i = begin; i < end; i++)
        y[i] = a[i] + b[i];
}

DP_CLONES static void sum_relu_range(const void *context, int64_t begin, int64_t end)
{
    const addition *v = context;
    const float *restrict a = v->a, *restrict b = v->b;
    float *restrict y = v->out;
    for (int64_t i = begin; i < end; i++) {
        float sum = a[i] + b[i];
        y[i] = sum <= 0 ? 0 : sum;
    }
}

static dp_status add_forward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    add_op *state = op->state;
    int threads = state->common.device->threads;
    addition v = {args->in[0], args->in[1], args->out};
    if (state->second_tag != state->tag) {
        v.b = args->workspace;
        dp_cpu_convert(threads, &op->desc.out, state->second_tag, state->tag, args->in[1], args->workspace,
                       (float *)((char *)args->workspace + state->conversion));
    }
    dp_cpu_for(threads, (int64_t)(op->out.bytes / sizeof(float)), GRAIN,
               op->desc.relu ? sum_relu_range : sum_range, &v);
    return DP_OK;
}

static dp_status add_backward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    add_op *state = op->state;
    int threads = state->common.device->threads;
    if (op->desc.relu)
        dp_cpu_relu_mask(threads, (int64_t)(op->out.bytes / sizeof(float)), args->out, args->out_gradient);
    if (args->in_gradient[1] && state->second_tag != state->tag)
        dp_cpu_convert(threads, &op->desc.out, state->tag, state->second_tag, args->out_gradient,
                       args->in_gradient[1], (float *)((char *)args->workspace + state->conversion));
    return DP_OK;
}

dp_status dp_cpu_add_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    (void)device;
    add_op *state;
    DP_TRY(dp_calloc(1, sizeof *state, "an addition", &state, err));
    state->common = (dp_cpu_op){.forward = add_forward, .backward = add_backward, .destroy = dp_cpu_op_free};
    state->tag = request->in[0].tag;
    state->second_tag = request->in[1].tag;
    out->state = state;
    out->out = request->in[0];
    bool same = state->tag == state->second_tag;
    state->conversion = same ? 0 : dp_align64(out->out.bytes);
    out->workspace_bytes =
        state->conversion + dp_cpu_conversion_bytes(&request->desc->out, state->second_tag, state->tag);
    out->backward_reads_output = request->training && request->desc->relu;
    out->passes_gradient[0] = request->input_gradient[0];
    out->passes_gradient[1] = request->input_gradient[1] && same;
    return DP_OK;
}

/* ---- flatten ---- */

typedef struct flatten_op {
    dp_cpu_op common;
    int tag;
} flatten_op;

static dp_status flatten_forward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    flatten_op *state = op->state;
    dp_cpu_to_plain(state->common.device->threads, &op->desc.in[0], state->tag, args->in[0], args->out);
    return DP_OK;
}

static dp_status flatten_backward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    flatten_op *state = op->state;
    if (args->in_gradient[0])
        dp_cpu_from_plain(state->common.device->threads, &op->desc.in[0], state->tag, args->out_gradient,
                          args->in_gradient[0]);
    return DP_OK;
}

dp_status dp_cpu_flatten_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out,
                                dp_error *err)
{
    (void)device;
    flatten_op *state;
    DP_TRY(dp_calloc(1, sizeof *state, "a flatten", &state, err));
    state->common =
        (dp_cpu_op){.forward = flatten_forward, .backward = flatten_backward, .destroy = dp_cpu_op_free};
    state->tag = request->in[0].tag;
    out->state = state;
    return DP_OK;
}
