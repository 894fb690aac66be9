/* Training throughput of one CPU device against several, one core each: the same engine, the same batches, in
 * turns within one run, so that a machine whose speed drifts cannot favour one of them.
 *
 *     build/bench/throughput [--devices N] [--rounds R] [--seconds S] [--batch B] [mlp|lenet ...]
 *
 * Batches are in memory before the clock starts: this measures the engine, not the loader. The last column is
 * the median of the rounds' ratios. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "dptrain/engine.h"

enum { MAX_ROUNDS = 64, SIDE = 28, CLASSES = 10 };

typedef struct workload {
    const char *model;
    int64_t batch;
} workload;

static const workload workloads[] = {{"mlp", 256}, {"lenet", 128}};

typedef struct options {
    int devices, rounds;
    double seconds;
    int64_t batch;
} options;

static void die(const char *what, const dp_error *err)
{
    fprintf(stderr, "throughput: %s: %s\n", what, err->message);
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, ascending);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

static dp_engine *make_engine(dp_context *context, const dp_model *model, int devices, int64_t batch)
{
    dp_error err = {0};
    int ids[DP_ENGINE_MAX_DEVICES];
    for (int k = 0; k < devices; k++)
        ids[k] = k;
    dp_engine_config config = dp_engine_defaults();
    config.device_ids = ids;
    config.device_count = devices;
    dp_engine *engine;
    if (dp_engine_create(context, model, &config, &engine, &err) != DP_OK)
        die("engine", &err);
    float *weights = malloc((size_t)dp_model_elements(model) * sizeof *weights);
    if (!weights)
        abort();
    dp_model_init_weights(model, 0, weights);
    if (dp_engine_set_weights(engine, weights, &err) != DP_OK ||
        dp_engine_plan(engine, batch, true, &err) != DP_OK)
        die("engine", &err);
    free(weights);
    return engine;
}

/* Samples a second over about `seconds`; adds the phases up if `phases` is given. */
static double run(dp_engine *engine, const dp_step *step, double seconds, double phases[DP_PHASES])
{
    dp_error err = {0};
    dp_step_result result;
    int steps = 0;
    double began = now(), ms[DP_PHASES] = {0};
    do {
        if (dp_engine_train(engine, step, &result, &err) != DP_OK)
            die("step", &err);
        for (int p = 0; p < DP_PHASES; p++)
            ms[p] += result.phase_ms[p];
        steps++;
    } while (now() - began < seconds);
    double rate = (double)(steps * step->batch.samples) / (now() - began);
    for (int p = 0; p < DP_PHASES; p++)
        phases[p] = ms[p] / steps;
    return rate;
}

static void print_phases(const char *label, const double phases[DP_PHASES])
{
    printf("    %s, ms:", label);
    for (int p = 0; p < DP_PHASES; p++)
        printf(" %s %.2f", dp_phase_name((dp_phase)p), phases[p]);
    printf("\n");
}

static void measure(const options *o, const workload *w)
{
    dp_error err = {0};
    dp_context_config cc = dp_context_defaults();
    cc.backend = DP_BACKEND_CPU;
    cc.logical_devices = o->devices;
    cc.threads_per_device = 1;
    dp_context *context;
    if (dp_context_open(&cc, &context, &err) != DP_OK)
        die("context", &err);
    dp_model_config mc = {
        .name = w->model, .input_rank = 3, .input_shape = {1, SIDE, SIDE}, .outputs = CLASSES};
    dp_model *model;
    if (dp_model_build(&mc, &model, &err) != DP_OK)
        die("model", &err);
    int64_t batch = o->batch ? o->batch : w->batch;
    float *x = malloc((size_t)batch * SIDE * SIDE * sizeof *x);
    int32_t *y = malloc((size_t)batch * sizeof *y);
    if (!x || !y)
        abort();
    srand(1);
    for (int64_t i = 0; i < batch * SIDE * SIDE; i++)
        x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    for (int64_t i = 0; i < batch; i++)
        y[i] = rand() % CLASSES;
    dp_step step = {.batch = {batch, x, y}, .lr = 1e-3, .update = true};

    dp_engine *one = make_engine(context, model, 1, batch),
              *many = make_engine(context, model, o->devices, batch);
    double rate[2][MAX_ROUNDS], ratio[MAX_ROUNDS], phases[2][DP_PHASES];
    run(one, &step, o->seconds / 3, phases[0]);
    run(many, &step, o->seconds / 3, phases[1]);
    for (int i = 0; i < o->rounds; i++) {
        rate[0][i] = run(one, &step, o->seconds, phases[0]);
        rate[1][i] = run(many, &step, o->seconds, phases[1]);
        ratio[i] = rate[1][i] / rate[0][i];
    }
    printf("%-6s batch %4lld: one device %.0f, %d devices %.0f samples/s, ratio %.2f\n", w->model,
           (long long)batch, median(rate[0], o->rounds), o->devices, median(rate[1], o->rounds),
           median(ratio, o->rounds));
    print_phases("one device", phases[0]);
    print_phases("several", phases[1]);
    for (int k = 0; k < o->devices; k++) {
        dp_device_report report;
        if (dp_engine_report(many, k, &report, &err) == DP_OK)
            printf("    %s busy %.0f %%\n", report.device, 100 * report.busy_fraction);
    }
    dp_engine_free(one);
    dp_engine_free(many);
    dp_model_free(model);
    dp_context_close(context);
    free(x);
    free(y);
}

static double number(const char *text, double low, double high)
{
    char *end;
    double v = text ? strtod(text, &end) : -1;
    if (!text || *end || !(v >= low && v <= high)) {
        fprintf(stderr, "throughput: '%s' is not a number from %g to %g\n", text ? text : "", low, high);
        exit(2);
    }
    return v;
}

int main(int argc, char **argv)
{
    options o = {.devices = 2, .rounds = 5, .seconds = 2};
    bool wanted[2] = {false, false}, any = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--devices") == 0)
            o.devices = (int)number(argv[++i], 2, 64);
        else if (strcmp(argv[i], "--rounds") == 0)
            o.rounds = (int)number(argv[++i], 1, MAX_ROUNDS);
        else if (strcmp(argv[i], "--seconds") == 0)
            o.seconds = number(argv[++i], 0.01, 600);
        else if (strcmp(argv[i], "--batch") == 0)
            o.batch = (int64_t)number(argv[++i], 1, 1e6);
        else if (strcmp(argv[i], "mlp") == 0 || strcmp(argv[i], "lenet") == 0)
            wanted[strcmp(argv[i], "lenet") == 0] = any = true;
        else {
            fprintf(
                stderr,
                "usage: throughput [--devices N] [--rounds R] [--seconds S] [--batch B] [mlp|lenet ...]\n");
            return 2;
        }
    }
    for (int w = 0; w < 2; w++)
        if (wanted[w] || !any)
            measure(&o, &workloads[w]);
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) == 0)
        printf("peak memory of this process: %.0f MB\n", (double)usage.ru_maxrss / 1e3);
    return 0;
}
