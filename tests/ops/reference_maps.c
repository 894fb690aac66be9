/* The operations that rearrange or thin out feature maps, and deconvolution, in float64: each a list of
 * (output, input, factor) triples, walked one way by forward and the other way by backward. */
#include <math.h>

#include "base/rng.h"
#include "reference.h"

const dp_op_random reference_random = {.seed = 0x123456789abcdef0u, .step = 41, .first_sample = 3};

/* Forward: out += factor * in. Backward: in_gradient += factor * out_gradient. */
typedef struct walk {
    const double *in, *out_gradient;
    double *out, *in_gradient;
} walk;

static void visit(const walk *w, int64_t out, int64_t in, double factor)
{
    if (w->out)
        w->out[out] += factor * w->in[in];
    else if (w->in_gradient)
        w->in_gradient[in] += factor * w->out_gradient[out];
}

static int64_t at(const dp_shape *s, int64_t n, int64_t c, int64_t row, int64_t column)
{
    return ((n * s->dim[1] + c) * s->dim[2] + row) * s->dim[3] + column;
}

/* ---- deconvolution ---- */

/* Each input spreads, weighted, over a window of the output. weight_gradient NULL: not wanted. */
static void deconvolve(const dp_op_desc *d, const walk *w, const double *in, const double *weight,
                       double *weight_gradient)
{
    const int64_t *size = d->in[0].dim, *out = d->out.dim;
    for (int64_t n = 0; n < size[0]; n++)
        for (int64_t c = 0; c < size[1]; c++)
            for (int64_t y = 0; y < size[2]; y++)
                for (int64_t x = 0; x < size[3]; x++)
                    for (int64_t o = 0; o < out[1]; o++)
                        for (int64_t i = 0; i < d->kernel[0]; i++)
                            for (int64_t j = 0; j < d->kernel[1]; j++) {
                                int64_t row = y * d->stride[0] - d->padding[0] + i;
                                int64_t column = x * d->stride[1] - d->padding[1] + j;
                                if (row < 0 || row >= out[2] || column < 0 || column >= out[3])
                                    continue;
                                int64_t tap = ((c * out[1] + o) * d->kernel[0] + i) * d->kernel[1] + j;
                                int64_t from = at(&d->in[0], n, c, y, x), to = at(&d->out, n, o, row, column);
                                visit(w, to, from, weight[tap]);
                                if (weight_gradient)
                                    weight_gradient[tap] += in[from] * w->out_gradient[to];
                            }
}

/* ---- resampling ---- */

/* Output row y lies at y/2 - 1/4 of the input, between two rows, the first and last repeated outwards. */
static void upsampled_row(int64_t y, int64_t height, int64_t row[2], double share[2])
{
    double place = fmax(0, ((double)y + 0.5) / 2 - 0.5);
    row[0] = (int64_t)place;
    row[1] = row[0] + 1 < height ? row[0] + 1 : row[0];
    share[1] = place - (double)row[0];
    share[0] = 1 - share[1];
}

static void upsample(const dp_op_desc *d, const walk *w, int64_t n, int64_t c)
{
    for (int64_t y = 0; y < d->out.dim[2]; y++)
        for (int64_t x = 0; x < d->out.dim[3]; x++) {
            int64_t row[2], column[2];
            double down[2], across[2];
            upsampled_row(y, d->in[0].dim[2], row, down);
            upsampled_row(x, d->in[0].dim[3], column, across);
            for (int i = 0; i < 4; i++)
                visit(w, at(&d->out, n, c, y, x), at(&d->in[0], n, c, row[i / 2], column[i % 2]),
                      down[i / 2] * across[i % 2]);
        }
}

static void window(int64_t i, int64_t n, int64_t size, int64_t *begin, int64_t *end)
{
    *begin = i * size / n;
    *end = ((i + 1) * size + n - 1) / n;
}

static void average(const dp_op_desc *d, const walk *w, int64_t n, int64_t c)
{
    for (int64_t y = 0; y < d->out.dim[2]; y++)
        for (int64_t x = 0; x < d->out.dim[3]; x++) {
            int64_t top, bottom, left, right;
            window(y, d->out.dim[2], d->in[0].dim[2], &top, &bottom);
            window(x, d->out.dim[3], d->in[0].dim[3], &left, &right);
            for (int64_t row = top; row < bottom; row++)
                for (int64_t column = left; column < right; column++)
                    visit(w, at(&d->out, n, c, y, x), at(&d->in[0], n, c, row, column),
                          1 / (double)((bottom - top) * (right - left)));
        }
}

static void each_map(const dp_op_desc *d, const walk *w,
                     void (*body)(const dp_op_desc *, const walk *, int64_t n, int64_t c))
{
    for (int64_t n = 0; n < d->out.dim[0]; n++)
        for (int64_t c = 0; c < d->out.dim[1]; c++)
            body(d, w, n, c);
}

/* ---- concatenation ---- */

/* The part of the output that comes from input `which`. */
static void copy_part(const dp_op_desc *d, const walk *w, int which)
{
    const int64_t *in = d->in[which].dim;
    for (int64_t n = 0; n < in[0]; n++)
        for (int64_t c = 0; c < in[1]; c++)
            for (int64_t y = 0; y < in[2]; y++)
                for (int64_t x = 0; x < in[3]; x++)
                    visit(w, at(&d->out, n, which ? d->in[0].dim[1] + c : c, y, x),
                          at(&d->in[which], n, c, y, x), 1);
}

/* ---- dropout ---- */

static void drop(const dp_op_desc *d, const walk *w, bool training)
{
    const dp_op_random *r = &reference_random;
    int64_t sample = dp_shape_sample_elements(&d->out);
    int64_t unit = d->kind == DP_OP_DROPOUT2D ? d->out.dim[2] * d->out.dim[3] : 1;
    for (int64_t i = 0; i < d->out.dim[0] * sample; i++) {
        uint64_t number = ((uint64_t)d->layer << 40) + (uint64_t)(i % sample / unit);
        bool kept = dp_rng_uniform(r->seed, DP_RNG_DROPOUT, r->step, r->first_sample + (uint32_t)(i / sample),
                                   number) >= d->probability;
        if (!training)
            visit(w, i, i, 1);
        else if (kept)
            visit(w, i, i, 1 / (1 - d->probability));
    }
}

/* ---- both ways ---- */

static bool walk_maps(const dp_op_desc *d, const reference_tensors *t, const walk *w, double *weight_gradient)
{
    switch (d->kind) {
    case DP_OP_CONV_TRANSPOSE2D:
        deconvolve(d, w, t->in[0], t->weight, weight_gradient);
        return true;
    case DP_OP_UPSAMPLE2X:
        each_map(d, w, upsample);
        return true;
    case DP_OP_ADAPTIVE_AVG_POOL2D:
        each_map(d, w, average);
        return true;
    case DP_OP_DROPOUT:
    case DP_OP_DROPOUT2D:
        drop(d, w, t->training);
        return true;
    default:
        return false;
    }
}

bool reference_maps_forward(const dp_op_desc *d, const reference_tensors *t)
{
    walk w = {.in = t->in[0], .out = t->out};
    if (d->kind != DP_OP_CONCAT)
        return walk_maps(d, t, &w, NULL);
    for (int i = 0; i < 2; i++)
        copy_part(d, &(walk){.in = t->in[i], .out = t->out}, i);
    return true;
}

bool reference_maps_backward(const dp_op_desc *d, const reference_tensors *t, const double *out_gradient)
{
    walk w = {.out_gradient = out_gradient, .in_gradient = t->in_gradient[0]};
    if (d->kind != DP_OP_CONCAT)
        return walk_maps(d, t, &w, t->weight_gradient);
    for (int i = 0; i < 2; i++)
        copy_part(d, &(walk){.out_gradient = out_gradient, .in_gradient = t->in_gradient[i]}, i);
    return true;
}
