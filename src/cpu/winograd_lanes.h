/* The kernels of Winograd's convolutions: see winograd.c. A source file includes this once, after defining
 * LANES, the channels of a block; SIDE, of a tile of inputs, 4 or 6; and KERNELS, the name of the table. */
#include <math.h>

#include "cpu/product_lanes.h"
#include "cpu/transpose.h"
#include "cpu/winograd_pass.h"

enum {
    POSITIONS = SIDE * SIDE,
    WEIGHT_ROWS = DP_WINOGRAD_WEIGHT_ROWS,
    /* What there is of kernels and of tiles of outputs: with tiles of 4 inputs, one of each. */
    SMALL_KERNEL = 3,
    LARGE_KERNEL = SIDE - 1,
    SMALL_TILE = 2,
    LARGE_TILE = SIDE - 2,
    MOST_TAPS = LARGE_KERNEL * LARGE_KERNEL,
    MOST_OUTPUTS = LARGE_TILE * LARGE_TILE
};

/* Floats from a position to the next in the transformed weights of a whole group. Known to the compiler, it
 * leaves the registers free that 36 addresses would need. */
#define USUAL_STEP ((SUM_CHANNELS + 1) * PAIR)

typedef int32_t mask __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#include "cpu/winograd_points.h"

/* ---- weights ---- */

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
                          const int kernel, const bool scaled)
{
    const int taps = kernel * kernel;
    float g[WEIGHT_ROWS * MOST_TAPS][PAIR] __attribute__((aligned(64)));
    load_kernels(p, row, column, g, taps);
    const int way = p->backward ? -2 : 2; /* from a tap to the next, in vectors: the kernel is turned */
    for (int r = 0; r < WEIGHT_ROWS; r++, u += PAIR)
        for (int half = 0; half < 2; half++) {
            lanes some[SIDE * LARGE_KERNEL], line[SIDE];
            const lanes *taps_of = (const lanes *)(g[r * taps + (p->backward ? taps - 1 : 0)] + half * LANES);
            for (int j = 0; j < kernel; j++) {
                evaluate(taps_of + way * j, (int64_t)kernel * way, some + j, kernel, kernel);
                if (scaled)
                    scale(some + j, kernel);
            }
            for (int i = 0; i < SIDE; i++) {
                evaluate(some + kernel * i, 1, line, 1, kernel);
                if (scaled)
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
                         const int kernel, const bool scaled)
{
    const int taps = kernel * kernel;
    float g[WEIGHT_ROWS * MOST_TAPS][PAIR] __attribute__((aligned(64)));
    for (int r = 0; r < WEIGHT_ROWS; r++, u += PAIR)
        for (int half = 0; half < 2; half++) {
            lanes some[SIDE * LARGE_KERNEL], line[SIDE];
            for (int j = 0; j < SIDE; j++) {
                for (int i = 0; i < SIDE; i++)
                    line[i] = *(const lanes *)(u + (SIDE * i + j) * step + half * LANES);
                if (scaled)
                    scale(line, 1);
                gather(line, 1, some + j, SIDE, kernel);
            }
            for (int i = 0; i < kernel; i++) {
                if (scaled)
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
    return p->u + pair * POSITIONS * dp_winograd_weights_step(p) + r * PAIR;
}

DP_CLONES static void weights_range(const void *context, int64_t begin, int64_t end)
{
    const dp_winograd_pass *p = context;
    int64_t step = dp_winograd_weights_step(p), row, column;
    for (int64_t item = begin; item < end; item++) {
        float *u = weights_item(p, item, &row, &column);
        if (p->kernel != SMALL_KERNEL)
            weights_of(p, row, column, u, step, LARGE_KERNEL, !p->scaled_tiles);
        else if (p->scaled_tiles && step == USUAL_STEP)
            weights_of(p, row, column, u, USUAL_STEP, SMALL_KERNEL, false);
        else if (p->scaled_tiles)
            weights_of(p, row, column, u, step, SMALL_KERNEL, false);
        else
            weights_of(p, row, column, u, step, SMALL_KERNEL, true);
    }
}

DP_CLONES static void gather_range(const void *context, int64_t begin, int64_t end)
{
    const dp_winograd_pass *p = context;
    int64_t step = dp_winograd_weights_step(p), row, column;
    for (int64_t item = begin; item < end; item++) {
        const float *u = weights_item(p, item, &row, &column);
        if (p->kernel != SMALL_KERNEL)
            gather_of(p, row, column, u, step, LARGE_KERNEL, !p->scaled_tiles);
        else if (p->scaled_tiles && step == USUAL_STEP)
            gather_of(p, row, column, u, USUAL_STEP, SMALL_KERNEL, false);
        else if (p->scaled_tiles)
            gather_of(p, row, column, u, step, SMALL_KERNEL, false);
        else
            gather_of(p, row, column, u, step, SMALL_KERNEL, true);
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

DP_INLINE void tile_in(const dp_winograd_pass *p, int64_t block, int64_t tile, lanes *v, int64_t step,
                       const bool scaled)
{
    int64_t row;
    place at = place_of(p, tile);
    lanes copy[POSITIONS], some[POSITIONS];
    const lanes *d = tile_at(&p->from, p->from.data + block_at(&p->from, at.sample, block),
                             at.y - p->padding[0], at.x - p->padding[1], SIDE, copy, &row);
    for (int j = 0; j < SIDE; j++)
        transform_in(d + j, row, some + j, SIDE, scaled);
    for (int i = 0; i < SIDE; i++)
        transform_in(some + SIDE * i, 1, v + SIDE * i * step, step, scaled);
}

DP_CLONES static void tiles_in_range(const void *context, int64_t begin, int64_t end)
{
    const dp_winograd_pass *p = context;
    int64_t step = dp_winograd_from_step(p) / LANES;
    for (int64_t item = begin; item < end; item++) {
        int64_t block = item / p->count, t = item % p->count;
        lanes *v = (lanes *)(p->v + (block * p->batch + t) * LANES);
        if (p->scaled_tiles)
            tile_in(p, block, p->first + t, v, step, true);
        else
            tile_in(p, block, p->first + t, v, step, false);
    }
}

DP_INLINE void gradient_in(const dp_winograd_pass *p, int64_t block, int64_t tile, lanes *m, int64_t step,
                           const int size)
{
    int64_t row;
    place at = place_of(p, tile);
    lanes copy[MOST_OUTPUTS], some[SIDE * LARGE_TILE];
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
        if (p->tile == SMALL_TILE)
            gradient_in(p, 2 * p->first_pair + block, p->first + t, m, step, SMALL_TILE);
        else
            gradient_in(p, 2 * p->first_pair + block, p->first + t, m, step, LARGE_TILE);
    }
}

DP_INLINE void tile_out(const dp_winograd_pass *p, int64_t block, int64_t tile, const lanes *m, int64_t step,
                        const int size)
{
    place at = place_of(p, tile);
    lanes some[SIDE * LARGE_TILE], y[MOST_OUTPUTS], bias = {0}, floor = {0};
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
        if (p->tile == SMALL_TILE)
            tile_out(p, 2 * p->first_pair + block, p->first + t, m, step, SMALL_TILE);
        else
            tile_out(p, 2 * p->first_pair + block, p->first + t, m, step, LARGE_TILE);
    }
}

/* ---- products ---- */

DP_CLONES static void products_range(const void *context, int64_t begin, int64_t end)
{
    const dp_winograd_pass *p = context;
    int64_t blocks = p->row_count / LANES, block = p->batch * LANES;
    bool add = p->first_row > 0;
    for (int64_t item = begin; item < end; item++) {
        int64_t at = item / p->pair_count, pair = item % p->pair_count;
        const float *u = p->u + (pair * POSITIONS + at) * dp_winograd_weights_step(p),
                    *v = p->v + at * dp_winograd_from_step(p) + p->first_row / LANES * block;
        float *m = p->m + at * dp_winograd_to_step(p) + 2 * pair * block;
        product_of_rows(v, block, blocks, u, m, block, add, p->count);
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
        float *u = p->u + (pair * POSITIONS + at) * dp_winograd_weights_step(p);
        for (int64_t r = 0, row = p->first_row; r < p->row_count; r += CHANNEL_ROWS, row += CHANNEL_ROWS)
            gradient_product(v + row / LANES * block + row % LANES, m, block, p->count, u + r * PAIR, PAIR,
                             p->first > 0);
    }
}

const dp_winograd_kernels KERNELS = {.weights = weights_range,
                                     .gather = gather_range,
                                     .tiles_in = tiles_in_range,
                                     .gradients_in = gradients_in_range,
                                     .tiles_out = tiles_out_range,
                                     .products = products_range,
                                     .gradient_products = gradient_products_range};
