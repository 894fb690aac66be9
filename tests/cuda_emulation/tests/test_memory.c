/* Limits, guard pages, freed memory, unwritten memory, pinned and pageable host memory. */
#include "support.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

START_TEST(memory_runs_out)
{
    use_gpus("2");
    set("DPTRAIN_EMULATED_MEMORY", "1048576,4194304");
    CUDA_OK(cudaSetDevice(0));
    void *a = NULL, *b = NULL;
    size_t free_bytes = 0, total_bytes = 0;
    CUDA_OK(cudaMalloc(&a, 1000000));
    CUDA_IS(cudaMalloc(&b, 100000), cudaErrorMemoryAllocation);
    CUDA_OK(cudaMemGetInfo(&free_bytes, &total_bytes));
    ck_assert_uint_lt(free_bytes, 100000);
    CUDA_OK(cudaFree(a));
    CUDA_OK(cudaMalloc(&b, 1048576));
    CUDA_OK(cudaSetDevice(1));
    CUDA_OK(cudaMalloc(&b, 4000000));
    CUDA_IS(cudaMalloc(&a, SIZE_MAX), cudaErrorMemoryAllocation);
}
END_TEST

START_TEST(blocks_are_aligned_and_not_reused)
{
    use_gpus("1");
    void *last = NULL;
    for (size_t bytes = 1; bytes < 20000; bytes += 977) {
        void *block = NULL;
        CUDA_OK(cudaMalloc(&block, bytes));
        ck_assert_uint_eq((uintptr_t)block % 256, 0);
        ck_assert_ptr_ne(block, last);
        CUDA_OK(cudaFree(block));
        last = block;
    }
    CUDA_IS(cudaFree(last), cudaErrorInvalidValue); /* twice */
    CUDA_OK(cudaFree(NULL));
}
END_TEST

START_TEST(unwritten_memory_is_nan)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    float *x = device_floats(100), host[100];
    to_host(stream, host, x, 100);
    for (int i = 0; i < 100; i++)
        ck_assert(isnan(host[i]));
}
END_TEST

/* 1024 floats fill their pages to the last byte. */
static void read_past_end(void)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    float *x = device_floats(1024), *out = device_floats(1);
    launch_read(stream, x, 1024, out);
    cudaStreamSynchronize(stream);
}

static void read_freed(void)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    float *x = device_floats(10), *out = device_floats(1);
    cudaFree(x);
    launch_read(stream, x, 5, out);
    cudaStreamSynchronize(stream);
}

static void copy_of_freed(void)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    float *x = device_floats(10), *y = device_floats(10);
    volatile int *go = hold(stream);
    cudaMemcpyAsync(y, x, 40, cudaMemcpyDeviceToDevice, stream);
    cudaFree(x);
    *go = 1;
    cudaStreamSynchronize(stream);
}

static void write_slack(void)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    float *x = device_floats(10);
    launch_slow_write(stream, x + 10, 1, 1); /* one too far, still in the block's page */
    cudaStreamSynchronize(stream);
    cudaFree(x);
}

static void write_slack_and_exit(void)
{
    use_gpus("1");
    float *x = pinned_floats(10);
    x[-1] = 0;
}

static void read_freed_pinned(void)
{
    use_gpus("1");
    float *x = pinned_floats(10);
    cudaFreeHost(x);
    *(volatile float *)x = 1;
}

START_TEST(bad_accesses_are_named)
{
    expect_failure(read_past_end, "kernel read_one on GPU 0, block (0,0,0), thread (0,0,0) touched");
    expect_failure(read_past_end, "0 bytes past the end of a block of 4096 bytes in memory of GPU 0");
    expect_failure(read_freed, "memory of GPU 0 that has been freed (a block of 40 bytes)");
    expect_failure(copy_of_freed, "the source of a copy of 40 bytes");
    expect_failure(write_slack, "a write past the end of the block of 40 bytes");
    expect_failure(write_slack_and_exit, "a write before the beginning of the block of 40 bytes");
    expect_failure(read_freed_pinned, "pinned memory that has been freed (a block of 40 bytes)");
}
END_TEST

static void segfault_elsewhere(void)
{
    use_gpus("1");
    device_floats(1);
    *(volatile int *)(uintptr_t)16 = 1;
}

START_TEST(other_faults_are_left_alone)
{
    char text[256];
    ck_assert_int_eq(outcome_of(segfault_elsewhere, 20, text, sizeof text), 128 + 11);
    ck_assert_str_eq(text, "");
}
END_TEST

START_TEST(copies_know_their_direction)
{
    use_gpus("2");
    cudaStream_t stream = make_stream(0);
    float *device = device_floats(10), *pinned = pinned_floats(10), host[10];
    CUDA_IS(cudaMemcpyAsync(device, host, 40, cudaMemcpyDeviceToHost, stream),
            cudaErrorInvalidMemcpyDirection);
    CUDA_IS(cudaMemcpyAsync(pinned, device, 40, cudaMemcpyDeviceToDevice, stream),
            cudaErrorInvalidMemcpyDirection);
    CUDA_IS(cudaMemcpyAsync(device, host, 44, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
    CUDA_IS(cudaMemcpyPeerAsync(device, 1, device, 0, 40, stream), cudaErrorInvalidValue);
    CUDA_IS(cudaMemcpyPeerAsync(device, 2, device, 0, 40, stream), cudaErrorInvalidDevice);
    CUDA_IS(cudaMemsetAsync(host, 0, 40, stream), cudaErrorInvalidValue);
    CUDA_OK(cudaMemcpyAsync(device, NULL, 0, cudaMemcpyHostToDevice, stream));
}
END_TEST

/* A pageable source is read at the call, a pinned one when the stream gets there. */
START_TEST(pageable_and_pinned_sources_differ)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    float *a = device_floats(1), *b = device_floats(1);
    float *pinned = pinned_floats(1), pageable = 1, out = 0;
    *pinned = 1;
    volatile int *go = hold(stream);
    CUDA_OK(cudaMemcpyAsync(a, &pageable, 4, cudaMemcpyHostToDevice, stream));
    CUDA_OK(cudaMemcpyAsync(b, pinned, 4, cudaMemcpyHostToDevice, stream));
    pageable = *pinned = 2;
    *go = 1;
    to_host(stream, &out, a, 1);
    ck_assert_float_eq(out, 1);
    to_host(stream, &out, b, 1);
    ck_assert_float_eq(out, 2);
}
END_TEST

/* A copy to pageable memory has happened when the call returns, one to pinned memory has not. */
START_TEST(pageable_and_pinned_destinations_differ)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    float *x = device_floats(1), *pinned = pinned_floats(1), pageable = 0;
    *pinned = 0;
    CUDA_OK(launch_slow_write(stream, x, 5, 50000));
    CUDA_OK(cudaMemcpyAsync(&pageable, x, 4, cudaMemcpyDeviceToHost, stream));
    ck_assert_float_eq(pageable, 5);
    volatile int *go = hold(stream);
    CUDA_OK(launch_slow_write(stream, x, 6, 10));
    CUDA_OK(cudaMemcpyAsync(pinned, x, 4, cudaMemcpyDeviceToHost, stream));
    ck_assert_float_eq(*pinned, 0);
    *go = 1;
    CUDA_OK(cudaStreamSynchronize(stream));
    ck_assert_float_eq(*pinned, 6);
}
END_TEST

START_TEST(reset_frees_everything)
{
    use_gpus("1");
    set("DPTRAIN_EMULATED_MEMORY", "1000000");
    device_floats(200000);
    make_stream(0);
    CUDA_OK(cudaDeviceReset());
    device_floats(200000);
}
END_TEST

TCase *memory_tests(void)
{
    TCase *tests = tcase_create("memory");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, memory_runs_out);
    tcase_add_test(tests, blocks_are_aligned_and_not_reused);
    tcase_add_test(tests, unwritten_memory_is_nan);
    tcase_add_test(tests, bad_accesses_are_named);
    tcase_add_test(tests, other_faults_are_left_alone);
    tcase_add_test(tests, copies_know_their_direction);
    tcase_add_test(tests, pageable_and_pinned_sources_differ);
    tcase_add_test(tests, pageable_and_pinned_destinations_differ);
    tcase_add_test(tests, reset_frees_everything);
    return tests;
}
