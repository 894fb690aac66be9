/* Packs blocks with known lifetimes into one piece of memory. */
#ifndef DP_NN_MEMORY_PLAN_H
#define DP_NN_MEMORY_PLAN_H

#include <stddef.h>

#include "base/error.h"

typedef struct dp_block {
    size_t bytes;
    int first, last; /* the moments of its first and last use, inclusive */
    size_t offset;   /* result: a multiple of 64 */
} dp_block;

/* Gives every block an offset so that no two whose lifetimes meet overlap: largest first, each as low as it
 * fits (greedy by size; within a few percent of optimal on networks, see Pisarchyk and Lee, "Efficient memory
 * management for deep neural net inference", 2020). Blocks of 0 bytes get offset 0. *total is the size of it
 * all. */
dp_status dp_pack_blocks(dp_block *blocks, int count, size_t *total, dp_error *err);

#endif
