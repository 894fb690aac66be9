/* The case table on the CPU backend.
 *
 *     test_ops_cpu             runs the tests
 *     test_ops_cpu --speed     prints milliseconds and GFLOP/s of one thread
 *     test_ops_cpu --support   prints which cases the backend has, and the layouts that it chooses
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/announce.h"
#include "cpu/cpu.h"
#include "uses.h"

static void check_use(int devices, int threads, use *function)
{
    dp_error err = {0};
    dp_backend *backend;
    static char message[USE_MESSAGE];
    ck_assert_msg(dp_cpu_backend_open(devices, threads, &backend, &err) == DP_OK, "%s", err.message);
    bool good = use_on_devices(backend, devices, function, message);
    for (int i = 0; i < devices; i++)
        ck_assert_uint_eq(backend->devices[i].ledger.total, 0);
    backend->call->close(backend);
    ck_assert_msg(good, "%s", message);
}

START_TEST(reference_slopes)
{
    static char message[USE_MESSAGE];
    ck_assert_msg(use_finite_differences(NULL, message), "%s", message);
}
END_TEST

static const struct {
    const char *name;
    use *function;
} uses[] = {
    {"operations", use_operations}, {"inference", use_inference}, {"repeats", use_repeats},
    {"losses", use_losses},         {"updates", use_updates},     {"NaN", use_not_a_number},
};

enum { USES = sizeof uses / sizeof *uses };

START_TEST(one_thread)
{
    check_use(1, 1, uses[_i].function);
}
END_TEST

#ifndef DP_TSAN
START_TEST(two_threads)
{
    check_use(1, 2, uses[_i].function);
}
END_TEST
#endif

START_TEST(two_devices)
{
    check_use(2, 1, uses[_i].function);
}
END_TEST

static bool bad_label(dp_device *device, char *message)
{
    float output[6] = {0}, sample_loss[2];
    int32_t label[2] = {1, 3};
    dp_loss_args args = {.criterion = DP_CROSS_ENTROPY,
                         .samples = 2,
                         .elements = 3,
                         .output = output,
                         .target = label,
                         .scale = 1,
                         .sample_loss = sample_loss};
    dp_error err = {0};
    dp_status status = device->backend->call->loss(device, NULL, &args, &err);
    snprintf(message, USE_MESSAGE, "%s", err.message);
    return status == DP_ERROR_MISMATCH && strstr(err.message, "label 3");
}

START_TEST(label_outside_the_classes)
{
    check_use(1, 1, bad_label);
}
END_TEST

START_TEST(opening)
{
    dp_error err = {0};
    dp_backend *backend;
    ck_assert_int_eq(dp_cpu_backend_open(0, 1, &backend, &err), DP_ERROR_USAGE);
    ck_assert_int_eq(dp_cpu_backend_open(DP_MAX_DEVICES + 1, 1, &backend, &err), DP_ERROR_USAGE);
    ck_assert_int_eq(dp_cpu_backend_open(DP_MAX_DEVICES, 0, &backend, &err), DP_OK);
    ck_assert_int_eq(backend->device_count, DP_MAX_DEVICES);
    for (int i = 0; i < DP_MAX_DEVICES; i++) {
        const dp_device_properties *p = &backend->devices[i].properties;
        ck_assert_int_eq(backend->devices[i].id, i);
        ck_assert_int_ge(p->multiprocessors, 1);
        ck_assert_uint_gt(p->memory_bytes, 0);
        ck_assert_str_ne(p->name, "");
        ck_assert_str_eq(p->bus_id, "");
    }
    backend->call->close(backend);
}
END_TEST

static bool events(dp_device *device, char *message)
{
    dp_error err = {0};
    dp_stream stream;
    dp_event start, end;
    double seconds = -1;
    bool good =
        dp_stream_create(device, "events", &stream, &err) == DP_OK &&
        dp_event_create(device, &start, &err) == DP_OK && dp_event_create(device, &end, &err) == DP_OK &&
        dp_event_record(&start, &stream, &err) == DP_OK && dp_event_record(&end, &stream, &err) == DP_OK &&
        dp_stream_wait(&stream, &end, 1, "end", &err) == DP_OK &&
        dp_event_elapsed(&start, &end, &seconds, &err) == DP_OK && seconds >= 0 && seconds < 1;
    snprintf(message, USE_MESSAGE, "events: %s, %g s", err.message, seconds);
    good = good && dp_stream_wait(&stream, &end, 2, "end", &err) == DP_ERROR_INTERNAL;
    dp_event_destroy(&start);
    dp_event_destroy(&end);
    dp_stream_destroy(&stream);
    return good;
}

START_TEST(events_keep_time_and_order)
{
    check_use(1, 1, events);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("operations on the CPU");
    TCase *t = tcase_create("table");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, reference_slopes);
    tcase_add_loop_test(t, one_thread, 0, USES);
    tcase_add_loop_test(t, two_devices, 0, USES);
    tcase_add_test(t, label_outside_the_classes);
    tcase_add_test(t, opening);
    tcase_add_test(t, events_keep_time_and_order);
    suite_add_tcase(s, t);
#ifndef DP_TSAN /* which cannot see how OpenMP's threads wait for each other */
    t = tcase_create("two threads");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, two_threads, 0, USES);
    suite_add_tcase(s, t);
#endif
    return s;
}

static int print(bool (*function)(dp_device *, FILE *))
{
    dp_error err = {0};
    dp_backend *backend;
    if (dp_cpu_backend_open(1, 1, &backend, &err) != DP_OK ||
        dp_device_enter(&backend->devices[0], &err) != DP_OK) {
        fprintf(stderr, "error: %s\n", err.message);
        return EXIT_FAILURE;
    }
    bool good = function(&backend->devices[0], stdout);
    dp_device_leave(&backend->devices[0]);
    backend->call->close(backend);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--speed") == 0)
        return print(print_speed);
    if (argc > 1 && strcmp(argv[1], "--support") == 0)
        return print(print_support);
    SRunner *runner = srunner_create(suite());
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
