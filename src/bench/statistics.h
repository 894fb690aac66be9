/* What is made of measured steps. */
#ifndef DP_BENCH_STATISTICS_H
#define DP_BENCH_STATISTICS_H

#include "dptrain/bench.h"

typedef struct dp_timed_step {
    double ms; /* by the clock */
    double phase_ms[DP_PHASES], overlapped_ms[DP_PHASES];
} dp_timed_step;

/* The value below which a share q (0..1) of n ascending values lies, between two of them in proportion (the
 * default of R and NumPy: Hyndman and Fan 1996, definition 7). */
double dp_quantile(const double *ascending, int n, double q);
void dp_sort_ascending(double *values, int n);

/* Fills all of `out` but batch_size, for steps of `samples`. Sorts the steps by time. */
void dp_summarize_steps(dp_timed_step *steps, int count, int64_t samples, dp_bench_times *out);

#endif
