/* Squares of 8 x 8 floats, turned in registers. For functions with DP_CLONES. */
#ifndef DP_CPU_TRANSPOSE_H
#define DP_CPU_TRANSPOSE_H

#include <stdbool.h>
#include <stdint.h>

#include "cpu/clones.h"

/* May alias float arrays, at any float's address. */
typedef float dp_eight __attribute__((vector_size(32), aligned(4), may_alias));

/* to[i][j] (+)= from[j][i]; steps are floats from a row to the next. */
DP_INLINE void dp_transpose8(const float *from, int64_t from_step, float *to, int64_t to_step, const bool add)
{
    dp_eight a[8], b[8];
    for (int i = 0; i < 8; i++)
        a[i] = *(const dp_eight *)(from + i * from_step);
    for (int i = 0; i < 8; i += 2) {
        b[i] = __builtin_shufflevector(a[i], a[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        b[i + 1] = __builtin_shufflevector(a[i], a[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            a[i + 2 * j] = __builtin_shufflevector(b[i + j], b[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            a[i + 2 * j + 1] = __builtin_shufflevector(b[i + j], b[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int i = 0; i < 4; i++) {
        b[i] = __builtin_shufflevector(a[i], a[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        b[i + 4] = __builtin_shufflevector(a[i], a[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
    for (int i = 0; i < 8; i++) {
        dp_eight *at = (dp_eight *)(to + i * to_step);
        if (add)
            b[i] += *at;
        *at = b[i];
    }
}

#endif
