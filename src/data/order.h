/* Random orders: the order of an epoch, and who is held out. */
#ifndef DP_DATA_ORDER_H
#define DP_DATA_ORDER_H

#include <stdint.h>

/* Fills order[0..n-1] with a permutation of 0..n-1, a function of n, seed and epoch alone. */
void dp_order_of_epoch(int64_t *order, int64_t n, uint64_t seed, int64_t epoch);

/* The same for the split: the first entries are the samples to hold out. A function of n and seed alone. */
void dp_order_of_split(int64_t *order, int64_t n, uint64_t seed);

#endif
