/* Bilinear upsampling to twice the size, as PyTorch's align_corners=False defines it.
 *
 * Output column 2x lies a quarter of a pixel left of input column x, 2x + 1 a quarter right of it: weights
 * 1/4 and 3/4, with the outermost pixels repeated beyond the border. So do rows. Each output row is a mix of
 * two input rows, spread sideways; each row of the input's gradient a mix of four rows of the output's,
 * gathered sideways by the transposed weights. */
#include "base/memory.h"
#include "cpu/clones.h"
#include "cpu/internal.h"
#include "cpu/layout.h"

static const float NEAR = 0.75f, FAR = 0.25f;

enum { TILE = 256 }; /* pixels of a plain row that are mixed at a time */

typedef struct upsample_op {
    dp_cpu_op common;
    dp_cpu_grouped in;
} upsample_op;

typedef struct upsample_pass {
    dp_cpu_grouped in;
    const float *source;
    float *target;
} upsample_pass;

/* 8 neighbouring channels, at any float's address. */
typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));

DP_INLINE int64_t clamp(int64_t i, int64_t count)
{
    return i < 0 ? 0 : i < count ? i : count - 1;
}

/* ---- forward ---- */

/* One output row of a plain map from input rows `near` and `far`. */
DP_INLINE void spread_plain(const float *restrict near, const float *restrict far, float *restrict y,
                            int64_t width)
{
    float mixed[TILE + 2];
    for (int64_t start = 0; start < width; start += TILE) {
        int64_t count = width - start < TILE ? width - start : TILE;
        const float *n = near + start, *f = far + start;
        int64_t left = start > 0 ? -1 : 0, right = start + count < width ? count : count - 1;
        mixed[0] = NEAR * n[left] + FAR * f[left];
        for (int64_t x = 0; x < count; x++)
            mixed[x + 1] = NEAR * n[x] + FAR * f[x];
        mixed[count + 1] = NEAR * n[right] + FAR * f[right];
        for (int64_t x = 0; x < count; x++) {
            y[2 * (start + x)] = FAR * mixed[x] + NEAR * mixed[x + 1];
            y[2 * (start + x) + 1] = NEAR * mixed[x + 1] + FAR * mixed[x + 2];
        }
    }
}

/* The same for 8 channels, or one, of maps whose pixels are `inner` floats apart. A macro, for it is written
 * for vectors and for floats. */
#define SPREAD(type, near, far, y, width, inner)                                                      \
    do {                                                                                              \
        type here = NEAR * *(const type *)(near) + FAR * *(const type *)(far), left = here;           \
        for (int64_t x = 0; x < (width); x++) {                                                       \
            int64_t next = clamp(x + 1, (width)) * (inner);                                           \
            type right = NEAR * *(const type *)((near) + next) + FAR * *(const type *)((far) + next); \
            *(type *)((y) + 2 * x * (inner)) = FAR * left + NEAR * here;                              \
            *(type *)((y) + (2 * x + 1) * (inner)) = NEAR * here + FAR * right;                       \
            left = here;                                                                              \
            here = right;                                                                             \
        }                                                                                             \
    } while (0)

DP_CLONES static void forward_range(const void *context, int64_t begin, int64_t end)
{
    const upsample_pass *v = context;
    int64_t height = v->in.height, width = v->in.width, inner = v->in.inner;
    for (int64_t i = begin; i < end; i++) {
        int64_t group = i / (2 * height), row = i % (2 * height);
        const float *map = v->source + group * height * width * inner;
        const float *near = map + row / 2 * width * inner;
        const float *far = map + clamp(row % 2 ? row / 2 + 1 : row / 2 - 1, height) * width * inner;
        float *y = v->target + i * 2 * width * inner;
        int64_t c = 0;
        if (inner == 1) {
            spread_plain(near, far, y, width);
            continue;
        }
        for (; c + 8 <= inner; c += 8)
            SPREAD(lanes, near + c, far + c, y + c, width, inner);
        for (; c < inner; c++)
            SPREAD(float, near + c, far + c, y + c, width, inner);
    }
}

/* ---- backward ---- */

/* The four rows of the output's gradient that an input row has a share in, the outer two first. */
typedef struct four_rows {
    const float *outer[2], *inner[2];
} four_rows;

#define MIX(type, rows, at)                                                                      \
    (FAR * (*(const type *)((rows).outer[0] + (at)) + *(const type *)((rows).outer[1] + (at))) + \
     NEAR * (*(const type *)((rows).inner[0] + (at)) + *(const type *)((rows).inner[1] + (at))))

DP_INLINE void gather_plain(four_rows r, float *restrict dx, int64_t width)
{
    float mixed[2 * TILE + 2];
    for (int64_t start = 0; start < width; start += TILE) {
        int64_t count = width - start < TILE ? width - start : TILE, first = 2 * start;
        mixed[0] = MIX(float, r, clamp(first - 1, 2 * width));
        for (int64_t x = 0; x < 2 * count; x++)
            mixed[x + 1] = MIX(float, r, first + x);
        mixed[2 * count + 1] = MIX(float, r, clamp(first + 2 * count, 2 * width));
        for (int64_t x = 0; x < count; x++)
            dx[start + x] =
                FAR * (mixed[2 * x] + mixed[2 * x + 3]) + NEAR * (mixed[2 * x + 1] + mixed[2 * x + 2]);
    }
}

#define GATHER(type, rows, c, dx, width, inner)                                                  \
    do {                                                                                         \
        type here = MIX(type, rows, (c)), left = here;                                           \
        for (int64_t x = 0; x < (width); x++) {                                                  \
            type right = MIX(type, rows, (2 * x + 1) * (inner) + (c));                           \
            int64_t next = clamp(2 * x + 2, 2 * (width)) * (inner);                              \
            type beyond = MIX(type, rows, next + (c));                                           \
            *(type *)((dx) + x * (inner) + (c)) = FAR * (left + beyond) + NEAR * (here + right); \
            left = right;                                                                        \
            here = beyond;                                                                       \
        }                                                                                        \
    } while (0)

DP_CLONES static void backward_range(const void *context, int64_t begin, int64_t end)
{
    const upsample_pass *v = context;
    int64_t height = v->in.height, width = v->in.width, inner = v->in.inner, pitch = 2 * width * inner;
    for (int64_t i = begin; i < end; i++) {
        int64_t group = i / height, row = i % height, c = 0;
        const float *map = v->source + group * 2 * height * pitch;
        four_rows r = {
            {map + clamp(2 * row - 1, 2 * height) * pitch, map + clamp(2 * row + 2, 2 * height) * pitch},
            {map + 2 * row * pitch, map + (2 * row + 1) * pitch}};
        float *dx = v->target + i * width * inner;
        if (inner == 1) {
            gather_plain(r, dx, width);
            continue;
        }
        for (; c + 8 <= inner; c += 8)
            GATHER(lanes, r, c, dx, width, inner);
        for (; c < inner; c++)
            GATHER(float, r, c, dx, width, inner);
    }
}

/* ---- the operation ---- */

static dp_status upsample_forward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    upsample_op *u = op->state;
    upsample_pass v = {u->in, args->in[0], args->out};
    dp_cpu_for(u->common.device->threads, u->in.groups * u->in.height * 2, 16, forward_range, &v);
    return DP_OK;
}

static dp_status upsample_backward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    upsample_op *u = op->state;
    upsample_pass v = {u->in, args->out_gradient, args->in_gradient[0]};
    if (v.target)
        dp_cpu_for(u->common.device->threads, u->in.groups * u->in.height, 8, backward_range, &v);
    return DP_OK;
}

dp_status dp_cpu_upsample_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out,
                                 dp_error *err)
{
    (void)device;
    upsample_op *u;
    DP_TRY(dp_calloc(1, sizeof *u, "an upsampling operation", &u, err));
    u->common =
        (dp_cpu_op){.forward = upsample_forward, .backward = upsample_backward, .destroy = dp_cpu_op_free};
    u->in = dp_cpu_group(&request->desc->in[0], request->in[0].tag);
    out->out = dp_cpu_layout(&request->desc->out, request->in[0].tag);
    out->state = u;
    return DP_OK;
}
