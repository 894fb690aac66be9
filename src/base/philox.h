/* Philox4x32-10 (see base/rng.h), for code that makes many blocks at a time: in a loop over blocks, compiled
 * for vectors, each of its operations becomes one on several blocks. */
#ifndef DP_BASE_PHILOX_H
#define DP_BASE_PHILOX_H

#include <stdint.h>

#include "base/rng.h"

enum { DP_PHILOX_ROUNDS = 10 };

/* What dp_rng_block computes. The key is the seed. The purpose sits in the top byte of the block's upper
 * word, which blocks below 2^56 leave zero: two streams that differ in anything never meet in a counter. */
static inline __attribute__((always_inline)) void dp_philox_block(uint64_t seed, dp_rng_purpose purpose,
                                                                  uint32_t a, uint32_t b, uint64_t block,
                                                                  uint32_t out[4])
{
    const uint32_t multiplier[2] = {0xD2511F53u, 0xCD9E8D57u};
    const uint32_t weyl[2] = {0x9E3779B9u, 0xBB67AE85u}; /* added to the key after each round */
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32) ^ (uint32_t)purpose << 24, c2 = a, c3 = b;
    for (int round = 0; round < DP_PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)multiplier[0] * c0, p1 = (uint64_t)multiplier[1] * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += weyl[0];
        k1 += weyl[1];
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

#endif
