/* What kernels compute, in whatever order their threads run, and what is wrong with those that are wrong. */
#include "support.h"

#include <math.h>
#include <stdlib.h>

/* Seeds 0 (in turn) to 4 (shuffled). */
static const char *const seeds[] = {"0", "1", "2", "3", "4"};

static void begin(int seed)
{
    use_gpus("1");
    set("DPTRAIN_EMULATED_SEED", seeds[seed]);
}

START_TEST(elementwise)
{
    enum { n = 100003 };
    begin(_i);
    cudaStream_t stream = make_stream(0);
    float *x = device_floats(n), *y = device_floats(n), *a = malloc(n * sizeof(float)),
          *b = malloc(n * sizeof(float));
    for (int i = 0; i < n; i++) {
        a[i] = (float)(i % 977) * 0.25f;
        b[i] = (float)(i % 31);
    }
    to_device(stream, x, a, n);
    to_device(stream, y, b, n);
    CUDA_OK(launch_axpy(stream, 2, x, y, n));
    CUDA_OK(launch_add_two(stream, x, x, y, n));
    to_host(stream, b, y, n);
    for (int i = 0; i < n; i++)
        ck_assert_float_eq(b[i], 4 * a[i] + (float)(i % 31));
    free(a);
    free(b);
}
END_TEST

START_TEST(barriers)
{
    enum { n = 10007, blocks = 5 };
    begin(_i);
    cudaStream_t stream = make_stream(0);
    float *x = device_floats(n), *sums = device_floats(blocks), *a = malloc(n * sizeof(float)), out[blocks];
    for (int i = 0; i < n; i++)
        a[i] = (float)(i % 8);
    to_device(stream, x, a, n);
    CUDA_OK(launch_block_sum(stream, x, sums, n, blocks));
    to_host(stream, out, sums, blocks);
    double expected[blocks] = {0};
    for (int i = 0; i < n; i++)
        expected[i / 256 % blocks] += a[i];
    for (int block = 0; block < blocks; block++)
        ck_assert_float_eq(out[block], (float)expected[block]); /* small integers: exact */
    free(a);
}
END_TEST

START_TEST(shuffles)
{
    enum { rows = 13, columns = 77, n = rows * columns };
    begin(_i);
    cudaStream_t stream = make_stream(0);
    float *x = device_floats(n), *y = device_floats(n), a[n], b[n];
    for (int i = 0; i < n; i++)
        a[i] = sinf((float)i) * 4;
    to_device(stream, x, a, n);
    CUDA_OK(launch_softmax(stream, x, y, rows, columns));
    to_host(stream, b, y, n);
    for (int row = 0; row < rows; row++) {
        double sum = 0;
        for (int c = 0; c < columns; c++)
            sum += exp((double)a[row * columns + c]);
        for (int c = 0; c < columns; c++)
            ck_assert_float_eq_tol(b[row * columns + c], (float)(exp((double)a[row * columns + c]) / sum),
                                   1e-6f);
    }
}
END_TEST

START_TEST(shared_memory_and_atomics)
{
    enum { n = 5000, bins = 37 };
    begin(_i);
    cudaStream_t stream = make_stream(0);
    int values[n], expected[bins] = {0}, counts[bins];
    for (int i = 0; i < n; i++)
        expected[values[i] = i * 31 % bins]++;
    void *v = NULL, *c = NULL;
    CUDA_OK(cudaMalloc(&v, sizeof values));
    CUDA_OK(cudaMalloc(&c, sizeof counts));
    CUDA_OK(cudaMemcpyAsync(v, values, sizeof values, cudaMemcpyHostToDevice, stream));
    CUDA_OK(cudaMemsetAsync(c, 0, sizeof counts, stream));
    CUDA_OK(launch_histogram(stream, v, c, n, bins));
    CUDA_OK(cudaMemcpyAsync(counts, c, sizeof counts, cudaMemcpyDeviceToHost, stream));
    for (int bin = 0; bin < bins; bin++)
        ck_assert_int_eq(counts[bin], expected[bin]);
}
END_TEST

START_TEST(votes)
{
    begin(_i);
    cudaStream_t stream = make_stream(0);
    int host[36];
    void *out = NULL;
    CUDA_OK(cudaMalloc(&out, sizeof host));
    CUDA_OK(launch_votes(stream, out));
    CUDA_OK(cudaMemcpyAsync(host, out, sizeof host, cudaMemcpyDeviceToHost, stream));
    ck_assert_int_eq(host[0], 0x55555555);
    ck_assert_int_ne(host[1], 0);
    ck_assert_int_eq(host[2], 0);
    ck_assert_int_eq(host[3], 24);
    for (int lane = 0; lane < 32; lane++)
        ck_assert_int_eq(host[4 + lane], lane ? lane - 1 : 0);
}
END_TEST

START_TEST(three_dimensions)
{
    enum { n = 5 * 3 * 2 * 4 * 6 * 8 };
    begin(_i);
    cudaStream_t stream = make_stream(0);
    int host[n];
    void *out = NULL;
    CUDA_OK(cudaMalloc(&out, sizeof host));
    CUDA_OK(launch_indices(stream, (dim3){5, 3, 2}, (dim3){4, 6, 8}, out));
    CUDA_OK(cudaMemcpyAsync(host, out, sizeof host, cudaMemcpyDeviceToHost, stream));
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(host[i], i);
}
END_TEST

START_TEST(launch_limits)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    dim3 one = {1, 1, 1};
    CUDA_OK(launch_nothing(stream, one, (dim3){1024, 1, 1}, 48 << 10));
    CUDA_IS(launch_nothing(stream, one, (dim3){1025, 1, 1}, 0), cudaErrorInvalidConfiguration);
    CUDA_IS(launch_nothing(stream, one, (dim3){1, 1, 65}, 0), cudaErrorInvalidConfiguration);
    CUDA_IS(launch_nothing(stream, one, (dim3){0, 1, 1}, 0), cudaErrorInvalidConfiguration);
    CUDA_IS(launch_nothing(stream, (dim3){0, 1, 1}, one, 0), cudaErrorInvalidConfiguration);
    CUDA_IS(launch_nothing(stream, (dim3){1, 65536, 1}, one, 0), cudaErrorInvalidConfiguration);
    CUDA_IS(launch_nothing(stream, one, one, (48 << 10) + 1), cudaErrorInvalidValue);
    CUDA_OK(allow_shared(100 << 10));
    CUDA_OK(launch_nothing(stream, one, one, 100 << 10));
    CUDA_IS(allow_shared(228 << 10), cudaErrorInvalidValue);
    CUDA_OK(cudaStreamSynchronize(stream));
}
END_TEST

static void divergent(void)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    launch_divergent_barrier(stream);
    cudaStreamSynchronize(stream);
}

static void lane(void)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    launch_missing_lane(stream);
    cudaStreamSynchronize(stream);
}

static void overrun(void)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    launch_shared_overrun(stream);
    cudaStreamSynchronize(stream);
}

static void host_pointer(void)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    float x[10] = {0};
    launch_axpy(stream, 1, x, x, 10);
    cudaStreamSynchronize(stream);
}

static void other_device(void)
{
    use_gpus("2");
    cudaStream_t stream = make_stream(0);
    float *here = device_floats(10);
    cudaSetDevice(1);
    float *there = device_floats(10);
    cudaSetDevice(0);
    launch_axpy(stream, 1, there, here, 10);
}

START_TEST(wrong_kernels_are_reported)
{
    expect_failure(divergent, "other threads of its block at another");
    expect_failure(lane, "lane 0 has exited");
    expect_failure(overrun, "past the end of the block's dynamic shared memory");
    expect_failure(host_pointer, "which is pageable host memory");
    expect_failure(other_device, "memory of GPU 1, without peer access");
}
END_TEST

TCase *kernel_tests(void)
{
    TCase *tests = tcase_create("kernels");
    int count = sizeof seeds / sizeof *seeds;
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, elementwise, 0, count);
    tcase_add_loop_test(tests, barriers, 0, count);
    tcase_add_loop_test(tests, shuffles, 0, count);
    tcase_add_loop_test(tests, shared_memory_and_atomics, 0, count);
    tcase_add_loop_test(tests, votes, 0, count);
    tcase_add_loop_test(tests, three_dimensions, 0, count);
    tcase_add_test(tests, launch_limits);
    tcase_add_test(tests, wrong_kernels_are_reported);
    return tests;
}
