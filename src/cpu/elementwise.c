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
