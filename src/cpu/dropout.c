/* Dropout of elements and of whole channels.
 *
 * Which are kept is decided by random numbers that are counted in the plain order. Forward turns them into
 * bits, one for each element, and backward reads these again. In memory order the bits of a channel come in
 * words of 64 pixels, so both directions need nothing but shifts to apply them in any layout. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/philox.h"
#include "cpu/clones.h"
#include "cpu/internal.h"
#include "cpu/layout.h"

enum { WORD = 64, BLOCKS = WORD / 4 }; /* a word is drawn from 16 blocks of four numbers */

typedef struct dropout_op {
    dp_cpu_op common;
    dp_cpu_grouped group;     /* rank 2: N maps of one channel, one row */
    int64_t channels, blocks; /* of a sample; groups of a sample */
    int64_t pixels;           /* of a map */
    bool whole;               /* one number for all pixels of a map */
    int64_t words;            /* of a map */
    uint32_t threshold;
    float scale;
} dropout_op;

typedef struct dropout_pass {
    const dropout_op *op;
    uint64_t layer;
    const dp_op_random *random; /* NULL: the bits are there */
    uint64_t *bits;             /* [groups, inner, words] */
    const float *source;
    float *target;
} dropout_pass;

/* ---- drawing ---- */

/* Bit i: whether number 4 * block + i of the sample's stream, as dp_rng_uniform gives it, is at least p. The
 * threshold is the smallest 24-bit number that is. */
DP_INLINE uint64_t draw_word(const dp_op_random *r, uint32_t sample, uint64_t block, uint32_t threshold)
{
    uint32_t kept[BLOCKS], low = 0, high = 0;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        uint32_t number[4];
        dp_philox_block(r->seed, DP_RNG_DROPOUT, r->step, sample, block + i, number);
        kept[i] = 0;
        for (int j = 0; j < 4; j++)
            kept[i] |= (uint32_t)(number[j] >> 8 >= threshold) << j;
    }
    for (int i = 0; i < BLOCKS / 2; i++) {
        low |= kept[i] << 4 * i;
        high |= kept[BLOCKS / 2 + i] << 4 * i;
    }
    return (uint64_t)high << 32 | low;
}

/* The words of a map's numbers, from `first` on, which need not start a block. */
DP_INLINE void draw_map(const dropout_op *d, const dp_op_random *r, uint32_t sample, uint64_t first,
                        uint64_t *words)
{
    uint64_t block = first / 4;
    int shift = (int)(first % 4);
    uint64_t word = draw_word(r, sample, block, d->threshold);
    for (int64_t i = 0; i < d->words; i++) {
        words[i] = word >> shift;
        if (d->pixels - i * WORD <= WORD - shift)
            break;
        block += BLOCKS;
        word = draw_word(r, sample, block, d->threshold);
        if (shift)
            words[i] |= word << (WORD - shift);
    }
}

/* The bits of the channels of one group; those of channels that only fill it up are zero. */
DP_INLINE void draw_group(const dropout_pass *v, int64_t g, uint64_t *words)
{
    const dropout_op *d = v->op;
    const dp_op_random *r = v->random;
    uint32_t sample = r->first_sample + (uint32_t)(g / d->blocks);
    for (int64_t k = 0; k < d->group.inner; k++, words += d->words) {
        int64_t c = g % d->blocks * d->group.inner + k;
        if (c >= d->channels)
            memset(words, 0, (size_t)d->words * sizeof *words);
        else if (d->whole)
            *words = dp_rng_u32(r->seed, DP_RNG_DROPOUT, r->step, sample, v->layer + (uint64_t)c) >> 8 >=
                             d->threshold
                         ? UINT64_MAX
                         : 0;
        else
            draw_map(d, r, sample, v->layer + (uint64_t)(c * d->pixels), words);
    }
}

/* ---- applying ---- */

/* 8 neighbouring channels, at any float's address. */
typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t integers __attribute__((vector_size(32), aligned(4), may_alias));

/* Up to 32 pixels of 8 channels, whose bits the channels' halves hold. */
DP_INLINE void keep_eight(const float *restrict x, float *restrict y, int64_t count, int64_t inner,
                          const uint32_t half[8], float scale)
{
    integers bits = *(const integers *)half;
    for (int64_t i = 0; i < count; i++) {
        integers kept = -(bits >> (int)i & 1);
        *(integers *)(y + i * inner) = (integers)(*(const lanes *)(x + i * inner) * scale) & kept;
    }
}

DP_INLINE void keep_one(const float *restrict x, float *restrict y, int64_t count, int64_t inner,
                        uint32_t half, float scale)
{
    int i = 0;
    for (; inner == 1 && i + 8 <= count; i += 8) {
        const integers lane = {0, 1, 2, 3, 4, 5, 6, 7};
        integers kept = -((int32_t)(half >> i) >> lane & 1);
        *(integers *)(y + i) = (integers)(*(const lanes *)(x + i) * scale) & kept;
    }
    for (; i < count; i++)
        y[i * inner] = half >> i & 1 ? x[i * inner] * scale : 0;
}

/* Pixels [p, p + count), at most 32, of a group. */
DP_INLINE void keep_pixels(const dropout_op *d, const uint64_t *words, const float *x, float *y, int64_t p,
                           int64_t count)
{
    int64_t inner = d->group.inner, word = d->whole ? 0 : p / WORD, c = 0;
    int shift = (int)(p % WORD);
    for (; c + 8 <= inner; c += 8) {
        uint32_t half[8];
        for (int k = 0; k < 8; k++)
            half[k] = (uint32_t)(words[(c + k) * d->words + word] >> shift);
        keep_eight(x + p * inner + c, y + p * inner + c, count, inner, half, d->scale);
    }
    for (; c < inner; c++) {
        uint32_t half = (uint32_t)(words[c * d->words + word] >> shift);
        keep_one(x + p * inner + c, y + p * inner + c, count, inner, half, d->scale);
    }
}

DP_CLONES static void dropout_range(const void *context, int64_t begin, int64_t end)
{
    const dropout_pass *v = context;
    const dropout_op *d = v->op;
    for (int64_t g = begin; g < end; g++) {
        uint64_t *words = v->bits + g * d->group.inner * d->words;
        const float *x = v->source + g * d->pixels * d->group.inner;
        float *y = v->target + g * d->pixels * d->group.inner;
        if (v->random)
            draw_group(v, g, words);
        for (int64_t p = 0; p < d->pixels; p += WORD / 2)
            keep_pixels(d, words, x, y, p, d->pixels - p < WORD / 2 ? d->pixels - p : WORD / 2);
    }
}

/* ---- the operation ---- */

static dp_status dropout_forward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    dropout_op *d = op->state;
    if (!op->saved_bytes) {
        memcpy(args->out, args->in[0], op->out.bytes);
        return DP_OK;
    }
    if (!args->random)
        return dp_fail(err, DP_ERROR_INTERNAL, "a dropout without random numbers");
    dropout_pass v = {.op = d,
                      .layer = (uint64_t)op->desc.layer << 40,
                      .random = args->random,
                      .bits = args->saved,
                      .source = args->in[0],
                      .target = args->out};
    dp_cpu_for(d->common.device->threads, d->group.groups, 1, dropout_range, &v);
    return DP_OK;
}

static dp_status dropout_backward(dp_op *op, const dp_op_args *args, dp_error *err)
{
    (void)err;
    dropout_op *d = op->state;
    dropout_pass v = {
        .op = d, .bits = args->saved, .source = args->out_gradient, .target = args->in_gradient[0]};
    if (v.target)
        dp_cpu_for(d->common.device->threads, d->group.groups, 1, dropout_range, &v);
    return DP_OK;
}

dp_status dp_cpu_dropout_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out,
                                dp_error *err)
{
    (void)device;
    const dp_op_desc *desc = request->desc;
    const dp_shape *shape = &desc->in[0];
    dropout_op *d;
    DP_TRY(dp_calloc(1, sizeof *d, "a dropout", &d, err));
    d->common =
        (dp_cpu_op){.forward = dropout_forward, .backward = dropout_backward, .destroy = dp_cpu_op_free};
    d->group = dp_cpu_group(shape, request->in[0].tag);
    d->channels = shape->rank == 4 ? shape->dim[1] : 1;
    if (shape->rank != 4)
        d->group = (dp_cpu_grouped){shape->dim[0], 1, dp_shape_sample_elements(shape), 1};
    d->blocks = (d->channels + d->group.inner - 1) / d->group.inner;
    d->pixels = d->group.height * d->group.width;
    d->whole = desc->kind == DP_OP_DROPOUT2D;
    d->words = d->whole ? 1 : (d->pixels + WORD - 1) / WORD;
    d->threshold = (uint32_t)ceil(ldexp(desc->probability, 24));
    d->scale = desc->probability < 1 ? (float)(1 / (1 - desc->probability)) : 0;
    if (request->training)
        out->saved_bytes = (size_t)(d->group.groups * d->group.inner * d->words) * sizeof(uint64_t);
    out->out = request->in[0];
    out->state = d;
    return DP_OK;
}
