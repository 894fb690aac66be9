/* Threads, and the one way in which they hand work to each other. */
#ifndef DP_BASE_THREAD_H
#define DP_BASE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Starts a named thread (names are cut to 15 characters) with every signal blocked: signals belong to the
 * main thread. */
dp_status dp_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *argument,
                          dp_error *err);

/* A counter that only grows. One side posts values, the other waits until the counter has reached one.
 * A waiter spins for at most `spin` nanoseconds (50 microseconds at the most, 0 where threads share cores),
 * then blocks on the condition variable. Closing it wakes every waiter for good. */
typedef struct dp_signal {
    _Atomic uint64_t value;
    _Atomic int waiters;
    _Atomic bool closed;
    uint32_t spin_ns;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
} dp_signal;

dp_status dp_signal_init(dp_signal *signal, uint32_t spin_ns, dp_error *err);
void dp_signal_destroy(dp_signal *signal);

/* Raises the counter to value (which must not be lower than before) and wakes the waiters. */
void dp_signal_post(dp_signal *signal, uint64_t value);

/* True as soon as the counter is at least value; false if the signal was closed first. */
bool dp_signal_wait(dp_signal *signal, uint64_t value);

/* The same, but false also when dp_now() has come to `deadline`. */
bool dp_signal_wait_until(dp_signal *signal, uint64_t value, double deadline);

/* The same question without waiting. */
bool dp_signal_reached(const dp_signal *signal, uint64_t value);

void dp_signal_close(dp_signal *signal);

/* Monotonic time in seconds. */
double dp_now(void);

/* Cores that this process may use: the smaller of its affinity mask and its cgroup's CPU quota, at least 1.
 */
int dp_usable_cores(void);

#endif
