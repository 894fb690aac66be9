/* Peer access and copies between GPUs, over sound links and over broken ones. */
#include "support.h"

#include <stdlib.h>

enum { N = 500 };

/* Sends 0, 1, 2, … from GPU `from` to GPU `to`; returns how many values arrived. */
static int send_numbers(int from, int to)
{
    float host[N];
    cudaStream_t stream = make_stream(from);
    float *source = device_floats(N);
    for (int i = 0; i < N; i++)
        host[i] = (float)i;
    to_device(stream, source, host, N);
    CUDA_OK(cudaSetDevice(to));
    float *destination = device_floats(N);
    CUDA_OK(cudaMemcpyPeerAsync(destination, to, source, from, sizeof host, stream));
    to_host(stream, host, destination, N);
    int arrived = 0;
    for (int i = 0; i < N; i++)
        arrived += host[i] == (float)i;
    return arrived;
}

static void enable(int from, int to)
{
    CUDA_OK(cudaSetDevice(from));
    CUDA_OK(cudaDeviceEnablePeerAccess(to, 0));
}

START_TEST(sound_links)
{
    use_gpus("3");
    int can = 0, rank = -1, supported = 0;
    CUDA_OK(cudaDeviceCanAccessPeer(&can, 0, 2));
    ck_assert_int_eq(can, 1);
    CUDA_OK(cudaDeviceCanAccessPeer(&can, 2, 2));
    ck_assert_int_eq(can, 0);
    CUDA_OK(cudaDeviceGetP2PAttribute(&rank, cudaDevP2PAttrPerformanceRank, 0, 1));
    CUDA_OK(cudaDeviceGetP2PAttribute(&supported, cudaDevP2PAttrAccessSupported, 0, 1));
    ck_assert_int_eq(supported, 1);
    ck_assert_int_eq(send_numbers(0, 2), N); /* without access: through the host */
    enable(0, 1);
    CUDA_IS(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
    CUDA_IS(cudaDeviceEnablePeerAccess(0, 0), cudaErrorInvalidDevice);
    ck_assert_int_eq(send_numbers(0, 1), N);
    ck_assert_int_eq(send_numbers(1, 0), N);
    CUDA_OK(cudaSetDevice(0));
    CUDA_OK(cudaDeviceDisablePeerAccess(1));
    CUDA_IS(cudaDeviceDisablePeerAccess(1), cudaErrorPeerAccessNotEnabled);
}
END_TEST

START_TEST(kernels_read_an_enabled_peer)
{
    use_gpus("2");
    float host[N];
    for (int i = 0; i < N; i++)
        host[i] = (float)i;
    cudaStream_t one = make_stream(1);
    float *there = device_floats(N);
    to_device(one, there, host, N);
    cudaStream_t zero = make_stream(0);
    float *here = device_floats(N);
    CUDA_OK(cudaMemsetAsync(here, 0, N * sizeof(float), zero));
    enable(0, 1);
    CUDA_OK(launch_axpy(zero, 2, there, here, N));
    to_host(zero, host, here, N);
    for (int i = 0; i < N; i++)
        ck_assert_float_eq(host[i], 2 * (float)i);
}
END_TEST

START_TEST(absent_links)
{
    use_gpus("3");
    set("DPTRAIN_EMULATED_PEER", "none:0-1");
    int can = -1;
    CUDA_OK(cudaDeviceCanAccessPeer(&can, 1, 0));
    ck_assert_int_eq(can, 0);
    CUDA_OK(cudaDeviceCanAccessPeer(&can, 1, 2));
    ck_assert_int_eq(can, 1);
    CUDA_OK(cudaSetDevice(0));
    CUDA_IS(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessUnsupported);
    CUDA_OK(cudaDeviceEnablePeerAccess(2, 0));
    ck_assert_int_eq(send_numbers(0, 1), N); /* through the host */
}
END_TEST

/* A link goes with the hardware, not with the numbers that the process sees. */
START_TEST(corrupting_link)
{
    use_gpus("3");
    set("CUDA_VISIBLE_DEVICES", "2,0,1");
    set("DPTRAIN_EMULATED_PEER", "corrupt:0-1");
    ck_assert_int_eq(send_numbers(1, 2), N); /* not enabled: through the host */
    enable(1, 2);
    enable(0, 1);
    ck_assert_int_lt(send_numbers(1, 2), N);
    ck_assert_int_lt(send_numbers(2, 1), N);
    ck_assert_int_eq(send_numbers(0, 1), N);
}
END_TEST

START_TEST(failing_link)
{
    use_gpus("2");
    set("DPTRAIN_EMULATED_PEER", "fail:0-1");
    ck_assert_int_eq(send_numbers(0, 1), N); /* not enabled: through the host */
    enable(1, 0);
    cudaStream_t stream = make_stream(1);
    float *here = device_floats(N);
    CUDA_OK(cudaSetDevice(0));
    float *there = device_floats(N);
    CUDA_OK(cudaSetDevice(1));
    CUDA_IS(cudaMemcpyPeerAsync(here, 1, there, 0, N, stream), cudaErrorUnknown);
}
END_TEST

static void use_hanging_link(void)
{
    use_gpus("2");
    set("DPTRAIN_EMULATED_PEER", "hang:0-1");
    enable(0, 1);
    send_numbers(0, 1);
}

static void leave_hanging_copy(void)
{
    use_gpus("2");
    set("DPTRAIN_EMULATED_PEER", "hang");
    enable(0, 1);
    float *there, *here = device_floats(N);
    cudaStream_t stream = make_stream(1);
    there = device_floats(N);
    CUDA_OK(cudaMemcpyPeerAsync(there, 1, here, 0, N, stream));
    CUDA_IS(cudaStreamQuery(stream), cudaErrorNotReady);
    CUDA_OK(cudaStreamDestroy(stream)); /* returns */
}

START_TEST(hanging_link)
{
    char text[256];
    ck_assert_int_eq(outcome_of(use_hanging_link, 0.7, text, sizeof text), -1);
    ck_assert_int_eq(outcome_of(leave_hanging_copy, 20, text, sizeof text), 0);
}
END_TEST

TCase *peer_tests(void)
{
    TCase *tests = tcase_create("peers");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, sound_links);
    tcase_add_test(tests, kernels_read_an_enabled_peer);
    tcase_add_test(tests, absent_links);
    tcase_add_test(tests, corrupting_link);
    tcase_add_test(tests, failing_link);
    tcase_add_test(tests, hanging_link);
    return tests;
}
