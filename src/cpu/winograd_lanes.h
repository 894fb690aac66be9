/* The kernels of Winograd's convolutions: see winograd.c. A source file includes this once, after defining
 * LANES, the channels of a block; CHANNEL_ROWS, which divides it; and KERNELS, the name of the table. */
#include <math.h>

#include "cpu/clones.h"
#include "cpu/transpose.h"
#include "cpu/winograd_pass.h"

#if !defined(__clang__)
#pragma GCC optimize("fp-contract=fast") /* fused multiply-adds, which -std=c17 switches off */
#endif

enum {
    PAIR = 2 * LANES,
    SIDE = DP_WINOGRAD_SIDE,
    POSITIONS = DP_WINOGRAD_POSITIONS,
    ROWS = DP_WINOGRAD_ROWS,
    WEIGHT_ROWS = DP_WINOGRAD_WEIGHT_ROWS,
    SUM_CHANNELS = DP_WINOGRAD_SUM_CHANNELS,
    MOST_TAPS = 25,
    MOST_OUTPUTS = 16
};

#define P  0.625f
#define Q  1.5f
#define P2 (P * P)
#define P3 (P * P * P)
#define P4 (P * P * P * P)
#define Q2 (Q * Q)
#define Q3 (Q * Q * Q)
#define Q4 (Q * Q * Q * Q)
/* The scales of G's rows: each point's distances from the others, multiplied. */
#define N0 (P2 * Q2)
#define NP (2 * P2 * (P2 - Q2))
#define NQ (2 * Q2 * (Q2 - P2))

/* May alias float arrays, at any float's address. */
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t mask __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* ---- transforms of one dimension, of vectors that lie `step` apart ---- */

/* B' d */
DP_INLINE void transform_in(const lanes *d, int64_t from, lanes *out, int64_t to)
{
    lanes d0 = d[0], d1 = d[from], d2 = d[2 * from], d3 = d[3 * from], d4 = d[4 * from], d5 = d[5 * from];
    lanes even_p = d4 - Q2 * d2, odd_p = P * (d3 - Q2 * d1);
    lanes even_q = d4 - P2 * d2, odd_q = Q * (d3 - P2 * d1);
    out[0] = N0 * d0 - (P2 + Q2) * d2 + d4;
    out[to] = even_p + odd_p;
    out[2 * to] = even_p - odd_p;
    out[3 * to] = even_q + odd_q;
    out[4 * to] = even_q - odd_q;
    out[5 * to] = N0 * d1 - (P2 + Q2) * d3 + d5;
}

/* The polynomial with n coefficients c at the six points: A c, and G c but for its scales. n: 2 to 5. */
DP_INLINE void evaluate(const lanes *c, int64_t from, lanes *out, int64_t to, const int n)
{
    lanes even_p = c[0], even_q = c[0], odd_p = P * c[from], odd_q = Q * c[from];
    if (n > 2) {
        even_p += P2 * c[2 * from];
        even_q += Q2 * c[2 * from];
    }
    if (n > 3) {
        odd_p += P3 * c[3 * from];
        odd_q += Q3 * c[3 * from];
    }
    if (n > 4) {
        even_p += P4 * c[4 * from];
        even_q += Q4 * c[4 * from];
    }
    out[0] = c[0];
    out[to] = even_p + odd_p;
    out[2 * to] = even_p - odd_p;
    out[3 * to] = even_q + odd_q;
    out[4 * to] = even_q - odd_q;
    out[5 * to] = c[(n - 1) * from];
}

/* The transpose: A' m, and G' m of scaled m. */
DP_INLINE void gather(const lanes *m, int64_t from, lanes *out, int64_t to, const int n)
{
    lanes m1 = m[from], m2 = m[2 * from], m3 = m[3 * from], m4 = m[4 * from];
    lanes sum_p = m1 + m2, difference_p = m1 - m2, sum_q = m3 + m4, difference_q = m3 - m4;
    lanes powers[5] = {m[0] + sum_p + sum_q, P * difference_p + Q * difference_q, P2 * sum_p + Q2 * sum_q,
                       P3 * difference_p + Q3 * difference_q, P4 * sum_p + Q4 * sum_q};
    powers[n - 1] += m[5 * from];
    for (int i = 0; i < n; i++)
        out[i * to] = powers[i];
}

/* ---- weights ---- */

/* The scales of G's rows, of vectors that lie `step` apart. */
DP_INLINE void scale(lanes *v, int64_t step)
{
    v[0] *= (float)(1 / N0);
    v[step] *= (float)(1 / NP);
    v[2 * step] *= (float)(1 / NP);
    v[3 * step] *= (float)(1 / NQ);
    v[4 * step] *= (float)(1 / NQ);
}

/* Where kernel element k of (row, column) lies in the plain weights. */
DP_INLINE int64_t weight_at(const dp_winograd_pass *p, int64_t row, int64_t column, int k, const int taps)
{
    return p->backward ? (row * p->in_channels + column) * taps + k
                       : (column * p->in_channels + row) * taps + k;
}

/* The kernels of a few rows and a pair of blocks of columns, [row][tap][column] with zeros for what is not
 * there. Where columns lie far apart, each gives what it has of all rows together. The next rows are asked
 * for early: the weights come from memory, in pieces too short for the processor to foresee. */
DP_INLINE void load_kernels(const dp_winograd_pass *p, int64_t row, int64_t column, float (*g)[PAIR],
                            const int taps)
{
    int64_t rows = (p->backward ? p->out_channels : p->in_channels) - row;
    int64_t here = (p->backward ? p->in_channels : p->out_channels) - column;
    if (rows < WEIGHT_ROWS || here < PAIR) {
        for (int r = 0; r < WEIGHT_ROWS; r++)
            for (int k = 0; k < taps; k++)
                for (int c = 0; c < PAIR; c++)
                    g[r * taps + k][c] =
                        r < rows && c < here ? p->weights[weight_at(p, row + r, column + c, k, taps)] : 0;
        return;
    }
    for (int c = 0; c < PAIR; c += 8) {
        if (!p->backward) {
            const float *from = p->weights + weight_at(p, row, column + c, 0, taps);
            for (int e = 0; e < WEIGHT_ROWS * taps; e += 8) {
                dp_transpose8(from + e, p->in_channels * taps, g[e] + c, PAIR, false);
                for (int i = 0; i < 8; i++)
                    __builtin_prefetch(from + i * p->in_channels * taps + WEIGHT_ROWS * taps + e);
            }
            continue;
        }
        for (int r = 0; r < WEIGHT_ROWS; r++) {
            const float *from = p->weights + weight_at(p, row + r, column + c, 0, taps);
            for (int line = 0; line < 8 * taps; line += 16)
                __builtin_prefetch(from + WEIGHT_ROWS * p->in_channels * taps + line);
            int e = 0;
            for (; e + 8 <= taps; e += 8)
                dp_transpose8(from + e, taps, g[r * taps + e] + c, PAIR, false);
            for (; e < taps; e++)
                for (int i = 0; i < 8; i++)
                    g[r * taps + e][c + i] = from[i * taps + e];
        }
    }
}

/* A few rows of a pair of blocks of columns; step: floats from a position to the next. */
DP_INLINE void weights_of(const dp_winograd_pass *p, int64_t row, int64_t column, float *u, int64_t step,
                          const int kernel)
{
    const int taps = kernel * kernel;
    float g[WEIGHT_ROWS * MOST_TAPS][PAIR] __attribute__((aligned(64)));
    load_kernels(p, row, column, g, taps);
    const int way = p->backward ? -2 : 2; /* from a tap to the next, in vectors: the kernel is turned */
    for (int r = 0; r < WEIGHT_ROWS; r++, u += PAIR)
        for (int half = 0; half < 2; half++) {
            lanes some[SIDE * 5], line[SIDE];
            const lanes *taps_of = (const lanes *)(g[r * taps + (p->backward ? taps - 1 : 0)] + half * LANES);
            for (int j = 0; j < kernel; j++) {
                evaluate(taps_of + way * j, (int64_t)kernel * way, some + j, kernel, kernel);
                scale(some + j, kernel);
            }
            for (int i = 0; i < SIDE; i++) {
                evaluate(some + kernel * i, 1, line, 1, kernel);
                scale(line, 1);
                for (int j = 0; j < SIDE; j++)
                    *(lanes *)(u + (SIDE * i + j) * step + half * LANES) = line[j];
            }
        }
}

/* [row][tap][column] into the plain gradients. */
DP_INLINE void store_kernels(const dp_winograd_pass *p, int64_t row, int64_t column, float (*g)[PAIR],
                             const int taps)
{
    int64_t rows = p->in_channels - row, here = p->out_channels - column;
    if (rows < WEIGHT_ROWS || here < PAIR) {
        for (int r = 0; r < WEIGHT_ROWS && r < rows; r++)
            for (int c = 0; c < PAIR && c < here; c++)
                for (int k = 0; k < taps; k++) {
                    float *to = p->weights_gradient + weight_at(p, row + r, column + c, k, taps);
                    *to = g[r * taps + k][c] + (p->accumulate ? *to : 0);
                }
        return;
    }
    for (int c = 0; c < PAIR; c += 8) {
        float *to = p->weights_gradient + weight_at(p, row, column + c, 0, taps);
        for (int e = 0; e < WEIGHT_ROWS * taps; e += 8) {
            for (int i = 0; i < 8; i++)
                __builtin_prefetch(to + i * p->in_channels * taps + WEIGHT_ROWS * taps + e, 1);
            if (p->accumulate)
                dp_transpose8(g[e] + c, PAIR, to + e, p->in_channels * taps, true);
            else
                dp_transpose8(g[e] + c, PAIR, to + e, p->in_channels * taps, false);
        }
    }
}

/* The gradients of a few rows of the transformed weights, back to the plain ones. */
DP_INLINE void gather_of(const dp_winograd_pass *p, int64_t row, int64_t column, const float *u, int64_t step,
                         const int kernel)
{
    const int taps = kernel * kernel;
    float g[WEIGHT_ROWS * MOST_TAPS][PAIR] __attribute__((aligned(64)));
    for (int r = 0; r < WEIGHT_ROWS; r++, u += PAIR)
        for (int half = 0; half < 2; half++) {
            lanes some[5 * SIDE], line[SIDE];
            for (int j = 0; j < SIDE; j++) {
                for (int i = 0; i < SIDE; i++)
                    line[i] = *(const lanes *)(u + (SIDE * i + j) * step + half * LANES);
                scale(line, 1);
                gather(line, 1, some + j, SIDE, kernel);
            }
            for (int i = 0; i < kernel; i++) {
                scale(some + SIDE * i, 1);
                gather(some + SIDE * i, 1, (lanes *)(g[r * taps + kernel * i] + half * LANES), 2, kernel);
            }
        }
    store_kernels(p, row, column, g, taps);
}

/* The first row and column of an item, and where it lies in the group. */
DP_INLINE float *weights_item(const dp_winograd_pass *p, int64_t item, int64_t *row, int64_t *column)
{
    int64_t in_pair = p->row_count / WEIGHT_ROWS, pair = item / in_pair, r = item % in_pair * WEIGHT_ROWS;
    *row = p->first_row + r;
    *column = (p->first_pair + pair) * PAIR;
    return p->u + (pair * p->group + r) * PAIR;
}

DP_CLONES static void weights_range(const void *context, int64_t begin, int64_t end)
{
    const dp_winograd_pass *p = context;
    int64_t step = dp_winograd_weights_step(p), row, column;
    for (int64_t item = begin; item < end; item++) {
        float *u = weights_item(p, item, &row, &column);
        if (p->kernel == 3)
            weights_of(p, row, column, u, step, 3);
        else
            weights_of(p, row, column, u, step, 5);
    }
}

DP_CLONES static void gather_range(const void *context, int64_t begin, int64_t end)
{
    const dp_winograd_pass *p = context;
    int64_t step = dp_winograd_weights_step(p), row, column;
    for (int64_t item = begin; item < end; item++) {
        const float *u = weights_item(p, item, &row, &column);
        if (p->kernel == 3)
            gather_of(p, row, column, u, step, 3);
        else
            gather_of(p, row, column, u, step, 5);
    }
}

/* ---- tiles ---- */

typedef struct place {
    int64_t sample, y, x; /* the first output */
} place;

DP_INLINE place place_of(const dp_winograd_pass *p, int64_t tile)
{
    int64_t per_image = p->tiles_down * p->tiles_across, in_image = tile % per_image;
    return (place){tile / per_image, in_image / p->tiles_across * p->tile,
                   in_image % p->tiles_across * p->tile};
}

DP_INLINE int64_t block_at(const dp_winograd_image *i, int64_t sample, int64_t block)
{
    return (sample * i->blocks + block) * i->height * i->width * LANES;
}

/* size x size vectors from (y, x) on, `*row` vectors from one row to the next: where they lie in the image,
 * or in `copy` with zeros for what lies outside. */
DP_INLINE const lanes *tile_at(const dp_winograd_image *image, const float *data, int64_t y, int64_t x,
                               const int size, lanes *copy, int64_t *row)
{
    int64_t height = image->height, width = image->width;
    if (y >= 0 && x >= 0 && y + size <= height && x + size <= width) {
        *row = width;
        return (const lanes *)(data + (y * width + x) * LANES);
    }
    *row = size;
    for (int i = 0; i < size * size; i++)
        copy[i] = (lanes){0};
    int64_t top = y < 0 ? -y : 0, bottom = y + size > height ? height - y : size;
    int64_t left = x < 0 ? -x : 0, right = x + size > width ? width - x : size;
    for (int64_t i = top; i < bottom; i++)
        for (int64_t j = left; j < right; j++)
            copy[i * size + j] = *(const lanes *)(data + ((y + i) * width + x + j) * LANES);
    return copy;
}

DP_CLONES static void tiles_in_range(const void *context, int64_t begin, int64_t end)
{
    const dp_winograd_pass *p = context;
    int64_t step = dp_winograd_from_step(p) / LANES;
    for (int64_t item = begin; item < end; item++) {
        int64_t block = item / p->count, t = item % p->count, row;
        place at = place_of(p, p->first + t);
        lanes copy[POSITIONS], some[POSITIONS];
        const lanes *d = tile_at(&p->from, p->from.data + block_at(&p->from, at.sample, block),
                                 at.y - p->padding[0], at.x - p->padding[1], SIDE, copy, &row);
        for (int j = 0; j < SIDE; j++)
            transform_in(d + j, row, some + j, SIDE);
        lanes *v = (lanes *)(p->v + (block * p->batch + t) * LANES);
        for (int i = 0; i < SIDE; i++)
            transform_in(some + SIDE * i, 1, v + SIDE * i * step, step);
    }
}

DP_INLINE void gradient_in(const dp_winograd_pass *p, int64_t block, int64_t tile, lanes *m, int64_t step,
                           const int size)
{
    int64_t row;
    place at = place_of(p, tile);
    lanes copy[MOST_OUTPUTS], some[SIDE * 4];
    const lanes *y =
        tile_at(&p->to, p->to.data + block_at(&p->to, at.sample, block), at.y, at.x, size, copy, &row);
    for (int j = 0; j < size; j++)
        evaluate(y + j, row, some + j, size, size);
    for (int i = 0; i < SIDE; i++)
        evaluate(some + size * i, 1, m + SIDE * i * step, step, size);
}

DP_CLONES static void gradients_in_range(const void *context, int64_t begin, int64_t end)
{
    const dp_winograd_pass *p = context;
    int64_t step = dp_winograd_to_step(p) / LANES;
    for (int64_t item = begin; item < end; item++) {
        int64_t block = item / p->count, t = item % p->count;
        lanes *m = (lanes *)(p->m + (block * p->batch + t) * LANES);
        if (p->tile == 4)
            gradient_in(p, 2 * p->first_pair + block, p->first + t, m, step, 4);
        else
            gradient_in(p, 2 * p->first_pair + block, p->first + t, m, step, 2);
    }
}

DP_INLINE void tile_out(const dp_winograd_pass *p, int64_t block, int64_t tile, const lanes *m, int64_t step,
                        const int size)
{
    place at = place_of(p, tile);
    lanes some[SIDE * 4], y[MOST_OUTPUTS], bias = {0}, floor = {0};
    floor += p->relu ? 0.0f : NAN;
    for (int l = 0; p->bias && l < LANES && block * LANES + l < p->out_channels; l++)
        bias[l] = p->bias[block * LANES + l];
    for (int j = 0; j < SIDE; j++)
        gather(m + j * step, SIDE * step, some + j, SIDE, size);
    for (int i = 0; i < size; i++)
        gather(some + SIDE * i, 1, y + size * i, 1, size);
    float *out = p->out + block_at(&p->to, at.sample, block);
    for (int i = 0; i < size && at.y + i < p->to.height; i++)
        for (int j = 0; j < size && at.x + j < p->to.width; j++) {
            lanes value = y[size * i + j] + bias;
            value = (lanes)((mask)value & ~(mask)(value <= floor)); /* a NaN stays one */
            *(lanes *)(out + ((at.y + i) * p->to.width + at.x + j) * LANES) = value;
        }
}

DP_CLONES static void tiles_out_range(const void *context, int64_t begin, int64_t end)
{
    const dp_winograd_pass *p = context;
    int64_t step = dp_winograd_to_step(p) / LANES;
    for (int64_t item = begin; item < end; item++) {
        int64_t block = item / p->count, t = item % p->count;
        const lanes *m = (const lanes *)(p->m + (block * p->batch + t) * LANES);
        if (p->tile == 4)
            tile_out(p, 2 * p->first_pair + block, p->first + t, m, step, 4);
        else
            tile_out(p, 2 * p->first_pair + block, p->first + t, m, step, 2);
    }
}

/* ---- products ---- */

/* m[rows][pair] (+)= v[rows][blocks] u[their rows][pair]; m's two blocks lie m_block apart. Sums of a few
 * blocks are added to what is in memory, which rounds less than one long sum. */
DP_INLINE void product(const float *v, int64_t v_block, int64_t blocks, const float *u, float *m,
                       int64_t m_block, bool add, const int rows)
{
    const int64_t most = SUM_CHANNELS / LANES;
    for (int64_t first = 0; first < blocks; first += most, add = true) {
        int64_t end = first + most < blocks ? first + most : blocks;
        lanes a[ROWS], b[ROWS];
        for (int r = 0; r < rows; r++)
            a[r] = b[r] = (lanes){0};
        for (int64_t block = first; block < end; block++, v += v_block)
            for (int l = 0; l < LANES; l++, u += PAIR) {
                lanes left = *(const lanes *)u, right = *(const lanes *)(u + LANES);
                for (int r = 0; r < rows; r++) {
                    a[r] += v[r * LANES + l] * left;
                    b[r] += v[r * LANES + l] * right;
                }
            }
        for (int r = 0; r < rows; r++) {
            lanes *to = (lanes *)(m + r * LANES), *other = (lanes *)(m + m_block + r * LANES);
            if (add) {
                a[r] += *to;
                b[r] += *other;
            }
            *to = a[r];
            *other = b[r];
        }
    }
}

DP_CLONES static void products_range(const void *context, int64_t begin, int64_t end)
{
    const dp_winograd_pass *p = context;
    int64_t blocks = p->row_count / LANES, block = p->batch * LANES;
    bool add = p->first_row > 0;
    for (int64_t item = begin; item < end; item++) {
        int64_t at = item / p->pair_count, pair = item % p->pair_count;
        const float *u = p->u + at * dp_winograd_weights_step(p) + pair * p->group * PAIR,
                    *v = p->v + at * dp_winograd_from_step(p) + p->first_row / LANES * block;
        float *m = p->m + at * dp_winograd_to_step(p) + 2 * pair * block;
        int64_t t = 0;
        for (; t + ROWS <= p->count; t += ROWS)
            product(v + t * LANES, block, blocks, u, m + t * LANES, block, add, ROWS);
        v += t * LANES;
        m += t * LANES;
        switch (p->count - t) {
        case 1:
            product(v, block, blocks, u, m, block, add, 1);
            break;
        case 2:
            product(v, block, blocks, u, m, block, add, 2);
            break;
        case 3:
            product(v, block, blocks, u, m, block, add, 3);
            break;
        case 4:
            product(v, block, blocks, u, m, block, add, 4);
            break;
        case 5:
            product(v, block, blocks, u, m, block, add, 5);
            break;
        default:
            break;
        }
    }
}

/* u[some channels][pair] (+)= the sum over tiles of v[tile][some channels] m[tile][pair]. */
DP_INLINE void gradient_product(const float *v, const float *m, int64_t m_block, int64_t tiles, float *u,
                                bool first)
{
    lanes a[CHANNEL_ROWS], b[CHANNEL_ROWS];
    for (int r = 0; r < CHANNEL_ROWS; r++)
        a[r] = b[r] = (lanes){0};
    for (int64_t t = 0; t < tiles; t++, v += LANES, m += LANES) {
        lanes left = *(const lanes *)m, right = *(const lanes *)(m + m_block);
        for (int r = 0; r < CHANNEL_ROWS; r++) {
            a[r] += v[r] * left;
            b[r] += v[r] * right;
        }
    }
    for (int r = 0; r < CHANNEL_ROWS; r++) {
        lanes *to = (lanes *)(u + r * PAIR), *other = (lanes *)(u + r * PAIR + LANES);
        if (!first) {
            a[r] += *to;
            b[r] += *other;
        }
        *to = a[r];
        *other = b[r];
    }
}

DP_CLONES static void gradient_products_range(const void *context, int64_t begin, int64_t end)
{
    const dp_winograd_pass *p = context;
    int64_t block = p->batch * LANES;
    for (int64_t item = begin; item < end; item++) {
        int64_t at = item / p->pair_count, pair = item % p->pair_count;
        const float *v = p->v + at * dp_winograd_from_step(p);
        const float *m = p->m + at * dp_winograd_to_step(p) + 2 * pair * block;
        float *u = p->u + at * dp_winograd_weights_step(p) + pair * p->group * PAIR;
        for (int64_t r = 0, row = p->first_row; r < p->row_count; r += CHANNEL_ROWS, row += CHANNEL_ROWS)
            gradient_product(v + row / LANES * block + row % LANES, m, block, p->count, u + r * PAIR,
                             p->first == 0);
    }
}

const dp_winograd_kernels KERNELS = {.weights = weights_range,
                                     .gather = gather_range,
                                     .tiles_in = tiles_in_range,
                                     .gradients_in = gradients_in_range,
                                     .tiles_out = tiles_out_range,
                                     .products = products_range,
                                     .gradient_products = gradient_products_range};
