#ifndef DP_PARALLEL_CONTEXT_H
#define DP_PARALLEL_CONTEXT_H

#include "device/device.h"
#include "dptrain/context.h"

struct dp_context {
    dp_backend *backend;
    void *library; /* of the CUDA backend, while one was tried */
    dp_p2p p2p;
    bool allows_tf32;
    uint64_t tried[DP_MAX_DEVICES]; /* bit b of tried[a]: the link was tried (see dp_context_try_links) */
    char choice[320];               /* why DP_BACKEND_AUTO chose it; empty if it was asked for */
};

#endif
