/* The CUDA backend. It lives in libdptrain_cuda.so, which exports dp_cuda_backend_open alone:
 *
 *     void *library = dlopen("libdptrain_cuda.so", RTLD_NOW | RTLD_LOCAL);
 *     dp_cuda_open_function *open = (dp_cuda_open_function *)dlsym(library, DP_CUDA_OPEN_SYMBOL);
 *     const dp_cuda_config config = {.logical_devices = 0};
 *     if (open(&config, &backend, &err) != DP_OK) ...
 *
 * No CUDA header is needed to include this one. */
#ifndef DP_CUDA_CUDA_H
#define DP_CUDA_CUDA_H

#include "device/device.h"

typedef struct dp_cuda_config {
    int logical_devices; /* 0: one per GPU; device k lives on GPU k % GPUs */
    bool allow_tf32;     /* convolutions and products may round their inputs to TF32 (GPUs from sm_80 on) */
} dp_cuda_config;

#define DP_CUDA_OPEN_SYMBOL "dp_cuda_backend_open"

typedef dp_status dp_cuda_open_function(const dp_cuda_config *config, dp_backend **out, dp_error *err);

/* Looks at the GPUs without creating a context on any: that happens to a GPU when a thread enters one of its
 * devices. Without a usable GPU: DP_ERROR_DEVICE and one line why. Owner: the caller, who closes it with
 * backend->call->close. */
__attribute__((visibility("default"))) dp_cuda_open_function dp_cuda_backend_open;

#endif
