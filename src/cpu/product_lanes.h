/* Matrix products of tensors whose channels lie in blocks, for a source file that has defined LANES, the
 * channels of a block. The results have two blocks of columns, a pair. */
#include <stdbool.h>
#include <stdint.h>

#include "cpu/clones.h"
#include "cpu/products.h"

#if !defined(__clang__)
#pragma GCC optimize("fp-contract=fast") /* fused multiply-adds, which -std=c17 switches off */
#endif

enum {
    PAIR = 2 * LANES,
    ROWS = DP_PRODUCT_ROWS,
    SUM_CHANNELS = DP_PRODUCT_SUM_CHANNELS,
    CHANNEL_ROWS = LANES / 2 /* channels in the registers of a gradient's product */
};

/* May alias float arrays, at any float's address. */
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* m[rows][pair] (+)= v[rows][blocks] u[their rows][pair]; m's two blocks lie m_block apart. Sums of a few
 * blocks are added to what is in memory, which rounds less than one long sum. Few rows have two sums each,
 * which the processor can add to at the same time. */
DP_INLINE void product(const float *v, int64_t v_block, int64_t blocks, const float *u, float *m,
                       int64_t m_block, bool add, const int rows)
{
    const int64_t most = SUM_CHANNELS / LANES;
    const int sums = rows <= ROWS / 2 ? 2 : 1;
    for (int64_t first = 0; first < blocks; first += most, add = true) {
        int64_t end = first + most < blocks ? first + most : blocks;
        lanes a[ROWS], b[ROWS];
        for (int r = 0; r < rows * sums; r++)
            a[r] = b[r] = (lanes){0};
        for (int64_t block = first; block < end; block++, v += v_block)
            for (int l = 0; l < LANES; l += sums)
                for (int k = 0; k < sums; k++, u += PAIR) {
                    lanes left = *(const lanes *)u, right = *(const lanes *)(u + LANES);
                    for (int r = 0; r < rows; r++) {
                        a[k * rows + r] += v[r * LANES + l + k] * left;
                        b[k * rows + r] += v[r * LANES + l + k] * right;
                    }
                }
        for (int r = 0; r < rows; r++) {
            lanes *to = (lanes *)(m + r * LANES), *other = (lanes *)(m + m_block + r * LANES);
            if (sums == 2) {
                a[r] += a[rows + r];
                b[r] += b[rows + r];
            }
            if (add) {
                a[r] += *to;
                b[r] += *other;
            }
            *to = a[r];
            *other = b[r];
        }
    }
}

/* How many of the rows left go next: all registers full, but at the end two parts of about the same size,
 * as with few sums the processor waits for each. */
DP_INLINE int64_t rows_of(int64_t left)
{
    return left >= 2 * ROWS || left == ROWS ? ROWS : left > ROWS ? (left + 1) / 2 : left;
}

/* The same for `count` rows, some at a time. */
DP_INLINE void product_of_rows(const float *v, int64_t v_block, int64_t blocks, const float *u, float *m,
                               int64_t m_block, bool add, int64_t count)
{
    for (int64_t t = 0, rows; t < count; t += rows, v += rows * LANES, m += rows * LANES) {
        rows = rows_of(count - t);
        switch (rows) {
        case 1:
            product(v, v_block, blocks, u, m, m_block, add, 1);
            break;
        case 2:
            product(v, v_block, blocks, u, m, m_block, add, 2);
            break;
        case 3:
            product(v, v_block, blocks, u, m, m_block, add, 3);
            break;
        case 4:
            product(v, v_block, blocks, u, m, m_block, add, 4);
            break;
        case 5:
            product(v, v_block, blocks, u, m, m_block, add, 5);
            break;
        default:
            product(v, v_block, blocks, u, m, m_block, add, ROWS);
            break;
        }
    }
}

/* u[4 or 8 rows][pair] (+)= the sum over `count` of v[count][rows] m[count][pair], with half of a block's
 * channels as rows; m's two blocks lie m_block apart, u's rows `step`. */
DP_INLINE void gradient_product(const float *v, const float *m, int64_t m_block, int64_t count, float *u,
                                int64_t step, bool add)
{
    lanes a[CHANNEL_ROWS], b[CHANNEL_ROWS];
    for (int r = 0; r < CHANNEL_ROWS; r++)
        a[r] = b[r] = (lanes){0};
    for (int64_t t = 0; t < count; t++, v += LANES, m += LANES) {
        lanes left = *(const lanes *)m, right = *(const lanes *)(m + m_block);
        for (int r = 0; r < CHANNEL_ROWS; r++) {
            a[r] += v[r] * left;
            b[r] += v[r] * right;
        }
    }
    for (int r = 0; r < CHANNEL_ROWS; r++) {
        lanes *to = (lanes *)(u + r * step), *other = (lanes *)(u + r * step + LANES);
        if (add) {
            a[r] += *to;
            b[r] += *other;
        }
        *to = a[r];
        *other = b[r];
    }
}
