/* Convolutions as matrix products (im2col): Chellapilla, Puri and Simard, "High Performance Convolutional
 * Neural Networks for Document Processing", 2006.
 *
 * The matrix L has a row for each point (pixel of the outputs) and a column for each weight of an output
 * channel: the input value that this weight meets there. With the outputs as Y [points, O] and the plain
 * weights as W [O, columns] the passes are Y = L W', L = Y W, whose values are then added up where they come
 * from (col2im), and dW = Y' L.
 *
 * L and Y lie in blocks of 8 columns, [block][point][8]. The columns of L are taken in panels, each of some
 * input channels with all their taps, and the output channels in groups, so that what a product reads again
 * stays in the first or second cache. W passes once. How long sums are does not depend on the threads. */
#define LANES 8

#include "cpu/im2col.h"

#include <string.h>

#include "cpu/internal.h"
#include "cpu/layout.h"
#include "cpu/product_lanes.h"
#include "cpu/transpose.h"

enum {
    GROUP = 64,              /* output channels at once */
    PANEL = 256,             /* columns at once, about */
    LEAST_TAPS = 4,          /* the library is good at 1x1 */
    MOST_TAPS = 25,          /* of a kernel */
    LINE = PAIR * MOST_TAPS, /* no panel has more columns */
    MOST_POINTS = 256,       /* beyond, the weights' order no longer matters */
    LEAST_WEIGHTS = 256      /* to each point */
};

_Static_assert((int)PANEL <= (int)LINE, "a panel of small kernels has up to PANEL columns");

typedef struct pass {
    dp_conv_shape s;
    int64_t points, taps;
    int64_t block; /* floats from a block of a matrix to the next */
    int64_t panel_channels, panel_columns, panels;
    const float *from; /* the tensor that becomes a matrix, or the weights */
    float *to;         /* the tensor that a matrix becomes, or the gradient of the weights */
    float *lowered;    /* L; of one panel for each part where L is a result */
    float *outputs;    /* Y */
    float *copies;     /* of weights, for each part */
    int parts;
    bool accumulate;
} pass;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t points_of(const dp_conv_shape *s)
{
    return s->batch * s->out_height * s->out_width;
}

static int64_t taps_of(const dp_conv_shape *s)
{
    return (int64_t)s->kernel[0] * s->kernel[1];
}

bool dp_im2col_fits(const dp_conv_shape *s, int tag)
{
    int64_t taps = taps_of(s), points = points_of(s);
    return tag == DP_CPU_BLOCKED8 && dp_dnnl_lanes() == LANES && s->in_channels % PAIR == 0 &&
           s->out_channels % PAIR == 0 && taps >= LEAST_TAPS && taps <= MOST_TAPS && points <= MOST_POINTS &&
           s->in_channels * s->out_channels * taps >= LEAST_WEIGHTS * points;
}

static pass plan(const dp_conv_shape *s, int threads)
{
    pass p = {.s = *s, .points = points_of(s), .taps = taps_of(s), .parts = threads};
    p.block = (p.points + 2) * LANES; /* blocks at powers of two would collide in the cache */
    int64_t pairs = PANEL / (PAIR * p.taps);
    p.panel_channels = smaller(PAIR * (pairs > 1 ? pairs : 1), s->in_channels);
    p.panel_columns = p.panel_channels * p.taps;
    p.panels = (s->in_channels + p.panel_channels - 1) / p.panel_channels;
    return p;
}

static int64_t panel_floats(const pass *p)
{
    return p->panel_columns / LANES * p->block;
}

static int64_t lowered_floats(const pass *p)
{
    int64_t panels = p->panels > p->parts ? p->panels : p->parts;
    return panels * panel_floats(p);
}

static int64_t outputs_floats(const pass *p)
{
    return p->s.out_channels / LANES * p->block;
}

static int64_t copy_floats(const pass *p)
{
    return GROUP * p->panel_columns;
}

size_t dp_im2col_workspace(const dp_conv_shape *s, int threads)
{
    pass p = plan(s, threads);
    return (size_t)(lowered_floats(&p) + outputs_floats(&p) + threads * copy_floats(&p)) * sizeof(float);
}

static pass start(const dp_conv_shape *s, int threads, const float *from, float *to, void *workspace)
{
    pass p = plan(s, threads);
    p.from = from;
    p.to = to;
    p.lowered = workspace;
    p.outputs = p.lowered + lowered_floats(&p);
    p.copies = p.outputs + outputs_floats(&p);
    return p;
}

/* ---- between images and matrices ---- */

/* Where the pixels lie that the taps meet at a point, from the start of a block of their sample on; -1
 * outside. Returns the sample. */
DP_INLINE int64_t pixels_at(const dp_conv_shape *s, int64_t point, int64_t *pixel)
{
    int64_t per_image = s->out_height * s->out_width, in_image = point % per_image;
    int64_t top = in_image / s->out_width * s->stride[0] - s->padding[0];
    int64_t left = in_image % s->out_width * s->stride[1] - s->padding[1];
    for (int64_t y = top; y < top + s->kernel[0]; y++)
        for (int64_t x = left; x < left + s->kernel[1]; x++) {
            bool inside = y >= 0 && y < s->in_height && x >= 0 && x < s->in_width;
            *pixel++ = inside ? (y * s->in_width + x) * LANES : -1;
        }
    return point / per_image;
}

DP_INLINE int64_t block_at(const dp_conv_shape *s, int64_t sample, int64_t channel)
{
    return (sample * s->in_channels + channel) * s->in_height * s->in_width;
}

/* [tap][8 channels] to [8 channels][tap], and back. */
DP_INLINE void transpose_to_columns(const float *from, int64_t taps, float *to)
{
    int64_t t = 0;
    for (; t + LANES <= taps; t += LANES)
        dp_transpose8(from + t * LANES, LANES, to + t, taps, false);
    for (; t < taps; t++)
        for (int c = 0; c < LANES; c++)
            to[c * taps + t] = from[t * LANES + c];
}

DP_INLINE void transpose_to_pixels(const float *from, int64_t taps, float *to)
{
    int64_t t = 0;
    for (; t + LANES <= taps; t += LANES)
        dp_transpose8(from + t, taps, to + t * LANES, LANES, false);
    for (; t < taps; t++)
        for (int c = 0; c < LANES; c++)
            to[t * LANES + c] = from[c * taps + t];
}

static int64_t columns_of(const pass *p, int64_t panel)
{
    return smaller(p->panel_channels, p->s.in_channels - panel * p->panel_channels) * p->taps;
}

/* L of the inputs, panels [begin, end). */
DP_CLONES static void im2col_range(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    float values[MOST_TAPS * LANES], line[LINE];
    int64_t pixel[MOST_TAPS];
    for (int64_t panel = begin; panel < end; panel++) {
        float *to = p->lowered + panel * panel_floats(p);
        int64_t columns = columns_of(p, panel);
        for (int64_t point = 0; point < p->points; point++) {
            int64_t sample = pixels_at(&p->s, point, pixel);
            for (int64_t n = 0; n < columns; n += LANES * p->taps) {
                const float *from =
                    p->from + block_at(&p->s, sample, panel * p->panel_channels + n / p->taps);
                for (int64_t t = 0; t < p->taps; t++)
                    *(lanes *)(values + t * LANES) =
                        pixel[t] < 0 ? (lanes){0} : *(const lanes *)(from + pixel[t]);
                transpose_to_columns(values, p->taps, line + n);
            }
            for (int64_t n = 0; n < columns; n += LANES)
                *(lanes *)(to + n / LANES * p->block + point * LANES) = *(const lanes *)(line + n);
        }
    }
}

/* A panel of L added up where its values come from. */
DP_INLINE void col2im(const pass *p, int64_t panel, const float *lowered)
{
    float values[MOST_TAPS * LANES], line[LINE];
    int64_t pixel[MOST_TAPS];
    int64_t first = panel * p->panel_channels, columns = columns_of(p, panel);
    for (int64_t sample = 0; sample < p->s.batch; sample++)
        memset(p->to + block_at(&p->s, sample, first), 0,
               (size_t)(columns / p->taps * p->s.in_height * p->s.in_width) * sizeof(float));
    for (int64_t point = 0; point < p->points; point++) {
        int64_t sample = pixels_at(&p->s, point, pixel);
        for (int64_t n = 0; n < columns; n += LANES)
            *(lanes *)(line + n) = *(const lanes *)(lowered + n / LANES * p->block + point * LANES);
        for (int64_t n = 0; n < columns; n += LANES * p->taps) {
            float *to = p->to + block_at(&p->s, sample, first + n / p->taps);
            transpose_to_pixels(line + n, p->taps, values);
            for (int64_t t = 0; t < p->taps; t++)
                if (pixel[t] >= 0)
                    *(lanes *)(to + pixel[t]) += *(const lanes *)(values + t * LANES);
        }
    }
}

/* Where block b of sample n lies in outputs [sample][block][pixel][8], and in Y [block][sample][pixel][8]. */
static int64_t pixels_of(const pass *p)
{
    return p->s.out_height * p->s.out_width * LANES;
}

static int64_t in_outputs(const pass *p, int64_t block, int64_t sample)
{
    return (sample * (p->s.out_channels / LANES) + block) * pixels_of(p);
}

static int64_t in_matrix(const pass *p, int64_t block, int64_t sample)
{
    return block * p->block + sample * pixels_of(p);
}

/* Y of the outputs, blocks [begin, end). */
static void take_out_range(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    for (int64_t b = begin; b < end; b++)
        for (int64_t n = 0; n < p->s.batch; n++)
            memcpy(p->outputs + in_matrix(p, b, n), p->from + in_outputs(p, b, n),
                   (size_t)pixels_of(p) * sizeof(float));
}

void dp_im2col_take_in(int threads, const dp_conv_shape *shape, const float *in, void *workspace)
{
    pass p = start(shape, threads, in, NULL, workspace);
    dp_cpu_for(threads, p.panels, 1, im2col_range, &p);
}

void dp_im2col_take_out(int threads, const dp_conv_shape *shape, const float *out, void *workspace)
{
    pass p = start(shape, threads, out, NULL, workspace);
    dp_cpu_for(threads, shape->out_channels / LANES, 1, take_out_range, &p);
}

/* ---- the three passes ---- */

/* A panel of the weights of a pair of blocks of output channels, as [column][channel]. Those of the next pair
 * are asked for early: in lines so short that the processor does not foresee them. */
DP_INLINE void transpose_weights(const float *from, int64_t row, int64_t columns, float *to)
{
    for (int o = 0; o < PAIR; o += LANES, from += LANES * row)
        for (int64_t n = 0; n < columns; n += LANES) {
            dp_transpose8(from + n, row, to + n * PAIR + o, PAIR, false);
            for (int i = 0; i < LANES && n % PAIR == 0; i++)
                __builtin_prefetch(from + (PAIR + i) * row + n);
        }
}

/* The same of `count` channels, as [pair of blocks of columns][channel][16]. */
DP_INLINE void copy_weights(const float *from, int64_t row, int64_t count, int64_t columns, float *to)
{
    for (int64_t o = 0; o < count; o++, from += row)
        for (int64_t n = 0; n < columns; n += PAIR) {
            __builtin_prefetch(from + count * row + n);
            memcpy(to + n * count + o * PAIR, from + n, PAIR * sizeof(float));
        }
}

/* Y = L W', pairs of blocks [begin, end). */
DP_INLINE void forward_pairs(const pass *p, int64_t begin, int64_t end, float *weights)
{
    int64_t row = p->s.in_channels * p->taps;
    for (int64_t panel = 0; panel < p->panels; panel++) {
        int64_t columns = columns_of(p, panel), first = panel * p->panel_columns;
        for (int64_t o = begin; o < end; o++) {
            transpose_weights(p->from + o * PAIR * row + first, row, columns, weights);
            product_of_rows(p->lowered + panel * panel_floats(p), p->block, columns / LANES, weights,
                            p->outputs + 2 * o * p->block, p->block, panel > 0, p->points);
        }
    }
    for (int64_t b = 2 * begin; b < 2 * end; b++)
        for (int64_t n = 0; n < p->s.batch; n++)
            memcpy(p->to + in_outputs(p, b, n), p->outputs + in_matrix(p, b, n),
                   (size_t)pixels_of(p) * sizeof(float));
}

DP_CLONES static void forward_parts(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    int64_t pairs = p->s.out_channels / PAIR;
    for (int64_t part = begin; part < end; part++)
        forward_pairs(p, pairs * part / p->parts, pairs * (part + 1) / p->parts,
                      p->copies + part * copy_floats(p));
}

/* L = Y W, one panel, added to the image. */
DP_INLINE void data_panel(const pass *p, int64_t panel, float *lowered, float *weights)
{
    int64_t row = p->s.in_channels * p->taps, columns = columns_of(p, panel);
    for (int64_t o = 0; o < p->s.out_channels; o += GROUP) {
        int64_t count = smaller(GROUP, p->s.out_channels - o);
        copy_weights(p->from + o * row + panel * p->panel_columns, row, count, columns, weights);
        for (int64_t n = 0; n < columns; n += PAIR)
            product_of_rows(p->outputs + o / LANES * p->block, p->block, count / LANES, weights + n * count,
                            lowered + n / LANES * p->block, p->block, o > 0, p->points);
    }
    col2im(p, panel, lowered);
}

DP_CLONES static void data_parts(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    for (int64_t part = begin; part < end; part++)
        for (int64_t i = p->panels * part / p->parts; i < p->panels * (part + 1) / p->parts; i++)
            data_panel(p, i, p->lowered + part * panel_floats(p), p->copies + part * copy_floats(p));
}

/* dW = Y' L, panels [begin, end). */
DP_CLONES static void weights_range(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    int64_t row = p->s.in_channels * p->taps;
    for (int64_t panel = begin; panel < end; panel++) {
        int64_t columns = columns_of(p, panel);
        const float *lowered = p->lowered + panel * panel_floats(p);
        for (int64_t o = 0; o < p->s.out_channels; o += CHANNEL_ROWS) {
            const float *y = p->outputs + o / LANES * p->block + o % LANES;
            float *to = p->to + o * row + panel * p->panel_columns;
            for (int64_t n = 0; n < columns; n += PAIR)
                gradient_product(y, lowered + n / LANES * p->block, p->block, p->points, to + n, row,
                                 p->accumulate);
        }
    }
}

void dp_im2col_forward(int threads, const dp_conv_shape *shape, const float *weights, float *out,
                       void *workspace)
{
    pass p = start(shape, threads, weights, out, workspace);
    dp_cpu_for(threads, p.parts, 1, forward_parts, &p);
}

void dp_im2col_backward_data(int threads, const dp_conv_shape *shape, const float *weights,
                             float *in_gradient, void *workspace)
{
    pass p = start(shape, threads, weights, in_gradient, workspace);
    dp_cpu_for(threads, p.parts, 1, data_parts, &p);
}

void dp_im2col_backward_weights(int threads, const dp_conv_shape *shape, float *weights_gradient,
                                bool accumulate, void *workspace)
{
    pass p = start(shape, threads, NULL, weights_gradient, workspace);
    p.accumulate = accumulate;
    dp_cpu_for(threads, p.panels, 1, weights_range, &p);
}
