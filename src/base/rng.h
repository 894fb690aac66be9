/* Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
 * as 1, 2, 3", SC 2011). A number is a function of (seed, purpose, three counters) alone; no thread or device
 * has a state that could differ. */
#ifndef DP_BASE_RNG_H
#define DP_BASE_RNG_H

#include <stdint.h>

/* What a number is for; two purposes never share numbers. */
typedef enum dp_rng_purpose {
    DP_RNG_INIT = 1,      /* initial weights: counters are parameter index, element */
    DP_RNG_ORDER = 2,     /* the order of an epoch: epoch, position */
    DP_RNG_SPLIT = 3,     /* the held-out share: position */
    DP_RNG_SYNTHETIC = 4, /* synthetic data: sample, element */
    DP_RNG_DROPOUT = 5,   /* dropout: step, sample, element */
    DP_RNG_AUGMENT = 6,   /* augmentation: epoch, sample */
    DP_RNG_TEST = 7,
} dp_rng_purpose;

/* Four independent 32-bit numbers of block `block` (below 2^56) of the stream (seed, purpose, a, b). */
void dp_rng_block(uint64_t seed, dp_rng_purpose purpose, uint32_t a, uint32_t b, uint64_t block,
                  uint32_t out[4]);

/* Element i of that stream. A stream is to be read through one of these four only: they lay their elements
 * out in different ways over the same blocks.
 * u32: a 32-bit number, word i % 4 of block i / 4. uniform: in [0, 1), the upper 24 bits of u32.
 * below: uniform below n without bias (n > 0, i below 2^48), from block i and, in the rare case of a
 * rejection, further blocks that belong to element i alone. normal: standard normal (Box-Muller, from the
 * first two words of block i). */
uint32_t dp_rng_u32(uint64_t seed, dp_rng_purpose purpose, uint32_t a, uint32_t b, uint64_t i);
float dp_rng_uniform(uint64_t seed, dp_rng_purpose purpose, uint32_t a, uint32_t b, uint64_t i);
uint64_t dp_rng_below(uint64_t seed, dp_rng_purpose purpose, uint32_t a, uint32_t b, uint64_t i, uint64_t n);
float dp_rng_normal(uint64_t seed, dp_rng_purpose purpose, uint32_t a, uint32_t b, uint64_t i);

#endif
