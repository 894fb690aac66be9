/* From the graph as it was built to the list of operations that run: what the output does not depend on is
 * left out, activations are fused into their neighbours. */
#include "nn/graph.h"

#include <string.h>

#include "base/memory.h"

dp_shape dp_value_shape(const dp_model *model, dp_value value, int64_t n)
{
    const dp_graph_value *v = &model->values[value];
    dp_shape shape = {.rank = v->rank + 1, .dim = {n}};
    memcpy(&shape.dim[1], v->shape, (size_t)v->rank * sizeof v->shape[0]);
    return shape;
}

dp_op_desc dp_node_desc(const dp_model *model, const dp_node *node, int64_t n)
{
    dp_op_desc d = {.kind = node->kind, .inputs = 1, .params = node->params, .relu = node->relu};
    d.in[0] = dp_value_shape(model, node->input, n);
    d.out = dp_value_shape(model, node->output, n);
    for (int i = 0; i < 2; i++) {
        d.kernel[i] = node->kernel;
        d.stride[i] = node->stride;
        d.padding[i] = node->padding;
    }
    return d;
}

static bool takes_relu(dp_op_kind kind)
{
    return kind == DP_OP_LINEAR || kind == DP_OP_CONV2D || kind == DP_OP_MAX_POOL2D;
}

/* Removes program[i], whose only reader is program[i + 1], by joining its ends. */
static void remove_step(dp_node *program, int *count, int i)
{
    program[i + 1].input = program[i].input;
    memmove(&program[i], &program[i + 1], (size_t)(*count - i - 1) * sizeof *program);
    --*count;
}

/* max(0, .) and max-pooling commute, values and gradients alike (where the pooled value is not positive,
 * nothing passes either way), and after pooling there is less to do: conv, relu, pool becomes conv, pool with
 * relu. Other relus are done by the operation before them. */
static void fuse_relu(dp_node *program, int *count)
{
    for (int i = 0; i < *count; i++) {
        if (program[i].kind != DP_OP_RELU)
            continue;
        if (i + 1 < *count && program[i + 1].kind == DP_OP_MAX_POOL2D) {
            program[i + 1].relu = true;
            remove_step(program, count, i--);
        } else if (i > 0 && takes_relu(program[i - 1].kind)) {
            program[i - 1].relu = true;
            program[i - 1].output = program[i].output;
            memmove(&program[i], &program[i + 1], (size_t)(*count - i - 1) * sizeof *program);
            --*count;
            i--;
        }
    }
}

/* Losses and users read plain rows, while a device may keep images in an order of its own: a program that
 * ends with images gets a last flatten, which brings them home (and costs nothing where they are plain
 * already). */
static dp_status end_plain(dp_model *m, dp_error *err)
{
    m->result = m->output;
    if (m->values[m->output].rank == 1)
        return DP_OK;
    m->result = dp_flatten(m, m->output);
    return m->result >= 0 ? DP_OK : dp_fail(err, m->failure.status, "%s", m->failure.message);
}

dp_status dp_model_make_program(dp_model *model, dp_error *err)
{
    DP_TRY(end_plain(model, err));
    /* Every node has one input, so what the output depends on is a chain. */
    int count = 0;
    for (dp_value v = model->result; v != model->input; v = model->nodes[model->values[v].producer].input)
        count++;
    DP_TRY(dp_calloc((size_t)count, sizeof *model->program, "a model's program", &model->program, err));
    dp_value v = model->result;
    for (int i = count - 1; i >= 0; i--) {
        model->program[i] = model->nodes[model->values[v].producer];
        v = model->program[i].input;
    }
    fuse_relu(model->program, &count);
    model->program_count = count;
    for (int i = 0; i < count; i++)
        for (int p = 0; p < model->program[i].params; p++)
            model->params[model->program[i].param[p]].info.used = true;
    return DP_OK;
}
