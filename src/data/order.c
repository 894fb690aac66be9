#include "data/order.h"

#include "base/rng.h"

/* Fisher and Yates: every permutation is equally likely. */
static void shuffle(int64_t *order, int64_t n, uint64_t seed, dp_rng_purpose purpose, uint64_t stream)
{
    for (int64_t i = 0; i < n; i++)
        order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        uint64_t j = dp_rng_below(seed, purpose, (uint32_t)stream, (uint32_t)(stream >> 32), (uint64_t)i,
                                  (uint64_t)i + 1);
        int64_t swapped = order[i];
        order[i] = order[j];
        order[j] = swapped;
    }
}

void dp_order_of_epoch(int64_t *order, int64_t n, uint64_t seed, int64_t epoch)
{
    shuffle(order, n, seed, DP_RNG_ORDER, (uint64_t)epoch);
}

void dp_order_of_split(int64_t *order, int64_t n, uint64_t seed)
{
    shuffle(order, n, seed, DP_RNG_SPLIT, 0);
}
