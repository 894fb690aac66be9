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

/* Which operations do nothing: a flatten of what lies plain, and dropout outside training. */
static bool is_alias(const dp_plan *plan, const dp_node *node)
{
    if (node->kind == DP_OP_FLATTEN)
        return plan->values[node->input[0]].layout.tag == DP_LAYOUT_PLAIN;
    return !plan->training && (node->kind == DP_OP_DROPOUT || node->kind == DP_OP_DROPOUT2D);
}

/* Creates one operation; it sees the layouts that the ones before it chose. A step has a gradient to compute
 * if a parameter of its own or of an earlier step on its way is trainable. */
static dp_status create_op(dp_plan *plan, int i, const dp_plan_options *options, dp_error *err)
{
    dp_plan_step *step = &plan->steps[i];
    const dp_node *node = step->node = &plan->model->program[i];
    const dp_op_desc desc = dp_node_desc(plan->model, node, plan->samples);
    dp_plan_value *out = &plan->values[node->output];
    dp_op_request request = {
        .desc = &desc, .training = options->training, .direct_convolution = options->direct_convolution};
    for (int k = 0; k < node->inputs; k++) {
        const dp_plan_value *in = &plan->values[node->input[k]];
        request.in[k] = in->layout;
        request.input_gradient[k] = step->flow[k].wanted = in->wanted;
        step->flow[k].block = -1;
        out->wanted |= in->wanted;
    }
    for (int p = 0; p < node->params; p++) {
        request.param_gradient[p] = options->training && options->trainable[node->param[p]];
        step->param_gradient[p] = request.param_gradient[p];
        out->wanted |= request.param_gradient[p];
    }
    step->backward = out->wanted;
    step->alias = is_alias(plan, node);
    if (step->alias) {
        out->layout = request.in[0];
        return DP_OK;
    }
    dp_status status = plan->device->backend->call->op_create(plan->device, &request, &step->op, err);
    if (status != DP_OK) {
        dp_error_prefix(err, "%s %d of model '%s'", dp_op_kind_name(node->kind), i, plan->model->name);
        return status;
    }
    out->layout = step->op.out;
    if (step->op.workspace_bytes > plan->workspace_bytes)
        plan->workspace_bytes = step->op.workspace_bytes;
    return DP_OK;
}

/* The value whose memory each value shares: an alias has none of its own. */
static void find_storage(dp_plan *plan)
{
    for (int v = 0; v < plan->model->value_count; v++)
        plan->values[v].storage = v;
    for (int i = 0; i < plan->step_count; i++)
        if (plan->steps[i].alias)
            plan->values[plan->steps[i].node->output].storage =
                plan->values[plan->steps[i].node->input[0]].storage;
}

static dp_plan_value *stored(dp_plan *plan, dp_value value)
{
    return &plan->values[plan->values[value].storage];
}

static void live_until(dp_plan *plan, int block, int moment)
{
    if (block >= 0 && plan->blocks[block].last < moment)
        plan->blocks[block].last = moment;
}

/* A value lives from the step that makes it to the last that reads it, forward or backward. */
static void plan_values(dp_plan *plan)
{
    for (int v = 0; v < plan->model->value_count; v++)
        plan->values[v].data_block = plan->values[v].gradient_block = -1;
    for (int i = 0; i < plan->step_count; i++) {
        dp_plan_step *step = &plan->steps[i];
        for (int k = 0; k < step->node->inputs; k++)
            live_until(plan, stored(plan, step->node->input[k])->data_block, i);
        if (step->alias)
            continue;
        dp_plan_value *out = &plan->values[step->node->output];
        out->data_block = add_block(plan, step->op.out.bytes, i, i);
        int last = step->backward ? backward_moment(plan, i) : i;
        step->saved_block = add_block(plan, step->op.saved_bytes, i, last);
        if (step->op.backward_reads_input)
            live_until(plan, stored(plan, step->node->input[0])->data_block, last);
        if (step->op.backward_reads_output)
            live_until(plan, out->data_block, last);
    }
    live_until(plan, stored(plan, plan->model->result)->data_block, plan->step_count);
}

/* Where the gradient of input k of a step goes. The first reader of a value (backwards) writes it, the others
 * add to it. An operation that passes its out_gradient on gives away the memory itself, but only once. */
static void plan_flow(dp_plan *plan, dp_plan_step *step, int k, int moment, bool *given)
{
    struct dp_plan_flow *flow = &step->flow[k];
    dp_plan_value *in = stored(plan, step->node->input[k]);
    const dp_plan_value *out = &plan->values[step->node->output];
    flow->taken = step->op.passes_gradient[k];
    flow->added = in->gradient_block >= 0;
    if (flow->added) {
        if (!flow->taken)
            flow->block = add_block(plan, in->layout.bytes, moment, moment);
    } else if (flow->taken && !*given) {
        in->gradient_block = out->gradient_block;
        *given = true;
    } else {
        in->gradient_block = add_block(plan, in->layout.bytes, moment, moment);
    }
}

/* A gradient lives from the backward step of its value's last reader (the loss, for the output) to that of
 * its maker. */
static void plan_gradients(dp_plan *plan)
{
    int S = plan->step_count;
    dp_plan_value *result = stored(plan, plan->model->result);
    if (result->wanted)
        result->gradient_block = add_block(plan, result->layout.bytes, S, S);
    for (int i = S - 1; i >= 0; i--) {
        dp_plan_step *step = &plan->steps[i];
        if (!step->backward || step->alias)
            continue;
        int moment = backward_moment(plan, i);
        live_until(plan, plan->values[step->node->output].gradient_block, moment);
        bool given = false;
        for (int k = 0; k < step->node->inputs; k++)
            if (step->flow[k].wanted)
                plan_flow(plan, step, k, moment, &given);
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
        (status = dp_calloc((2 + DP_OP_MAX_INPUTS) * steps + 1, sizeof *plan->blocks, "a plan", &plan->blocks,
                            err)) != DP_OK)
        goto failed;
    dp_shape input = dp_value_shape(model, model->input, samples);
    plan->values[model->input].layout =
        (dp_layout){DP_LAYOUT_PLAIN, (size_t)dp_shape_elements(&input) * sizeof(float)};
    for (int i = 0; i < plan->step_count; i++)
        if ((status = create_op(plan, i, options, err)) != DP_OK)
            goto failed;
    find_storage(plan);
    plan_values(plan);
    plan_gradients(plan);
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

/* The addresses of a step's inputs and of their gradients. */
static void bind_inputs(dp_plan *plan, dp_plan_step *step, const dp_plan_memory *memory)
{
    dp_op_args *a = &step->args;
    for (int k = 0; k < step->node->inputs; k++) {
        struct dp_plan_flow *flow = &step->flow[k];
        dp_value in = plan->values[step->node->input[k]].storage;
        step->reads_batch[k] = in == plan->model->input;
        a->in[k] = plan->values[in].data; /* NULL where the batch is read */
        flow->bytes = plan->values[in].layout.bytes;
        flow->target = flow->wanted ? plan->values[in].gradient : NULL;
        flow->source = flow->taken ? a->out_gradient : flow->added ? place(plan, memory, flow->block) : NULL;
        a->in_gradient[k] = flow->source ? flow->source : flow->target;
    }
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
        dp_op_args *a = &step->args;
        a->out = plan->values[node->output].data;
        a->out_gradient = plan->values[node->output].gradient;
        bind_inputs(plan, step, memory);
        a->saved = place(plan, memory, step->saved_block);
        a->workspace = memory->workspace;
        a->random = memory->random;
        for (int p = 0; p < node->params; p++) {
            a->param[p] = memory->parameters + memory->offset[node->param[p]];
            a->param_gradient[p] =
                step->param_gradient[p] ? memory->gradients + memory->offset[node->param[p]] : NULL;
        }
        for (int b = 0; b < node->buffers; b++)
            a->buffer[b] = plan->training && !memory->keep_running
                               ? NULL
                               : memory->buffers + plan->model->buffers[node->buffer[b]].info.offset;
    }
    const dp_plan_value *out = stored(plan, plan->model->result);
    plan->output = out->data;
    plan->output_gradient = out->gradient;
}

/* The arguments of a step with the batch's input filled in where the step reads it. */
static dp_op_args *arguments(dp_plan *plan, int step, const float *input)
{
    dp_plan_step *s = &plan->steps[step];
    for (int k = 0; k < s->node->inputs; k++)
        if (s->reads_batch[k])
            s->args.in[k] = input;
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

/* Takes the gradient of input k to where it belongs, unless it is there. */
static dp_status deliver(const dp_plan_step *s, int k, dp_stream *stream, dp_error *err)
{
    const struct dp_plan_flow *flow = &s->flow[k];
    dp_device *device = stream->device;
    if (!flow->target || !flow->source || flow->source == flow->target)
        return DP_OK;
    if (flow->added)
        return device->backend->call->add(device, stream->handle, flow->target, flow->source,
                                          (int64_t)(flow->bytes / sizeof(float)), err);
    return dp_copy(stream, device, flow->target, device, flow->source, flow->bytes, err);
}

dp_status dp_plan_backward(dp_plan *plan, int step, const float *input, bool accumulate, dp_stream *stream,
                           dp_error *err)
{
    dp_plan_step *s = &plan->steps[step];
    if (s->alias || !s->backward)
        return DP_OK;
    dp_op_args *args = arguments(plan, step, input);
    args->accumulate = accumulate;
    DP_TRY(s->op.backend->call->op_backward(plan->device, &s->op, stream->handle, args, err));
    for (int k = 0; k < s->node->inputs; k++)
        DP_TRY(deliver(s, k, stream, err));
    return DP_OK;
}
