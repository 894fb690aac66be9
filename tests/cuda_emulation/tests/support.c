#include "support.h"

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

void set(const char *name, const char *value)
{
    ck_assert_int_eq(setenv(name, value, 1), 0);
}

void use_gpus(const char *gpus)
{
    static const char *const names[] = {"DPTRAIN_EMULATED_MEMORY", "DPTRAIN_EMULATED_SMS",
                                        "DPTRAIN_EMULATED_SEED",   "DPTRAIN_EMULATED_DELAY_US",
                                        "DPTRAIN_EMULATED_FAULT",  "DPTRAIN_EMULATED_PEER",
                                        "DPTRAIN_EMULATED_REPORT", "CUDA_VISIBLE_DEVICES"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
    set("DPTRAIN_EMULATED_GPUS", gpus);
}

cudaStream_t make_stream(int device)
{
    cudaStream_t stream = NULL;
    CUDA_OK(cudaSetDevice(device));
    CUDA_OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

float *device_floats(size_t n)
{
    void *out = NULL;
    CUDA_OK(cudaMalloc(&out, n * sizeof(float)));
    return out;
}

float *pinned_floats(size_t n)
{
    void *out = NULL;
    CUDA_OK(cudaHostAlloc(&out, n * sizeof(float), cudaHostAllocPortable));
    return out;
}

volatile int *hold(cudaStream_t stream)
{
    void *go = NULL;
    CUDA_OK(cudaHostAlloc(&go, sizeof(int), cudaHostAllocPortable));
    *(volatile int *)go = 0;
    CUDA_OK(launch_hold(stream, go));
    return go;
}

void to_device(cudaStream_t stream, float *device, const float *host, size_t n)
{
    CUDA_OK(cudaMemcpyAsync(device, host, n * sizeof(float), cudaMemcpyHostToDevice, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
}

void to_host(cudaStream_t stream, float *host, const float *device, size_t n)
{
    CUDA_OK(cudaMemcpyAsync(host, device, n * sizeof(float), cudaMemcpyDeviceToHost, stream));
    CUDA_OK(cudaStreamSynchronize(stream));
}

int outcome_of(void (*body)(void), double seconds, char *text, size_t capacity)
{
    int ends[2], status = 0;
    ck_assert_int_eq(pipe(ends), 0);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        body();
        exit(0);
    }
    close(ends[1]);
    bool ended = false;
    for (double waited = 0; waited < seconds && !ended; waited += 0.005) {
        ended = waitpid(child, &status, WNOHANG) == child;
        if (!ended)
            nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    bool stopped = !ended;
    if (stopped) {
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
    }
    ssize_t length = stopped ? 0 : read(ends[0], text, capacity - 1);
    text[length > 0 ? length : 0] = 0;
    close(ends[0]);
    if (stopped)
        return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void expect_failure(void (*body)(void), const char *part)
{
    char text[2048];
    int status = outcome_of(body, 20, text, sizeof text);
    ck_assert_msg(status == 86, "exit status %d, not 86; it said: %s", status, text);
    ck_assert_msg(strstr(text, part) != NULL, "expected \"%s\", it said: %s", part, text);
}
