/* The case table on the CUDA backend: on the emulation, or on GPUs where there are some. With no GPU at all
 * it says so and ends well.
 *
 *     test_ops_cuda             runs the tests; with DPTRAIN_TEST_LONG on three devices, too
 *     test_ops_cuda --speed     prints milliseconds and GFLOP/s of one device
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/cuda.h"
#include "uses.h"

static void check_use(int devices, use *function)
{
    dp_error err = {0};
    dp_backend *backend;
    static char message[USE_MESSAGE];
    const dp_cuda_config config = {.logical_devices = devices};
    ck_assert_msg(dp_cuda_backend_open(&config, &backend, &err) == DP_OK, "%s", err.message);
    bool good = use_on_devices(backend, devices, function, message);
    for (int i = 0; i < devices; i++)
        ck_assert_uint_eq(backend->devices[i].ledger.total, 0);
    backend->call->close(backend);
    ck_assert_msg(good, "%s", message);
}

static use *const uses[] = {use_operations, use_inference, use_repeats,
                            use_losses,     use_updates,   use_not_a_number};

enum { USES = sizeof uses / sizeof *uses };

START_TEST(one_device)
{
    check_use(1, uses[_i]);
}
END_TEST

/* Two devices at once share the choice of engines; on one GPU they are two logical devices. */
START_TEST(two_devices)
{
    check_use(2, uses[_i]);
}
END_TEST

START_TEST(three_devices)
{
    check_use(3, uses[_i]);
}
END_TEST

/* ---- several sources from other devices, one kernel ---- */

enum { COUNT = 1003, MOST_DEVICES = 64 };

static dp_status sum_everywhere(dp_device *device, float *result, dp_error *err)
{
    float ones[COUNT], *weight, *sources[MOST_DEVICES];
    uint32_t *nonfinite;
    dp_stream stream;
    DP_TRY(dp_stream_create(device, "sum", &stream, err));
    DP_TRY(dp_memory_alloc(device, DP_MEM_PARAMETERS, sizeof ones, &weight, err));
    DP_TRY(dp_memory_alloc(device, DP_MEM_LOSS, sizeof *nonfinite, &nonfinite, err));
    DP_TRY(dp_fill_zero(&stream, weight, sizeof ones, err));
    DP_TRY(dp_fill_zero(&stream, nonfinite, sizeof *nonfinite, err));
    for (int k = 0; k < MOST_DEVICES; k++) {
        for (int i = 0; i < COUNT; i++)
            ones[i] = (float)(k + 1);
        DP_TRY(dp_memory_alloc(device, DP_MEM_GRADIENTS, sizeof ones, &sources[k], err));
        DP_TRY(dp_copy(&stream, device, sources[k], NULL, ones, sizeof ones, err));
        DP_TRY(dp_stream_synchronize(&stream, err));
    }
    const dp_update_args args = {.kind = DP_SGD,
                                 .count = COUNT,
                                 .source_count = MOST_DEVICES,
                                 .sources = (const float *const *)sources,
                                 .weight = weight,
                                 .lr = -1,
                                 .nonfinite = nonfinite};
    DP_TRY(device->backend->call->update(device, stream.handle, &args, err));
    DP_TRY(dp_copy(&stream, NULL, result, device, weight, sizeof ones, err));
    DP_TRY(dp_stream_synchronize(&stream, err));
    for (int k = 0; k < MOST_DEVICES; k++)
        dp_memory_free(device, DP_MEM_GRADIENTS, sizeof ones, sources[k]);
    dp_memory_free(device, DP_MEM_LOSS, sizeof *nonfinite, nonfinite);
    dp_memory_free(device, DP_MEM_PARAMETERS, sizeof ones, weight);
    dp_stream_destroy(&stream);
    return DP_OK;
}

static bool most_sources(dp_device *device, char *message)
{
    dp_error err = {0};
    float result[COUNT] = {0};
    if (sum_everywhere(device, result, &err) != DP_OK) {
        snprintf(message, USE_MESSAGE, "%s", err.message);
        return false;
    }
    for (int i = 0; i < COUNT; i++)
        if (result[i] != MOST_DEVICES * (MOST_DEVICES + 1) / 2) {
            snprintf(message, USE_MESSAGE, "element %d is %g", i, (double)result[i]);
            return false;
        }
    return true;
}

START_TEST(sixty_four_sources)
{
    check_use(1, most_sources);
}
END_TEST

/* ---- a label that is no class ---- */

static dp_status lose_with_label(dp_device *device, int32_t label, float loss_and_gradient[4], dp_error *err)
{
    const float logits[3] = {1, 2, 3};
    float *output, *sample_loss;
    int32_t *target;
    dp_stream stream;
    DP_TRY(dp_stream_create(device, "loss", &stream, err));
    DP_TRY(dp_memory_alloc(device, DP_MEM_LOSS, sizeof logits, &output, err));
    DP_TRY(dp_memory_alloc(device, DP_MEM_LOSS, sizeof *sample_loss, &sample_loss, err));
    DP_TRY(dp_memory_alloc(device, DP_MEM_LOSS, sizeof label, &target, err));
    DP_TRY(dp_copy(&stream, device, output, NULL, logits, sizeof logits, err));
    DP_TRY(dp_copy(&stream, device, target, NULL, &label, sizeof label, err));
    const dp_loss_args args = {.criterion = DP_CROSS_ENTROPY,
                               .samples = 1,
                               .elements = 3,
                               .output = output,
                               .target = target,
                               .scale = 1,
                               .sample_loss = sample_loss,
                               .gradient = output};
    DP_TRY(device->backend->call->loss(device, stream.handle, &args, err));
    DP_TRY(dp_copy(&stream, NULL, loss_and_gradient, device, sample_loss, sizeof(float), err));
    DP_TRY(dp_copy(&stream, NULL, loss_and_gradient + 1, device, output, sizeof logits, err));
    DP_TRY(dp_stream_synchronize(&stream, err));
    dp_memory_free(device, DP_MEM_LOSS, sizeof logits, output);
    dp_memory_free(device, DP_MEM_LOSS, sizeof *sample_loss, sample_loss);
    dp_memory_free(device, DP_MEM_LOSS, sizeof label, target);
    dp_stream_destroy(&stream);
    return DP_OK;
}

static bool bad_labels(dp_device *device, char *message)
{
    static const int32_t labels[] = {-1, 3, INT32_MAX, INT32_MIN, 2};
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
        dp_error err = {0};
        float got[4] = {0};
        bool good = lose_with_label(device, labels[i], got, &err) == DP_OK;
        for (int k = 0; k < 4; k++)
            good = good && (got[k] != got[k]) == (labels[i] != 2);
        if (!good) {
            snprintf(message, USE_MESSAGE, "label %d: loss %g %.1000s", (int)labels[i], (double)got[0],
                     err.message);
            return false;
        }
    }
    return true;
}

START_TEST(label_outside_the_classes)
{
    check_use(1, bad_labels);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("operations on CUDA");
    TCase *t = tcase_create("table");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, one_device, 0, USES);
    tcase_add_loop_test(t, two_devices, 0, USES);
    if (getenv("DPTRAIN_TEST_LONG"))
        tcase_add_loop_test(t, three_devices, 0, USES);
    tcase_add_test(t, sixty_four_sources);
    tcase_add_test(t, label_outside_the_classes);
    suite_add_tcase(s, t);
    return s;
}

static dp_status open_default(dp_backend **backend, dp_error *err)
{
    const dp_cuda_config config = {0};
    return dp_cuda_backend_open(&config, backend, err);
}

static int print(void)
{
    dp_error err = {0};
    dp_backend *backend;
    bool good = open_default(&backend, &err) == DP_OK;
    if (good) {
        good =
            dp_device_enter(&backend->devices[0], &err) == DP_OK && print_speed(&backend->devices[0], stdout);
        dp_device_leave(&backend->devices[0]);
        backend->call->close(backend);
    }
    if (!good)
        fprintf(stderr, "error: %s\n", err.message);
    return good ? EXIT_SUCCESS : EXIT_FAILURE;
}

/* Asks in a child process: CUDA does not survive a fork, and each test is one. */
static bool has_gpu(void)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        dp_error err = {0};
        dp_backend *backend;
        dp_status status = open_default(&backend, &err);
        if (status != DP_OK)
            printf("skipped: %s\n", err.message);
        fflush(stdout);
        _exit(status == DP_OK ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    int status = 1;
    return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--speed") == 0)
        return print();
    if (!has_gpu())
        return EXIT_SUCCESS;
    SRunner *runner = srunner_create(suite());
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
