#include "bench/statistics.h"

#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int by_time(const void *a, const void *b)
{
    return by_value(&((const dp_timed_step *)a)->ms, &((const dp_timed_step *)b)->ms);
}

void dp_sort_ascending(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
}

/* Where the quantile lies: between values `index` and index + 1, `part` of the way. */
static int position(int n, double q, double *part)
{
    double at = q * (n - 1);
    int index = (int)at;
    if (index > n - 2)
        index = n > 1 ? n - 2 : 0;
    *part = n > 1 ? at - index : 0;
    return index;
}

double dp_quantile(const double *ascending, int n, double q)
{
    double part;
    int i = position(n, q, &part);
    return part > 0 ? ascending[i] + part * (ascending[i + 1] - ascending[i]) : ascending[i];
}

static double step_quantile(const dp_timed_step *steps, int n, double q)
{
    double part;
    int i = position(n, q, &part);
    return part > 0 ? steps[i].ms + part * (steps[i + 1].ms - steps[i].ms) : steps[i].ms;
}

void dp_summarize_steps(dp_timed_step *steps, int count, int64_t samples, dp_bench_times *out)
{
    qsort(steps, (size_t)count, sizeof *steps, by_time);
    out->ms_per_step = step_quantile(steps, count, 0.5);
    out->low_ms = step_quantile(steps, count, 0.25);
    out->high_ms = step_quantile(steps, count, 0.75);
    out->samples_per_second = out->ms_per_step > 0 ? 1e3 * (double)samples / out->ms_per_step : 0;
    memset(out->phase_ms, 0, sizeof out->phase_ms);
    memset(out->overlapped_ms, 0, sizeof out->overlapped_ms);
    double sum = 0;
    for (int i = count / 4; i < count - count / 4; i++)
        for (int p = 0; p < DP_PHASES; p++) {
            out->phase_ms[p] += steps[i].phase_ms[p];
            out->overlapped_ms[p] += steps[i].overlapped_ms[p];
            sum += steps[i].phase_ms[p];
        }
    for (int p = 0; p < DP_PHASES && sum > 0; p++) {
        out->phase_ms[p] *= out->ms_per_step / sum;
        out->overlapped_ms[p] *= out->ms_per_step / sum;
    }
}

int64_t dp_bench_break_even(const dp_bench_row *rows, int count)
{
    int64_t lost = 0, best = 0; /* the largest batch that lost; the smallest above it */
    for (int i = 0; i < count; i++)
        if (!(rows[i].speedup > 1) && rows[i].batch_size > lost)
            lost = rows[i].batch_size;
    for (int i = 0; i < count; i++)
        if (rows[i].batch_size > lost && (!best || rows[i].batch_size < best))
            best = rows[i].batch_size;
    return best;
}

dp_phase dp_bench_costliest_phase(const dp_bench_row *row, bool weak, double *ms)
{
    const double share = weak ? 1 : 1.0 / row->devices;
    int worst = 0;
    *ms = 0;
    for (int p = 0; p < DP_PHASES; p++) {
        double extra = row->parallel.phase_ms[p] - share * row->single.phase_ms[p];
        if (p == 0 || extra > *ms) {
            worst = p;
            *ms = extra;
        }
    }
    return (dp_phase)worst;
}
