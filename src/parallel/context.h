#ifndef DP_PARALLEL_CONTEXT_H
#define DP_PARALLEL_CONTEXT_H

#include "device/device.h"
#include "dptrain/context.h"

struct dp_context {
    dp_backend *backend;
    void *library;    /* of the CUDA backend, while one was tried */
    char choice[320]; /* why DP_BACKEND_AUTO chose it; empty if it was asked for */
};

#endif
