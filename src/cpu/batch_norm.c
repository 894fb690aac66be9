/* Batch normalisation, with an addition and ReLU on the way: Ioffe and Szegedy 2015, as PyTorch computes it.
 *
 * It is bound by memory. The work goes by units, the channels that lie together in memory, each through the
 * whole batch: sums first, then the values. A unit is small enough for its second pass to find in a cache
 * what the first has read, so main memory sees each tensor once. The gradient of a fused ReLU is masked while
 * the sums are taken: by the output where something was added, else by computing the output's sign once more,
 * which costs less than reading it. The input's gradient then goes where the output's was.
 *
 * The sums of the forward pass are double: mean and variance come from one pass without cancellation. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "cpu/clones.h"
#include "cpu/internal.h"
#include "cpu/layout.h"

enum {
    LANES = 8,
    UNIT = 2 * LANES,  /* channels of a unit at most */
    SUMS = 2 * UNIT,   /* doubles of a partial result: two sums for each lane */
    FLOAT_STEPS = 256, /* steps that are summed in float32 before they go to a double */
};

/* May alias float arrays, at any float's address. */
typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t mask __attribute__((vector_size(32), aligned(4), may_alias));
typedef float half __attribute__((vector_size(16), aligned(4), may_alias));
typedef double doubles __attribute__((vector_size(32), aligned(8), may_alias));

/* How the units of a layout lie. A unit's part of one sample is `steps` steps of `vectors` vectors, and, in
 * the plain order, whose lanes are pixels of one channel, a last vector of `tail` values. */
typedef struct geometry {
    int64_t channels, samples, pixels;
    int64_t units, unit_channels,
        splits; /* splits: parts of the batch, where there are fewer units than threads */
    int64_t sample_step, unit_step, step, steps;
    int vectors, tail;
    int last_valid; /* lanes of the last unit that exist in memory */
} geometry;

typedef struct norm_op {
    dp_cpu_op common;
    geometry geometry;
    bool training, relu;
    int tag, second_tag;          /* the output's; how the second input comes */
    size_t converted, conversion; /* offsets into workspace; the partial sums come first */
} norm_op;

/* What the lanes of a unit are multiplied with: y = (x - mean) * scale + bias, and the input's gradient is
 * scale * g + (slope * (x - mean) + offset). floor: 0 behind a ReLU, else NaN. */
typedef struct coefficients {
    lanes mean[2], scale[2], bias[2], slope[2], offset[2], floor[2];
} coefficients;

/* What a pass reads and writes: whole tensors, or one run of them. */
typedef struct tensors {
    const float *x, *residual, *y;
    float *g, *out;
} tensors;

typedef struct pass {
    const norm_op *op;
    const dp_op_args *args;
    tensors tensors;
    float *mean,
        *inverse; /* 1 / sqrt(variance + epsilon); both of units * unit_channels channels, in saved */
    double *sums; /* [units][splits][SUMS] */
} pass;

static geometry geometry_of(const dp_shape *shape, int tag, int threads)
{
    int64_t channels = shape->dim[1], pixels = shape->dim[2] * shape->dim[3], block = dp_cpu_block(tag);
    geometry g = {.channels = channels, .samples = shape->dim[0], .pixels = pixels, .last_valid = LANES};
    g.vectors = block == UNIT ? 2 : 1;
    g.unit_channels = tag == DP_CPU_NHWC ? LANES : block;
    g.units = (channels + g.unit_channels - 1) / g.unit_channels;
    if (tag == DP_CPU_PLAIN) {
        g.step = LANES;
        g.steps = pixels / LANES;
        g.tail = (int)(pixels % LANES);
        g.unit_step = pixels;
        g.sample_step = channels * pixels;
    } else if (tag == DP_CPU_NHWC) {
        g.step = channels;
        g.steps = pixels;
        g.unit_step = LANES;
        g.sample_step = channels * pixels;
        g.last_valid = channels % LANES ? (int)(channels % LANES) : LANES;
    } else {
        g.step = block;
        g.steps = pixels;
        g.unit_step = pixels * block;
        g.sample_step = g.units * g.unit_step;
    }
    g.splits = g.units < threads ? (threads + g.units - 1) / g.units : 1;
    if (g.splits > g.samples)
        g.splits = g.samples;
    return g;
}

/* ---- one vector ---- */

/* Lanes from `valid` on are zero, or not written. */
DP_INLINE void load(const float *from, const int valid, lanes *to)
{
    if (valid == LANES) {
        *to = *(const lanes *)from;
        return;
    }
    *to = (lanes){0};
    for (int l = 0; l < valid; l++)
        (*to)[l] = from[l];
}

DP_INLINE void store(const lanes *from, const int valid, float *to)
{
    if (valid == LANES) {
        *(lanes *)to = *from;
        return;
    }
    for (int l = 0; l < valid; l++)
        to[l] = (*from)[l];
}

/* x = gate <= floor ? 0 : x. A NaN on either side of the comparison lets x pass. */
DP_INLINE void let_pass(const lanes *gate, const lanes *floor, lanes *x)
{
    *x = (lanes)((mask)*x & ~(mask)(*gate <= *floor));
}

DP_INLINE void add_moments(const float *x, const int valid, doubles *sum, doubles *square)
{
    lanes value;
    load(x, valid, &value);
    for (int k = 0; k < 2; k++) {
        doubles d = __builtin_convertvector(((const half *)&value)[k], doubles);
        sum[k] += d;
        square[k] += d * d;
    }
}

DP_INLINE void normalise(const tensors *t, int64_t at, const int valid, const coefficients *c, int v)
{
    lanes value, more;
    load(t->x + at, valid, &value);
    value = (value - c->mean[v]) * c->scale[v] + c->bias[v];
    if (t->residual) {
        load(t->residual + at, valid, &more);
        value += more;
    }
    let_pass(&value, &c->floor[v], &value);
    store(&value, valid, t->out + at);
}

/* Adds g and g * (x - mean). With y (the output) g is masked in memory. */
DP_INLINE void add_gradient(const tensors *t, int64_t at, const int valid, const coefficients *c, int v,
                            lanes *sum, lanes *product)
{
    lanes value, gradient, output;
    load(t->x + at, valid, &value);
    load(t->g + at, valid, &gradient);
    value -= c->mean[v];
    if (t->y) {
        load(t->y + at, valid, &output);
        let_pass(&output, &c->floor[v], &gradient);
        store(&gradient, valid, t->g + at);
    } else {
        output = value * c->scale[v] + c->bias[v];
        let_pass(&output, &c->floor[v], &gradient);
    }
    *sum += gradient;
    *product += gradient * value;
}

DP_INLINE void input_gradient(const tensors *t, int64_t at, const int valid, const coefficients *c, int v)
{
    lanes value, gradient;
    load(t->x + at, valid, &value);
    load(t->g + at, valid, &gradient);
    value -= c->mean[v];
    if (!t->y) {
        lanes output = value * c->scale[v] + c->bias[v];
        let_pass(&output, &c->floor[v], &gradient);
    }
    gradient = gradient * c->scale[v] + (value * c->slope[v] + c->offset[v]);
    store(&gradient, valid, t->out + at);
}

/* ---- runs: a unit in one sample. Every second step has sums of its own, so that an addition need not wait
 * for the last. sums: [2][UNIT]. ---- */

DP_INLINE void moments_run(const tensors *t, const coefficients *c, double *sums, int64_t steps, int64_t step,
                           const int vectors, const int valid)
{
    (void)c;
    doubles sum[2][4] = {{{0}}}, square[2][4] = {{{0}}};
    int64_t i = 0;
    for (; i + 2 <= steps; i += 2)
        for (int k = 0; k < 2; k++)
            for (int v = 0; v < vectors; v++)
                add_moments(t->x + (i + k) * step + v * LANES, valid, &sum[k][2 * v], &square[k][2 * v]);
    for (; i < steps; i++)
        for (int v = 0; v < vectors; v++)
            add_moments(t->x + i * step + v * LANES, valid, &sum[0][2 * v], &square[0][2 * v]);
    for (int v = 0; v < 2 * vectors; v++) {
        ((doubles *)sums)[v] += sum[0][v] + sum[1][v];
        ((doubles *)(sums + UNIT))[v] += square[0][v] + square[1][v];
    }
}

DP_INLINE void normalise_run(const tensors *t, const coefficients *c, double *sums, int64_t steps,
                             int64_t step, const int vectors, const int valid)
{
    (void)sums;
    const tensors own = *t;
    const coefficients k = *c;
    for (int64_t i = 0; i < steps; i++)
        for (int v = 0; v < vectors; v++)
            normalise(&own, i * step + v * LANES, valid, &k, v);
}

DP_INLINE void gradient_sums_run(const tensors *t, const coefficients *c, double *sums, int64_t steps,
                                 int64_t step, const int vectors, const int valid)
{
    const tensors own = *t;
    const coefficients f = *c;
    for (int64_t first = 0; first < steps; first += FLOAT_STEPS) {
        int64_t end = first + FLOAT_STEPS < steps ? first + FLOAT_STEPS : steps, i = first;
        lanes sum[2][2] = {{{0}}}, product[2][2] = {{{0}}};
        for (; i + 2 <= end; i += 2)
            for (int k = 0; k < 2; k++)
                for (int v = 0; v < vectors; v++)
                    add_gradient(&own, (i + k) * step + v * LANES, valid, &f, v, &sum[k][v], &product[k][v]);
        for (; i < end; i++)
            for (int v = 0; v < vectors; v++)
                add_gradient(&own, i * step + v * LANES, valid, &f, v, &sum[0][v], &product[0][v]);
        for (int v = 0; v < vectors; v++)
            for (int l = 0; l < LANES; l++) {
                sums[v * LANES + l] += (double)sum[0][v][l] + (double)sum[1][v][l];
                sums[UNIT + v * LANES + l] += (double)product[0][v][l] + (double)product[1][v][l];
            }
    }
}

DP_INLINE void input_gradient_run(const tensors *t, const coefficients *c, double *sums, int64_t steps,
                                  int64_t step, const int vectors, const int valid)
{
    (void)sums;
    const tensors own = *t;
    const coefficients k = *c;
    for (int64_t i = 0; i < steps; i++)
        for (int v = 0; v < vectors; v++)
            input_gradient(&own, i * step + v * LANES, valid, &k, v);
}

/* ---- units ---- */

DP_INLINE const float *advance(const float *p, int64_t floats)
{
    return p ? p + floats : NULL;
}

DP_INLINE void move(const tensors *from, int64_t floats, tensors *to)
{
    *to = (tensors){advance(from->x, floats), advance(from->residual, floats), advance(from->y, floats),
                    (float *)advance(from->g, floats), (float *)advance(from->out, floats)};
}

/* Calls function, compiled for each shape of a step, for the runs of an item: a unit in the samples of one
 * split (item = unit * splits + split). */
#define FOR_RUNS(function, p, item, c, sums)                                                               \
    do {                                                                                                   \
        const geometry *g_ = &(p)->op->geometry;                                                           \
        int64_t unit_ = (item) / g_->splits, split_ = (item) % g_->splits;                                 \
        int valid_ = unit_ == g_->units - 1 ? g_->last_valid : LANES;                                      \
        for (int64_t n_ = g_->samples * split_ / g_->splits; n_ < g_->samples * (split_ + 1) / g_->splits; \
             n_++) {                                                                                       \
            tensors t_;                                                                                    \
            move(&(p)->tensors, n_ * g_->sample_step + unit_ * g_->unit_step, &t_);                        \
            if (valid_ != LANES)                                                                           \
                function(&t_, c, sums, g_->steps, g_->step, 1, valid_);                                    \
            else if (g_->vectors == 1)                                                                     \
                function(&t_, c, sums, g_->steps, g_->step, 1, LANES);                                     \
            else                                                                                           \
                function(&t_, c, sums, g_->steps, g_->step, 2, LANES);                                     \
            if (g_->tail) {                                                                                \
                move(&t_, g_->steps *LANES, &t_);                                                          \
                function(&t_, c, sums, 1, LANES, 1, g_->tail);                                             \
            }                                                                                              \
        }                                                                                                  \
    } while (0)

/* Sums of a unit over its splits, in their order; in the plain order, whose lanes are one channel, over the
 * lanes. channel: within the unit. which: 0 or 1. */
static double sum_of(const pass *p, int64_t unit, int channel, int which)
{
    const geometry *g = &p->op->geometry;
    double sum = 0;
    for (int64_t s = 0; s < g->splits; s++) {
        const double *part = p->sums + (unit * g->splits + s) * SUMS + which * UNIT;
        if (p->op->tag != DP_CPU_PLAIN)
            sum += part[channel];
        for (int l = 0; l < LANES && p->op->tag == DP_CPU_PLAIN; l++)
            sum += part[l];
    }
    return sum;
}

static double values_of_channel(const geometry *g)
{
    return (double)g->samples * (double)g->pixels;
}

/* backward: slope and offset, too. Lanes without a channel get zeros, which keeps the padding of blocks. */
static void coefficients_of(const pass *p, int64_t unit, bool backward, coefficients *c)
{
    const geometry *g = &p->op->geometry;
    bool plain = p->op->tag == DP_CPU_PLAIN;
    float floor = p->op->relu ? 0.0f : NAN;
    *c = (coefficients){0};
    for (int l = 0; l < UNIT; l++) {
        int v = l / LANES, k = l % LANES, channel = plain ? 0 : l;
        int64_t at = unit * g->unit_channels + channel;
        c->floor[v][k] = floor;
        if (channel >= g->unit_channels || at >= g->channels)
            continue;
        double inverse = p->inverse ? (double)p->inverse[at]
                                    : 1 / sqrt((double)p->args->buffer[1][at] + DP_BATCH_NORM_EPSILON);
        double scale = (double)p->args->param[0][at] * inverse;
        c->mean[v][k] = p->mean ? p->mean[at] : p->args->buffer[0][at];
        c->scale[v][k] = (float)scale;
        c->bias[v][k] = p->args->param[1][at];
        if (!backward)
            continue;
        double n = values_of_channel(g);
        c->slope[v][k] = (float)(-scale * inverse * inverse * sum_of(p, unit, channel, 1) / n);
        c->offset[v][k] = (float)(-scale * sum_of(p, unit, channel, 0) / n);
    }
}

/* ---- parts of a pass, over items or units ---- */

DP_CLONES static void moments_of_items(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    for (int64_t item = begin; item < end; item++) {
        double *sums = p->sums + item * SUMS;
        memset(sums, 0, SUMS * sizeof *sums);
        FOR_RUNS(moments_run, p, item, NULL, sums);
    }
}

/* running = (1 - momentum) * running + momentum * value */
static void move_running(float *running, double value)
{
    *running = (float)((1 - DP_BATCH_NORM_MOMENTUM) * (double)*running + DP_BATCH_NORM_MOMENTUM * value);
}

static void statistics_of_units(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    const geometry *g = &p->op->geometry;
    double n = values_of_channel(g);
    for (int64_t unit = begin; unit < end; unit++)
        for (int channel = 0; channel < g->unit_channels; channel++) {
            int64_t at = unit * g->unit_channels + channel;
            if (at >= g->channels)
                break;
            double mean = sum_of(p, unit, channel, 0) / n;
            double variance = fmax(sum_of(p, unit, channel, 1) / n - mean * mean, 0);
            p->mean[at] = (float)mean;
            p->inverse[at] = (float)(1 / sqrt(variance + DP_BATCH_NORM_EPSILON));
            if (p->args->buffer[0])
                move_running(&p->args->buffer[0][at], mean);
            if (p->args->buffer[1])
                move_running(&p->args->buffer[1][at], n > 1 ? variance * n / (n - 1) : variance);
        }
}

DP_CLONES static void normalise_items(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    for (int64_t item = begin; item < end; item++) {
        coefficients c;
        coefficients_of(p, item / p->op->geometry.splits, false, &c);
        FOR_RUNS(normalise_run, p, item, &c, NULL);
    }
}

DP_CLONES static void gradient_sums_of_items(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    for (int64_t item = begin; item < end; item++) {
        double *sums = p->sums + item * SUMS;
        memset(sums, 0, SUMS * sizeof *sums);
        coefficients c;
        coefficients_of(p, item / p->op->geometry.splits, false, &c);
        FOR_RUNS(gradient_sums_run, p, item, &c, sums);
    }
}

static void param_gradients_of_units(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    const geometry *g = &p->op->geometry;
    for (int64_t unit = begin; unit < end; unit++)
        for (int channel = 0; channel < g->unit_channels; channel++) {
            int64_t at = unit * g->unit_channels + channel;
            if (at >= g->channels)
                break;
            double sums[2] = {sum_of(p, unit, channel, 1) * (double)p->inverse[at],
                              sum_of(p, unit, channel, 0)};
            for (int i = 0; i < 2; i++)
                if (p->args->param_gradient[i]) {
                    float *target = p->args->param_gradient[i] + at;
                    *target = (float)sums[i] + (p->args->accumulate ? *target : 0);
                }
        }
}

DP_CLONES static void input_gradient_of_items(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    if (!p->tensors.out)
        return;
    for (int64_t item = begin; item < end; item++) {
        coefficients c;
        coefficients_of(p, item / p->op->geometry.splits, true, &c);
        FOR_RUNS(input_gradient_run, p, item, &c, NULL);
    }
}

typedef void part(const void *context, int64_t begin, int64_t end);

/* Sums of all items of a unit, what follows from them, and the values. */
typedef struct parts {
    part *sums, *results, *values;
    const pass *pass;
} parts;

static void whole_units(const void *context, int64_t begin, int64_t end)
{
    const parts *p = context;
    for (int64_t unit = begin; unit < end; unit++) {
        p->sums(p->pass, unit, unit + 1);
        p->results(p->pass, unit, unit + 1);
        p->values(p->pass, unit, unit + 1);
    }
}

static void run_parts(const pass *p, part *sums, part *results, part *values)
{
    const geometry *g = &p->op->geometry;
    int threads = p->op->common.device->threads;
    if (g->splits == 1) {
        parts all = {sums, results, values, p};
        dp_cpu_for(threads, g->units, 1, whole_units, &all);
        return;
    }
    dp_cpu_for(threads, g->units * g->splits, 1, sums, p);
    dp_cpu_for(threads, g->units, 1, results, p);
    dp_cpu_for(threads, g->units * g->splits, 1, values, p);
}

/* ---- the operation ---- */

static pass start(const dp_op *op, const dp_op_args *args)
{
    const norm_op *n = op->state;
    int64_t channels = n->geometry.units * n->geometry.unit_channels;
    pass p = {.op = n, .args = args, .sums = args->workspace};
    if (n->training) {
        p.mean = args->saved;
        p.inverse = p.mean + channels;
    }
    return p;
}

static dp_status norm_forward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    const norm_op *n = op->state;
    pass p = start(op, args);
    int threads = n->common.device->threads;
    p.tensors = (tensors){.x = args->in[0], .residual = args->in[1], .out = args->out};
    if (n->second_tag != n->tag) {
        char *workspace = args->workspace;
        p.tensors.residual = (float *)(workspace + n->converted);
        dp_cpu_convert(threads, &op->desc.out, n->second_tag, n->tag, args->in[1],
                       (float *)(workspace + n->converted), (float *)(workspace + n->conversion));
    }
    if (n->training)
        run_parts(&p, moments_of_items, statistics_of_units, normalise_items);
    else
        dp_cpu_for(threads, n->geometry.units * n->geometry.splits, 1, normalise_items, &p);
    return DP_OK;
}

static dp_status norm_backward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    const norm_op *n = op->state;
    pass p = start(op, args);
    p.tensors = (tensors){.x = args->in[0], .g = args->out_gradient, .out = args->in_gradient[0]};
    if (op->backward_reads_output)
        p.tensors.y = args->out;
    run_parts(&p, gradient_sums_of_items, param_gradients_of_units, input_gradient_of_items);
    if (args->in_gradient[1] && n->second_tag != n->tag)
        dp_cpu_convert(n->common.device->threads, &op->desc.out, n->tag, n->second_tag, args->out_gradient,
                       args->in_gradient[1], (float *)((char *)args->workspace + n->conversion));
    return DP_OK;
}

dp_status dp_cpu_batch_norm_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out,
                                   dp_error *err)
{
    norm_op *n;
    const dp_op_desc *d = request->desc;
    DP_TRY(dp_calloc(1, sizeof *n, "a batch normalisation", &n, err));
    n->common = (dp_cpu_op){.forward = norm_forward, .backward = norm_backward, .destroy = dp_cpu_op_free};
    n->training = request->training;
    n->relu = d->relu;
    n->tag = request->in[0].tag;
    n->second_tag = d->inputs > 1 ? request->in[1].tag : n->tag;
    n->geometry = geometry_of(&d->in[0], n->tag, device->threads);
    const geometry *g = &n->geometry;
    out->out = request->in[0];
    n->converted = dp_align64((size_t)(g->units * g->splits * SUMS) * sizeof(double));
    n->conversion = n->converted + (n->second_tag == n->tag ? 0 : dp_align64(out->out.bytes));
    out->workspace_bytes = n->conversion + dp_cpu_conversion_bytes(&d->out, n->second_tag, n->tag);
    out->saved_bytes = n->training ? (size_t)(2 * g->units * g->unit_channels) * sizeof(float) : 0;
    out->backward_reads_input = request->training;
    out->backward_reads_output = request->training && d->relu && d->inputs > 1;
    /* The gradient that a second input gets is the output's, masked; the first input's may lie there where
     * the second wants none. */
    bool second = d->inputs > 1 && request->input_gradient[1];
    out->passes_gradient[0] = request->input_gradient[0] && !second;
    out->passes_gradient[1] = second && n->second_tag == n->tag;
    out->state = n;
    return DP_OK;
}
