/* Maximum pooling in any layout, with an optional ReLU behind it.
 *
 * Forward keeps, for training, where in its window each maximum was, so that backward needs neither input nor
 * output. Channels that lie together are handled as vectors. */
#include <string.h>

#include "base/memory.h"
#include "cpu/clones.h"
#include "cpu/internal.h"
#include "cpu/layout.h"

/* Windows of up to 255 positions keep a byte per output, larger ones four. The value after the last possible
 * position says that ReLU cut the output off, and no gradient passes. */
enum { BYTE_POSITIONS = 255, BYTE_CUT = 255 };
static const int32_t wide_cut = INT32_MAX;

enum { CHUNK = 16 };

typedef struct pool_op {
    dp_cpu_op common;
    dp_cpu_grouped in, out;
    int kernel[2], stride[2], padding[2];
    bool relu, keep, wide;
    bool tiles; /* windows cover the input exactly once */
} pool_op;

typedef struct pool_pass {
    const pool_op *op;
    const float *x, *dy;
    float *y, *dx;
    void *positions; /* NULL: not kept */
} pool_pass;

/* A window clipped to the input. */
typedef struct window {
    int64_t top, bottom, left, right; /* of the input, bottom and right exclusive */
    int64_t row0, column0;            /* where the unclipped window starts */
} window;

DP_INLINE window window_of(const pool_op *p, int64_t row, int64_t column)
{
    window w = {.row0 = row * p->stride[0] - p->padding[0], .column0 = column * p->stride[1] - p->padding[1]};
    w.top = w.row0 < 0 ? 0 : w.row0;
    w.left = w.column0 < 0 ? 0 : w.column0;
    w.bottom = w.row0 + p->kernel[0] < p->in.height ? w.row0 + p->kernel[0] : p->in.height;
    w.right = w.column0 + p->kernel[1] < p->in.width ? w.column0 + p->kernel[1] : p->in.width;
    return w;
}

/* 8 neighbouring channels, at any float's address. Written with vector types because compilers do not see
 * vectors in loops that choose a value and an index together. */
typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint8_t octets __attribute__((vector_size(8), aligned(1), may_alias));

/* a where the mask is set, else b. A macro: vectors as arguments of functions depend on the instruction set.
 */
#define CHOOSE(mask, a, b) (((a) & (mask)) | ((b) & ~(mask)))

/* The maximum of a window for 8 channels. A NaN wins, as in PyTorch; of equal values the first in row-major
 * order. */
DP_INLINE void pool_eight(const pool_pass *v, const float *x, window w, int width, int64_t at)
{
    const pool_op *p = v->op;
    int64_t inner = p->in.inner;
    int32_t start = (int32_t)((w.top - w.row0) * width + (w.left - w.column0));
    lanes best = *(const lanes *)(x + (w.top * p->in.width + w.left) * inner);
    integers place = start - (integers){0};
    for (int64_t row = w.top; row < w.bottom; row++) {
        const float *candidate = x + (row * p->in.width + w.left) * inner;
        int32_t here = (int32_t)((row - w.row0) * width + (w.left - w.column0));
        for (int64_t column = w.left; column < w.right; column++, candidate += inner, here++) {
            lanes value = *(const lanes *)candidate;
            integers better = (integers)(value > best) | (integers)(value != value);
            best = (lanes)CHOOSE(better, (integers)value, (integers)best);
            place = CHOOSE(better, here - (integers){0}, place);
        }
    }
    if (p->relu) {
        integers closed = (integers)(best <= 0);
        best = (lanes)((integers)best & ~closed);
        place = CHOOSE(closed, (p->wide ? wide_cut : BYTE_CUT) - (integers){0}, place);
    }
    *(lanes *)(v->y + at) = best;
    if (v->positions && p->wide)
        *(integers *)((int32_t *)v->positions + at) = place;
    else if (v->positions)
        *(octets *)((uint8_t *)v->positions + at) = __builtin_convertvector(place, octets);
}

/* The same for one channel. */
DP_INLINE void pool_one(const pool_pass *v, const float *x, window w, int width, int64_t at)
{
    const pool_op *p = v->op;
    int64_t inner = p->in.inner;
    float best = x[(w.top * p->in.width + w.left) * inner];
    int32_t place = (int32_t)((w.top - w.row0) * width + (w.left - w.column0));
    for (int64_t row = w.top; row < w.bottom; row++) {
        for (int64_t column = w.left; column < w.right; column++) {
            float value = x[(row * p->in.width + column) * inner];
            bool better = value > best || value != value;
            best = better ? value : best;
            place = better ? (int32_t)((row - w.row0) * width + (column - w.column0)) : place;
        }
    }
    bool closed = p->relu && best <= 0;
    v->y[at] = closed ? 0 : best;
    if (v->positions && p->wide)
        ((int32_t *)v->positions)[at] = closed ? wide_cut : place;
    else if (v->positions)
        ((uint8_t *)v->positions)[at] = (uint8_t)(closed ? BYTE_CUT : place);
}

DP_INLINE void pool_window(const pool_pass *v, const float *x, window w, int width, int64_t at)
{
    int64_t inner = v->op->in.inner, c = 0;
    for (; c + 8 <= inner; c += 8)
        pool_eight(v, x + c, w, width, at + c);
    for (; c < inner; c++)
        pool_one(v, x + c, w, width, at + c);
}

/* Most networks pool 2x2 without padding; with constant bounds that is straight code. */
DP_INLINE void forward_groups(const pool_pass *v, int64_t begin, int64_t end, const bool two_by_two)
{
    const pool_op *p = v->op;
    int64_t image = p->in.height * p->in.width * p->in.inner, inner = p->out.inner;
    for (int64_t g = begin; g < end; g++) {
        const float *x = v->x + g * image;
        int64_t at = g * p->out.height * p->out.width * inner;
        for (int64_t row = 0; row < p->out.height; row++) {
            for (int64_t column = 0; column < p->out.width; column++, at += inner) {
                int64_t top = row * p->stride[0], left = column * p->stride[1];
                if (two_by_two)
                    pool_window(v, x, (window){top, top + 2, left, left + 2, top, left}, 2, at);
                else
                    pool_window(v, x, window_of(p, row, column), p->kernel[1], at);
            }
        }
    }
}

DP_CLONES static void forward_range(const void *context, int64_t begin, int64_t end)
{
    const pool_pass *v = context;
    const pool_op *p = v->op;
    if (p->kernel[0] == 2 && p->kernel[1] == 2 && p->padding[0] == 0 && p->padding[1] == 0)
        forward_groups(v, begin, end, true);
    else
        forward_groups(v, begin, end, false);
}

/* Gives the gradient of `count` neighbouring outputs to the positions of their maxima. `set`: nothing is
 * there yet and no other window will come. */
DP_INLINE void spread_chunk(const pool_pass *v, float *dx, window w, int64_t count, int64_t at, bool set)
{
    const pool_op *p = v->op;
    int32_t position[CHUNK];
    float dy[CHUNK];
    for (int64_t c = 0; c < count; c++) {
        position[c] =
            p->wide ? ((const int32_t *)v->positions)[at + c] : ((const uint8_t *)v->positions)[at + c];
        dy[c] = v->dy[at + c];
    }
    for (int64_t row = w.top; row < w.bottom; row++) {
        for (int64_t column = w.left; column < w.right; column++) {
            float *to = dx + (row * p->in.width + column) * p->in.inner;
            int32_t here = (int32_t)((row - w.row0) * p->kernel[1] + (column - w.column0));
            for (int64_t c = 0; c < count; c++) {
                float share = position[c] == here ? dy[c] : 0;
                to[c] = set ? share : to[c] + share;
            }
        }
    }
}

DP_INLINE void spread_window(const pool_pass *v, float *dx, window w, int64_t at, bool set)
{
    int64_t inner = v->op->in.inner, c = 0;
    for (; c + 16 <= inner; c += 16)
        spread_chunk(v, dx + c, w, 16, at + c, set);
    for (; c + 8 <= inner; c += 8)
        spread_chunk(v, dx + c, w, 8, at + c, set);
    for (; c < inner; c++)
        spread_chunk(v, dx + c, w, 1, at + c, set);
}

DP_CLONES static void backward_range(const void *context, int64_t begin, int64_t end)
{
    const pool_pass *v = context;
    const pool_op *p = v->op;
    int64_t image = p->in.height * p->in.width * p->in.inner, inner = p->out.inner;
    for (int64_t g = begin; g < end; g++) {
        float *dx = v->dx + g * image;
        int64_t at = g * p->out.height * p->out.width * inner;
        if (!p->tiles)
            memset(dx, 0, (size_t)image * sizeof(float));
        for (int64_t row = 0; row < p->out.height; row++) {
            for (int64_t column = 0; column < p->out.width; column++, at += inner) {
                if (p->tiles)
                    spread_window(v, dx, window_of(p, row, column), at, true);
                else
                    spread_window(v, dx, window_of(p, row, column), at, false);
            }
        }
    }
}

static dp_status pool_forward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    pool_op *p = op->state;
    pool_pass v = {.op = p, .x = args->in[0], .y = args->out, .positions = p->keep ? args->saved : NULL};
    dp_cpu_for(p->common.device->threads, p->in.groups, 1, forward_range, &v);
    return DP_OK;
}

static dp_status pool_backward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    pool_op *p = op->state;
    if (!args->in_gradient[0])
        return DP_OK;
    pool_pass v = {.op = p, .dy = args->out_gradient, .dx = args->in_gradient[0], .positions = args->saved};
    dp_cpu_for(p->common.device->threads, p->in.groups, 1, backward_range, &v);
    return DP_OK;
}

dp_status dp_cpu_pool_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    (void)device;
    const dp_op_desc *d = request->desc;
    pool_op *p;
    DP_TRY(dp_calloc(1, sizeof *p, "a pooling operation", &p, err));
    p->common = (dp_cpu_op){.forward = pool_forward, .backward = pool_backward, .destroy = dp_cpu_op_free};
    p->in = dp_cpu_group(&d->in[0], request->in[0].tag);
    p->out = dp_cpu_group(&d->out, request->in[0].tag);
    p->relu = d->relu;
    p->keep = request->training && request->input_gradient[0];
    p->wide = (int64_t)d->kernel[0] * d->kernel[1] > BYTE_POSITIONS;
    p->tiles = true;
    for (int i = 0; i < 2; i++) {
        p->kernel[i] = d->kernel[i];
        p->stride[i] = d->stride[i];
        p->padding[i] = d->padding[i];
        p->tiles &= d->kernel[i] == d->stride[i] && d->padding[i] == 0 &&
                    d->in[0].dim[2 + i] == d->out.dim[2 + i] * d->stride[i];
    }
    out->out = dp_cpu_layout(&d->out, request->in[0].tag);
    size_t position = p->wide ? sizeof(int32_t) : sizeof(uint8_t);
    out->saved_bytes = p->keep ? out->out.bytes / sizeof(float) * position : 0;
    out->state = p;
    return DP_OK;
}
