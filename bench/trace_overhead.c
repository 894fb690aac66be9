/* trace_overhead FILE [REPEATS STEPS]: what recording a trace (to FILE) costs a training step of LeNet, batch
 * 128, on two CPU devices. Engines with and without one take turns within each repeat (dptrain/bench.h does
 * the timing); a machine that has other work to do disturbs a repeat, but seldom half of them: the median of
 * the repeats is what counts. */
#include <stdio.h>
#include <stdlib.h>

#include "dptrain/bench.h"
#include "dptrain/trace.h"

enum { BATCH = 128, MOST_REPEATS = 99 };

static dp_status repeat(const dp_model *model, const char *path, int steps, dp_bench_row *row,
                        uint64_t *dropped, dp_error *err)
{
    dp_bench_config config = dp_bench_defaults();
    config.context.backend = DP_BACKEND_CPU;
    config.context.logical_devices = 2;
    config.model = model;
    config.steps = steps;
    dp_engine_config plain = config.engine;
    dp_status status = dp_trace_open(path, &config.engine.trace, err);
    if (status != DP_OK)
        return status;
    status = dp_bench_compare_engines(&config, &plain, BATCH, row, err);
    if (status == DP_OK)
        return dp_trace_close(config.engine.trace, dropped, err);
    dp_trace_abandon(config.engine.trace);
    return status;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static dp_status measure(const dp_model *model, const char *path, int repeats, int steps, dp_error *err)
{
    double ratio[MOST_REPEATS];
    printf("lenet, batch %d, 2 CPU devices, %d steps each way, in turns; medians\n\n", BATCH, steps);
    printf("repeat  without, ms  with a trace, ms   ratio\n");
    for (int i = 0; i < repeats; i++) {
        dp_bench_row row;
        uint64_t dropped;
        dp_status status = repeat(model, path, steps, &row, &dropped, err);
        if (status != DP_OK)
            return status;
        ratio[i] = row.parallel.ms_per_step / row.single.ms_per_step;
        printf("%6d %12.3f %17.3f %7.4f\n", i + 1, row.single.ms_per_step, row.parallel.ms_per_step,
               ratio[i]);
        if (dropped > 0)
            printf("       %llu spans found no room\n", (unsigned long long)dropped);
    }
    qsort(ratio, (size_t)repeats, sizeof *ratio, ascending);
    double median = (ratio[(repeats - 1) / 2] + ratio[repeats / 2]) / 2;
    printf("\na trace costs %.1f %% of a step: the median of %d ratios, which go from %.4f to %.4f\n",
           100 * (median - 1), repeats, ratio[0], ratio[repeats - 1]);
    return DP_OK;
}

int main(int argc, char **argv)
{
    int repeats = argc > 2 ? atoi(argv[2]) : 9, steps = argc > 3 ? atoi(argv[3]) : 10;
    if (argc < 2 || argc > 4 || repeats < 1 || repeats > MOST_REPEATS || steps < 1) {
        fprintf(stderr, "trace_overhead FILE [REPEATS STEPS]: up to %d repeats\n", MOST_REPEATS);
        return 2;
    }
    dp_error error = {0};
    dp_model *model = NULL;
    dp_model_config config = dp_model_defaults("lenet");
    config.input_rank = 3;
    config.input_shape[0] = 1;
    config.input_shape[1] = config.input_shape[2] = 28;
    config.outputs = 10;
    dp_status status = dp_model_build(&config, &model, &error);
    if (status == DP_OK)
        status = measure(model, argv[1], repeats, steps, &error);
    dp_model_free(model);
    if (status != DP_OK)
        fprintf(stderr, "trace_overhead: %s\n", error.message);
    return status == DP_OK ? 0 : 1;
}
