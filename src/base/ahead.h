/* Things made ahead by threads, and taken in order by one consumer: batches of samples, decoded pictures,
 * files that are written. */
#ifndef DP_BASE_AHEAD_H
#define DP_BASE_AHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct dp_ahead dp_ahead;

typedef struct dp_ahead_config {
    const char *name;  /* of the threads */
    int threads;       /* at least 1 */
    int64_t slots;     /* where items lie, more than `most_held` */
    int64_t most_held; /* items that the consumer may hold at once, at least 1 */
    /* Makes an item in a slot, both counted from 0. Any number of threads at once, each at one item. */
    dp_status (*make)(void *user, int thread, int64_t item, int64_t slot, dp_error *err);
    /* What an item takes up from its beginning until it is released, and how much all may; but the one that
     * the consumer waits for is always begun. NULL: nothing. */
    int64_t (*cost)(const void *user, int64_t item);
    int64_t most_cost;
    void *user;
} dp_ahead_config;

/* Starts the threads, which wait. DP_ERROR_MEMORY if one of them cannot be started. Owner: the caller. */
dp_status dp_ahead_create(const dp_ahead_config *config, dp_ahead **out, dp_error *err);
void dp_ahead_free(dp_ahead *ahead); /* joins the threads; NULL is fine */

/* Ends what was going on: nothing is begun any more, and when it returns, nothing is being made and all that
 * was not taken is dropped. DP_ERROR_INTERNAL while items are held. */
dp_status dp_ahead_stop(dp_ahead *ahead, dp_error *err);
/* After dp_ahead_create or dp_ahead_stop: items first .. end - 1 are to be made. */
void dp_ahead_start(dp_ahead *ahead, int64_t first, int64_t end);
/* More are to be made, now up to end - 1. Items that are to be made are known to the threads from here on. */
void dp_ahead_extend(dp_ahead *ahead, int64_t end);
bool dp_ahead_has_next(dp_ahead *ahead); /* whether dp_ahead_next would give an item without waiting */
/* The slot of the next item in order, waiting for it if need be, which then is held; -1 after the last. If
 * making it failed, that failure, and it is passed over. DP_ERROR_INTERNAL if as many are held as may be. */
dp_status dp_ahead_next(dp_ahead *ahead, int64_t *slot, dp_error *err);
/* Ends the holding of an item: its slot is for others. Any thread. */
void dp_ahead_release(dp_ahead *ahead, int64_t slot);

#endif
