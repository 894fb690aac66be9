/* Each kind of mistake once: the checker must name kernel, block, thread, memory and reason; and the nearest
 * correct kernels, which must pass. */
#include "tests/cuda_emulation/tests/support.h"

#include "mistakes.h"

#include <cublas_v2.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 128, ROOM = 1024 };

static float ones[ROOM];

typedef enum where {
    USUAL,     /* x written, y a block of COUNT floats, written */
    UNWRITTEN, /* x never written */
    COPIED,    /* x copied from memory that was never written */
    FREED,
    OTHER_GPU,
    PEER, /* another GPU's memory, with access to it */
    PAGEABLE,
    PINNED
} where;

static void run(mistake which, where x_is)
{
    use_gpus("2");
    for (int i = 0; i < ROOM; i++)
        ones[i] = 1;
    cudaStream_t other = make_stream(1);
    float *far = device_floats(ROOM);
    to_device(other, far, ones, ROOM);
    cudaStream_t stream = make_stream(0);
    if (x_is == PEER)
        CUDA_OK(cudaDeviceEnablePeerAccess(1, 0));
    float *y = device_floats(COUNT), *x = device_floats(ROOM);
    if (x_is != UNWRITTEN && x_is != COPIED)
        to_device(stream, x, ones, ROOM);
    if (x_is == COPIED) {
        float *from = device_floats(ROOM);
        CUDA_OK(cudaMemcpyAsync(x, from, ROOM * sizeof *x, cudaMemcpyDeviceToDevice, stream));
    }
    if (x_is == FREED)
        CUDA_OK(cudaFree(x));
    if (x_is == OTHER_GPU || x_is == PEER)
        x = far;
    if (x_is == PAGEABLE)
        x = ones;
    if (x_is == PINNED)
        x = memcpy(pinned_floats(ROOM), ones, sizeof ones);
    CUDA_OK(cudaMemsetAsync(y, 0, COUNT * sizeof *y, stream));
    CUDA_OK(launch_mistake(stream, which, x, y));
    CUDA_OK(cudaStreamSynchronize(stream));
}

static const struct planted {
    mistake which;
    where x_is;
    const char *kernel, *thread, *memory, *reason; /* reason null: the kernel is right */
} table[] = {
    {NONE, USUAL, 0, 0, 0, 0},
    {NONE, PEER, 0, 0, 0, 0},
    {NONE, PINNED, 0, 0, 0, 0},
    {WRITE_PAST, USUAL, "write_past", "block (1,0,0), thread (63,0,0)",
     "byte 512 of a block of 512 bytes in memory of GPU 0", "out of bounds"},
    {READ_BEFORE, USUAL, "read_before", "block (0,0,0), thread (0,0,0)",
     "byte -4 of a block of 4096 bytes in memory of GPU 0", "out of bounds"},
    {UNALIGNED_FOUR, USUAL, "unaligned_four", "block (0,0,0), thread (3,0,0)",
     "byte 4 of a block of 4096 bytes in memory of GPU 0", "not aligned to 16 bytes"},
    {NONE, UNWRITTEN, "no_mistake", "block (0,0,0), thread (0,0,0)",
     "byte 0 of a block of 4096 bytes in memory of GPU 0", "never been written"},
    {NONE, COPIED, "no_mistake", "block (0,0,0), thread (0,0,0)",
     "byte 0 of a block of 4096 bytes in memory of GPU 0", "never been written"},
    {NONE, FREED, "no_mistake", "block (0,0,0), thread (0,0,0)",
     "byte 0 of a freed block of 4096 bytes in memory of GPU 0", "freed"},
    {NONE, OTHER_GPU, "no_mistake", "block (0,0,0), thread (0,0,0)",
     "byte 0 of a block of 4096 bytes in memory of GPU 1", "without peer access"},
    {NONE, PAGEABLE, "no_mistake", "block (0,0,0), thread (0,0,0)", "pageable host memory", "out of bounds"},
    {SHARED_UNWRITTEN, USUAL, "shared_unwritten", "block (1,0,0), thread (0,0,0)", "shared memory",
     "no thread of the block has written it"},
    {SHARED_RACE, USUAL, "shared_race", "block (0,0,0), thread (1,0,0)", "shared memory",
     "a race with thread 0 of the block, which read it"},
    {SHARED_ORDERED, USUAL, 0, 0, 0, 0},
    {SHUFFLE_RACE, USUAL, "shared_race", "block (0,0,0), thread (31,0,0)", "shared memory",
     "a race with thread 30 of the block, which wrote it"},
    {SYNCWARP_ORDERED, USUAL, 0, 0, 0, 0},
    {SYNCWARP_RACE, USUAL, "shared_race", "block (0,0,0), thread (63,0,0)", "shared memory",
     "a race with thread 31 of the block, which read it"},
    {SHARED_BYTES, USUAL, 0, 0, 0, 0},
    {DYNAMIC_PAST, USUAL, "dynamic_past", "block (0,0,0), thread (25,0,0)", "shared memory", "past its end"},
    {BLOCKS_WRITE, USUAL, "blocks_write", "block (1,0,0), thread (5,0,0)",
     "byte 0 of a block of 512 bytes in memory of GPU 0",
     "a race with block 0 of the launch, which wrote it"},
    {BLOCKS_READ, USUAL, "blocks_read", "block (1,0,0), thread (0,0,0)",
     "byte 0 of a block of 512 bytes in memory of GPU 0",
     "a race with block 0 of the launch, which wrote it"},
    {BLOCKS_BYTES, USUAL, 0, 0, 0, 0},
    {BLOCKS_ATOMIC, USUAL, 0, 0, 0, 0},
    {ATOMIC_AND_PLAIN, USUAL, "blocks_atomic", "block (1,0,0), thread (0,0,0)",
     "byte 0 of a block of 512 bytes in memory of GPU 0",
     "a race with block 0 of the launch, which wrote it"},
    {GLOBAL_RACE, USUAL, "global_race", "block (0,0,0), thread (1,0,0)",
     "byte 0 of a block of 512 bytes in memory of GPU 0",
     "a race with thread 0 of the block, which wrote it"},
};

enum { PLANTED = sizeof table / sizeof *table };

static const struct planted *planted;

static void run_planted(void)
{
    run(planted->which, planted->x_is);
}

START_TEST(mistakes_are_named)
{
    planted = &table[_i];
    char text[2048];
    int status = outcome_of(run_planted, 20, text, sizeof text);
    if (!planted->reason) {
        ck_assert_msg(status == 0 && !*text, "exit status %d; it said: %s", status, text);
        return;
    }
    ck_assert_msg(status == 86, "%s: exit status %d, not 86; it said: %s", planted->kernel, status, text);
    const char *const parts[] = {planted->kernel, planted->thread, planted->memory, planted->reason};
    for (int i = 0; i < 4; i++)
        ck_assert_msg(strstr(text, parts[i]) != NULL, "expected \"%s\", it said: %s", parts[i], text);
}
END_TEST

/* The emulation's own kernels, with barriers, shuffles, votes and atomics, are right. */
static void run_correct(void)
{
    use_gpus("1");
    set("DPTRAIN_EMULATED_SEED", "3");
    cudaStream_t stream = make_stream(0);
    float *x = device_floats(ROOM), *y = device_floats(ROOM);
    for (int i = 0; i < ROOM; i++)
        ones[i] = 1;
    to_device(stream, x, ones, ROOM);
    to_device(stream, y, ones, ROOM);
    CUDA_OK(launch_axpy(stream, 2, x, y, ROOM));
    CUDA_OK(launch_add_two(stream, x, x, y, ROOM));
    CUDA_OK(launch_block_sum(stream, x, y, ROOM, 3));
    CUDA_OK(launch_softmax(stream, x, y, 4, 77));
    int *counts = (int *)device_floats(10), *values = (int *)device_floats(ROOM);
    CUDA_OK(cudaMemsetAsync(counts, 0, 10 * sizeof *counts, stream));
    CUDA_OK(cudaMemsetAsync(values, 0, ROOM * sizeof *values, stream));
    CUDA_OK(launch_histogram(stream, values, counts, ROOM, 10));
    CUDA_OK(launch_votes(stream, (int *)device_floats(36)));
    float host[3];
    CUDA_OK(launch_block_sum(stream, x, y, ROOM, 3));
    to_host(stream, host, y, 3);
    if (host[0] + host[1] + host[2] != ROOM)
        exit(1);
}

START_TEST(correct_kernels_pass)
{
    char text[2048];
    int status = outcome_of(run_correct, 60, text, sizeof text);
    ck_assert_msg(status == 0 && !*text, "exit status %d; it said: %s", status, text);
}
END_TEST

static void multiply_unwritten(void)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    float *a = device_floats(16), *b = device_floats(16), *c = device_floats(16);
    const float one = 1, zero = 0;
    cublasHandle_t handle;
    if (cublasCreate(&handle) != CUBLAS_STATUS_SUCCESS ||
        cublasSetStream(handle, stream) != CUBLAS_STATUS_SUCCESS)
        exit(1);
    CUDA_OK(cudaMemsetAsync(a, 0, 15 * sizeof *a, stream));
    CUDA_OK(cudaMemsetAsync(b, 0, 16 * sizeof *b, stream));
    cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 4, 4, 4, &one, a, 4, b, 4, &zero, c, 4);
    cudaStreamSynchronize(stream);
}

START_TEST(libraries_read_what_was_written)
{
    expect_failure(multiply_unwritten, "cublasSgemm reads");
    expect_failure(multiply_unwritten,
                   "byte 60 of a block of 64 bytes in memory of GPU 0: it has never been written");
}
END_TEST

/* ---- sectors */

static mistake counted;

static void run_counted(void)
{
    run(counted, USUAL);
}

/* Sectors and ideal sectors of a kernel's loads or stores. */
static void sectors_of(mistake which, const char *wanted, double *sectors, double *ideal)
{
    char path[] = "/tmp/sectors-XXXXXX", text[256], line[1024], kind[16];
    int file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    set("DPTRAIN_EMULATED_COALESCING", path);
    counted = which;
    ck_assert_int_eq(outcome_of(run_counted, 20, text, sizeof text), 0);
    FILE *lines = fdopen(file, "r");
    int found = 0;
    while (fgets(line, sizeof line, lines)) {
        double requests;
        ck_assert_int_eq(sscanf(line, "%*s %*s %*s %15s %*s %lf %lf %lf", kind, &requests, sectors, ideal),
                         4);
        if (strcmp(kind, wanted) != 0)
            continue;
        found++;
        ck_assert_double_eq(requests, 4); /* warps */
        *sectors /= requests;
        *ideal /= requests;
        break;
    }
    fclose(lines);
    remove(path);
    ck_assert_int_eq(found, 1);
}

START_TEST(sectors_are_counted)
{
    double sectors, ideal;
    sectors_of(NONE, "load", &sectors, &ideal);
    ck_assert_double_eq(sectors, 4);
    ck_assert_double_eq(ideal, 4);
    sectors_of(STRIDED, "load", &sectors, &ideal);
    ck_assert_double_eq(sectors, 32);
    ck_assert_double_eq(ideal, 4);
    sectors_of(STRIDED, "store", &sectors, &ideal);
    ck_assert_double_eq(sectors, 4);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_checker");
    TCase *tests = tcase_create("checker");
    tcase_add_loop_test(tests, mistakes_are_named, 0, PLANTED);
    tcase_add_test(tests, correct_kernels_pass);
    tcase_add_test(tests, libraries_read_what_was_written);
    tcase_add_test(tests, sectors_are_counted);
    tcase_set_timeout(tests, 60);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_FORK);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
