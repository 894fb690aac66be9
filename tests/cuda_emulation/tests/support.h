/* What the tests of the emulation share. Each test runs in a process of its own (Check forks), so that it can
 * set the environment before the first CUDA call. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include <check.h>
#include <cuda_runtime_api.h>
#include <stddef.h>

#include "kernels.h"

#define CUDA_OK(call)       ck_assert_msg((call) == cudaSuccess, "%s failed", #call)
#define CUDA_IS(call, code) ck_assert_int_eq((int)(call), (int)(code))

/* `gpus` GPUs and nothing else set. */
void use_gpus(const char *gpus);
void set(const char *name, const char *value);

cudaStream_t make_stream(int device); /* makes the device current */
float *device_floats(size_t n);       /* of the current device */
float *pinned_floats(size_t n);
/* Holds the stream up until *go is set to 1; returns it. */
volatile int *hold(cudaStream_t stream);
/* Blocking copies through `stream`. */
void to_device(cudaStream_t stream, float *device, const float *host, size_t n);
void to_host(cudaStream_t stream, float *host, const float *device, size_t n);

/* Runs body in a child; its standard error goes to text. Returns its exit status, 128 + signal, or -1 where
 * it was stopped after `seconds`. */
int outcome_of(void (*body)(void), double seconds, char *text, size_t capacity);
/* The child ends with the emulation's exit status and says what `part` is part of. */
void expect_failure(void (*body)(void), const char *part);

TCase *runtime_tests(void);
TCase *memory_tests(void);
TCase *stream_tests(void);
TCase *kernel_tests(void);
TCase *peer_tests(void);
TCase *library_tests(void);

int emulation_context_count(int physical_gpu);

#endif
