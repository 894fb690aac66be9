/* Convolutions as matrix products (im2col): Chellapilla, Puri and Simard, "High Performance Convolutional
 * Neural Networks for Document Processing", 2006.
 *
 * L, the lowered input, has a row for each point (pixel of the outputs) and a column for each weight of an
 * output channel: the input values that this weight meets there. With the outputs as Y [points, O] and the
 * plain weights as W [O, columns] the three passes are Y = L W', L = Y W, whose values are then added up
 * where they come from, and dW = Y' L.
 *
 * L and Y lie in slices of 16 columns, [slice][point][16]. The columns of L are taken in panels, each of some
 * input channels with all their taps, and the output channels in groups, so that what a product reads again
 * stays in the first or second cache. W passes once. Sums are as long as a panel, a group or the points,
 * whatever the threads. */
#include "cpu/lowered.h"

#include <string.h>

#include "cpu/clones.h"
#include "cpu/internal.h"
#include "cpu/transpose.h"

#if !defined(__clang__)
#pragma GCC optimize("fp-contract=fast") /* fused multiply-adds, which -std=c17 switches off */
#endif

enum {
    LANES = 8,
    SLICE = 2 * LANES,        /* columns that lie together */
    ROWS = 6,                 /* of a product: its sums are 12 vectors */
    GROUP = 4,                /* slices of output channels at once */
    PANEL = 256,              /* columns at once, about */
    LEAST_TAPS = 4,           /* the library is good at 1x1 */
    MOST_TAPS = 25,           /* of a kernel */
    LINE = SLICE * MOST_TAPS, /* no panel has more columns */
    MOST_POINTS = 256,        /* beyond, the weights' order no longer matters */
    LEAST_WEIGHTS = 256       /* to each point */
};

_Static_assert((int)PANEL <= (int)LINE, "a panel of small kernels has up to PANEL columns");

typedef dp_eight lanes;

typedef struct pass {
    dp_lowered s;
    int64_t points, taps;
    int64_t panel_channels, panel_columns, panels;
    const float *image, *weights;
    float *image_gradient, *weights_gradient, *out;
    float *lowered; /* L; of one panel for each part where L is a result */
    float *outputs; /* Y */
    float *copies;  /* of weights, for each part */
    int parts;
    bool accumulate;
} pass;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

dp_lowered dp_lowered_of(const dp_dnnl_conv_config *c)
{
    dp_lowered s = {.batch = c->batch,
                    .in_channels = c->in_channels,
                    .in_height = c->in_height,
                    .in_width = c->in_width,
                    .out_channels = c->out_channels,
                    .out_height = c->out_height,
                    .out_width = c->out_width};
    memcpy(s.kernel, c->kernel, sizeof s.kernel);
    memcpy(s.stride, c->stride, sizeof s.stride);
    memcpy(s.padding, c->padding, sizeof s.padding);
    return s;
}

static int64_t points_of(const dp_lowered *s)
{
    return s->batch * s->out_height * s->out_width;
}

bool dp_lowered_fits(const dp_lowered *s)
{
    int64_t taps = (int64_t)s->kernel[0] * s->kernel[1], points = points_of(s);
    return s->in_channels % SLICE == 0 && s->out_channels % SLICE == 0 && taps >= LEAST_TAPS &&
           taps <= MOST_TAPS && points <= MOST_POINTS &&
           s->in_channels * s->out_channels * taps >= LEAST_WEIGHTS * points;
}

static pass plan(const dp_lowered *s, int threads)
{
    pass p = {
        .s = *s, .points = points_of(s), .taps = (int64_t)s->kernel[0] * s->kernel[1], .parts = threads};
    int64_t slices = PANEL / (SLICE * p.taps);
    p.panel_channels = least(SLICE * (slices > 1 ? slices : 1), s->in_channels);
    p.panel_columns = p.panel_channels * p.taps;
    p.panels = (s->in_channels + p.panel_channels - 1) / p.panel_channels;
    return p;
}

static int64_t lowered_floats(const pass *p)
{
    int64_t panels = p->panels > p->parts ? p->panels : p->parts;
    return panels * p->panel_columns * p->points;
}

static int64_t copy_floats(const pass *p)
{
    return GROUP * SLICE * p->panel_columns;
}

size_t dp_lowered_workspace(const dp_lowered *s, int threads)
{
    pass p = plan(s, threads);
    return (size_t)(lowered_floats(&p) + s->out_channels * p.points + threads * copy_floats(&p)) *
           sizeof(float);
}

static pass start(const dp_lowered *s, int threads, void *workspace)
{
    pass p = plan(s, threads);
    p.lowered = workspace;
    p.outputs = p.lowered + lowered_floats(&p);
    p.copies = p.outputs + s->out_channels * p.points;
    return p;
}

/* ---- products ---- */

/* c[rows][16] = or += sums; step: floats from a row of c to the next. */
DP_INLINE void store_sums(lanes *left, lanes *right, float *c, int64_t step, bool add, const int rows)
{
    for (int r = 0; r < rows; r++) {
        lanes *to = (lanes *)(c + r * step), *other = (lanes *)(c + r * step + LANES);
        if (add) {
            left[r] += *to;
            right[r] += *other;
        }
        *to = left[r];
        *other = right[r];
    }
}

/* c[rows][16] (+)= a[slices][rows][16] b[slices * 16][16]; a's slices lie `slice` floats apart. */
DP_INLINE void product(const float *a, int64_t slice, int64_t slices, const float *b, float *c, bool add,
                       const int rows)
{
    lanes left[ROWS], right[ROWS];
    for (int r = 0; r < rows; r++)
        left[r] = right[r] = (lanes){0};
    for (int64_t s = 0; s < slices; s++, a += slice)
        for (int k = 0; k < SLICE; k++, b += SLICE) {
            lanes x = *(const lanes *)b, y = *(const lanes *)(b + LANES);
            for (int r = 0; r < rows; r++) {
                left[r] += a[r * SLICE + k] * x;
                right[r] += a[r * SLICE + k] * y;
            }
        }
    store_sums(left, right, c, SLICE, add, rows);
}

/* c[rows][16] (+)= the sum over points of a[point][row] b[point][16]. */
DP_INLINE void outer_product(const float *a, const float *b, int64_t points, float *c, int64_t step, bool add,
                             const int rows)
{
    lanes left[ROWS], right[ROWS];
    for (int r = 0; r < rows; r++)
        left[r] = right[r] = (lanes){0};
    for (int64_t i = 0; i < points; i++, a += SLICE, b += SLICE) {
        lanes x = *(const lanes *)b, y = *(const lanes *)(b + LANES);
        for (int r = 0; r < rows; r++) {
            left[r] += a[r] * x;
            right[r] += a[r] * y;
        }
    }
    store_sums(left, right, c, step, add, rows);
}

/* How many of the rows left go next: all registers full, but at the end two parts of about the same size, as
 * with few sums the processor waits for each. */
DP_INLINE int64_t rows_of(int64_t left)
{
    return left >= 2 * ROWS || left == ROWS ? ROWS : left > ROWS ? (left + 1) / 2 : left;
}

/* A slice of all points. */
DP_INLINE void product_of_points(const float *a, int64_t slices, const float *b, float *c, int64_t points,
                                 bool add)
{
    int64_t slice = points * SLICE;
    for (int64_t left = points, rows; left > 0; left -= rows, a += rows * SLICE, c += rows * SLICE) {
        rows = rows_of(left);
        switch (rows) {
        case 1:
            product(a, slice, slices, b, c, add, 1);
            break;
        case 2:
            product(a, slice, slices, b, c, add, 2);
            break;
        case 3:
            product(a, slice, slices, b, c, add, 3);
            break;
        case 4:
            product(a, slice, slices, b, c, add, 4);
            break;
        case 5:
            product(a, slice, slices, b, c, add, 5);
            break;
        default:
            product(a, slice, slices, b, c, add, ROWS);
        }
    }
}

/* A slice of L for a slice of output channels. */
DP_INLINE void gradient_of_slice(const float *outputs, const float *lowered, int64_t points, float *c,
                                 int64_t step, bool add)
{
    outer_product(outputs, lowered, points, c, step, add, ROWS);
    outer_product(outputs + ROWS, lowered, points, c + ROWS * step, step, add, 5);
    outer_product(outputs + ROWS + 5, lowered, points, c + (ROWS + 5) * step, step, add, 5);
}

/* ---- between images and matrices ---- */

/* Where the pixels lie that the taps meet at a point, from the start of a block of their sample on; -1
 * outside. Returns the sample. */
DP_INLINE int64_t pixels_at(const dp_lowered *s, int64_t point, int64_t *pixel)
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

DP_INLINE int64_t block_at(const dp_lowered *s, int64_t sample, int64_t channel)
{
    return (sample * s->in_channels + channel) * s->in_height * s->in_width;
}

/* [tap][8 channels] to [8 channels][tap], and back. */
DP_INLINE void turn_out(const float *from, int64_t taps, float *to)
{
    int64_t t = 0;
    for (; t + LANES <= taps; t += LANES)
        dp_transpose8(from + t * LANES, LANES, to + t, taps, false);
    for (; t < taps; t++)
        for (int c = 0; c < LANES; c++)
            to[c * taps + t] = from[t * LANES + c];
}

DP_INLINE void turn_back(const float *from, int64_t taps, float *to)
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
    return least(p->panel_channels, p->s.in_channels - panel * p->panel_channels) * p->taps;
}

/* L, panels [begin, end). */
DP_CLONES static void lower_range(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    float values[MOST_TAPS * LANES], line[LINE];
    int64_t pixel[MOST_TAPS];
    for (int64_t panel = begin; panel < end; panel++) {
        float *to = p->lowered + panel * p->panel_columns * p->points;
        int64_t columns = columns_of(p, panel);
        for (int64_t point = 0; point < p->points; point++) {
            int64_t sample = pixels_at(&p->s, point, pixel);
            for (int64_t n = 0; n < columns; n += LANES * p->taps) {
                const float *from =
                    p->image + block_at(&p->s, sample, panel * p->panel_channels + n / p->taps);
                for (int64_t t = 0; t < p->taps; t++)
                    *(lanes *)(values + t * LANES) =
                        pixel[t] < 0 ? (lanes){0} : *(const lanes *)(from + pixel[t]);
                turn_out(values, p->taps, line + n);
            }
            for (int64_t n = 0; n < columns; n += SLICE)
                memcpy(to + n * p->points + point * SLICE, line + n, SLICE * sizeof(float));
        }
    }
}

/* A panel of L added up where its values come from. */
DP_INLINE void add_to_image(const pass *p, int64_t panel, const float *lowered)
{
    float values[MOST_TAPS * LANES], line[LINE];
    int64_t pixel[MOST_TAPS];
    int64_t first = panel * p->panel_channels, columns = columns_of(p, panel);
    for (int64_t sample = 0; sample < p->s.batch; sample++)
        memset(p->image_gradient + block_at(&p->s, sample, first), 0,
               (size_t)(columns / p->taps * p->s.in_height * p->s.in_width) * sizeof(float));
    for (int64_t point = 0; point < p->points; point++) {
        int64_t sample = pixels_at(&p->s, point, pixel);
        for (int64_t n = 0; n < columns; n += SLICE)
            memcpy(line + n, lowered + n * p->points + point * SLICE, SLICE * sizeof(float));
        for (int64_t n = 0; n < columns; n += LANES * p->taps) {
            float *to = p->image_gradient + block_at(&p->s, sample, first + n / p->taps);
            turn_back(line + n, p->taps, values);
            for (int64_t t = 0; t < p->taps; t++)
                if (pixel[t] >= 0)
                    *(lanes *)(to + pixel[t]) += *(const lanes *)(values + t * LANES);
        }
    }
}

/* Between Y and the outputs [sample][block][pixel][8], slices [begin, end). */
DP_INLINE void copy_outputs(const pass *p, int64_t begin, int64_t end, const bool into)
{
    int64_t pixels = p->s.out_height * p->s.out_width, blocks = p->s.out_channels / LANES;
    for (int64_t slice = begin; slice < end; slice++)
        for (int64_t point = 0; point < p->points; point++)
            for (int half = 0; half < 2; half++) {
                int64_t block = point / pixels * blocks + 2 * slice + half;
                lanes *own = (lanes *)(p->outputs + (slice * p->points + point) * SLICE) + half;
                lanes *theirs = (lanes *)p->out + block * pixels + point % pixels;
                if (into)
                    *own = *theirs;
                else
                    *theirs = *own;
            }
}

DP_CLONES static void outputs_range(const void *context, int64_t begin, int64_t end)
{
    copy_outputs(context, begin, end, true);
}

/* ---- the three passes ---- */

/* A panel of the weights of a slice of output channels, as [column][channel]. Those of the next slice
 * are asked for early: in lines so short that the processor does not foresee them. */
DP_INLINE void turn_weights(const float *from, int64_t row, int64_t columns, float *to)
{
    for (int o = 0; o < SLICE; o += LANES, from += LANES * row)
        for (int64_t n = 0; n < columns; n += LANES) {
            dp_transpose8(from + n, row, to + n * SLICE + o, SLICE, false);
            for (int i = 0; i < LANES && n % SLICE == 0; i++)
                __builtin_prefetch(from + (SLICE + i) * row + n);
        }
}

/* The same of `count` channels, as [slice of columns][channel][16]. */
DP_INLINE void copy_weights(const float *from, int64_t row, int64_t count, int64_t columns, float *to)
{
    for (int64_t o = 0; o < count; o++, from += row)
        for (int64_t n = 0; n < columns; n += SLICE) {
            __builtin_prefetch(from + count * row + n);
            memcpy(to + n * count + o * SLICE, from + n, SLICE * sizeof(float));
        }
}

/* Y = L W', slices [begin, end). */
DP_INLINE void forward_slices(const pass *p, int64_t begin, int64_t end, float *turned)
{
    int64_t row = p->s.in_channels * p->taps, slice = p->points * SLICE;
    for (int64_t panel = 0; panel < p->panels; panel++) {
        int64_t columns = columns_of(p, panel), first = panel * p->panel_columns;
        for (int64_t o = begin; o < end; o++) {
            turn_weights(p->weights + o * SLICE * row + first, row, columns, turned);
            product_of_points(p->lowered + first * p->points, columns / SLICE, turned, p->outputs + o * slice,
                              p->points, panel > 0);
        }
    }
    copy_outputs(p, begin, end, false);
}

DP_CLONES static void forward_parts(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    int64_t slices = p->s.out_channels / SLICE;
    for (int64_t part = begin; part < end; part++)
        forward_slices(p, slices * part / p->parts, slices * (part + 1) / p->parts,
                       p->copies + part * copy_floats(p));
}

/* L = Y W, one panel, added to the image. */
DP_INLINE void data_panel(const pass *p, int64_t panel, float *lowered, float *weights)
{
    int64_t row = p->s.in_channels * p->taps, slices = p->s.out_channels / SLICE,
            columns = columns_of(p, panel);
    for (int64_t o = 0; o < slices; o += GROUP) {
        int64_t group = least(GROUP, slices - o), count = group * SLICE;
        copy_weights(p->weights + o * SLICE * row + panel * p->panel_columns, row, count, columns, weights);
        for (int64_t n = 0; n < columns; n += SLICE)
            product_of_points(p->outputs + o * SLICE * p->points, group, weights + n * count,
                              lowered + n * p->points, p->points, o > 0);
    }
    add_to_image(p, panel, lowered);
}

DP_CLONES static void data_parts(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    for (int64_t part = begin; part < end; part++)
        for (int64_t i = p->panels * part / p->parts; i < p->panels * (part + 1) / p->parts; i++)
            data_panel(p, i, p->lowered + part * p->panel_columns * p->points,
                       p->copies + part * copy_floats(p));
}

/* dW = Y' L, panels [begin, end). */
DP_CLONES static void gradient_range(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    int64_t row = p->s.in_channels * p->taps;
    for (int64_t panel = begin; panel < end; panel++) {
        int64_t first = panel * p->panel_columns, last = first + columns_of(p, panel);
        for (int64_t o = 0; o < p->s.out_channels; o += SLICE)
            for (int64_t n = first; n < last; n += SLICE)
                gradient_of_slice(p->outputs + o * p->points, p->lowered + n * p->points, p->points,
                                  p->weights_gradient + o * row + n, row, p->accumulate);
    }
}

void dp_lowered_forward(int threads, const dp_lowered *shape, const float *in, const float *weights,
                        float *out, void *workspace)
{
    pass p = start(shape, threads, workspace);
    p.image = in;
    p.weights = weights;
    p.out = out;
    dp_cpu_for(threads, p.panels, 1, lower_range, &p);
    dp_cpu_for(threads, p.parts, 1, forward_parts, &p);
}

void dp_lowered_backward_data(int threads, const dp_lowered *shape, const float *out_gradient,
                              const float *weights, float *in_gradient, void *workspace)
{
    pass p = start(shape, threads, workspace);
    p.out = (float *)out_gradient; /* only read */
    p.weights = weights;
    p.image_gradient = in_gradient;
    dp_cpu_for(threads, shape->out_channels / SLICE, 1, outputs_range, &p);
    dp_cpu_for(threads, p.parts, 1, data_parts, &p);
}

void dp_lowered_backward_weights(int threads, const dp_lowered *shape, const float *in,
                                 const float *out_gradient, float *weights_gradient, bool accumulate,
                                 void *workspace)
{
    pass p = start(shape, threads, workspace);
    p.image = in;
    p.out = (float *)out_gradient; /* only read */
    p.weights_gradient = weights_gradient;
    p.accumulate = accumulate;
    dp_cpu_for(threads, p.panels, 1, lower_range, &p);
    dp_cpu_for(threads, shape->out_channels / SLICE, 1, outputs_range, &p);
    dp_cpu_for(threads, p.panels, 1, gradient_range, &p);
}
