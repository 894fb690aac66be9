/* Several GPUs, a host thread each: GPU 0 makes a buffer, the others fetch it by peer copies and add it up.
 * Run with the name of a planted mistake, or "correct". The mistakes leave the values right in some runs;
 * ThreadSanitizer is to report them in every run, and nothing in the correct program. Exits with 1 where
 * values are wrong. */
#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels.h"

enum { N = 1024, ROUNDS = 6, MOST = 8 };

static int gpus;
static bool forget_wait, late, forget_readers, early_wait;
static pthread_barrier_t round_begins, recorded;
static cudaEvent_t made, fetched[MOST];
static float *buffer[MOST], *total[MOST], *result[MOST];

#define OK(call)                                                            \
    do {                                                                    \
        cudaError_t error_ = (call);                                        \
        if (error_ != cudaSuccess) {                                        \
            fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(error_)); \
            exit(3);                                                        \
        }                                                                   \
    } while (0)

static cudaStream_t make_stream(void)
{
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static void produce(cudaStream_t stream, int round)
{
    /* The readers of the last round are through. */
    for (int gpu = 1; gpu < gpus && round > 0 && !forget_readers; gpu++)
        OK(cudaStreamWaitEvent(stream, fetched[gpu], 0));
    OK(launch_axpy(stream, 1, buffer[0], buffer[0], N)); /* doubles it */
    OK(cudaEventRecord(made, stream));
}

static void consume(cudaStream_t stream, int gpu)
{
    if (late)
        usleep(30000); /* the producer has long finished, so the values will be right */
    if (!forget_wait)
        OK(cudaStreamWaitEvent(stream, made, 0));
    OK(cudaMemcpyPeerAsync(buffer[gpu], gpu, buffer[0], 0, N * sizeof(float), stream));
    OK(launch_axpy(stream, 1, buffer[gpu], total[gpu], N));
    OK(cudaEventRecord(fetched[gpu], stream));
}

static void *run_gpu(void *opaque)
{
    int gpu = *(int *)opaque;
    OK(cudaSetDevice(gpu));
    cudaStream_t stream = make_stream();
    OK(cudaMalloc((void **)&buffer[gpu], N * sizeof(float)));
    OK(cudaMalloc((void **)&total[gpu], N * sizeof(float)));
    OK(cudaHostAlloc((void **)&result[gpu], N * sizeof(float), cudaHostAllocPortable));
    OK(cudaEventCreateWithFlags(gpu == 0 ? &made : &fetched[gpu], cudaEventDisableTiming));
    for (int i = 0; i < N; i++)
        result[gpu][i] = 1;
    OK(cudaMemcpyAsync(buffer[gpu], result[gpu], N * sizeof(float), cudaMemcpyHostToDevice, stream));
    OK(cudaMemsetAsync(total[gpu], 0, N * sizeof(float), stream));
    OK(cudaStreamSynchronize(stream));
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_wait(&round_begins);
        if (gpu == 0) {
            if (early_wait)
                usleep(2000);
            produce(stream, round);
        }
        /* Only the host can know that the event has been recorded. */
        if (!early_wait)
            pthread_barrier_wait(&recorded);
        if (gpu != 0)
            consume(stream, gpu);
    }
    OK(cudaMemcpyAsync(result[gpu], total[gpu], N * sizeof(float), cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
    return NULL;
}

static int exchange(void)
{
    pthread_t threads[MOST];
    int numbers[MOST], wrong = 0;
    OK(cudaGetDeviceCount(&gpus));
    pthread_barrier_init(&round_begins, NULL, (unsigned)gpus);
    pthread_barrier_init(&recorded, NULL, (unsigned)gpus);
    for (int gpu = 0; gpu < gpus; gpu++) {
        numbers[gpu] = gpu;
        if (pthread_create(&threads[gpu], NULL, run_gpu, &numbers[gpu]) != 0)
            exit(3);
    }
    for (int gpu = 0; gpu < gpus; gpu++)
        pthread_join(threads[gpu], NULL);
    for (int gpu = 1; gpu < gpus; gpu++)
        for (int i = 0; i < N; i++)
            wrong += result[gpu][i] != 126; /* 2 + 4 + … + 64 */
    printf("%d wrong values\n", wrong);
    return wrong > 0;
}

/* The host writes to pinned memory while the stream may still read it. */
static int rewrite_pinned(void)
{
    float *pinned, *device;
    OK(cudaSetDevice(0));
    cudaStream_t stream = make_stream();
    OK(cudaHostAlloc((void **)&pinned, N * sizeof(float), cudaHostAllocPortable));
    OK(cudaMalloc((void **)&device, N * sizeof(float)));
    pinned[0] = 1;
    OK(cudaMemcpyAsync(device, pinned, N * sizeof(float), cudaMemcpyHostToDevice, stream));
    pinned[0] = 2;
    OK(cudaStreamSynchronize(stream));
    return 0;
}

/* Two cuBLAS handles on two streams, with one workspace or with two. */
static int multiply_twice(bool shared)
{
    void *workspaces[2];
    float one = 1, zero = 0;
    OK(cudaSetDevice(0));
    OK(cudaMalloc(&workspaces[0], 4096));
    OK(cudaMalloc(&workspaces[1], 4096));
    cudaStream_t streams[2];
    for (int i = 0; i < 2; i++) {
        cublasHandle_t handle;
        float *matrix;
        streams[i] = make_stream();
        OK(cudaMalloc((void **)&matrix, 64 * sizeof(float)));
        OK(cudaMemsetAsync(matrix, 0, 64 * sizeof(float), streams[i]));
        if (cublasCreate(&handle) || cublasSetStream(handle, streams[i]) ||
            cublasSetWorkspace(handle, workspaces[shared ? 0 : i], 4096) ||
            cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, matrix, 8, matrix, 8, &zero, matrix,
                        8))
            return 3;
    }
    OK(cudaStreamSynchronize(streams[0]));
    OK(cudaStreamSynchronize(streams[1]));
    return 0;
}

int main(int argc, char **argv)
{
    const char *mistake = argc == 2 ? argv[1] : "";
    forget_wait = strcmp(mistake, "missing-wait") == 0 || strcmp(mistake, "missing-wait-late") == 0;
    late = strcmp(mistake, "missing-wait-late") == 0;
    forget_readers = strcmp(mistake, "overwrite-before-read") == 0;
    early_wait = strcmp(mistake, "wait-before-record") == 0;
    if (strcmp(mistake, "correct") == 0 || forget_wait || forget_readers || early_wait)
        return exchange();
    if (strcmp(mistake, "rewrite-pinned") == 0)
        return rewrite_pinned();
    if (strcmp(mistake, "shared-workspace") == 0 || strcmp(mistake, "own-workspaces") == 0)
        return multiply_twice(mistake[0] == 's');
    fprintf(stderr,
            "usage: ordering correct|missing-wait|missing-wait-late|overwrite-before-read|wait-before-record|"
            "rewrite-pinned|shared-workspace|own-workspaces\n");
    return 2;
}
