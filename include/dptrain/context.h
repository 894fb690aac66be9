/* Devices to train on. UNSTABLE: may change in any version.
 *
 *     // Prints the devices: two on whatever hardware there is.
 *     #include <stdio.h>
 *
 *     dp_status example(dp_error *err)
 *     {
 *         dp_context_config config = dp_context_defaults();
 *         config.logical_devices = 2;
 *         dp_context *context;
 *         dp_status status = dp_context_open(&config, &context, err);
 *         if (status != DP_OK)
 *             return status;
 *         for (int k = 0; k < dp_context_device_count(context); k++) {
 *             dp_device_info info;
 *             if (dp_context_device(context, k, &info, err) == DP_OK)
 *                 printf("%s: %s\n", info.label, info.name);
 *         }
 *         dp_context_close(context);
 *         return DP_OK;
 *     }
 */
#ifndef DPTRAIN_CONTEXT_H
#define DPTRAIN_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dptrain/status.h"

DP_BEGIN_DECLARATIONS

typedef struct dp_context dp_context;

typedef enum dp_backend_kind { DP_BACKEND_AUTO, DP_BACKEND_CPU, DP_BACKEND_CUDA } dp_backend_kind;

typedef struct dp_context_config {
    dp_backend_kind backend;
    int logical_devices;    /* 0: the hardware's number (CPU: min(4, usable cores)); at most 64 */
    int threads_per_device; /* CPU; 0: usable cores / devices, at least 1 */
    bool allow_tf32;        /* CUDA: products and convolutions may round their inputs to TF32 */
} dp_context_config;

typedef struct dp_device_info {
    int id;
    char label[24]; /* "cpu:0", "cuda:1" */
    char name[96];
    char bus_id[32];
    char uuid[64];
    uint64_t memory_bytes;
    int multiprocessors;
    bool shares_hardware; /* with other devices of this context: speed then proves nothing */
} dp_device_info;

dp_context_config dp_context_defaults(void);
dp_status dp_context_open(const dp_context_config *config, dp_context **out, dp_error *err);
void dp_context_close(dp_context *context); /* after every engine on it; NULL is fine */

const char *dp_context_backend_name(const dp_context *context); /* "cpu" or "cuda" */
/* One line saying which backend DP_BACKEND_AUTO chose and why; NULL if it was asked for by name. */
const char *dp_context_choice(const dp_context *context);
int dp_context_device_count(const dp_context *context);
dp_status dp_context_device(const dp_context *context, int id, dp_device_info *out, dp_error *err);

/* Free memory of the hardware behind a device: a CPU's, what new programs may take; a GPU's, as the driver's
 * NVML library tells it, without a context on the GPU. False where nobody tells. */
bool dp_context_free_memory(const dp_context *context, int id, uint64_t *bytes);

/* PyTorch's rule of an imbalance between the devices that are to work together (DataParallel's constructor,
 * torch/nn/parallel/data_parallel.py): the least memory of any is less than 0.75 of the most, or else the
 * same of the multiprocessors. If so, *weak and *strong are the ids of the first such two. */
bool dp_context_imbalance(const dp_context *context, const int *ids, int count, int *weak, int *strong);

/* From one device to another. */
typedef struct dp_link {
    bool same_hardware;      /* both sit on one GPU; true for CPU devices */
    bool peer_access;        /* the receiver's kernels may read the sender's memory */
    bool intact;             /* what was sent arrived */
    double bytes_per_second; /* of copies on a stream of the receiver */
} dp_link;

/* Copies between every two devices and times it, one pair at a time: links[from * devices + to], those of a
 * device to itself are zero. Enters every device of the context (on GPUs: makes a context) in a thread of its
 * own, and takes 8 to 32 MiB on each. There must be no engine on the context. A link that never answers is
 * waited for without end. */
dp_status dp_context_measure_links(dp_context *context, dp_link *links, dp_error *err);

/* Host memory that devices copy from fastest (pinned for CUDA). 64-byte aligned. */
dp_status dp_context_host_alloc(dp_context *context, size_t bytes, void **out, dp_error *err);
void dp_context_host_free(dp_context *context, void *pointer);

DP_END_DECLARATIONS

#endif
