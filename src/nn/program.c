/* From the builder's nodes to the list of operations that run: what the output does not depend on is left
 * out, activations and additions are fused into their neighbours. */
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
    dp_op_desc d = {.kind = node->kind,
                    .inputs = node->inputs,
                    .params = node->params,
                    .relu = node->relu,
                    .probability = node->probability,
                    .layer = node->layer};
    for (int i = 0; i < node->inputs; i++)
        d.in[i] = dp_value_shape(model, node->input[i], n);
    d.out = dp_value_shape(model, node->output, n);
    for (int i = 0; i < 2; i++) {
        d.kernel[i] = node->kernel;
        d.stride[i] = node->stride;
        d.padding[i] = node->padding;
    }
    return d;
}

/* The program while it is being fused. A node that was fused into another is `gone` until the end. */
typedef struct draft {
    dp_model *model;
    dp_node *nodes;
    int count;
    bool *gone;
    int *producer; /* by value: the node that makes it, -1 for none */
    int *readers;  /* by value: how many nodes (or the user of the result) read it */
} draft;

static void count_readers(draft *d)
{
    for (int v = 0; v < d->model->value_count; v++) {
        d->producer[v] = -1;
        d->readers[v] = v == d->model->result;
    }
    for (int i = 0; i < d->count; i++) {
        d->producer[d->nodes[i].output] = i;
        for (int k = 0; k < d->nodes[i].inputs; k++)
            d->readers[d->nodes[i].input[k]]++;
    }
}

/* The node that makes `value`, if only one reads it; else NULL. */
static dp_node *sole_producer(const draft *d, dp_value value)
{
    int i = d->producer[value];
    return i >= 0 && d->readers[value] == 1 ? &d->nodes[i] : NULL;
}

/* The node that reads `value`, which one does. */
static dp_node *sole_reader(const draft *d, dp_value value)
{
    for (int i = 0; i < d->count; i++)
        for (int k = 0; !d->gone[i] && k < d->nodes[i].inputs; k++)
            if (d->nodes[i].input[k] == value)
                return &d->nodes[i];
    return NULL;
}

/* `into` makes what node i made. */
static void absorb(draft *d, dp_node *into, int i)
{
    into->output = d->nodes[i].output;
    d->producer[into->output] = (int)(into - d->nodes);
    d->gone[i] = true;
}

/* A batch normalisation whose result is only added to a value that is there before it adds it on the way: the
 * end of a residual block. */
static void fuse_additions(draft *d)
{
    for (int i = 0; i < d->count; i++) {
        const dp_node *sum = &d->nodes[i];
        if (sum->kind != DP_OP_ADD)
            continue;
        int last = d->producer[sum->input[1]] > d->producer[sum->input[0]];
        dp_node *norm = sole_producer(d, sum->input[last]);
        if (!norm || norm->kind != DP_OP_BATCH_NORM2D || norm->inputs != 1 || norm->relu)
            continue;
        norm->inputs = 2;
        norm->input[1] = sum->input[!last];
        absorb(d, norm, i);
    }
}

static bool takes_relu(dp_op_kind kind)
{
    return kind == DP_OP_LINEAR || kind == DP_OP_CONV2D || kind == DP_OP_MAX_POOL2D || kind == DP_OP_ADD ||
           kind == DP_OP_BATCH_NORM2D || kind == DP_OP_CONV_TRANSPOSE2D;
}

/* max(0, .) and max-pooling commute, values and gradients alike (where the pooled value is not positive,
 * nothing passes either way), and after pooling there is less to do: conv, relu, pool becomes conv, pool with
 * relu. Other relus are done by the operation before them. */
static void fuse_relus(draft *d)
{
    for (int i = 0; i < d->count; i++) {
        const dp_node *relu = &d->nodes[i];
        if (relu->kind != DP_OP_RELU)
            continue;
        dp_node *reader = d->readers[relu->output] == 1 ? sole_reader(d, relu->output) : NULL;
        dp_node *producer = sole_producer(d, relu->input[0]);
        if (reader && reader->kind == DP_OP_MAX_POOL2D) {
            reader->relu = true;
            reader->input[0] = relu->input[0];
            d->gone[i] = true;
        } else if (producer && takes_relu(producer->kind)) {
            producer->relu = true;
            absorb(d, producer, i);
        }
    }
}

static void compact(draft *d)
{
    int kept = 0;
    for (int i = 0; i < d->count; i++)
        if (!d->gone[i])
            d->nodes[kept++] = d->nodes[i];
    d->count = kept;
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

/* Copies the nodes that the result depends on, in the order in which they were built, which is an order of
 * dependence. */
static void select_nodes(draft *d, bool *needed)
{
    const dp_model *m = d->model;
    needed[m->result] = true;
    for (int i = m->node_count - 1; i >= 0; i--)
        for (int k = 0; needed[m->nodes[i].output] && k < m->nodes[i].inputs; k++)
            needed[m->nodes[i].input[k]] = true;
    for (int i = 0; i < m->node_count; i++)
        if (needed[m->nodes[i].output])
            d->nodes[d->count++] = m->nodes[i];
}

static void note_program(dp_model *model)
{
    for (int i = 0; i < model->program_count; i++) {
        const dp_node *node = &model->program[i];
        for (int p = 0; p < node->params; p++)
            model->params[node->param[p]].info.used = true;
        if (node->kind != DP_OP_BATCH_NORM2D)
            continue;
        const dp_graph_value *v = &model->values[node->output];
        int64_t positions = v->shape[1] * v->shape[2];
        if (model->norm_positions == 0 || positions < model->norm_positions)
            model->norm_positions = positions;
    }
}

dp_status dp_model_make_program(dp_model *model, dp_error *err)
{
    DP_TRY(end_plain(model, err));
    draft d = {.model = model};
    bool *needed = NULL;
    size_t nodes = (size_t)model->node_count, values = (size_t)model->value_count;
    const char *what = "a model's program";
    dp_status status;
    if ((status = dp_calloc(nodes, sizeof *model->program, what, &model->program, err)) != DP_OK ||
        (status = dp_calloc(nodes, sizeof *d.gone, what, &d.gone, err)) != DP_OK ||
        (status = dp_calloc(values, sizeof *d.producer, what, &d.producer, err)) != DP_OK ||
        (status = dp_calloc(values, sizeof *d.readers, what, &d.readers, err)) != DP_OK ||
        (status = dp_calloc(values, sizeof *needed, what, &needed, err)) != DP_OK)
        goto done;
    d.nodes = model->program;
    select_nodes(&d, needed);
    count_readers(&d);
    fuse_additions(&d);
    fuse_relus(&d);
    compact(&d);
    model->program_count = d.count;
    note_program(model);
done:
    dp_free(needed);
    dp_free(d.readers);
    dp_free(d.producer);
    dp_free(d.gone);
    return status;
}
