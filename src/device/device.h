/* The contract between the engine and a backend.
 *
 * A backend offers devices. A device has memory, streams, events, and operations that are created once for a
 * shape and then enqueued on a stream any number of times. The engine above knows nothing else about it: the
 * CPU (src/cpu) and CUDA (cuda) implement the same table of functions.
 *
 * Semantics are CUDA's:
 *  - Work enqueued on one stream runs in order; two streams are ordered by events alone.
 *  - A call on a stream may return before the work is done (CUDA) or after (CPU: a stream runs its work in
 * the calling thread). Nothing may be assumed but what the events and dp_stream_synchronize say.
 *  - dp_stream_wait orders a stream behind a *numbered* record of an event. The host must know that this
 * record has been issued (by a dp_signal, see base/thread.h); a wait that comes before its record is an error
 * of the engine and is reported, never silently ignored as CUDA would.
 *  - All calls that concern a device come from the host thread that called dp_device_enter for it, except
 * waiting for its events, reading its memory through dp_copy, and the ledger.
 *
 * Nothing here allocates inside a training step but what the engine asks for; the ledger counts. */
#ifndef DP_DEVICE_DEVICE_H
#define DP_DEVICE_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct dp_backend dp_backend;
typedef struct dp_device dp_device;
typedef struct dp_stream dp_stream;
typedef struct dp_event dp_event;
typedef struct dp_op dp_op;

/* ---- memory and its ledger
 * ------------------------------------------------------------------------------------ */

/* What a block of memory is for. The names are those of the log (dp_purpose_name). */
typedef enum dp_purpose {
    DP_MEM_PARAMETERS,
    DP_MEM_GRADIENTS,
    DP_MEM_OPTIMIZER,
    DP_MEM_BUFFERS,
    DP_MEM_ACTIVATIONS, /* with the gradients of activations */
    DP_MEM_INPUTS,
    DP_MEM_GATHERED_OUTPUTS,
    DP_MEM_LOSS,
    DP_MEM_STAGING,
    DP_MEM_WORKSPACE, /* scratch of the operations, shared by all */
    DP_MEM_PURPOSES
} dp_purpose;

const char *dp_purpose_name(dp_purpose purpose);

/* Bytes by purpose that a device's allocator has handed out. */
typedef struct dp_ledger {
    _Atomic uint64_t current[DP_MEM_PURPOSES];
    _Atomic uint64_t peak[DP_MEM_PURPOSES];
    _Atomic uint64_t total, peak_total;
    _Atomic uint64_t allocations; /* calls so far; does not grow inside a training step */
} dp_ledger;

/* ---- devices
 * -------------------------------------------------------------------------------------------------- */

typedef struct dp_device_properties {
    char name[96];         /* "AMD EPYC", "NVIDIA H200" */
    char bus_id[32];       /* PCI bus id, empty for CPU devices */
    char uuid[64];         /* empty for CPU devices */
    uint64_t memory_bytes; /* total memory of the hardware behind it */
    int multiprocessors;   /* SMs, or threads of a CPU device */
    int physical;          /* which hardware: the GPU's CUDA ordinal; 0 for CPU devices */
    bool shares_hardware;  /* other logical devices of this backend sit on the same hardware (cores or GPU) */
} dp_device_properties;

struct dp_device {
    dp_backend *backend;
    int id; /* logical id: K of cpu:K or cuda:K */
    dp_device_properties properties;
    dp_ledger ledger;
    uint64_t staged; /* bit i: transfers from and to device i go through host memory, whatever the hardware
                        can do. Set before the first peer_readable of the two. */
    bool dry;        /* memory is booked, but not taken: nothing can be run (see dp_memory_alloc) */
    void *state;     /* the backend's own */
};

/* ---- shapes and layouts
 * --------------------------------------------------------------------------------------- */

enum { DP_MAX_RANK = 4 };

/* dim[0] is the batch. Rank 2: [N, features]. Rank 4: [N, C, H, W]. */
typedef struct dp_shape {
    int rank;
    int64_t dim[DP_MAX_RANK];
} dp_shape;

int64_t dp_shape_elements(const dp_shape *shape);        /* all of it */
int64_t dp_shape_sample_elements(const dp_shape *shape); /* one sample: the product of dim[1..] */

/* How a float32 tensor lies in memory. Tag 0 is plain: row-major in the order of dp_shape. Any other tag
 * belongs to the backend (a blocked or channels-last order, perhaps padded) and means the same for all its
 * devices. */
typedef struct dp_layout {
    int tag;
    size_t bytes;
} dp_layout;

enum { DP_LAYOUT_PLAIN = 0 };

/* ---- operations
 * ----------------------------------------------------------------------------------------------- */

typedef enum dp_op_kind {
    DP_OP_LINEAR,     /* y = x W^T + b; x [N, in], W [out, in], b [out] */
    DP_OP_CONV2D,     /* cross-correlation; x [N, C, H, W], W [O, C, KH, KW], b [O] */
    DP_OP_RELU,       /* any rank */
    DP_OP_MAX_POOL2D, /* windows count no padding; the first maximum of a window gets the gradient */
    DP_OP_FLATTEN,    /* [N, C, H, W] to plain [N, C*H*W] */
    /* Per channel over N, H, W (Ioffe, Szegedy 2015): y = (x - mean) / sqrt(variance + epsilon) * weight +
     * bias
     * (+ in[1], if there are two inputs). A training op takes the chunk's own mean and (biased) variance and
     * moves the running ones towards them; any other takes the running ones. */
    DP_OP_BATCH_NORM2D,
    DP_OP_ADD,                 /* in[0] + in[1], equal shapes */
    DP_OP_CONCAT,              /* in[0] and in[1] along channels: [N, C0 + C1, H, W] */
    DP_OP_CONV_TRANSPOSE2D,    /* the gradient of a convolution; x [N, I, H, W], W [I, O, KH, KW], b [O] */
    DP_OP_UPSAMPLE2X,          /* bilinear, align_corners=False: [N, C, 2H, 2W] */
    DP_OP_ADAPTIVE_AVG_POOL2D, /* window i of n over size s: floor(i s / n) up to ceil((i + 1) s / n) */
    DP_OP_DROPOUT,             /* training: x / (1 - p) or, with probability p, 0; else the identity */
    DP_OP_DROPOUT2D,           /* whole channels of a sample at once */
    DP_OP_KINDS
} dp_op_kind;

const char *dp_op_kind_name(dp_op_kind kind);

enum { DP_OP_MAX_INPUTS = 2, DP_OP_MAX_PARAMS = 2, DP_OP_MAX_BUFFERS = 2 };

/* PyTorch's defaults for batch normalisation. running = (1 - momentum) * running + momentum * the chunk's; of
 * the variance the unbiased one. */
#define DP_BATCH_NORM_EPSILON  1e-5
#define DP_BATCH_NORM_MOMENTUM 0.1

/* An operation on given shapes. Parameters are plain float32 arrays in PyTorch's order: weight, then bias;
 * buffers, too: running mean, then running variance. */
typedef struct dp_op_desc {
    dp_op_kind kind;
    int inputs;
    dp_shape in[DP_OP_MAX_INPUTS];
    dp_shape out;
    int params; /* how many of weight, bias it has: 0, 1 or 2 */
    bool relu;  /* the output goes through max(0, .); all but FLATTEN, UPSAMPLE2X, ADAPTIVE_AVG_POOL2D, CONCAT
                   and the dropouts can do that on the way */
    int kernel[2], stride[2], padding[2]; /* CONV2D, CONV_TRANSPOSE2D, MAX_POOL2D: height, width */
    double probability;                   /* the dropouts: of a zero */
    int layer;                            /* the dropouts: which of the model's, from 0 (see dp_op_random) */
} dp_op_desc;

/* What the plan wants of an operation on one device. */
typedef struct dp_op_request {
    const dp_op_desc *desc;
    dp_layout in[DP_OP_MAX_INPUTS]; /* how the inputs will come */
    bool training;                  /* backward will be called */
    bool input_gradient[DP_OP_MAX_INPUTS];
    bool param_gradient[DP_OP_MAX_PARAMS];
    bool direct_convolution; /* never Winograd */
} dp_op_request;

/* What makes the dropouts' random numbers functions of (seed, step, sample, element) alone: element i (of
 * dropout2d: channel i) of sample s in a chunk is kept if dp_rng_uniform(seed, DP_RNG_DROPOUT, step,
 * first_sample + s, (layer << 40) + i) >= p, with i in the order of plain [C, H, W]. */
typedef struct dp_op_random {
    uint64_t seed;
    uint32_t step, first_sample; /* of the run; of the chunk within its batch */
} dp_op_random;

/* Filled by the backend's op_create; the plan allocates what it asks for and passes it back in dp_op_args. */
struct dp_op {
    const dp_backend *backend;
    dp_op_desc desc;
    dp_layout out;             /* how the output (and its gradient) lies */
    size_t workspace_bytes;    /* scratch, meaningless between calls */
    size_t saved_bytes;        /* written by forward, read by backward */
    bool backward_reads_input; /* backward needs in[0]; else its memory may be reused after forward */
    bool backward_reads_output;
    /* After backward, in_gradient[i] is what out_gradient then holds (an addition's share, masked in place by
     * a fused ReLU): the plan makes both one memory and passes in_gradient[i] = out_gradient, or NULL. Only
     * where the input's layout is the output's. */
    bool passes_gradient[DP_OP_MAX_INPUTS];
    void *state;
};

/* Memory of one call. All pointers are on the op's device and 64-byte aligned.
 * Backward may overwrite out_gradient (a fused ReLU masks it in place). in_gradient[i] is NULL where it
 * was not requested; so is param_gradient[i]. With accumulate, parameter gradients are added to what is
 * there, else overwritten; input gradients are always overwritten. */
typedef struct dp_op_args {
    const void *in[DP_OP_MAX_INPUTS];
    void *out;
    const float *param[DP_OP_MAX_PARAMS];
    void *out_gradient;
    void *in_gradient[DP_OP_MAX_INPUTS];
    float *param_gradient[DP_OP_MAX_PARAMS];
    bool accumulate;
    float *buffer[DP_OP_MAX_BUFFERS]; /* training: NULL where the running values are not kept (all replicas
                                         but the primary's) */
    const dp_op_random *random;       /* training with dropout; backward gets what forward got */
    void *workspace, *saved;
} dp_op_args;

/* ---- losses
 * --------------------------------------------------------------------------------------------------- */

typedef enum dp_criterion {
    DP_CROSS_ENTROPY,   /* logits [N, classes], labels int32 [N] */
    DP_BCE_WITH_LOGITS, /* any shape, targets float32 of the same shape; pos_weight weighs the positive term
                         */
    DP_MSE,
    DP_L1, /* gradient 0 where output equals target, as in PyTorch */
    DP_CRITERIA
} dp_criterion;

/* One pass over `samples` outputs (plain [samples, elements]): per-sample sums of the loss terms, and, if
 * gradient is not NULL, gradient = scale * d(sum of terms)/d(output). gradient may be output itself.
 * counts (may be NULL), per sample: what tells how good the outputs are. */
typedef struct dp_loss_counts {
    int32_t
        correct; /* CROSS_ENTROPY: 1 where the largest logit (the first of equals) is the label's, else 0;
                    BCE_WITH_LOGITS: outputs above 0 (a probability above 0.5) whose target is above 0.5 */
    int32_t predicted; /* BCE_WITH_LOGITS: outputs above 0 */
    int32_t actual;    /* BCE_WITH_LOGITS: targets above 0.5. All that is not said here is 0 */
} dp_loss_counts;

typedef struct dp_loss_args {
    dp_criterion criterion;
    int64_t samples, elements;
    const float *output;
    const void *target;
    float pos_weight, scale;
    float *sample_loss;
    dp_loss_counts *counts;
    float *gradient;
} dp_loss_args;

/* ---- gradient sum and update
 * ---------------------------------------------------------------------------------- */

typedef enum dp_optimizer_kind { DP_SGD, DP_ADAMW } dp_optimizer_kind;

enum { DP_MAX_DEVICES = 64 };

/* Over count floats: g = sources[0] + sources[1] + ... in that order (source_count >= 1), then PyTorch's
 * update of weight with g. All arrays are 64-byte aligned and readable from the device (its own memory or a
 * readable peer's). SGD:   g += weight_decay * w;  m = momentum * m + g;  w -= lr * (nesterov ? g + momentum
 * * m : m)   (m absent: g) AdamW: w *= 1 - lr * weight_decay;  m, v as usual;  w -= lr / bias1 * m / (sqrt(v)
 * / sqrt(bias2) + eps) nonfinite (a counter on the device) grows by at least one if any g is not finite. */
typedef struct dp_update_args {
    dp_optimizer_kind kind;
    int64_t count;
    int source_count;
    const float *const *sources;       /* host array, read before the call returns */
    float *weight, *moment1, *moment2; /* moment1: SGD's momentum buffer, NULL without momentum */
    float lr, momentum, weight_decay;
    bool nesterov;
    double beta1, beta2;     /* 1 - beta is taken before rounding to float32, as PyTorch does */
    float eps, bias1, bias2; /* AdamW; bias_i = 1 - beta_i^step */
    uint32_t *nonfinite;
    /* Where the backend's devices have one_memory: further places for the updated weights, written past the
     * caches. A host array, read before the call returns. */
    float *const *copies;
    int copy_count;
} dp_update_args;

/* ---- the table
 * ------------------------------------------------------------------------------------------------ */

/* Each function returns a status and describes a failure; names say what CUDA call they stand for. `device`
 * is NULL for host memory. */
typedef struct dp_backend_functions {
    const char *name; /* "cpu", "cuda" */
    bool one_memory;  /* every device reads and writes the memory of all as its own */

    /* Called first and last by the host thread that drives a device: cudaSetDevice; core binding. */
    dp_status (*device_enter)(dp_device *device, dp_error *err);
    void (*device_leave)(dp_device *device);

    dp_status (*memory_alloc)(dp_device *device, size_t bytes, void **out, dp_error *err);
    /* Waits for the device's own work: after a failure some that uses the memory may be queued. */
    void (*memory_free)(dp_device *device, void *pointer);
    dp_status (*host_alloc)(dp_backend *backend, size_t bytes, void **out,
                            dp_error *err); /* pinned, portable */
    void (*host_free)(dp_backend *backend, void *pointer);
    /* Free memory of the hardware behind a device, asked without touching it; false where nobody tells. May
     * be called by any thread. */
    bool (*free_bytes)(dp_device *device, uint64_t *bytes);

    dp_status (*stream_create)(dp_device *device, const char *name, void **out, dp_error *err);
    void (*stream_destroy)(dp_device *device, void *stream);
    dp_status (*stream_synchronize)(dp_device *device, void *stream, dp_error *err);

    dp_status (*event_create)(dp_device *device, void **out, dp_error *err); /* with timing */
    void (*event_destroy)(dp_device *device, void *event);
    dp_status (*event_record)(dp_device *device, void *event, void *stream, dp_error *err);
    dp_status (*stream_wait)(dp_device *device, void *stream, void *event, dp_error *err);
    /* Is the work before the event's last record done? May be called by any thread. */
    bool (*event_done)(dp_device *device, void *event);
    dp_status (*event_elapsed)(dp_device *device, void *start, void *end, double *seconds, dp_error *err);

    /* Could two devices on different hardware reach each other's memory? Asked without touching them. False
     * where there is nothing to reach: one and the same memory. */
    bool (*peer_possible)(dp_device *device, dp_device *peer);
    /* May kernels of `device` read the memory of `peer` directly? From the first time it was asked on, copies
     * of `device` from there take the direct way, too. */
    bool (*peer_readable)(dp_device *device, dp_device *peer);
    dp_status (*copy)(dp_device *device, void *stream, dp_device *to, void *destination, dp_device *from,
                      const void *source, size_t bytes, dp_error *err);
    dp_status (*fill_zero)(dp_device *device, void *stream, void *pointer, size_t bytes, dp_error *err);

    dp_status (*op_create)(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err);
    void (*op_destroy)(dp_device *device, dp_op *op);
    dp_status (*op_forward)(dp_device *device, dp_op *op, void *stream, const dp_op_args *args,
                            dp_error *err);
    dp_status (*op_backward)(dp_device *device, dp_op *op, void *stream, const dp_op_args *args,
                             dp_error *err);
    /* target += source: gradients of a value that several operations read. 64-byte aligned. */
    dp_status (*add)(dp_device *device, void *stream, float *target, const float *source, int64_t count,
                     dp_error *err);
    dp_status (*loss)(dp_device *device, void *stream, const dp_loss_args *args, dp_error *err);
    dp_status (*update)(dp_device *device, void *stream, const dp_update_args *args, dp_error *err);

    /* Named spans of the calling thread for profilers; they nest. NULL where no profiler would look. */
    void (*range_push)(const char *name);
    void (*range_pop)(void);

    void (*close)(dp_backend *backend);
} dp_backend_functions;

struct dp_backend {
    const dp_backend_functions *call;
    int device_count;
    dp_device *devices; /* device_count of them, owned by the backend */
    void *state;
};

/* ---- what the engine calls (device.c): the table, plus the ledger and the numbering of records
 * ---------------- */

struct dp_stream {
    dp_device *device;
    void *handle;
};

/* An event and the number of times it has been recorded. */
struct dp_event {
    dp_device *device;
    _Atomic uint64_t recorded;
    void *handle;
};

dp_status dp_device_enter(dp_device *device, dp_error *err);
void dp_device_leave(dp_device *device);

/* 64-byte aligned, not zeroed, booked under purpose. Freed with the same size and purpose. On a dry device
 * the address leads nowhere, and copies and fills do nothing. */
dp_status dp_memory_alloc(dp_device *device, dp_purpose purpose, size_t bytes, void *out_pointer,
                          dp_error *err);
void dp_memory_free(dp_device *device, dp_purpose purpose, size_t bytes, void *pointer);

dp_status dp_stream_create(dp_device *device, const char *name, dp_stream *out, dp_error *err);
void dp_stream_destroy(dp_stream *stream); /* harmless on one that was never created */
dp_status dp_stream_synchronize(dp_stream *stream, dp_error *err);

dp_status dp_event_create(dp_device *device, dp_event *out, dp_error *err);
void dp_event_destroy(dp_event *event); /* harmless on one that was never created */
dp_status dp_event_record(dp_event *event, dp_stream *stream, dp_error *err);
/* Work enqueued on stream from here on runs after record number `number` (from 1) of the event. `what` names
 * the edge for the message when that record has not been issued. */
dp_status dp_stream_wait(dp_stream *stream, dp_event *event, uint64_t number, const char *what,
                         dp_error *err);
/* Seconds between the last records of two events of one device, both complete. */
dp_status dp_event_elapsed(dp_event *start, dp_event *end, double *seconds, dp_error *err);

/* Copies on `stream` (of the device that drives the copy). A NULL device is host memory. */
dp_status dp_copy(dp_stream *stream, dp_device *to, void *destination, dp_device *from, const void *source,
                  size_t bytes, dp_error *err);
dp_status dp_fill_zero(dp_stream *stream, void *pointer, size_t bytes, dp_error *err);

/* Begins and ends a span of the calling thread that a profiler shows; free where the backend has none. */
void dp_range_push(const dp_device *device, const char *name);
void dp_range_pop(const dp_device *device);

/* Forgets the peaks of earlier users, if there is no memory in use now. */
void dp_ledger_restart(dp_ledger *ledger);

/* Copies a ledger's peaks by purpose into bytes[] and returns the peak of the total. */
uint64_t dp_ledger_peaks(const dp_ledger *ledger, uint64_t bytes[DP_MEM_PURPOSES]);

#endif
