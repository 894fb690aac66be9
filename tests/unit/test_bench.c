/* What is made of measured steps: medians, phases, the break-even batch, the phase that eats the gain. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "bench/statistics.h"
#include "dptrain/trace.h"
#include "scratch.h"

static void expect(double got, double wanted)
{
    ck_assert_msg(fabs(got - wanted) <= 1e-12 * fabs(wanted) + 1e-15, "%.15g is not %.15g", got, wanted);
}

START_TEST(quantiles_lie_between_values)
{
    double v[] = {4, 1, 3, 2, 5};
    dp_sort_ascending(v, 5);
    for (int i = 0; i < 5; i++)
        expect(v[i], i + 1);
    expect(dp_quantile(v, 5, 0.5), 3);
    expect(dp_quantile(v, 5, 0.25), 2);
    expect(dp_quantile(v, 5, 0), 1);
    expect(dp_quantile(v, 5, 1), 5);
    expect(dp_quantile(v, 4, 0.5), 2.5);
    expect(dp_quantile(v, 4, 0.75), 3.25);
    expect(dp_quantile(v, 2, 0.25), 1.25);
    expect(dp_quantile(v, 1, 0.5), 1);
}
END_TEST

/* n steps that take 10, 20, 30, ... ms, in a mixed order; half of each is forward, a quarter each backward
 * and reduce, and as much as its forward is hidden. */
static void make_steps(dp_timed_step *steps, int n)
{
    memset(steps, 0, (size_t)n * sizeof *steps);
    for (int i = 0; i < n; i++) {
        dp_timed_step *s = &steps[(i * 3 + 1) % n];
        s->ms = 10 * (i + 1);
        s->phase_ms[DP_PHASE_FORWARD] = s->ms / 2;
        s->phase_ms[DP_PHASE_BACKWARD] = s->phase_ms[DP_PHASE_REDUCE] = s->ms / 4;
        s->overlapped_ms[DP_PHASE_FORWARD] = s->ms / 2;
    }
}

START_TEST(phases_add_up_to_the_median)
{
    for (int n = 1; n <= 8; n++) {
        if (n % 3 == 0)
            continue; /* the mixed order needs a length without a factor of 3 */
        dp_timed_step steps[8];
        dp_bench_times t = {.batch_size = 77};
        double sum = 0;
        make_steps(steps, n);
        dp_summarize_steps(steps, n, 30, &t);
        expect(t.ms_per_step, 10 * (n + 1) / 2.0);
        expect(t.samples_per_second, 30 * 1e3 / t.ms_per_step);
        expect(t.low_ms, 10 + 10 * 0.25 * (n - 1));
        expect(t.high_ms, 10 + 10 * 0.75 * (n - 1));
        for (int p = 0; p < DP_PHASES; p++)
            sum += t.phase_ms[p];
        expect(sum, t.ms_per_step);
        expect(t.phase_ms[DP_PHASE_FORWARD], t.ms_per_step / 2);
        expect(t.phase_ms[DP_PHASE_REDUCE], t.ms_per_step / 4);
        expect(t.overlapped_ms[DP_PHASE_FORWARD], t.ms_per_step / 2);
        ck_assert_int_eq(t.batch_size, 77);
    }
}
END_TEST

/* One step that was held up by something else entirely. */
START_TEST(an_outlier_does_not_move_the_phases)
{
    dp_timed_step steps[8];
    dp_bench_times t;
    memset(steps, 0, sizeof steps);
    for (int i = 0; i < 8; i++) {
        steps[i].ms = 10;
        steps[i].phase_ms[DP_PHASE_FORWARD] = 10;
    }
    steps[3].ms = 1000;
    steps[3].phase_ms[DP_PHASE_FORWARD] = 0;
    steps[3].phase_ms[DP_PHASE_WAIT] = 1000;
    dp_summarize_steps(steps, 8, 1, &t);
    expect(t.ms_per_step, 10);
    expect(t.phase_ms[DP_PHASE_FORWARD], 10);
    expect(t.phase_ms[DP_PHASE_WAIT], 0);
}
END_TEST

/* Rows of batch sizes and speed-ups, up to a batch of 0. */
static int64_t break_even(const double (*pairs)[2])
{
    dp_bench_row *rows = calloc(8, sizeof *rows);
    int n = 0;
    ck_assert_ptr_nonnull(rows);
    for (; pairs[n][0] > 0; n++) {
        rows[n].batch_size = (int64_t)pairs[n][0];
        rows[n].speedup = pairs[n][1];
    }
    int64_t batch = dp_bench_break_even(rows, n);
    free(rows);
    return batch;
}

START_TEST(the_break_even_batch_wins_for_good)
{
    ck_assert_int_eq(break_even((double[][2]){{16, 0.5}, {32, 1.2}, {64, 1.5}, {0}}), 32);
    ck_assert_int_eq(break_even((double[][2]){{64, 1.5}, {16, 0.5}, {32, 1.2}, {0}}), 32);
    ck_assert_int_eq(break_even((double[][2]){{16, 1.1}, {32, 0.9}, {64, 1.5}, {0}}), 64);
    ck_assert_int_eq(break_even((double[][2]){{16, 1.1}, {32, 1.1}, {0}}), 16);
    ck_assert_int_eq(break_even((double[][2]){{16, 1.5}, {32, 1}, {0}}), 0);
    ck_assert_int_eq(break_even((double[][2]){{16, 0.5}, {0}}), 0);
    ck_assert_int_eq(break_even((double[][2]){{0}}), 0);
}
END_TEST

START_TEST(the_costliest_phase_is_beyond_an_even_share)
{
    dp_bench_row row = {.devices = 2};
    double ms;
    row.single.phase_ms[DP_PHASE_BACKWARD] = 20;
    row.single.phase_ms[DP_PHASE_FORWARD] = 8;
    row.parallel.phase_ms[DP_PHASE_BACKWARD] = 12; /* 2 beyond a half */
    row.parallel.phase_ms[DP_PHASE_FORWARD] = 5;   /* 1 */
    row.parallel.phase_ms[DP_PHASE_BROADCAST] = 4; /* 4: there is none on one device */
    ck_assert_int_eq(dp_bench_costliest_phase(&row, false, &ms), DP_PHASE_BROADCAST);
    expect(ms, 4);
    row.parallel.phase_ms[DP_PHASE_BACKWARD] = 15;
    ck_assert_int_eq(dp_bench_costliest_phase(&row, false, &ms), DP_PHASE_BACKWARD);
    expect(ms, 5);
    ck_assert_int_eq(dp_bench_costliest_phase(&row, true, &ms), DP_PHASE_BROADCAST);
    expect(ms, 4);
}
END_TEST

/* An engine against another: the one with a trace records every step of its side, and none of the other's. */
START_TEST(two_engines_are_compared)
{
    static dp_bench_row row;
    dp_error err = {0};
    dp_model *model = NULL;
    const dp_model_config linear = {.name = "linear", .input_rank = 1, .input_shape = {4}, .outputs = 3};
    dp_bench_config config = dp_bench_defaults();
    config.context.backend = DP_BACKEND_CPU;
    config.context.logical_devices = 2;
    config.context.threads_per_device = 1;
    config.steps = 3;
    ck_assert_int_eq(dp_model_build(&linear, &model, &err), DP_OK);
    config.model = model;
    dp_engine_config plain = config.engine;
    const char *path = scratch("trace.json");
    ck_assert_int_eq(dp_trace_open(path, &config.engine.trace, &err), DP_OK);
    ck_assert_msg(dp_bench_compare_engines(&config, &plain, 6, &row, &err) == DP_OK, "%s", err.message);
    uint64_t dropped = 1;
    ck_assert_int_eq(dp_trace_close(config.engine.trace, &dropped, &err), DP_OK);
    ck_assert(dropped == 0);
    dp_model_free(model);
    ck_assert_int_eq(row.single.batch_size, 6);
    ck_assert_int_eq(row.parallel.batch_size, 6);
    ck_assert_int_eq(row.devices, 2);
    ck_assert(row.single.ms_per_step > 0 && row.parallel.ms_per_step > 0);
    expect(row.speedup, row.single.ms_per_step / row.parallel.ms_per_step);
    expect(row.efficiency, 0);

    int steps = 0;
    json_t *trace = json_load_file(path, 0, NULL);
    ck_assert_ptr_nonnull(trace);
    const json_t *events = json_is_array(trace) ? trace : json_object_get(trace, "traceEvents");
    for (size_t i = 0; i < json_array_size(events); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(events, i), "name"));
        steps += name && strcmp(name, "step") == 0;
    }
    json_decref(trace);
    /* 3 to warm up, 3 turns of 2; tracks of the coordinator and two devices */
    ck_assert_int_eq(steps, (3 + 3 * 2) * (1 + 2));

    /* What the baseline cannot do is said as of any engine. */
    plain.device_ids = (int[]){0, 7};
    plain.device_count = 2;
    config.engine.trace = NULL;
    ck_assert_int_eq(dp_model_build(&linear, &model, &err), DP_OK);
    config.model = model;
    ck_assert_int_eq(dp_bench_compare_engines(&config, &plain, 6, &row, &err), DP_ERROR_USAGE);
    ck_assert_ptr_nonnull(strstr(err.message, "7"));
    dp_model_free(model);
}
END_TEST

/* One crossing of 1 GB takes 10 ms at 100 GB/s. */
START_TEST(transfers_by_topology)
{
    const dp_cost_model m = {.compute_ms = 80, .parameter_bytes = 1e9, .bytes_per_second = 100e9};
    static const double crossings[][4] = {/* devices, star, tree, ring */
                                          {1, 0, 0, 0},          {2, 1, 1, 0.5}, {3, 2, 2, 2 / 3.0},
                                          {4, 3, 2, 0.75},       {5, 4, 3, 0.8}, {8, 7, 3, 0.875},
                                          {64, 63, 6, 63 / 64.0}};
    for (size_t i = 0; i < sizeof crossings / sizeof *crossings; i++)
        for (int t = 0; t < DP_TOPOLOGIES; t++) {
            int n = (int)crossings[i][0];
            double transfers = 2 * 10 * crossings[i][1 + t];
            expect(dp_cost_transfer_ms(&m, (dp_topology)t, n), transfers);
            expect(dp_cost_step_ms(&m, (dp_topology)t, n, false), 80.0 / n + transfers);
            expect(dp_cost_step_ms(&m, (dp_topology)t, n, true), 80 + transfers);
            expect(dp_cost_speedup(&m, (dp_topology)t, n, false), 80 / (80.0 / n + transfers));
            expect(dp_cost_speedup(&m, (dp_topology)t, n, true), n * 80 / (80 + transfers));
        }
    ck_assert_str_eq(dp_topology_name(DP_TOPOLOGY_RING), "ring");
}
END_TEST

/* What a measurement reports about its devices and batches, whatever the times. */
START_TEST(a_measurement_knows_what_was_measured)
{
    dp_error err = {0};
    dp_model_config mc = dp_model_defaults("linear");
    dp_bench_config c = dp_bench_defaults();
    dp_bench_row row;
    mc.input_rank = 1;
    mc.input_shape[0] = 8;
    mc.outputs = 3;
    dp_model *model;
    ck_assert_msg(dp_model_build(&mc, &model, &err) == DP_OK, "%s", err.message);
    c.context = (dp_context_config){.backend = DP_BACKEND_CPU, .logical_devices = 3, .threads_per_device = 1};
    c.model = model;
    c.steps = 2;
    c.weak = true;
    c.accumulation_steps = 2;
    ck_assert_msg(dp_bench_compare(&c, 7, &row, &err) == DP_OK, "%s", err.message);
    ck_assert_int_eq(row.devices, 3);
    ck_assert_int_eq(row.used, 3);
    ck_assert_int_eq(row.single.batch_size, 3);
    ck_assert_int_eq(row.parallel.batch_size, 7);
    expect(row.parallel.samples_per_second * row.parallel.ms_per_step, 1e3 * 14);
    ck_assert(row.low_speedup <= row.high_speedup && row.low_speedup > 0);
    /* 3 to warm up, and a turn for each step with one that does not count; two batches a step */
    ck_assert_int_eq(row.device[0].samples, 2 * (3 + 2 * 2) * 3);
    ck_assert_int_eq(row.device[2].samples, 2 * (3 + 2 * 2) * 1);
    c.steps = 0;
    ck_assert_int_eq(dp_bench_compare(&c, 7, &row, &err), DP_ERROR_USAGE);
    c.steps = 1;
    c.context.logical_devices = 1;
    ck_assert_int_eq(dp_bench_compare(&c, 7, &row, &err), DP_ERROR_USAGE);
    ck_assert_msg(dp_bench_measure(&c, 7, &row, &err) == DP_OK, "%s", err.message);
    expect(row.single.ms_per_step, 0);
    dp_model_free(model);
}
END_TEST

static bool stop_at_once(void *user)
{
    ++*(int *)user;
    return true;
}

START_TEST(a_measurement_stops_when_asked)
{
    int asked = 0;
    dp_error err = {0};
    dp_model_config mc = dp_model_defaults("linear");
    dp_bench_config c = dp_bench_defaults();
    dp_bench_row row;
    mc.input_rank = mc.outputs = 1;
    mc.input_shape[0] = 1;
    dp_model *model;
    ck_assert_msg(dp_model_build(&mc, &model, &err) == DP_OK, "%s", err.message);
    c.context = (dp_context_config){.backend = DP_BACKEND_CPU, .logical_devices = 2, .threads_per_device = 1};
    c.model = model;
    c.steps = 1 << 30 >> 10;
    c.stop = stop_at_once;
    c.user = &asked;
    ck_assert_msg(dp_bench_compare(&c, 4, &row, &err) == DP_OK, "%s", err.message);
    ck_assert(row.stopped);
    ck_assert_int_gt(asked, 0);
    dp_model_free(model);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("bench");
    TCase *t = tcase_create("bench");
    tcase_add_checked_fixture(t, scratch_make, scratch_remove);
    tcase_add_test(t, quantiles_lie_between_values);
    tcase_add_test(t, phases_add_up_to_the_median);
    tcase_add_test(t, an_outlier_does_not_move_the_phases);
    tcase_add_test(t, the_break_even_batch_wins_for_good);
    tcase_add_test(t, the_costliest_phase_is_beyond_an_even_share);
    tcase_add_test(t, transfers_by_topology);
    tcase_add_test(t, a_measurement_knows_what_was_measured);
    tcase_add_test(t, a_measurement_stops_when_asked);
    tcase_add_test(t, two_engines_are_compared);
    tcase_set_timeout(t, 30);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
