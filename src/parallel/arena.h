/* How parameters lie in the flat arenas (weights, gradients, optimizer state), and the buckets that travel.
 */
#ifndef DP_PARALLEL_ARENA_H
#define DP_PARALLEL_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#include "nn/graph.h"

/* A contiguous range of an arena: whole operations in the order of the forward pass. A trainable bucket is
 * summed and updated as one and sent as one; a frozen one is sent when weights were set, and never again. */
typedef struct dp_bucket {
    int64_t begin, end; /* elements */
    int first_step;     /* forward needs it before this step of the program; backward has filled it after this
                           step */
    bool trainable;
} dp_bucket;

/* Order: trainable parameters in the order in which forward uses them, then frozen ones, then unused ones
 * (which stay on the primary and only wait to be saved). Every parameter starts at a multiple of 16 elements
 * (64 bytes); the gaps hold zeros in every arena and stay zero under every update. */
typedef struct dp_arena {
    int param_count;
    int64_t *offset;            /* by parameter, elements */
    bool *trainable;            /* by parameter: used, and not frozen */
    int64_t trainable_elements; /* how far gradients and optimizer state reach */
    int64_t used_elements;      /* how far a replica's weights reach */
    int64_t elements;           /* how far the primary's weights reach */
    dp_bucket *buckets;         /* by first_step */
    int bucket_count;
    int64_t largest_bucket; /* elements, of the trainable ones */
} dp_arena;

/* freeze: patterns of names. bucket_bytes: as in dp_engine_config. DP_ERROR_USAGE if a pattern matches
 * nothing or nothing is left to train. */
dp_status dp_arena_create(const dp_model *model, const char *const *freeze, int freeze_count,
                          size_t bucket_bytes, dp_arena *out, dp_error *err);
void dp_arena_clear(dp_arena *arena);

#endif
