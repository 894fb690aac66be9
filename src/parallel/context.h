#ifndef DP_PARALLEL_CONTEXT_H
#define DP_PARALLEL_CONTEXT_H

#include "device/device.h"
#include "dptrain/context.h"

struct dp_context {
    dp_backend *backend;
    char choice[160]; /* why DP_BACKEND_AUTO chose it; empty if it was asked for */
};

#endif
