/* Training steps against the clock: two engines of one context in turns, the same batches. */
#include "dptrain/bench.h"

#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/thread.h"
#include "bench/statistics.h"

enum {
    ROUNDS = 5, /* turns of each side: the machine's speed may drift, but not for one side alone */
    WARM_UP = 3 /* steps of a new engine that do not count; and one at the start of each turn */
};

/* The same batch again and again is learnt soon: too small a rate to end in numbers that are not finite. */
static const double learning_rate = 1e-4;

typedef struct side {
    dp_engine *engine;
    dp_host_batch batch;
    dp_timed_step *steps;
    int count; /* so far */
    double round_ms[ROUNDS];
} side;

typedef struct bench {
    const dp_bench_config *config;
    const dp_engine_config *baseline; /* what is compared with; NULL: the single device */
    dp_context *context;
    int first_id, devices;
    dp_model_state state;
    float *x;
    void *y;
    side sides[2]; /* single, parallel */
    uint32_t steps_made;
    bool stopped;
} bench;

dp_bench_config dp_bench_defaults(void)
{
    return (dp_bench_config){.context = dp_context_defaults(), .engine = dp_engine_defaults(), .steps = 20};
}

/* ---- what is trained on ---- */

static int64_t elements(int rank, const int64_t shape[3])
{
    int64_t n = 1;
    for (int i = 0; i < rank; i++)
        n *= shape[i];
    return n;
}

/* Standard normal inputs; labels, or targets of 0 and 1, at random. */
static dp_status make_batch(bench *b, int64_t samples, dp_error *err)
{
    const dp_bench_config *c = b->config;
    int64_t in[3], out[3];
    int64_t inputs = elements(dp_model_input_shape(c->model, in), in);
    int64_t outputs = elements(dp_model_output_shape(c->model, out), out);
    bool labels = c->engine.criterion == DP_LOSS_CROSS_ENTROPY;
    int64_t targets = labels ? 1 : outputs;
    DP_TRY(
        dp_context_host_alloc(b->context, (size_t)(samples * inputs) * sizeof(float), (void **)&b->x, err));
    DP_TRY(dp_context_host_alloc(b->context, (size_t)(samples * targets) * sizeof(float), &b->y, err));
    for (int64_t i = 0; i < samples; i++) {
        for (int64_t e = 0; e < inputs; e++)
            b->x[i * inputs + e] = dp_rng_normal(c->seed, DP_RNG_SYNTHETIC, (uint32_t)i, 0, (uint64_t)e);
        for (int64_t e = 0; e < targets; e++) {
            uint64_t n = labels ? (uint64_t)outputs : 2;
            uint64_t value = dp_rng_below(c->seed, DP_RNG_SYNTHETIC, (uint32_t)i, 1, (uint64_t)e, n);
            if (labels)
                ((int32_t *)b->y)[i] = (int32_t)value;
            else
                ((float *)b->y)[i * targets + e] = (float)value;
        }
    }
    return DP_OK;
}

/* ---- steps ---- */

static int batches(const bench *b)
{
    return b->config->accumulation_steps > 1 ? b->config->accumulation_steps : 1;
}

/* One step by the clock: as many batches as an update takes. */
static dp_status time_step(bench *b, side *s, dp_timed_step *timed, dp_error *err)
{
    memset(timed, 0, sizeof *timed);
    int count = batches(b);
    double began = dp_now();
    for (int i = 0; i < count; i++) {
        const dp_step step = {.batch = s->batch,
                              .lr = learning_rate,
                              .loss_scale = 1.0 / count,
                              .update = i + 1 == count,
                              .random_step = b->steps_made++};
        dp_step_result result;
        DP_TRY(dp_engine_train(s->engine, &step, &result, err));
        for (int p = 0; p < DP_PHASES; p++) {
            timed->phase_ms[p] += result.phase_ms[p];
            timed->overlapped_ms[p] += result.overlapped_ms[p];
        }
    }
    timed->ms = 1e3 * (dp_now() - began);
    return DP_OK;
}

static bool stopped(bench *b)
{
    if (b->config->stop && b->config->stop(b->config->user))
        b->stopped = true;
    return b->stopped;
}

static dp_status warm_up(bench *b, side *s, int steps, dp_error *err)
{
    dp_timed_step ignored;
    for (int i = 0; i < steps && !stopped(b); i++)
        DP_TRY(time_step(b, s, &ignored, err));
    return DP_OK;
}

static dp_status take_turn(bench *b, side *s, int round, int steps, dp_error *err)
{
    double sum = 0;
    DP_TRY(warm_up(b, s, 1, err));
    for (int i = 0; i < steps && !stopped(b); i++) {
        dp_timed_step *timed = &s->steps[s->count];
        DP_TRY(time_step(b, s, timed, err));
        sum += timed->ms;
        s->count++;
    }
    s->round_ms[round] = sum / steps;
    return DP_OK;
}

/* ---- engines ---- */

static dp_status open_side(bench *b, side *s, const dp_engine_config *engine, int64_t samples, dp_error *err)
{
    DP_TRY(dp_calloc((size_t)b->config->steps, sizeof *s->steps, "timed steps", &s->steps, err));
    DP_TRY(dp_engine_create(b->context, b->config->model, engine, &s->engine, err));
    DP_TRY(dp_engine_set_state(s->engine, &b->state, err));
    DP_TRY(dp_engine_plan(s->engine, samples, true, err));
    s->batch = (dp_host_batch){.samples = samples, .x = b->x, .y = b->y};
    return warm_up(b, s, WARM_UP, err);
}

static dp_status report_devices(const bench *b, dp_bench_row *out, dp_error *err)
{
    out->devices = dp_engine_devices(b->sides[1].engine);
    for (int k = 0; k < out->devices; k++)
        DP_TRY(dp_engine_report(b->sides[1].engine, k, &out->device[k], err));
    return DP_OK;
}

/* Opened first: memory has its peaks, which no later step moves, before there is another engine. */
static dp_status open_parallel(bench *b, dp_bench_row *out, dp_error *err)
{
    const dp_bench_config *c = b->config;
    int64_t chunks[DP_ENGINE_MAX_DEVICES];
    DP_TRY(dp_engine_check(b->context, &c->engine, err));
    DP_TRY(dp_engine_check_batch(b->context, c->model, &c->engine, out->batch_size, err));
    b->devices = c->engine.device_ids ? c->engine.device_count : dp_context_device_count(b->context);
    b->first_id = c->engine.device_ids ? c->engine.device_ids[0] : 0;
    out->used = dp_split_batch(c->engine.split, c->engine.shares, b->devices, out->batch_size, chunks);
    DP_TRY(make_batch(b, out->batch_size, err));
    DP_TRY(dp_model_state_create(c->model, &b->state, err));
    dp_model_state_init(c->model, c->seed, &b->state);
    out->parallel.batch_size = out->batch_size;
    DP_TRY(open_side(b, &b->sides[1], &c->engine, out->batch_size, err));
    return report_devices(b, out, err);
}

static dp_status open_baseline(bench *b, dp_bench_row *out, dp_error *err)
{
    const dp_bench_config *c = b->config;
    out->single.batch_size = out->batch_size;
    DP_TRY(dp_engine_check(b->context, b->baseline, err));
    DP_TRY(dp_engine_check_batch(b->context, c->model, b->baseline, out->batch_size, err));
    return open_side(b, &b->sides[0], b->baseline, out->batch_size, err);
}

static dp_status open_single(bench *b, dp_bench_row *out, dp_error *err)
{
    const dp_bench_config *c = b->config;
    if (b->devices < 2)
        return dp_fail(err, DP_ERROR_USAGE, "there is nothing to compare a single device with");
    dp_engine_config engine = c->engine;
    engine.device_ids = &b->first_id;
    engine.device_count = 1;
    engine.output_device = -1;
    engine.split = DP_SPLIT_CHUNK;
    int64_t samples = c->weak ? (out->batch_size + b->devices - 1) / b->devices : out->batch_size;
    out->single.batch_size = samples;
    DP_TRY(dp_engine_check_batch(b->context, c->model, &engine, samples, err));
    return open_side(b, &b->sides[0], &engine, samples, err);
}

static dp_status measure(bench *b, bool compare, dp_bench_row *out, dp_error *err)
{
    const dp_bench_config *c = b->config;
    DP_TRY(open_parallel(b, out, err));
    if (compare)
        DP_TRY(b->baseline ? open_baseline(b, out, err) : open_single(b, out, err));
    int rounds = c->steps < ROUNDS ? c->steps : ROUNDS;
    for (int r = 0; r < rounds; r++) {
        int steps = c->steps * (r + 1) / rounds - c->steps * r / rounds;
        for (int i = compare ? 0 : 1; i < 2; i++)
            DP_TRY(take_turn(b, &b->sides[i], r, steps, err));
    }
    out->stopped = b->stopped;
    if (b->stopped)
        return DP_OK;
    for (int i = compare ? 0 : 1; i < 2; i++) {
        dp_bench_times *times = i ? &out->parallel : &out->single;
        dp_summarize_steps(b->sides[i].steps, b->sides[i].count, times->batch_size * batches(b), times);
    }
    for (int r = 0; compare && r < rounds; r++) {
        double ratio = b->sides[0].round_ms[r] / b->sides[1].round_ms[r] * (double)out->parallel.batch_size /
                       (double)out->single.batch_size;
        out->low_speedup = r == 0 || ratio < out->low_speedup ? ratio : out->low_speedup;
        out->high_speedup = r == 0 || ratio > out->high_speedup ? ratio : out->high_speedup;
    }
    if (compare) {
        out->speedup = out->parallel.samples_per_second / out->single.samples_per_second;
        out->efficiency = b->baseline ? 0 : out->speedup / b->devices;
    }
    for (int k = 0; k < out->devices; k++) {
        dp_device_report now;
        DP_TRY(dp_engine_report(b->sides[1].engine, k, &now, err));
        out->device[k].busy_fraction = now.busy_fraction;
        out->device[k].samples = now.samples;
        out->device[k].steps = now.steps;
    }
    return DP_OK;
}

static dp_status run(const dp_bench_config *config, const dp_engine_config *baseline, int64_t batch_size,
                     bool compare, dp_bench_row *out, dp_error *err)
{
    *out = (dp_bench_row){.batch_size = batch_size};
    if (config->steps < 1 || batch_size < 1)
        return dp_fail(err, DP_ERROR_USAGE, "%d steps on batches of %lld samples cannot be timed",
                       config->steps, (long long)batch_size);
    bench b = {.config = config, .baseline = baseline};
    DP_TRY(dp_context_open(&config->context, &b.context, err));
    dp_status status = measure(&b, compare, out, err);
    for (int i = 0; i < 2; i++) {
        dp_engine_free(b.sides[i].engine);
        dp_free(b.sides[i].steps);
    }
    dp_model_state_free(&b.state);
    dp_context_host_free(b.context, b.x);
    dp_context_host_free(b.context, b.y);
    dp_context_close(b.context);
    return status;
}

dp_status dp_bench_compare(const dp_bench_config *config, int64_t batch_size, dp_bench_row *out,
                           dp_error *err)
{
    return run(config, NULL, batch_size, true, out, err);
}

dp_status dp_bench_compare_engines(const dp_bench_config *config, const dp_engine_config *baseline,
                                   int64_t batch_size, dp_bench_row *out, dp_error *err)
{
    return run(config, baseline, batch_size, true, out, err);
}

dp_status dp_bench_measure(const dp_bench_config *config, int64_t batch_size, dp_bench_row *out,
                           dp_error *err)
{
    return run(config, NULL, batch_size, false, out, err);
}
