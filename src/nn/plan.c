#include "nn/plan.h"

#include <string.h>

#include "base/memory.h"
#include "nn/memory_plan.h"

/* Moments of a plan's life: forward of step i is i, the loss comes at S, backward of step i at 2S - i. */
static int backward_moment(const dp_plan *plan, int step)
{
    return 2 * plan->step_count - step;
}

static int add_block(dp_plan *plan, size_t bytes, int first, int last)
{
    plan->blocks[plan->block_count] = (dp_block){.bytes = bytes, .first = first, .last = last};
    return plan->block_count++;
}

/* Creates the operations in order; each sees the layouts that the ones before it chose. A step has a gradient
 * to compute if a parameter of its own or of an earlier step is trainable. */
static dp_status create_ops(dp_plan *plan, const dp_plan_options *options, dp_error *err)
{
    bool wanted = false; /* does the current value need a gradient? */
    for (int i = 0; i < plan->step_count; i++) {
        dp_plan_step *step = &plan->steps[i];
        const dp_node *node = &plan->model->program[i];
        const dp_op_desc desc = dp_node_desc(plan->model, node, plan->samples);
        const dp_layout in = plan->values[node->input].layout;
        step->node = node;
        dp_op_request request = {.desc = &desc,
                                 .in = {in},
                                 .training = options->training,
                                 .input_gradient = {options->training && wanted},
                                 .direct_convolution = options->direct_convolution};
        for (int p = 0; p < node->params; p++) {
            request.param_gradient[p] = options->training && options->trainable[node->param[p]];
            step->param_gradient[p] = request.param_gradient[p];
            wanted |= options->trainable[node->param[p]];
        }
        step->backward = options->training && wanted;
        step->alias = node->kind == DP_OP_FLATTEN && in.tag == DP_LAYOUT_PLAIN;
        if (step->alias) {
            plan->values[node->output].layout = in;
            continue;
        }
        dp_status status = plan->device->backend->call->op_create(plan->device, &request, &step->op, err);
        if (status != DP_OK) {
            dp_error_prefix(err, "%s %d of model '%s'", dp_op_kind_name(node->kind), i, plan->model->name);
            return status;
        }
        plan->values[node->output].layout = step->op.out;
        if (step->op.workspace_bytes > plan->workspace_bytes)
            plan->workspace_bytes = step->op.workspace_bytes;
        step->packed_offset = plan->packed_bytes;
        plan->packed_bytes += (step->op.packed_bytes + 63) / 64 * 64;
    }
    return DP_OK;
}

/* The value whose memory `value` shares: an alias has none of its own. */
static dp_value storage(const dp_plan *plan, dp_value value)
{
    for (int i = plan->step_count - 1; i >= 0; i--)
        if (plan->steps[i].alias && plan->steps[i].node->output == value)
            value = plan->steps[i].node->input;
    return value;
}

static void live_until(dp_plan *plan, dp_value value, int moment)
{
    int block = plan->values[storage(plan, value)].data_block;
    if (block >= 0 && plan->blocks[block].last < moment)
        plan->blocks[block].last = moment;
}

/* A value lives from the step that makes it to the last that reads it, forward or backward; its gradient from
 * the backward step of its reader (the loss, for the output) to that of its maker. */
static void plan_lifetimes(dp_plan *plan)
{
    int S = plan->step_count;
    for (int v = 0; v < plan->model->value_count; v++)
        plan->values[v].data_block = plan->values[v].gradient_block = -1;
    for (int i = 0; i < S; i++) {
        const dp_plan_step *step = &plan->steps[i];
        dp_plan_value *out = &plan->values[step->node->output];
        if (step->alias)
            continue;
        out->data_block = add_block(plan, step->op.out.bytes, i, i);
    }
    for (int i = 0; i < S; i++) {
        dp_plan_step *step = &plan->steps[i];
        live_until(plan, step->node->input, i);
        if (step->alias)
            continue;
        step->saved_block =
            add_block(plan, step->op.saved_bytes, i, step->backward ? backward_moment(plan, i) : i);
        if (step->backward && step->op.backward_reads_input)
            live_until(plan, step->node->input, backward_moment(plan, i));
        if (step->backward && step->op.backward_reads_output)
            live_until(plan, step->node->output, backward_moment(plan, i));
    }
    live_until(plan, plan->model->result, S);
    int reader = S; /* the moment at which the current value's gradient appears */
    for (int i = S - 1; i >= 0; i--) {
        const dp_plan_step *step = &plan->steps[i];
        if (!step->backward || step->alias)
            continue;
        plan->values[step->node->output].gradient_block =
            add_block(plan, step->op.out.bytes, reader, backward_moment(plan, i));
        reader = backward_moment(plan, i);
    }
}

dp_status dp_plan_create(dp_device *device, const dp_model *model, int64_t samples,
                         const dp_plan_options *options, dp_plan **out, dp_error *err)
{
    DP_TRY(dp_calloc(1, sizeof **out, "a plan", out, err));
    dp_plan *plan = *out;
    plan->device = device;
    plan->model = model;
    plan->samples = samples;
    plan->training = options->training;
    plan->step_count = model->program_count;
    dp_status status;
    size_t steps = (size_t)plan->step_count;
    if ((status = dp_calloc(steps, sizeof *plan->steps, "a plan", &plan->steps, err)) != DP_OK ||
        (status = dp_calloc((size_t)model->value_count, sizeof *plan->values, "a plan", &plan->values,
                            err)) != DP_OK ||
        (status = dp_calloc(3 * steps, sizeof *plan->blocks, "a plan", &plan->blocks, err)) != DP_OK)
        goto failed;
    dp_shape input = dp_value_shape(model, model->input, samples);
    plan->values[model->input].layout =
        (dp_layout){DP_LAYOUT_PLAIN, (size_t)dp_shape_elements(&input) * sizeof(float)};
    if ((status = create_ops(plan, options, err)) != DP_OK)
        goto failed;
    plan_lifetimes(plan);
    status = dp_pack_blocks(plan->blocks, plan->block_count, &plan->activation_bytes, err);
    if (status != DP_OK)
        goto failed;
    return DP_OK;
failed:
    dp_plan_free(plan);
    *out = NULL;
    return status;
}

void dp_plan_free(dp_plan *plan)
{
    if (!plan)
        return;
    for (int i = 0; plan->steps && i < plan->step_count; i++)
        if (plan->steps[i].op.backend)
            plan->device->backend->call->op_destroy(plan->device, &plan->steps[i].op);
    dp_free(plan->steps);
    dp_free(plan->values);
    dp_free(plan->blocks);
    dp_free(plan);
}

static void *place(const dp_plan *plan, const dp_plan_memory *memory, int block)
{
    return block < 0 ? NULL : (char *)memory->activations + plan->blocks[block].offset;
}

void dp_plan_bind(dp_plan *plan, const dp_plan_memory *memory)
{
    for (int v = 0; v < plan->model->value_count; v++) {
        plan->values[v].data = place(plan, memory, plan->values[v].data_block);
        plan->values[v].gradient = place(plan, memory, plan->values[v].gradient_block);
    }
    for (int i = 0; i < plan->step_count; i++) {
        dp_plan_step *step = &plan->steps[i];
        const dp_node *node = step->node;
        if (step->alias)
            continue;
        dp_value in = storage(plan, node->input);
        dp_op_args *a = &step->args;
        step->reads_batch = in == plan->model->input;
        a->in[0] = plan->values[in].data; /* NULL where the batch is read */
        a->out = plan->values[node->output].data;
        a->out_gradient = plan->values[node->output].gradient;
        a->in_gradient[0] = plan->values[in].gradient; /* NULL where no gradient is wanted */
        a->saved = place(plan, memory, step->saved_block);
        a->workspace = memory->workspace;
        a->packed = (char *)memory->packed + step->packed_offset;
        for (int p = 0; p < node->params; p++) {
            a->param[p] = memory->parameters + memory->offset[node->param[p]];
            a->param_gradient[p] =
                step->param_gradient[p] ? memory->gradients + memory->offset[node->param[p]] : NULL;
        }
    }
    dp_value out = storage(plan, plan->model->result);
    plan->output = plan->values[out].data;
    plan->output_gradient = plan->values[out].gradient;
}

dp_status dp_plan_prepare(dp_plan *plan, int step, dp_stream *stream, dp_error *err)
{
    dp_plan_step *s = &plan->steps[step];
    if (s->alias || s->op.packed_bytes == 0)
        return DP_OK;
    return s->op.backend->call->op_prepare(plan->device, &s->op, stream->handle, &s->args, err);
}

/* The arguments of a step with the batch's input filled in where the step reads it. */
static dp_op_args *arguments(dp_plan *plan, int step, const float *input)
{
    dp_plan_step *s = &plan->steps[step];
    if (s->reads_batch)
        s->args.in[0] = input;
    return &s->args;
}

dp_status dp_plan_forward(dp_plan *plan, int step, const float *input, dp_stream *stream, dp_error *err)
{
    dp_plan_step *s = &plan->steps[step];
    if (s->alias)
        return DP_OK;
    return s->op.backend->call->op_forward(plan->device, &s->op, stream->handle, arguments(plan, step, input),
                                           err);
}

dp_status dp_plan_backward(dp_plan *plan, int step, const float *input, bool accumulate, dp_stream *stream,
                           dp_error *err)
{
    dp_plan_step *s = &plan->steps[step];
    if (s->alias || !s->backward)
        return DP_OK;
    dp_op_args *args = arguments(plan, step, input);
    args->accumulate = accumulate;
    return s->op.backend->call->op_backward(plan->device, &s->op, stream->handle, args, err);
}
