#include "base/rng.h"

#include <math.h>

#include "base/philox.h"

void dp_rng_block(uint64_t seed, dp_rng_purpose purpose, uint32_t a, uint32_t b, uint64_t block,
                  uint32_t out[4])
{
    dp_philox_block(seed, purpose, a, b, block, out);
}

uint32_t dp_rng_u32(uint64_t seed, dp_rng_purpose purpose, uint32_t a, uint32_t b, uint64_t i)
{
    uint32_t words[4];
    dp_rng_block(seed, purpose, a, b, i / 4, words);
    return words[i % 4];
}

float dp_rng_uniform(uint64_t seed, dp_rng_purpose purpose, uint32_t a, uint32_t b, uint64_t i)
{
    return (float)(dp_rng_u32(seed, purpose, a, b, i) >> 8) * 0x1p-24f;
}

/* The largest multiple of n is cut out of the 2^64 numbers and what falls beyond it is drawn again. Each
 * block holds two tries; try blocks of element i differ from it in bits 48 to 55, where no other element's
 * are. Even for the worst n, one draw in 2^512 would run out of tries. */
uint64_t dp_rng_below(uint64_t seed, dp_rng_purpose purpose, uint32_t a, uint32_t b, uint64_t i, uint64_t n)
{
    const uint64_t excess = (0 - n) % n; /* 2^64 mod n */
    uint64_t draw = 0;
    for (uint64_t attempt = 0; attempt < 256; attempt++) {
        uint32_t words[4];
        dp_rng_block(seed, purpose, a, b, i ^ attempt << 48, words);
        for (int half = 0; half < 2; half++) {
            draw = (uint64_t)words[2 * half + 1] << 32 | words[2 * half];
            if (draw <= UINT64_MAX - excess)
                return draw % n;
        }
    }
    return draw % n;
}

float dp_rng_normal(uint64_t seed, dp_rng_purpose purpose, uint32_t a, uint32_t b, uint64_t i)
{
    const double pi = 3.14159265358979323846;
    uint32_t words[4];
    dp_rng_block(seed, purpose, a, b, i, words);
    double radius = sqrt(-2.0 * log((words[0] + 1.0) * 0x1p-32)); /* of a number in (0, 1] */
    return (float)(radius * cos(2.0 * pi * (words[1] * 0x1p-32)));
}
