/* Order within a stream, order between streams by events alone, and what the host may conclude. */
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { N = 1000, ROUNDS = 20 };

START_TEST(a_stream_runs_in_order)
{
    use_gpus("1");
    set("DPTRAIN_EMULATED_DELAY_US", "300");
    set("DPTRAIN_EMULATED_SEED", "7");
    cudaStream_t stream = make_stream(0);
    float *x = device_floats(N), *y = device_floats(N), host[N];
    CUDA_OK(cudaMemsetAsync(x, 0, N * sizeof(float), stream));
    for (int i = 0; i < N; i++)
        host[i] = 1;
    CUDA_OK(cudaMemcpyAsync(y, host, sizeof host, cudaMemcpyHostToDevice, stream));
    for (int round = 0; round < ROUNDS; round++) {
        CUDA_OK(launch_axpy(stream, 1, y, x, N)); /* x += y, y += x: Fibonacci's numbers */
        CUDA_OK(launch_axpy(stream, 1, x, y, N));
    }
    to_host(stream, host, x, N);
    for (int i = 0; i < N; i++)
        ck_assert_float_eq(host[i], 102334155.0f);
}
END_TEST

/* One stream makes x, another copies it. True if the copy had the new values in all rounds. */
static bool consumer_sees_producer(bool wait)
{
    cudaStream_t producer = make_stream(0), consumer = make_stream(0);
    float *x = device_floats(1), *copy = device_floats(1), got = 0;
    cudaEvent_t ready, taken;
    CUDA_OK(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    CUDA_OK(cudaEventCreateWithFlags(&taken, cudaEventDisableTiming));
    bool right = true;
    for (int round = 1; round <= ROUNDS; round++) {
        CUDA_OK(cudaStreamWaitEvent(producer, taken, 0));
        CUDA_OK(launch_slow_write(producer, x, (float)round, 10));
        CUDA_OK(cudaEventRecord(ready, producer));
        if (wait)
            CUDA_OK(cudaStreamWaitEvent(consumer, ready, 0));
        CUDA_OK(cudaMemcpyAsync(copy, x, sizeof(float), cudaMemcpyDeviceToDevice, consumer));
        CUDA_OK(cudaEventRecord(taken, consumer));
        to_host(consumer, &got, copy, 1);
        right = right && got == (float)round;
    }
    return right;
}

START_TEST(events_order_streams)
{
    use_gpus("1");
    set("DPTRAIN_EMULATED_DELAY_US", "1000");
    set("DPTRAIN_EMULATED_SEED", "1");
    ck_assert(consumer_sees_producer(true));
}
END_TEST

START_TEST(a_missing_wait_shows)
{
    use_gpus("1");
    set("DPTRAIN_EMULATED_DELAY_US", "1000");
    set("DPTRAIN_EMULATED_SEED", "1");
    ck_assert(!consumer_sees_producer(false));
}
END_TEST

/* A wait means the latest record at the time of the call; what is recorded later does not count. */
START_TEST(a_wait_captures_the_latest_record)
{
    use_gpus("1");
    cudaStream_t first = make_stream(0), second = make_stream(0);
    cudaEvent_t event;
    CUDA_OK(cudaEventCreateWithFlags(&event, 0));
    CUDA_OK(cudaStreamWaitEvent(second, event, 0)); /* never recorded: no wait */
    CUDA_OK(cudaStreamSynchronize(second));
    CUDA_OK(cudaEventRecord(event, first));
    CUDA_OK(cudaStreamWaitEvent(second, event, 0));
    CUDA_OK(cudaStreamSynchronize(second));
    volatile int *go = hold(first);
    CUDA_OK(cudaEventRecord(event, first));
    CUDA_OK(cudaStreamSynchronize(second)); /* does not wait for that */
    CUDA_IS(cudaEventQuery(event), cudaErrorNotReady);
    *go = 1;
    CUDA_OK(cudaEventSynchronize(event));
    CUDA_OK(cudaEventQuery(event));
}
END_TEST

START_TEST(streams_tell_whether_they_are_done)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    CUDA_OK(cudaStreamQuery(stream));
    volatile int *go = hold(stream);
    CUDA_IS(cudaStreamQuery(stream), cudaErrorNotReady);
    *go = 1;
    CUDA_OK(cudaDeviceSynchronize());
    CUDA_OK(cudaStreamQuery(stream));
    CUDA_OK(cudaStreamDestroy(stream));
}
END_TEST

START_TEST(events_measure_time)
{
    use_gpus("2");
    cudaStream_t stream = make_stream(0);
    float *x = device_floats(1), milliseconds = -1;
    cudaEvent_t start, end, untimed;
    CUDA_OK(cudaEventCreateWithFlags(&start, 0));
    CUDA_OK(cudaEventCreateWithFlags(&end, 0));
    CUDA_OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    CUDA_IS(cudaEventElapsedTime(&milliseconds, start, end),
            cudaErrorInvalidResourceHandle); /* not recorded */
    CUDA_OK(cudaEventRecord(start, stream));
    CUDA_OK(launch_slow_write(stream, x, 1, 50000));
    volatile int *go = hold(stream);
    CUDA_OK(cudaEventRecord(end, stream));
    CUDA_IS(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorNotReady);
    *go = 1;
    CUDA_OK(cudaEventSynchronize(end));
    CUDA_OK(cudaEventElapsedTime(&milliseconds, start, end));
    ck_assert(milliseconds > 0.01f && milliseconds < 20000);
    CUDA_OK(cudaEventRecord(untimed, stream));
    CUDA_OK(cudaEventSynchronize(untimed));
    CUDA_IS(cudaEventElapsedTime(&milliseconds, start, untimed), cudaErrorInvalidResourceHandle);
}
END_TEST

START_TEST(devices_do_not_mix)
{
    use_gpus("2");
    cudaStream_t zero = make_stream(0);
    cudaEvent_t event_of_zero;
    CUDA_OK(cudaEventCreateWithFlags(&event_of_zero, 0));
    float *x = device_floats(10), host[10];
    cudaStream_t one = make_stream(1);
    CUDA_IS(launch_axpy(zero, 1, x, x, 10), cudaErrorInvalidResourceHandle); /* device 1 is current */
    CUDA_IS(cudaEventRecord(event_of_zero, one), cudaErrorInvalidResourceHandle);
    CUDA_OK(cudaMemsetAsync(x, 0, 40, zero)); /* copies and fills may */
    CUDA_OK(cudaMemcpyAsync(host, x, 40, cudaMemcpyDeviceToHost, zero));
    CUDA_OK(cudaEventRecord(event_of_zero, zero));
    CUDA_OK(cudaStreamWaitEvent(one, event_of_zero, 0)); /* waiting goes across devices */
    CUDA_OK(cudaStreamSynchronize(one));
}
END_TEST

static _Atomic bool churning;

static void *churn(void *unused)
{
    (void)unused;
    while (churning) {
        cudaStream_t stream = make_stream(0);
        CUDA_OK(cudaStreamDestroy(stream));
    }
    return NULL;
}

/* Another thread makes and destroys streams of the GPU all the while. */
START_TEST(a_device_can_be_waited_for_while_streams_go)
{
    use_gpus("1");
    pthread_t thread;
    cudaStream_t kept = make_stream(0);
    float *x = device_floats(1), got = 0;
    churning = true;
    ck_assert_int_eq(pthread_create(&thread, NULL, churn, NULL), 0);
    for (int i = 1; i <= 2000; i++) {
        CUDA_OK(launch_slow_write(kept, x, (float)i, 1));
        CUDA_OK(cudaDeviceSynchronize());
        CUDA_OK(cudaStreamQuery(kept));
    }
    churning = false;
    pthread_join(thread, NULL);
    to_host(kept, &got, x, 1);
    ck_assert_float_eq(got, 2000);
}
END_TEST

static void default_stream(void)
{
    use_gpus("1");
    float *x = device_floats(10);
    cudaMemsetAsync(x, 0, 40, NULL);
}

static void blocking_stream(void)
{
    use_gpus("1");
    cudaStream_t stream;
    cudaStreamCreateWithFlags(&stream, cudaStreamDefault);
}

static void destroyed_stream(void)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    cudaStreamDestroy(stream);
    cudaStreamSynchronize(stream);
}

static void destroyed_event(void)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    cudaEvent_t event;
    cudaEventCreateWithFlags(&event, 0);
    cudaEventDestroy(event);
    cudaEventRecord(event, stream);
}

START_TEST(refused_by_policy)
{
    expect_failure(default_stream, "cudaMemsetAsync on the default stream");
    expect_failure(blocking_stream, "cudaStreamCreateWithFlags without cudaStreamNonBlocking");
    expect_failure(destroyed_stream, "cudaStreamSynchronize on a stream that has been destroyed");
    expect_failure(destroyed_event, "cudaEventRecord on an event that has been destroyed");
}
END_TEST

TCase *stream_tests(void)
{
    TCase *tests = tcase_create("streams");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, a_stream_runs_in_order);
    tcase_add_test(tests, events_order_streams);
    tcase_add_test(tests, a_missing_wait_shows);
    tcase_add_test(tests, a_wait_captures_the_latest_record);
    tcase_add_test(tests, streams_tell_whether_they_are_done);
    tcase_add_test(tests, events_measure_time);
    tcase_add_test(tests, devices_do_not_mix);
    tcase_add_test(tests, a_device_can_be_waited_for_while_streams_go);
    tcase_add_test(tests, refused_by_policy);
    return tests;
}
