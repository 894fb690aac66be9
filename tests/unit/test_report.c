/* The verdict on a run's devices, and reading logs. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "report/run.h"

static dp_device_report device(const char *name, double busy, uint64_t megabytes)
{
    dp_device_report r = {
        .samples = 100, .steps = 10, .busy_fraction = busy, .peak_total_bytes = megabytes * 1000000};
    snprintf(r.device, sizeof r.device, "%s", name);
    return r;
}

static const char *verdict(dp_load load)
{
    static char text[DP_VERDICT_SIZE];
    dp_verdict(&load, text);
    return text;
}

#define assert_says(text, part)  ck_assert_msg(strstr(text, part) != NULL, "'%s' is not in '%s'", part, text)
#define assert_lacks(text, part) ck_assert_msg(strstr(text, part) == NULL, "'%s' is in '%s'", part, text)

START_TEST(a_verdict_proposes_only_what_is_not_done_already)
{
    const dp_device_report first[] = {device("cpu:0", 0.9, 30), device("cpu:1", 0.6, 20)};
    dp_load load = {.devices = 2, .device = first};
    const char *text = verdict(load);
    assert_says(text, "cpu:0 is overloaded: 1.2 times as busy as the mean, with 1.2 times its memory");
    assert_says(text, "--loss-mode global or a smaller first share (--split)");
    load.split = DP_SPLIT_SHARES;
    assert_says(verdict(load), "a still smaller first share in --split");
    load.loss_mode = DP_LOSS_GLOBAL;
    assert_lacks(verdict(load), "--loss-mode");
    load.loss_mode = DP_LOSS_REPLICA;
    assert_lacks(verdict(load), "--loss-mode");
    load.loss_mode = DP_LOSS_GATHER;
    load.output = 1; /* the outputs are gathered elsewhere */
    assert_lacks(verdict(load), "--loss-mode");
}
END_TEST

START_TEST(another_device_can_be_the_busiest)
{
    const dp_device_report second[] = {device("cuda:2", 0.6, 20), device("cuda:5", 0.9, 30)};
    dp_load load = {.devices = 2, .device = second, .output = 1};
    assert_says(verdict(load), "cuda:5 is overloaded");
    assert_says(verdict(load), "--loss-mode global or a smaller share for it (--split)");
    load.output = 0;
    assert_lacks(verdict(load), "--loss-mode");
}
END_TEST

START_TEST(even_idle_single_and_unused_devices)
{
    dp_device_report d[] = {device("cpu:0", 0.8, 20), device("cpu:1", 0.8, 20), device("cpu:2", 0, 5)};
    dp_load load = {.devices = 2, .device = d};
    assert_says(verdict(load), "the load is even: cpu:0 was 1.0 times as busy as the mean");
    assert_lacks(verdict(load), "would");
    d[2].samples = 0; /* it sat the run out: it does not make the others look overloaded */
    load.devices = 3;
    assert_says(verdict(load), "the load is even");
    d[0].peak_total_bytes *= 3;
    assert_says(verdict(load), "should memory run out on cpu:0: --loss-mode global");
    d[0].busy_fraction = d[1].busy_fraction = 0.49;
    assert_says(verdict(load), "one device would probably be faster");
    load.devices = 1;
    assert_says(verdict(load), "cpu:0 did all the work, and was busy for 49 % of the time");
    d[0].samples = 0;
    assert_says(verdict(load), "no device was trained on");
}
END_TEST

static double printed(const char *text)
{
    const char *figure = strstr(text, " times as busy");
    ck_assert_msg(figure && figure - text > 4, "'%s'", text);
    return strtod(figure - 3, NULL);
}

/* A figure is on one side of the line alone, however close to it the unrounded one was. */
START_TEST(a_figure_is_judged_as_it_is_printed)
{
    for (int i = 0; i <= 4000; i++) {
        const dp_device_report d[] = {device("cpu:0", 0.8, 20), device("cpu:1", 0.6 + 1e-4 * i, 20)};
        const char *text = verdict((dp_load){.devices = 2, .device = d});
        double factor = printed(text);
        if (strstr(text, "the load is even"))
            ck_assert_msg(factor >= 0.9 && factor <= 1.1, "%s", text);
        else if (strstr(text, "is overloaded"))
            ck_assert_msg(factor >= 1.2, "%s", text);
        else
            ck_abort_msg("%s", text);
    }
    for (uint64_t mb = 10; mb <= 40; mb++) { /* the fuller one is the second device, then the first */
        const dp_device_report d[] = {device("cpu:0", 0.8, mb), device("cpu:1", 0.8, 20)};
        const char *text = verdict((dp_load){.devices = 2, .device = d}), *memory = strstr(text, ", with ");
        const char *fullest = strstr(text, " times): ");
        ck_assert_ptr_nonnull(memory);
        double shown = fullest ? strtod(fullest - 3, NULL) : strtod(memory + 7, NULL);
        ck_assert_msg((shown >= 1.3) == (strstr(text, "should memory run out") != NULL), "%s", text);
    }
    const dp_device_report half[] = {device("cpu:0", 0.496, 20), device("cpu:1", 0.496, 20)};
    assert_says(verdict((dp_load){.devices = 2, .device = half}),
                "the load is even"); /* its table says 50 % */
}
END_TEST

START_TEST(a_device_with_too_little_to_do_is_named)
{
    const dp_device_report d[] = {device("cpu:0", 0.6, 20), device("cpu:1", 0.8, 20),
                                  device("cpu:2", 0.8, 20)};
    const char *text = verdict((dp_load){.devices = 3, .device = d});
    assert_says(text, "cpu:0 has less to do than the others: 0.8 times as busy as the mean");
    assert_lacks(text, "even");
}
END_TEST

START_TEST(a_short_run_is_not_judged)
{
    dp_device_report d[] = {device("cpu:0", 0.9, 30), device("cpu:1", 0.3, 20)};
    const dp_load load = {.devices = 2, .device = d};
    for (int steps = 1; steps < 10; steps++) {
        d[0].steps = d[1].steps = steps;
        assert_says(verdict(load), "too few to judge the load: cpu:0 was 1.5 times as busy as the mean");
        assert_lacks(verdict(load), "overloaded");
    }
    d[0].steps = 1;
    assert_says(verdict(load), "1 step is too few");
    d[0].busy_fraction = d[1].busy_fraction = 0.1;
    assert_lacks(verdict(load), "one device would");
    d[0].busy_fraction = d[1].busy_fraction = 0;
    ck_assert_str_eq(verdict(load), "1 step is too few to judge the load");
}
END_TEST

#define START                                                                                           \
    "{\"event\":\"start\",\"model\":\"m\",\"loss_mode\":\"global\",\"split\":\"shares\",\"batches_per_" \
    "epoch\":2,"                                                                                        \
    "\"devices\":[\"cpu:0\",\"cpu:1\"],\"output_device\":\"cpu:1\",\"chunk_sizes\":[3,1]}\n"
#define BATCH(index, loss, ms)                                            \
    "{\"event\":\"batch\",\"epoch\":1,\"batch\":" index ",\"loss\":" loss \
    ",\"phase_ms\":{\"wait\":0,\"scatter\":0,"                            \
    "\"broadcast\":0,\"forward\":" ms                                     \
    ",\"gather\":0,\"loss\":0,\"backward\":0,\"reduce\":0,\"optimizer\":0}}\n"

static void parse(const char *text, dp_run *run)
{
    dp_error err = {0};
    ck_assert_msg(dp_run_parse(text, strlen(text), run, &err) == DP_OK, "%s", err.message);
}

START_TEST(a_log_is_read_as_it_is)
{
    dp_run run;
    parse(START BATCH("0", "1.5", "100") BATCH("1", "null", "4") BATCH("1", "0.5", "6") "{\"event\":\"epo",
          &run);
    ck_assert_int_eq((int)run.batch_count, 3);
    ck_assert(run.batches[0].epoch == 1.5 && run.batches[0].loss == 1.5);
    ck_assert(run.batches[1].epoch == 2 && isnan(run.batches[1].loss));
    ck_assert(run.phase_ms[DP_PHASE_FORWARD] == 5); /* without the first */
    ck_assert(run.torn && !run.status && run.reported == 0);
    dp_load load = dp_run_load(&run);
    ck_assert(load.loss_mode == DP_LOSS_GLOBAL && load.split == DP_SPLIT_SHARES && load.output == 1);
    dp_run_clear(&run);
    parse(START BATCH("0", "1.5", "100"), &run);
    ck_assert(run.phase_ms[DP_PHASE_FORWARD] == 100 && run.timed == 1 && !run.torn);
    dp_run_clear(&run);
}
END_TEST

START_TEST(a_fault_is_named_with_its_line)
{
    dp_run run;
    dp_error err = {0};
    static const char text[] = START "\n" BATCH("0", "1", "1") "nonsense\n";
    ck_assert(dp_run_parse(text, strlen(text), &run, &err) == DP_ERROR_IO);
    assert_says(err.message, "line 4: it is not JSON");
    dp_run_clear(&run);
    ck_assert(dp_run_parse("", 0, &run, &err) == DP_ERROR_MISMATCH);
    assert_says(err.message, "no start of a run");
    dp_run_clear(&run);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("report");
    TCase *c = tcase_create("report");
    tcase_add_test(c, a_verdict_proposes_only_what_is_not_done_already);
    tcase_add_test(c, another_device_can_be_the_busiest);
    tcase_add_test(c, even_idle_single_and_unused_devices);
    tcase_add_test(c, a_figure_is_judged_as_it_is_printed);
    tcase_add_test(c, a_device_with_too_little_to_do_is_named);
    tcase_add_test(c, a_short_run_is_not_judged);
    tcase_add_test(c, a_log_is_read_as_it_is);
    tcase_add_test(c, a_fault_is_named_with_its_line);
    suite_add_tcase(suite, c);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
