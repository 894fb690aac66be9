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
    return d->out.dim[1] * d->in[0].dim[1] * d->kernel[0] * d->kernel[1];
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
        }
    *data = (case_data){0};
}

void case_result_free(case_result *r)
{
    free(r->out);
    free(r->in_gradient);
    for (int i = 0; i < MAX_CHAIN; i++)
        for (int k = 0; k < 2; k++)
            free(r->gradient[i][k]);
    *r = (case_result){0};
}

/* ---- the reference ---- */

void case_reference_free(case_reference *r)
{
    free(r->out);
    free(r->in_gradient);
    for (int i = 0; i < MAX_CHAIN; i++)
        for (int k = 0; k < 2; k++)
            free(r->gradient[i][k]);
    *r = (case_reference){0};
}

static double *to_doubles(const float *x, int64_t count)
{
    double *y = calloc((size_t)(count ? count : 1), sizeof *y);
    for (int64_t i = 0; y && x && i < count; i++)
        y[i] = x[i];
    return y;
}

bool case_reference_run(const op_case *c, const case_data *data, case_reference *out)
{
    double *value[MAX_CHAIN + 1] = {0}, *param[MAX_CHAIN][2] = {{0}}, *gradient = NULL;
    *out = (case_reference){0};
    bool good = (value[0] = to_doubles(data->in, dp_shape_elements(&c->chain[0].in[0])));
    for (int i = 0; i < c->length; i++) {
        const dp_op_desc *d = &c->chain[i];
        good = good && (value[i + 1] = to_doubles(NULL, dp_shape_elements(&d->out)));
        for (int k = 0; k < d->params && good; k++) {
            int64_t count = case_param_elements(d, k);
            param[i][k] = to_doubles(data->param[i][k], count);
            out->gradient[i][k] = to_doubles(c->accumulate ? data->start[i][k] : NULL, count);
            good = param[i][k] && out->gradient[i][k];
        }
        if (good)
            reference_forward(d, value[i], param[i][0], param[i][1], value[i + 1]);
    }
    if (good)
        gradient = to_doubles(data->out_gradient, dp_shape_elements(&c->chain[c->length - 1].out));
    for (int i = c->length - 1; i >= 0 && gradient; i--) {
        const dp_op_desc *d = &c->chain[i];
        double *below = to_doubles(NULL, dp_shape_elements(&d->in[0]));
        if (below)
            reference_backward(d, value[i], param[i][0], value[i + 1], gradient, below, out->gradient[i][0],
                               out->gradient[i][1]);
        free(gradient);
        gradient = below;
    }
    out->in_gradient = gradient;
    out->out = value[c->length];
    for (int i = 0; i < c->length; i++) {
        free(value[i]);
        free(param[i][0]);
        free(param[i][1]);
    }
    return good && gradient;
}

/* ---- chains ---- */

typedef struct chain_link {
    dp_op op;
    bool created;
    dp_op_args args;
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
    size_t value_bytes[MAX_CHAIN + 1];
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

static dp_status create_link(chain *c, int i, const case_data *data, dp_layout *layout, dp_error *err)
{
    chain_link *link = &c->links[i];
    const dp_op_desc *d = &c->description->chain[i];
    bool training = c->options.training, below = training && (i > 0 || c->description->input_gradient);
    dp_op_request request = {.desc = d,
                             .in[0] = *layout,
                             .training = training,
                             .input_gradient[0] = below,
                             .param_gradient = {training && d->params > 0, training && d->params > 1},
                             .direct_convolution = c->options.direct};
    DP_TRY(c->device->backend->call->op_create(c->device, &request, &link->op, err));
    link->created = true;
    *layout = link->op.out;
    c->value_bytes[i + 1] = link->op.out.bytes;
    DP_TRY(take(c, DP_MEM_ACTIVATIONS, link->op.out.bytes, &c->value[i + 1], err));
    DP_TRY(take(c, DP_MEM_ACTIVATIONS, link->op.out.bytes, &c->gradient[i + 1], err));
    link->args.in[0] = c->value[i];
    link->args.out = c->value[i + 1];
    link->args.out_gradient = c->gradient[i + 1];
    link->args.in_gradient[0] = below ? c->gradient[i] : NULL;
    link->args.accumulate = c->description->accumulate;
    for (int k = 0; k < d->params; k++) {
        int64_t count = case_param_elements(d, k);
        DP_TRY(take_filled(c, DP_MEM_PARAMETERS, data->param[i][k], count, &link->args.param[k], err));
        DP_TRY(
            take_filled(c, DP_MEM_GRADIENTS, data->start[i][k], count, &link->args.param_gradient[k], err));
    }
    DP_TRY(take(c, DP_MEM_WORKSPACE, link->op.workspace_bytes, &link->args.workspace, err));
    DP_TRY(take(c, DP_MEM_ACTIVATIONS, link->op.saved_bytes, &link->args.saved, err));
    return take(c, DP_MEM_WORKSPACE, link->op.packed_bytes, &link->args.packed, err);
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
    dp_layout layout = {DP_LAYOUT_PLAIN, (size_t)count * sizeof(float)};
    DP_TRY(dp_stream_create(c->device, "ops", &c->stream, err));
    DP_TRY(take_filled(c, DP_MEM_INPUTS, data->in, count, &c->value[0], err));
    DP_TRY(take(c, DP_MEM_ACTIVATIONS, layout.bytes, &c->gradient[0], err));
    c->value_bytes[0] = layout.bytes;
    for (int i = 0; i < c->description->length; i++)
        DP_TRY(create_link(c, i, data, &layout, err));
    if (layout.tag != DP_LAYOUT_PLAIN)
        return dp_fail(err, DP_ERROR_INTERNAL, "rank 2 in an order of its own");
    DP_TRY(dp_copy(&c->stream, c->device, c->gradient[c->description->length], NULL, data->out_gradient,
                   layout.bytes, err));
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

dp_status chain_prepare(chain *c, int i, dp_error *err)
{
    chain_link *link = &c->links[i];
    if (!link->op.packed_bytes)
        return DP_OK;
    DP_TRY(scribble(c, link->args.packed, link->op.packed_bytes, err));
    return c->device->backend->call->op_prepare(c->device, &link->op, c->stream.handle, &link->args, err);
}

dp_status chain_forward(chain *c, int i, dp_error *err)
{
    chain_link *link = &c->links[i];
    DP_TRY(scribble(c, link->args.workspace, link->op.workspace_bytes, err));
    DP_TRY(scribble(c, link->args.out, link->op.out.bytes, err));
    DP_TRY(scribble(c, link->args.saved, link->op.saved_bytes, err));
    return c->device->backend->call->op_forward(c->device, &link->op, c->stream.handle, &link->args, err);
}

dp_status chain_backward(chain *c, int i, dp_error *err)
{
    chain_link *link = &c->links[i];
    DP_TRY(scribble(c, link->args.workspace, link->op.workspace_bytes, err));
    DP_TRY(scribble(c, c->gradient[i], c->value_bytes[i], err));
    for (int k = 0; k < link->op.desc.params && !link->args.accumulate; k++)
        DP_TRY(scribble(c, link->args.param_gradient[k],
                        (size_t)case_param_elements(&link->op.desc, k) * sizeof(float), err));
    return c->device->backend->call->op_backward(c->device, &link->op, c->stream.handle, &link->args, err);
}

dp_status chain_synchronize(chain *c, dp_error *err)
{
    return dp_stream_synchronize(&c->stream, err);
}

int chain_layout(const chain *c, int i)
{
    return c->links[i].op.out.tag;
}

/* Tensor i is the output of link i-1 and the input of link i. */
static dp_status scribble_unread_values(chain *c, dp_error *err)
{
    int length = c->description->length;
    for (int i = 0; i <= length; i++) {
        bool read = (i < length && c->links[i].op.backward_reads_input) ||
                    (i > 0 && c->links[i - 1].op.backward_reads_output);
        if (!read)
            DP_TRY(scribble(c, c->value[i], c->value_bytes[i], err));
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
        DP_TRY(chain_prepare(c, i, err));
    for (int i = 0; i < length; i++)
        DP_TRY(chain_forward(c, i, err));
    DP_TRY(fetch(c, c->value[length], dp_shape_elements(&ops[length - 1].out), &out->out, err));
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
