/* What is made of measured steps: medians, phases, the break-even batch, the phase that eats the gain. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench/statistics.h"

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

int main(void)
{
    Suite *suite = suite_create("bench");
    TCase *t = tcase_create("bench");
    tcase_add_test(t, quantiles_lie_between_values);
    tcase_add_test(t, phases_add_up_to_the_median);
    tcase_add_test(t, an_outlier_does_not_move_the_phases);
    tcase_add_test(t, the_break_even_batch_wins_for_good);
    tcase_add_test(t, the_costliest_phase_is_beyond_an_even_share);
    tcase_set_timeout(t, 30);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
