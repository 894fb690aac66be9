/* 2-D convolution and its transpose: cuDNN for the three products, own kernels for bias and ReLU.
 *
 * A transposed convolution is what a convolution does to its gradient: its output stands where that
 * convolution's input does, and its input where the output does. So forward and data gradient change places,
 * and the filter gradient stays what it is.
 *
 * Workspace: [the engine's scratch][a weight gradient to be added to what is there][sums of planes for the
 * bias gradient], each part 256-byte aligned. */
#include <limits.h>
#include <string.h>

#include "base/memory.h"
#include "internal.h"
#include "kernels/kernels.h"

typedef struct conv_op {
    dp_cuda_op common;
    bool transposed;
    dp_conv_plan *plans[DP_CONV_KINDS]; /* by what they are to this operation; NULL where not needed */
    int64_t batch, channels, plane;     /* of the output; plane: height * width */
    int64_t weights;
    size_t sum_offset, partial_offset; /* into the workspace */
} conv_op;

/* The engine is chosen once for a shape on GPUs of one kind; who comes first chooses, all others follow, so
 * that equal chunks get equal bits on every replica. */
static dp_status make_plan(dp_device *device, const dp_conv_shape *shape, dp_conv_plan **out, dp_error *err)
{
    dp_cuda_backend *b = device->backend->state;
    const dp_cuda_device *d = dp_cuda_state(device);
    const dp_conv_target target = {.label = d->label, .handle = d->dnn};
    dp_conv_choice choice = {.engine = -1};
    dp_status status = DP_OK;
    bool chosen = false;
    pthread_mutex_lock(&b->mutex);
    for (int i = 0; i < b->conv_count && !chosen; i++) {
        const dp_cuda_conv_entry *e = &b->convs[i];
        if (memcmp(&e->shape, shape, sizeof *shape) == 0 && e->capability == d->capability &&
            e->multiprocessors == device->properties.multiprocessors) {
            choice = e->choice;
            chosen = true;
        }
    }
    if (!chosen) { /* under the lock: whoever wants the same waits for the answer */
        status = dp_conv_plan_create(&target, shape, &choice, out, err);
        if (status == DP_OK)
            status = dp_realloc(&b->convs, (size_t)b->conv_count + 1, sizeof *b->convs, "convolutions", err);
        if (status == DP_OK)
            b->convs[b->conv_count++] =
                (dp_cuda_conv_entry){*shape, d->capability, device->properties.multiprocessors, choice};
    }
    pthread_mutex_unlock(&b->mutex);
    return chosen ? dp_conv_plan_create(&target, shape, &choice, out, err) : status;
}

/* in and out: the operation's input and output, or their gradients. */
static dp_status run_plan(dp_device *device, const conv_op *c, dp_conv_kind kind, cudaStream_t stream,
                          const void *in, const void *w, const void *out, void *workspace, dp_error *err)
{
    const dp_cuda_device *d = dp_cuda_state(device);
    DP_CUDNN_TRY(d->label, err, cudnnSetStream(d->dnn, stream));
    return dp_conv_plan_execute(c->plans[kind], d->dnn, c->transposed ? out : in, w, c->transposed ? in : out,
                                workspace, err);
}

static dp_status conv_forward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                              dp_error *err)
{
    const conv_op *c = op->state;
    DP_TRY(run_plan(device, c, DP_CONV_FORWARD, stream, args->in[0], args->param[0], args->out,
                    dp_cuda_align(args->workspace), err));
    const float *bias = op->desc.params > 1 ? args->param[1] : NULL;
    if (bias || op->desc.relu)
        DP_CUDA_TRY(dp_cuda_state(device)->label, err,
                    dp_bias_planes(stream, args->out, bias, op->desc.relu, c->batch, c->channels, c->plane));
    return DP_OK;
}

/* dy goes through the mask of a fused ReLU, in place, and plane by plane into the bias gradient. */
static dp_status finish_gradient(dp_device *device, const dp_op *op, cudaStream_t stream,
                                 const dp_op_args *args, dp_error *err)
{
    const conv_op *c = op->state;
    const char *label = dp_cuda_state(device)->label;
    const float *gate = op->desc.relu ? args->out : NULL;
    float *dy = args->out_gradient, *db = args->param_gradient[1];
    if (db) {
        float *partial = (float *)(dp_cuda_align(args->workspace) + c->partial_offset);
        DP_CUDA_TRY(label, err,
                    dp_bias_gradient_planes(stream, dy, gate, partial, c->batch * c->channels, c->plane));
        DP_CUDA_TRY(label, err,
                    dp_bias_gradient_finish(stream, partial, c->batch, c->channels, args->accumulate, db));
    } else if (gate) {
        DP_CUDA_TRY(label, err, dp_gate(stream, gate, dy, dy, c->batch * c->channels * c->plane));
    }
    return DP_OK;
}

static dp_status conv_backward(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                               dp_error *err)
{
    const conv_op *c = op->state;
    char *workspace = dp_cuda_align(args->workspace);
    float *dw = args->param_gradient[0];
    DP_TRY(finish_gradient(device, op, stream, args, err));
    if (dw) {
        float *to = args->accumulate ? (float *)(workspace + c->sum_offset) : dw;
        DP_TRY(
            run_plan(device, c, DP_CONV_FILTER, stream, args->in[0], to, args->out_gradient, workspace, err));
        if (args->accumulate)
            DP_CUDA_TRY(dp_cuda_state(device)->label, err, dp_add(stream, to, dw, c->weights));
    }
    if (args->in_gradient[0])
        DP_TRY(run_plan(device, c, DP_CONV_DATA, stream, args->in_gradient[0], args->param[0],
                        args->out_gradient, workspace, err));
    return DP_OK;
}

static void conv_destroy(dp_cuda_op *op)
{
    conv_op *c = (conv_op *)op;
    for (int k = 0; k < DP_CONV_KINDS; k++)
        dp_conv_plan_free(c->plans[k]);
    dp_free(c);
}

static dp_status make_plans(dp_device *device, const dp_op_request *request, conv_op *c, dp_error *err)
{
    const dp_cuda_backend *b = device->backend->state;
    dp_conv_shape shape = dp_conv_shape_of(request->desc);
    /* Before sm_80 tensor cores know nothing better than half precision. */
    shape.allow_tf32 = b->allow_tf32 && dp_cuda_state(device)->capability >= 80;
    shape.direct = request->direct_convolution;
    const bool needed[DP_CONV_KINDS] = {
        [DP_CONV_FORWARD] = true,
        [DP_CONV_DATA] = request->training && request->input_gradient[0],
        [DP_CONV_FILTER] = request->training && request->param_gradient[0],
    };
    const dp_conv_kind turned[DP_CONV_KINDS] = {
        [DP_CONV_FORWARD] = DP_CONV_DATA,
        [DP_CONV_DATA] = DP_CONV_FORWARD,
        [DP_CONV_FILTER] = DP_CONV_FILTER,
    };
    for (int k = 0; k < DP_CONV_KINDS; k++) {
        shape.kind = c->transposed ? turned[k] : (dp_conv_kind)k;
        if (needed[k])
            DP_TRY(make_plan(device, &shape, &c->plans[k], err));
    }
    return DP_OK;
}

static size_t lay_out_workspace(conv_op *c, bool bias_gradient)
{
    size_t scratch = 0;
    for (int k = 0; k < DP_CONV_KINDS; k++)
        if (c->plans[k] && dp_conv_plan_workspace(c->plans[k]) > scratch)
            scratch = dp_conv_plan_workspace(c->plans[k]);
    c->sum_offset = dp_cuda_round_up(scratch);
    c->partial_offset = c->sum_offset;
    if (c->plans[DP_CONV_FILTER])
        c->partial_offset += dp_cuda_round_up((size_t)c->weights * sizeof(float));
    size_t partials = bias_gradient ? (size_t)(c->batch * c->channels) * sizeof(float) : 0;
    size_t bytes = c->partial_offset + partials;
    return bytes ? bytes + DP_CUDA_ALIGNMENT : 0;
}

dp_status dp_cuda_conv2d_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    const dp_op_desc *d = request->desc;
    dp_cuda_device *state = dp_cuda_state(device);
    if (d->out.dim[0] * d->out.dim[1] > INT_MAX)
        return dp_fail(err, DP_ERROR_USAGE, "%s: a convolution with %lld planes of output is too large",
                       state->label, (long long)(d->out.dim[0] * d->out.dim[1]));
    if (!state->dnn)
        DP_CUDNN_TRY(state->label, err, cudnnCreate(&state->dnn));
    conv_op *c;
    DP_TRY(dp_calloc(1, sizeof *c, "a convolution", &c, err));
    c->common = (dp_cuda_op){.forward = conv_forward, .backward = conv_backward, .destroy = conv_destroy};
    c->transposed = d->kind == DP_OP_CONV_TRANSPOSE2D;
    c->batch = d->out.dim[0];
    c->channels = d->out.dim[1];
    c->plane = d->out.dim[2] * d->out.dim[3];
    c->weights = d->out.dim[1] * d->in[0].dim[1] * d->kernel[0] * d->kernel[1];
    dp_status status = make_plans(device, request, c, err);
    if (status != DP_OK) {
        conv_destroy(&c->common);
        return status;
    }
    out->workspace_bytes = lay_out_workspace(c, request->training && request->param_gradient[1]);
    out->backward_reads_input = request->training && request->param_gradient[0];
    out->backward_reads_output = request->training && d->relu;
    out->state = c;
    return DP_OK;
}
