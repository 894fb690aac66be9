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

/* Four independent 32-bit numbers of block `block` of the stream (seed, purpose, a, b). */
void dp_rng_block(uint64_t seed, dp_rng_purpose purpose, uint32_t a, uint32_t b, uint64_t block,
                  uint32_t out[4]);

/* Element i of that stream: a 32-bit number; uniform in [0, 1) with 24 bits; uniform below n without bias (n
 * > 0); standard normal (Box-Muller, from two words of the element's own block). */
uint32_t dp_rng_u32(uint64_t seed, dp_rng_purpose purpose, uint32_t a, uint32_t b, uint64_t i);
float dp_rng_uniform(uint64_t seed, dp_rng_purpose purpose, uint32_t a, uint32_t b, uint64_t i);
uint64_t dp_rng_below(uint64_t seed, dp_rng_purpose purpose, uint32_t a, uint32_t b, uint64_t i, uint64_t n);
float dp_rng_normal(uint64_t seed, dp_rng_purpose purpose, uint32_t a, uint32_t b, uint64_t i);

#endif
