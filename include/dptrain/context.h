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

/* Direct transfers between GPUs (peer to peer). Where they are not used, what GPUs send each other goes
 * through pinned host memory. */
typedef enum dp_p2p {
    DP_P2P_AUTO, /* between those that dp_context_try_links has found to be sound */
    DP_P2P_ON,   /* wherever the hardware offers it, untried */
    DP_P2P_OFF   /* nowhere */
} dp_p2p;

typedef struct dp_context_config {
    dp_backend_kind backend;
    int logical_devices;    /* 0: the hardware's number (CPU: min(4, usable cores)); at most 64 */
    int threads_per_device; /* CPU; 0: usable cores / devices, at least 1 */
    bool allow_tf32;        /* CUDA: products and convolutions may round their inputs to TF32 */
    dp_p2p p2p;             /* CUDA */
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
bool dp_context_allows_tf32(const dp_context *context);
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
    bool intact;             /* what was sent arrived, by the way that transfers take in this context */
    double bytes_per_second; /* of copies on a stream of the receiver */
} dp_link;

/* Copies between every two devices and times it, one pair at a time: links[from * devices + to], those of a
 * device to itself are zero. Enters every device of the context (on GPUs: makes a context) in a thread of its
 * own, and takes 8 to 32 MiB on each. There must be no engine on the context. A direct link that never
 * answers is waited for without end: try them before. */
dp_status dp_context_measure_links(dp_context *context, dp_link *links, dp_error *err);

/* How links are tried before they are trusted. On some machines (PCIe switches with access control services,
 * an IOMMU that translates) direct transfers are offered, and then hang or arrive damaged. A hanging GPU
 * cannot be let go of by the process that waits for it: so links are tried in a process of their own, which
 * can be ended. */
typedef struct dp_link_trial {
    const char *program; /* path of a dptrain program; it is run as `PROGRAM try-links ...` */
    double seconds;      /* for one pair; 0: 5 */
    /* Called for every pair that must not be used, in the calling thread: transfers between the two, and
     * between others on the same two GPUs, will go through host memory. May be NULL. */
    void (*broken)(void *user, int a, int b, const char *why);
    void *user;
} dp_link_trial;

/* Tries the links, both ways, between each of `hubs` and each of `ids` (for an engine: its device_ids; the
 * hubs are the first of them and, in gather mode, the output device). Does nothing unless the context is for
 * DP_P2P_AUTO, nor for pairs without a direct link or already tried. To be called before the first engine is
 * made on the context, while this process has no context on a GPU. Waits for at most 60 s and `seconds` per
 * pair. A trial that cannot be made is no error: its links are not used, and `broken` says so.
 * DP_ERROR_USAGE: ids that do not exist. */
dp_status dp_context_try_links(dp_context *context, const int *ids, int id_count, const int *hubs,
                               int hub_count, const dp_link_trial *trial, dp_error *err);

/* What that process does with one pair: sends a pattern both ways, by copies and by kernels that read, and
 * says whether it arrived. a == b: only enters the device. Does not return if the link hangs. */
dp_status dp_context_try_link(dp_context *context, int a, int b, bool *intact, dp_error *err);

/* Host memory that devices copy from fastest (pinned for CUDA). 64-byte aligned. */
dp_status dp_context_host_alloc(dp_context *context, size_t bytes, void **out, dp_error *err);
void dp_context_host_free(dp_context *context, void *pointer);

DP_END_DECLARATIONS

#endif
