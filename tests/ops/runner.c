#include "runner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference.h"

enum { MAX_BLOCKS = 16 * MAX_CHAIN };

/* ---- data ---- */

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* count values in [-1, 1], coarse or fine, plus offset. NULL without memory. */
static float *random_floats(int64_t count, bool coarse, float offset, uint64_t *state)
{
    float *x = malloc((size_t)(count ? count : 1) * sizeof *x);
    for (int64_t i = 0; x && i < count; i++) {
        uint64_t r = next_random(state) >> 33;
        x[i] = coarse ? (float)((int)(r % 17) - 8) / 8 + offset : (float)(r % 2000001) / 1e6f - 1;
    }
    return x;
}

int64_t case_param_elements(const dp_op_desc *d, int which)
{
    if (which >= d->params)
        return 0;
    if (which == 1)
        return d->out.dim[1];
    if (d->kind == DP_OP_LINEAR)
        return d->out.dim[1] * d->in[0].dim[1];
    if (d->kind == DP_OP_BATCH_NORM2D)
        return d->out.dim[1];
    return d->out.dim[1] * d->in[0].dim[1] * d->kernel[0] * d->kernel[1];
}

int64_t case_buffer_elements(const dp_op_desc *d)
{
    return d->kind == DP_OP_BATCH_NORM2D ? d->out.dim[1] : 0;
}

bool case_data_make(const op_case *c, bool coarse, uint64_t seed, case_data *out)
{
    *out = (case_data){0};
    uint64_t state = seed;
    out->in = random_floats(dp_shape_elements(&c->chain[0].in[0]), coarse, 0, &state);
    out->out_gradient = random_floats(dp_shape_elements(&c->chain[c->length - 1].out), coarse, 0, &state);
    bool good = out->in && out->out_gradient;
    float offset = 1.0f / 128; /* half the finest step of the first product of two coarse numbers */
    for (int i = 0; i < c->length; i++) {
        if (c->chain[i].kind == DP_OP_UPSAMPLE2X)
            offset /= 16; /* its weights are multiples of 1/16 */
        for (int k = 0; k < 2 && case_buffer_elements(&c->chain[i]); k++) {
            int64_t count = case_buffer_elements(&c->chain[i]);
            out->buffer[i][k] = random_floats(count, coarse, 0, &state);
            good = good && out->buffer[i][k];
            for (int64_t v = 0; k == 1 && good && v < count; v++) /* a variance */
                out->buffer[i][k][v] = 0.5f + fabsf(out->buffer[i][k][v]);
        }
        if (!c->chain[i].params)
            continue;
        for (int k = 0; k < 2; k++) {
            int64_t count = case_param_elements(&c->chain[i], k);
            out->param[i][k] = random_floats(count, coarse, k == 1 && coarse ? offset : 0, &state);
            out->start[i][k] = random_floats(count, coarse, 0, &state);
            good = good && out->param[i][k] && out->start[i][k];
        }
        offset /= 16; /* a product of such an output and a coarse weight is finer by as much */
    }
    if (!good)
        case_data_free(out);
    return good;
}

void case_data_free(case_data *data)
{
    free(data->in);
    free(data->out_gradient);
    for (int i = 0; i < MAX_CHAIN; i++)
        for (int k = 0; k < 2; k++) {
            free(data->param[i][k]);
            free(data->start[i][k]);
            free(data->buffer[i][k]);
        }
    *data = (case_data){0};
}

void case_result_free(case_result *r)
{
    free(r->out);
    free(r->in_gradient);
    for (int i = 0; i < MAX_CHAIN; i++)
        for (int k = 0; k < 2; k++) {
            free(r->gradient[i][k]);
            free(r->buffer[i][k]);
        }
    *r = (case_result){0};
}

/* ---- the reference ---- */

void case_reference_free(case_reference *r)
{
    free(r->out);
    free(r->in_gradient);
    for (int i = 0; i < MAX_CHAIN; i++)
        for (int k = 0; k < 2; k++) {
            free(r->gradient[i][k]);
            free(r->buffer[i][k]);
        }
    *r = (case_reference){0};
}

static double *to_doubles(const float *x, int64_t count)
{
    double *y = calloc((size_t)(count ? count : 1), sizeof *y);
    for (int64_t i = 0; y && x && i < count; i++)
        y[i] = x[i];
    return y;
}

/* Values of a case and their gradients, parameters by operation. */
typedef struct reference_memory {
    double *value[MAX_CHAIN + 1], *gradient[MAX_CHAIN + 1], *param[MAX_CHAIN][2];
} reference_memory;

static bool reference_allocate(const op_case *c, const case_data *data, reference_memory *m,
                               case_reference *out)
{
    bool good = true;
    for (int i = 0; i <= c->length; i++) {
        int64_t count = dp_shape_elements(i ? &c->chain[i - 1].out : &c->chain[0].in[0]);
        m->value[i] = to_doubles(i ? NULL : data->in, count);
        m->gradient[i] = to_doubles(i == c->length ? data->out_gradient : NULL, count);
        good = good && m->value[i] && m->gradient[i];
    }
    for (int i = 0; i < c->length; i++)
        for (int k = 0; k < c->chain[i].params; k++) {
            int64_t count = case_param_elements(&c->chain[i], k);
            m->param[i][k] = to_doubles(data->param[i][k], count);
            out->gradient[i][k] = to_doubles(c->accumulate ? data->start[i][k] : NULL, count);
            good = good && m->param[i][k] && out->gradient[i][k];
        }
    for (int i = 0; i < c->length; i++)
        for (int k = 0; k < 2 && case_buffer_elements(&c->chain[i]); k++) {
            out->buffer[i][k] = to_doubles(data->buffer[i][k], case_buffer_elements(&c->chain[i]));
            good = good && out->buffer[i][k];
        }
    return good;
}

static reference_tensors tensors_of(const op_case *c, const reference_memory *m, const case_reference *out,
                                    int i)
{
    reference_tensors t = {.weight = m->param[i][0],
                           .bias = m->param[i][1],
                           .out = m->value[i + 1],
                           .out_gradient = m->gradient[i + 1],
                           .weight_gradient = out->gradient[i][0],
                           .bias_gradient = out->gradient[i][1],
                           .buffer = {out->buffer[i][0], out->buffer[i][1]}};
    for (int k = 0; k < c->chain[i].inputs; k++) {
        t.in[k] = m->value[c->reads[i][k]];
        t.in_gradient[k] = m->gradient[c->reads[i][k]];
    }
    return t;
}

bool case_reference_run(const op_case *c, const case_data *data, bool training, case_reference *out)
{
    reference_memory m = {0};
    *out = (case_reference){0};
    bool good = reference_allocate(c, data, &m, out);
    for (int i = 0; i < c->length && good; i++) {
        reference_tensors t = tensors_of(c, &m, out, i);
        t.training = training;
        reference_forward(&c->chain[i], &t);
    }
    for (int i = c->length - 1; i >= 0 && good && training; i--) {
        reference_tensors t = tensors_of(c, &m, out, i);
        t.training = true;
        reference_backward(&c->chain[i], &t);
    }
    out->out = m.value[c->length];
    out->in_gradient = m.gradient[0];
    for (int i = 0; i <= c->length; i++) {
        free(i < c->length ? m.value[i] : NULL);
        free(i > 0 ? m.gradient[i] : NULL);
        for (int k = 0; k < 2 && i < c->length; k++)
            free(m.param[i][k]);
    }
    return good;
}

/* ---- chains ---- */

/* What a link computes as the gradient of one input. A value that several links read gets the sum: the first
 * of them in the order of backward writes value_gradient, the others their own memory, which is then added.
 */
typedef struct input_gradient {
    void *value_gradient;
    void *own; /* NULL for the first */
} input_gradient;

typedef struct chain_link {
    dp_op op;
    bool created;
    dp_op_args args;
    input_gradient below[DP_OP_MAX_INPUTS];
} chain_link;

typedef struct block {
    dp_purpose purpose;
    size_t bytes;
    void *pointer;
} block;

struct chain {
    dp_device *device;
    const op_case *description;
    chain_options options;
    dp_stream stream;
    chain_link links[MAX_CHAIN];
    void *value[MAX_CHAIN + 1], *gradient[MAX_CHAIN + 1];
    dp_layout layout[MAX_CHAIN + 1]; /* of values and their gradients */
    float *param_gradient[MAX_CHAIN][2];
    block blocks[MAX_BLOCKS];
    int block_count;
    float *nan; /* as long as the largest block */
};

static dp_status take(chain *c, dp_purpose purpose, size_t bytes, void *out_pointer, dp_error *err)
{
    block *b = &c->blocks[c->block_count];
    if (c->block_count == MAX_BLOCKS)
        return dp_fail(err, DP_ERROR_INTERNAL, "a chain of too many blocks");
    DP_TRY(dp_memory_alloc(c->device, purpose, bytes, &b->pointer, err));
    b->purpose = purpose;
    b->bytes = bytes;
    c->block_count++;
    memcpy(out_pointer, &b->pointer, sizeof b->pointer);
    return DP_OK;
}

static dp_status take_filled(chain *c, dp_purpose purpose, const float *from, int64_t count,
                             void *out_pointer, dp_error *err)
{
    void *p = NULL;
    DP_TRY(take(c, purpose, (size_t)count * sizeof(float), &p, err));
    memcpy(out_pointer, &p, sizeof p);
    return dp_copy(&c->stream, c->device, p, NULL, from, (size_t)count * sizeof(float), err);
}

/* Whether backward writes another gradient of the value that link i reads as input k before this one. */
static bool has_gradient_before(const op_case *c, int i, int k)
{
    for (int later = i; later < c->length; later++)
        for (int j = 0; j < (later == i ? k : c->chain[later].inputs); j++)
            if (c->reads[later][j] == c->reads[i][k])
                return true;
    return false;
}

static dp_status create_inputs(chain *c, int i, dp_error *err)
{
    chain_link *link = &c->links[i];
    for (int k = 0; k < link->op.desc.inputs; k++) {
        int value = c->description->reads[i][k];
        link->args.in[k] = c->value[value];
        if (!c->options.training || (value == 0 && !c->description->input_gradient))
            continue;
        link->below[k].value_gradient = c->gradient[value];
        if (has_gradient_before(c->description, i, k) && !link->op.passes_gradient[k])
            DP_TRY(take(c, DP_MEM_ACTIVATIONS, c->layout[value].bytes, &link->below[k].own, err));
        link->args.in_gradient[k] = link->op.passes_gradient[k] ? c->gradient[i + 1]
                                    : link->below[k].own        ? link->below[k].own
                                                                : c->gradient[value];
    }
    return DP_OK;
}

static dp_status create_link(chain *c, int i, const case_data *data, dp_error *err)
{
    chain_link *link = &c->links[i];
    const dp_op_desc *d = &c->description->chain[i];
    bool training = c->options.training;
    dp_op_request request = {.desc = d,
                             .training = training,
                             .param_gradient = {training && d->params > 0, training && d->params > 1},
                             .direct_convolution = c->options.direct};
    for (int k = 0; k < d->inputs; k++) {
        int value = c->description->reads[i][k];
        request.in[k] = c->layout[value];
        request.input_gradient[k] = training && (value > 0 || c->description->input_gradient);
    }
    DP_TRY(c->device->backend->call->op_create(c->device, &request, &link->op, err));
    link->created = true;
    c->layout[i + 1] = link->op.out;
    DP_TRY(take(c, DP_MEM_ACTIVATIONS, link->op.out.bytes, &c->value[i + 1], err));
    DP_TRY(take(c, DP_MEM_ACTIVATIONS, link->op.out.bytes, &c->gradient[i + 1], err));
    DP_TRY(create_inputs(c, i, err));
    link->args.out = c->value[i + 1];
    link->args.out_gradient = c->gradient[i + 1];
    link->args.accumulate = c->description->accumulate;
    link->args.random = training ? &reference_random : NULL;
    for (int k = 0; k < d->params; k++) {
        int64_t count = case_param_elements(d, k);
        DP_TRY(take_filled(c, DP_MEM_PARAMETERS, data->param[i][k], count, &link->args.param[k], err));
        DP_TRY(
            take_filled(c, DP_MEM_GRADIENTS, data->start[i][k], count, &link->args.param_gradient[k], err));
    }
    for (int k = 0; k < 2 && case_buffer_elements(d) && !c->options.replica; k++)
        DP_TRY(take_filled(c, DP_MEM_BUFFERS, data->buffer[i][k], case_buffer_elements(d),
                           &link->args.buffer[k], err));
    DP_TRY(take(c, DP_MEM_WORKSPACE, link->op.workspace_bytes, &link->args.workspace, err));
    return take(c, DP_MEM_ACTIVATIONS, link->op.saved_bytes, &link->args.saved, err);
}

static dp_status make_nan(chain *c, dp_error *err)
{
    size_t largest = 0;
    for (int i = 0; i < c->block_count; i++)
        largest = c->blocks[i].bytes > largest ? c->blocks[i].bytes : largest;
    size_t count = largest / sizeof(float) + 1;
    c->nan = malloc(count * sizeof(float));
    if (!c->nan)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory in a test");
    for (size_t i = 0; i < count; i++)
        c->nan[i] = NAN;
    return DP_OK;
}

static dp_status build(chain *c, const case_data *data, dp_error *err)
{
    const dp_shape *in = &c->description->chain[0].in[0];
    int64_t count = dp_shape_elements(in);
    int length = c->description->length;
    c->layout[0] = (dp_layout){DP_LAYOUT_PLAIN, (size_t)count * sizeof(float)};
    DP_TRY(dp_stream_create(c->device, "ops", &c->stream, err));
    DP_TRY(take_filled(c, DP_MEM_INPUTS, data->in, count, &c->value[0], err));
    DP_TRY(take(c, DP_MEM_ACTIVATIONS, c->layout[0].bytes, &c->gradient[0], err));
    for (int i = 0; i < length; i++)
        DP_TRY(create_link(c, i, data, err));
    if (c->layout[length].tag != DP_LAYOUT_PLAIN)
        return dp_fail(err, DP_ERROR_INTERNAL, "rank 2 in an order of its own");
    DP_TRY(dp_copy(&c->stream, c->device, c->gradient[length], NULL, data->out_gradient,
                   c->layout[length].bytes, err));
    return make_nan(c, err);
}

dp_status chain_create(dp_device *device, const op_case *description, const case_data *data,
                       chain_options options, chain **out, dp_error *err)
{
    chain *c = calloc(1, sizeof *c);
    *out = NULL;
    if (!c)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory in a test");
    c->device = device;
    c->description = description;
    c->options = options;
    dp_status status = build(c, data, err);
    if (status != DP_OK) {
        chain_destroy(c);
        return status;
    }
    *out = c;
    return DP_OK;
}

void chain_destroy(chain *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->description->length; i++)
        if (c->links[i].created)
            c->device->backend->call->op_destroy(c->device, &c->links[i].op);
    while (c->block_count > 0) {
        block *b = &c->blocks[--c->block_count];
        dp_memory_free(c->device, b->purpose, b->bytes, b->pointer);
    }
    dp_stream_destroy(&c->stream);
    free(c->nan);
    free(c);
}

static dp_status scribble(chain *c, void *pointer, size_t bytes, dp_error *err)
{
    return c->options.scribble ? dp_copy(&c->stream, c->device, pointer, NULL, c->nan, bytes, err) : DP_OK;
}

dp_status chain_forward(chain *c, int i, dp_error *err)
{
    chain_link *link = &c->links[i];
    DP_TRY(scribble(c, link->args.workspace, link->op.workspace_bytes, err));
    DP_TRY(scribble(c, link->args.out, link->op.out.bytes, err));
    DP_TRY(scribble(c, link->args.saved, link->op.saved_bytes, err));
    return c->device->backend->call->op_forward(c->device, &link->op, c->stream.handle, &link->args, err);
}

/* Takes what backward computed as the gradient of input k to where the value's gradient is. */
static dp_status place_gradient(chain *c, int i, int k, dp_error *err)
{
    const chain_link *link = &c->links[i];
    void *computed = link->args.in_gradient[k], *target = link->below[k].value_gradient;
    size_t bytes = c->layout[c->description->reads[i][k]].bytes;
    if (computed == target)
        return DP_OK;
    if (has_gradient_before(c->description, i, k))
        return c->device->backend->call->add(c->device, c->stream.handle, target, computed,
                                             (int64_t)(bytes / sizeof(float)), err);
    return dp_copy(&c->stream, c->device, target, c->device, computed, bytes, err);
}

dp_status chain_backward(chain *c, int i, dp_error *err)
{
    chain_link *link = &c->links[i];
    const dp_backend_functions *call = c->device->backend->call;
    const int *reads = c->description->reads[i];
    DP_TRY(scribble(c, link->args.workspace, link->op.workspace_bytes, err));
    for (int k = 0; k < link->op.desc.inputs; k++)
        if (link->args.in_gradient[k] && !link->op.passes_gradient[k])
            DP_TRY(scribble(c, link->args.in_gradient[k], c->layout[reads[k]].bytes, err));
    for (int k = 0; k < link->op.desc.params && !link->args.accumulate; k++)
        DP_TRY(scribble(c, link->args.param_gradient[k],
                        (size_t)case_param_elements(&link->op.desc, k) * sizeof(float), err));
    DP_TRY(call->op_backward(c->device, &link->op, c->stream.handle, &link->args, err));
    for (int k = 0; k < link->op.desc.inputs; k++)
        DP_TRY(place_gradient(c, i, k, err));
    return DP_OK;
}

dp_status chain_synchronize(chain *c, dp_error *err)
{
    return dp_stream_synchronize(&c->stream, err);
}

int chain_layout(const chain *c, int i)
{
    return c->links[i].op.out.tag;
}

/* Value i is the output of link i - 1 and the first input of link i alone. */
static dp_status scribble_unread_values(chain *c, dp_error *err)
{
    int length = c->description->length;
    for (int i = 0; i <= length; i++) {
        bool read = (i < length && c->links[i].op.backward_reads_input) ||
                    (i > 0 && c->links[i - 1].op.backward_reads_output);
        if (!read)
            DP_TRY(scribble(c, c->value[i], c->layout[i].bytes, err));
    }
    return DP_OK;
}

static dp_status fetch(chain *c, const void *from, int64_t count, float **out, dp_error *err)
{
    *out = malloc((size_t)(count ? count : 1) * sizeof(float));
    if (!*out)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory in a test");
    DP_TRY(dp_copy(&c->stream, NULL, *out, c->device, from, (size_t)count * sizeof(float), err));
    return chain_synchronize(c, err);
}

static dp_status run(chain *c, case_result *out, dp_error *err)
{
    int length = c->description->length;
    const dp_op_desc *ops = c->description->chain;
    for (int i = 0; i < length; i++)
        DP_TRY(chain_forward(c, i, err));
    DP_TRY(fetch(c, c->value[length], dp_shape_elements(&ops[length - 1].out), &out->out, err));
    for (int i = 0; i < length; i++)
        for (int k = 0; k < 2 && c->links[i].args.buffer[k]; k++)
            DP_TRY(
                fetch(c, c->links[i].args.buffer[k], case_buffer_elements(&ops[i]), &out->buffer[i][k], err));
    if (!c->options.training)
        return DP_OK;
    DP_TRY(scribble_unread_values(c, err));
    for (int i = length - 1; i >= 0; i--)
        DP_TRY(chain_backward(c, i, err));
    if (c->description->input_gradient)
        DP_TRY(fetch(c, c->gradient[0], dp_shape_elements(&ops[0].in[0]), &out->in_gradient, err));
    for (int i = 0; i < length; i++)
        for (int k = 0; k < ops[i].params; k++)
            DP_TRY(fetch(c, c->links[i].args.param_gradient[k], case_param_elements(&ops[i], k),
                         &out->gradient[i][k], err));
    return DP_OK;
}

dp_status case_run(dp_device *device, const op_case *description, const case_data *data,
                   chain_options options, case_result *out, dp_error *err)
{
    chain *c;
    *out = (case_result){0};
    DP_TRY(chain_create(device, description, data, options, &c, err));
    dp_status status = run(c, out, err);
    chain_destroy(c);
    return status;
}
