/* Winograd's F(4x4, 3x3): Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015.
 *
 * A tile of 4x4 outputs comes from 6x6 inputs d and a 3x3 kernel g by Y = A'[(G g G') * (B' d B)]A, where *
 * multiplies the 36 positions one by one. For all tiles and channels together that makes 36 matrix products
 * [tiles, in] x [in, out], a quarter of the multiplications of the direct sum. The gradient of the weights is
 * G'[sum over tiles of (B' d B) * (A dY A')]G: 36 products [in, tiles] x [tiles, out].
 *
 * The matrices follow from polynomials at the points 0, P, -P, Q, -Q and infinity. P = 5/8, Q = 3/2 keep
 * float32's rounding smaller than the usual 1 and 2 do.
 *
 * The 8 channels of a block are the lanes of a vector, so transforms are plain arithmetic on vectors. Tiles
 * are taken in batches whose transforms fit the caches; within a batch come three phases, each shared by the
 * device's threads: transform, products, transform back. Transformed tensors lie as [36][blocks][tiles][8],
 * transformed weights as [36][pairs of blocks of columns][rows][16]. */
#include "cpu/winograd.h"

#include <math.h>

#include "cpu/clones.h"
#include "cpu/internal.h"

#if !defined(__clang__)
#pragma GCC optimize("fp-contract=fast") /* fused multiply-adds, which -std=c17 switches off */
#endif

enum {
    LANES = 8,
    PAIR = 2 * LANES,
    POSITIONS = 36,
    ROWS = 6,                  /* tiles in the registers of a product */
    CHANNEL_ROWS = 4,          /* channels in the registers of a gradient's product */
    BATCH_FLOATS = 128 * 1024, /* of one transformed tensor in a batch of tiles, about */
    SUM_BLOCKS = 8,
    LEAST_TILES = 48, /* in a batch: the transformed weights pass once for each */
};

#define P 0.625f
#define Q 1.5f
static const float P2 = P * P, P3 = P * P * P, Q2 = Q * Q, Q3 = Q * Q * Q;
#define N0 (P * P * Q * Q)
#define NP (2 * P * P * (P * P - Q * Q))
#define NQ (2 * Q * Q * (Q * Q - P * P))

/* May alias float arrays, at any float's address. */
typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t mask __attribute__((vector_size(32), aligned(4), may_alias));

/* An image [batch, blocks, height, width, 8] seen through tiles. */
typedef struct image {
    const float *data;
    int64_t blocks, height, width;
} image;

/* One convolution, whichever way it goes: of `from`, padded, into `to`. */
typedef struct pass {
    image from, to;
    int64_t padding[2];
    int64_t tiles_down, tiles_across, tiles; /* of `to`; tiles: in all of the batch */
    int64_t rows, pairs;                     /* of the weights: channels of from, pairs of blocks of to */
    int64_t batch;                           /* tiles at once */
    int64_t first, count;                    /* this batch's */
    const float *weights;                    /* plain */
    float *weights_gradient;
    int64_t in_channels, out_channels;
    bool backward; /* weights are turned and in and out change places */
    bool relu, accumulate;
    const float *bias;
    float *out;
    float *u, *v, *m; /* transformed weights, from and to */
} pass;

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* A line more than the tiles need: positions at distances of powers of two would collide in the cache. */
DP_INLINE int64_t position_step(const pass *p, int64_t blocks)
{
    return blocks * p->batch * LANES + PAIR;
}

DP_INLINE int64_t weights_step(const pass *p)
{
    return p->pairs * p->rows * PAIR + PAIR;
}

/* ---- transforms of one dimension, of six or four vectors that lie `step` apart ---- */

/* B' d */
DP_INLINE void transform_in(const lanes *d, int from, lanes *out, int to)
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

/* A' m */
DP_INLINE void transform_out(const lanes *m, int from, lanes *out, int to)
{
    lanes sum_p = m[from] + m[2 * from], difference_p = m[from] - m[2 * from];
    lanes sum_q = m[3 * from] + m[4 * from], difference_q = m[3 * from] - m[4 * from];
    out[0] = m[0] + sum_p + sum_q;
    out[to] = P * difference_p + Q * difference_q;
    out[2 * to] = P2 * sum_p + Q2 * sum_q;
    out[3 * to] = P3 * difference_p + Q3 * difference_q + m[5 * from];
}

/* A y */
DP_INLINE void spread_out(const lanes *y, int from, lanes *m, int to)
{
    lanes y0 = y[0], y1 = y[from], y2 = y[2 * from], y3 = y[3 * from];
    lanes even_p = y0 + P2 * y2, odd_p = P * y1 + P3 * y3;
    lanes even_q = y0 + Q2 * y2, odd_q = Q * y1 + Q3 * y3;
    m[0] = y0;
    m[to] = even_p + odd_p;
    m[2 * to] = even_p - odd_p;
    m[3 * to] = even_q + odd_q;
    m[4 * to] = even_q - odd_q;
    m[5 * to] = y3;
}

/* G g */
DP_INLINE void transform_weights(const lanes *g, int from, lanes *u, int to)
{
    lanes g0 = g[0], g1 = g[from], g2 = g[2 * from];
    lanes even_p = (1 / NP) * g0 + (P2 / NP) * g2, odd_p = (P / NP) * g1;
    lanes even_q = (1 / NQ) * g0 + (Q2 / NQ) * g2, odd_q = (Q / NQ) * g1;
    u[0] = (1 / N0) * g0;
    u[to] = even_p + odd_p;
    u[2 * to] = even_p - odd_p;
    u[3 * to] = even_q + odd_q;
    u[4 * to] = even_q - odd_q;
    u[5 * to] = g2;
}

/* G' u */
DP_INLINE void gather_weights(const lanes *u, int from, lanes *g, int to)
{
    lanes sum_p = (1 / NP) * (u[from] + u[2 * from]), difference_p = (P / NP) * (u[from] - u[2 * from]);
    lanes sum_q = (1 / NQ) * (u[3 * from] + u[4 * from]);
    lanes difference_q = (Q / NQ) * (u[3 * from] - u[4 * from]);
    g[0] = (1 / N0) * u[0] + sum_p + sum_q;
    g[to] = difference_p + difference_q;
    g[2 * to] = P2 * sum_p + Q2 * sum_q + u[5 * from];
}

/* ---- weights ---- */

/* Where kernel element k of (row, column) lies in the plain weights. */
DP_INLINE int64_t weight_at(const pass *p, int64_t row, int64_t column, int k)
{
    return p->backward ? (row * p->in_channels + column) * 9 + 8 - k
                       : (column * p->in_channels + row) * 9 + k;
}

DP_INLINE int64_t columns_of(const pass *p)
{
    return p->backward ? p->in_channels : p->out_channels;
}

/* Items: pair of blocks of columns, and row. */
DP_CLONES static void weights_range(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    int64_t rows = p->backward ? p->out_channels : p->in_channels, step = weights_step(p);
    for (int64_t item = begin; item < end; item++) {
        int64_t pair = item / p->rows, row = item % p->rows;
        int64_t here = columns_of(p) - pair * PAIR;
        float g[9][PAIR] __attribute__((aligned(32))) = {{0}};
        for (int c = 0; c < PAIR && c < here && row < rows; c++)
            for (int k = 0; k < 9; k++)
                g[k][c] = p->weights[weight_at(p, row, pair * PAIR + c, k)];
        float *u = p->u + (pair * p->rows + row) * PAIR;
        lanes all[2][POSITIONS];
        for (int half = 0; half < 2; half++) {
            lanes some[18];
            for (int j = 0; j < 3; j++) {
                lanes column[3];
                for (int i = 0; i < 3; i++)
                    column[i] = *(const lanes *)(g[3 * i + j] + half * LANES);
                transform_weights(column, 1, some + j, 3);
            }
            for (int i = 0; i < 6; i++)
                transform_weights(some + 3 * i, 1, all[half] + 6 * i, 1);
        }
        for (int at = 0; at < POSITIONS; at++)
            for (int half = 0; half < 2; half++)
                *(lanes *)(u + at * step + half * LANES) = all[half][at];
    }
}

/* The gradient of the transformed weights, back to the plain ones. */
DP_CLONES static void gather_range(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    int64_t step = weights_step(p);
    for (int64_t item = begin; item < end; item++) {
        int64_t pair = item / p->rows, row = item % p->rows;
        int64_t here = p->out_channels - pair * PAIR;
        if (row >= p->in_channels)
            continue;
        float g[9][PAIR] __attribute__((aligned(32)));
        const float *u = p->u + (pair * p->rows + row) * PAIR;
        lanes all[2][POSITIONS];
        for (int at = 0; at < POSITIONS; at++)
            for (int half = 0; half < 2; half++)
                all[half][at] = *(const lanes *)(u + at * step + half * LANES);
        for (int half = 0; half < 2; half++) {
            lanes some[18];
            for (int j = 0; j < 6; j++)
                gather_weights(all[half] + j, 6, some + j, 6);
            for (int i = 0; i < 3; i++) {
                lanes line[3];
                gather_weights(some + 6 * i, 1, line, 1);
                for (int j = 0; j < 3; j++)
                    *(lanes *)(g[3 * i + j] + half * LANES) = line[j];
            }
        }
        for (int c = 0; c < PAIR && c < here; c++)
            for (int k = 0; k < 9; k++) {
                float *to = p->weights_gradient + weight_at(p, row, pair * PAIR + c, k);
                *to = g[k][c] + (p->accumulate ? *to : 0);
            }
    }
}

/* ---- tiles ---- */

typedef struct place {
    int64_t sample, y, x; /* the first output */
} place;

DP_INLINE place place_of(const pass *p, int64_t tile)
{
    int64_t per_image = p->tiles_down * p->tiles_across, in_image = tile % per_image;
    return (place){tile / per_image, in_image / p->tiles_across * 4, in_image % p->tiles_across * 4};
}

DP_INLINE const float *block_of(const image *i, int64_t sample, int64_t block)
{
    return i->data + (sample * i->blocks + block) * i->height * i->width * LANES;
}

/* size x size vectors from (y, x) on; what lies outside is zero. */
DP_INLINE void load_tile(const float *data, int64_t height, int64_t width, int64_t y, int64_t x,
                         const int size, lanes *to)
{
    if (y >= 0 && x >= 0 && y + size <= height && x + size <= width) {
        for (int i = 0; i < size; i++)
            for (int j = 0; j < size; j++)
                to[i * size + j] = *(const lanes *)(data + ((y + i) * width + x + j) * LANES);
        return;
    }
    for (int i = 0; i < size * size; i++)
        to[i] = (lanes){0};
    int64_t top = y < 0 ? -y : 0, bottom = y + size > height ? height - y : size;
    int64_t left = x < 0 ? -x : 0, right = x + size > width ? width - x : size;
    for (int64_t i = top; i < bottom; i++)
        for (int64_t j = left; j < right; j++)
            to[i * size + j] = *(const lanes *)(data + ((y + i) * width + x + j) * LANES);
}

/* Items: block of `from` and tile of the batch. */
DP_CLONES static void tiles_in_range(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    int64_t step = position_step(p, p->from.blocks);
    for (int64_t item = begin; item < end; item++) {
        int64_t block = item / p->count, t = item % p->count;
        place at = place_of(p, p->first + t);
        lanes d[POSITIONS], some[POSITIONS];
        load_tile(block_of(&p->from, at.sample, block), p->from.height, p->from.width, at.y - p->padding[0],
                  at.x - p->padding[1], 6, d);
        for (int j = 0; j < 6; j++)
            transform_in(d + j, 6, some + j, 6);
        for (int i = 0; i < 6; i++)
            transform_in(some + 6 * i, 1, d + 6 * i, 1);
        float *v = p->v + (block * p->batch + t) * LANES;
        for (int k = 0; k < POSITIONS; k++)
            *(lanes *)(v + k * step) = d[k];
    }
}

/* Items: block of `to` and tile of the batch. */
DP_CLONES static void gradients_in_range(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    int64_t step = position_step(p, 2 * p->pairs);
    for (int64_t item = begin; item < end; item++) {
        int64_t block = item / p->count, t = item % p->count;
        place at = place_of(p, p->first + t);
        lanes y[16], some[24], m[POSITIONS];
        load_tile(block_of(&p->to, at.sample, block), p->to.height, p->to.width, at.y, at.x, 4, y);
        for (int j = 0; j < 4; j++)
            spread_out(y + j, 4, some + j, 4);
        for (int i = 0; i < 6; i++)
            spread_out(some + 4 * i, 1, m + 6 * i, 1);
        float *to = p->m + (block * p->batch + t) * LANES;
        for (int k = 0; k < POSITIONS; k++)
            *(lanes *)(to + k * step) = m[k];
    }
}

DP_CLONES static void tiles_out_range(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    int64_t step = position_step(p, 2 * p->pairs);
    for (int64_t item = begin; item < end; item++) {
        int64_t block = item / p->count, t = item % p->count;
        place at = place_of(p, p->first + t);
        lanes m[POSITIONS], some[24], y[16], bias = {0}, floor = {0};
        floor += p->relu ? 0.0f : NAN;
        for (int l = 0; p->bias && l < LANES && block * LANES + l < p->out_channels; l++)
            bias[l] = p->bias[block * LANES + l];
        const float *from = p->m + (block * p->batch + t) * LANES;
        for (int k = 0; k < POSITIONS; k++)
            m[k] = *(const lanes *)(from + k * step);
        for (int j = 0; j < 6; j++)
            transform_out(m + j, 6, some + j, 6);
        for (int i = 0; i < 4; i++)
            transform_out(some + 6 * i, 1, y + 4 * i, 1);
        float *out = p->out + (block_of(&p->to, at.sample, block) - p->to.data);
        for (int i = 0; i < 4 && at.y + i < p->to.height; i++)
            for (int j = 0; j < 4 && at.x + j < p->to.width; j++) {
                lanes value = y[4 * i + j] + bias;
                value = (lanes)((mask)value & ~(mask)(value <= floor)); /* a NaN stays one */
                *(lanes *)(out + ((at.y + i) * p->to.width + at.x + j) * LANES) = value;
            }
    }
}

/* ---- products ---- */

/* m[rows][16] = v[rows][all blocks] u[all rows][16]; m's two blocks lie m_block apart. Sums of a few blocks
 * are added to what is in memory, which rounds less than one long sum. */
DP_INLINE void product(const float *v, int64_t v_block, int64_t blocks, const float *u, float *m,
                       int64_t m_block, const int rows)
{
    for (int64_t first = 0; first < blocks; first += SUM_BLOCKS) {
        int64_t end = first + SUM_BLOCKS < blocks ? first + SUM_BLOCKS : blocks;
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
            if (first > 0) {
                a[r] += *to;
                b[r] += *other;
            }
            *to = a[r];
            *other = b[r];
        }
    }
}

/* Items: position and pair of blocks of columns. */
DP_CLONES static void products_range(const void *context, int64_t begin, int64_t end)
{
    const pass *p = context;
    int64_t blocks = p->from.blocks, block = p->batch * LANES;
    for (int64_t item = begin; item < end; item++) {
        int64_t at = item / p->pairs, pair = item % p->pairs;
        const float *u = p->u + at * weights_step(p) + pair * p->rows * PAIR,
                    *v = p->v + at * position_step(p, blocks);
        float *m = p->m + at * position_step(p, 2 * p->pairs) + 2 * pair * block;
        int64_t t = 0;
        for (; t + ROWS <= p->count; t += ROWS)
            product(v + t * LANES, block, blocks, u, m + t * LANES, block, ROWS);
        v += t * LANES;
        m += t * LANES;
        switch (p->count - t) {
        case 1:
            product(v, block, blocks, u, m, block, 1);
            break;
        case 2:
            product(v, block, blocks, u, m, block, 2);
            break;
        case 3:
            product(v, block, blocks, u, m, block, 3);
            break;
        case 4:
            product(v, block, blocks, u, m, block, 4);
            break;
        case 5:
            product(v, block, blocks, u, m, block, 5);
            break;
        default:
            break;
        }
    }
}

/* u[4 channels][16] (+)= the sum over tiles of v[tile][4 channels] m[tile][16]. */
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
    const pass *p = context;
    int64_t blocks = p->from.blocks, block = p->batch * LANES;
    for (int64_t item = begin; item < end; item++) {
        int64_t at = item / p->pairs, pair = item % p->pairs;
        const float *v = p->v + at * position_step(p, blocks);
        const float *m = p->m + at * position_step(p, 2 * p->pairs) + 2 * pair * block;
        float *u = p->u + at * weights_step(p) + pair * p->rows * PAIR;
        for (int64_t row = 0; row < p->rows; row += CHANNEL_ROWS)
            gradient_product(v + row / LANES * block + row % LANES, m, block, p->count, u + row * PAIR,
                             p->first == 0);
    }
}

/* ---- passes ---- */

static int64_t align(int64_t floats)
{
    return (floats + 15) / 16 * 16;
}

/* Everything but the pointers. backward: from the outputs' side to the inputs'. */
static pass plan(const dp_winograd *s, bool backward, int threads)
{
    pass p = {.in_channels = s->in_channels, .out_channels = s->out_channels, .backward = backward};
    image in = {NULL, ceil_div(s->in_channels, LANES), s->in_height, s->in_width};
    image out = {NULL, ceil_div(s->out_channels, LANES), s->out_height, s->out_width};
    p.from = backward ? out : in;
    p.to = backward ? in : out;
    for (int i = 0; i < 2; i++)
        p.padding[i] = backward ? 2 - s->padding[i] : s->padding[i];
    p.tiles_down = ceil_div(p.to.height, 4);
    p.tiles_across = ceil_div(p.to.width, 4);
    p.tiles = s->batch * p.tiles_down * p.tiles_across;
    p.rows = p.from.blocks * LANES;
    p.pairs = ceil_div(p.to.blocks, 2);
    int64_t wide = p.from.blocks > 2 * p.pairs ? p.from.blocks : 2 * p.pairs;
    int64_t most = BATCH_FLOATS / (POSITIONS * wide * LANES);
    most = (most > LEAST_TILES ? most : LEAST_TILES) * threads;
    p.batch = ceil_div(p.tiles, ceil_div(p.tiles, most)); /* batches of about the same size, in whole rows */
    p.batch = ceil_div(p.batch, ROWS) * ROWS;
    return p;
}

static int64_t weights_floats(const pass *p)
{
    return POSITIONS * weights_step(p);
}

static size_t pass_bytes(const pass *p)
{
    int64_t v = POSITIONS * position_step(p, p->from.blocks);
    int64_t m = POSITIONS * position_step(p, 2 * p->pairs);
    return (size_t)(align(weights_floats(p)) + align(v) + align(m)) * sizeof(float);
}

static void place_workspace(pass *p, void *workspace)
{
    p->u = workspace;
    p->v = p->u + align(weights_floats(p));
    p->m = p->v + align(POSITIONS * position_step(p, p->from.blocks));
}

size_t dp_winograd_workspace(const dp_winograd *shape, int threads)
{
    pass forward = plan(shape, false, threads), backward = plan(shape, true, threads);
    size_t a = pass_bytes(&forward), b = pass_bytes(&backward);
    return a > b ? a : b;
}

static void convolve(int threads, pass *p)
{
    dp_cpu_for(threads, p->pairs * p->rows, 64, weights_range, p);
    for (p->first = 0; p->first < p->tiles; p->first += p->batch) {
        p->count = p->tiles - p->first < p->batch ? p->tiles - p->first : p->batch;
        dp_cpu_for(threads, p->from.blocks * p->count, 32, tiles_in_range, p);
        dp_cpu_for(threads, POSITIONS * p->pairs, 1, products_range, p);
        dp_cpu_for(threads, p->to.blocks * p->count, 32, tiles_out_range, p);
    }
}

void dp_winograd_forward(int threads, const dp_winograd *shape, const float *in, const float *weights,
                         const float *bias, bool relu, float *out, void *workspace)
{
    pass p = plan(shape, false, threads);
    place_workspace(&p, workspace);
    p.from.data = in;
    p.to.data = p.out = out;
    p.weights = weights;
    p.bias = bias;
    p.relu = relu;
    convolve(threads, &p);
}

void dp_winograd_backward_data(int threads, const dp_winograd *shape, const float *out_gradient,
                               const float *weights, float *in_gradient, void *workspace)
{
    pass p = plan(shape, true, threads);
    place_workspace(&p, workspace);
    p.from.data = out_gradient;
    p.to.data = p.out = in_gradient;
    p.weights = weights;
    convolve(threads, &p);
}

typedef struct bias_sum {
    image gradient;
    int64_t samples, channels;
    float *target;
    bool accumulate;
} bias_sum;

/* Sums of one sample's pixels in float32, of the samples in double. */
DP_CLONES static void bias_range(const void *context, int64_t begin, int64_t end)
{
    const bias_sum *b = context;
    int64_t pixels = b->gradient.height * b->gradient.width;
    for (int64_t block = begin; block < end; block++) {
        double sums[LANES] = {0};
        for (int64_t n = 0; n < b->samples; n++) {
            const float *g = block_of(&b->gradient, n, block);
            lanes part[4] = {{0}, {0}, {0}, {0}};
            int64_t i = 0;
            for (; i + 4 <= pixels; i += 4)
                for (int k = 0; k < 4; k++)
                    part[k] += *(const lanes *)(g + (i + k) * LANES);
            for (; i < pixels; i++)
                part[0] += *(const lanes *)(g + i * LANES);
            for (int l = 0; l < LANES; l++)
                sums[l] += (double)((part[0][l] + part[1][l]) + (part[2][l] + part[3][l]));
        }
        for (int l = 0; l < LANES && block * LANES + l < b->channels; l++) {
            float *to = b->target + block * LANES + l;
            *to = (float)sums[l] + (b->accumulate ? *to : 0);
        }
    }
}

void dp_winograd_backward_weights(int threads, const dp_winograd *shape, const float *in,
                                  const float *out_gradient, float *weights_gradient, float *bias_gradient,
                                  bool accumulate, void *workspace)
{
    pass p = plan(shape, false, threads);
    place_workspace(&p, workspace);
    p.from.data = in;
    p.to.data = out_gradient;
    p.weights_gradient = weights_gradient;
    p.accumulate = accumulate;
    if (bias_gradient) {
        bias_sum b = {p.to, shape->batch, shape->out_channels, bias_gradient, accumulate};
        dp_cpu_for(threads, p.to.blocks, 1, bias_range, &b);
    }
    if (!weights_gradient)
        return;
    for (p.first = 0; p.first < p.tiles; p.first += p.batch) {
        p.count = p.tiles - p.first < p.batch ? p.tiles - p.first : p.batch;
        dp_cpu_for(threads, p.from.blocks * p.count, 32, tiles_in_range, &p);
        dp_cpu_for(threads, p.to.blocks * p.count, 32, gradients_in_range, &p);
        dp_cpu_for(threads, POSITIONS * p.pairs, 1, gradient_products_range, &p);
    }
    dp_cpu_for(threads, p.pairs * p.rows, 64, gather_range, &p);
}

bool dp_winograd_fits(const dp_winograd *s, const int kernel[2], const int stride[2])
{
    enum { LEAST_CHANNELS = 16, LEAST_TILES_OF_BATCH = 16 };
    for (int i = 0; i < 2; i++)
        if (kernel[i] != 3 || stride[i] != 1 || s->padding[i] > 2)
            return false;
    int64_t tiles = s->batch * ceil_div(s->out_height, 4) * ceil_div(s->out_width, 4);
    bool half_full = s->batch * s->out_height * s->out_width >= tiles * 16 / 2;
    return s->in_channels >= LEAST_CHANNELS && s->out_channels >= LEAST_CHANNELS && half_full &&
           tiles >= LEAST_TILES_OF_BATCH;
}
