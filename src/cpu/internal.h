/* What the files of the CPU backend share. */
#ifndef DP_CPU_INTERNAL_H
#define DP_CPU_INTERNAL_H

#include <sched.h>

#include "cpu/onednn.h"
#include "device/device.h"

/* dp_device.state: one per device, used by the device's own thread alone after device_enter. */
typedef struct dp_cpu_device {
    int threads;      /* of the device, its own thread included */
    bool pinned;      /* cores are the device's alone */
    cpu_set_t cores;  /* where pinned */
    cpu_set_t before; /* the thread's cores before device_enter */
    dp_dnnl *dnnl;
} dp_cpu_device;

/* dp_op.state starts with this. Every op fills all functions. */
typedef struct dp_cpu_op {
    dp_status (*forward)(dp_op *op, const dp_op_args *args, dp_error *err);
    dp_status (*backward)(dp_op *op, const dp_op_args *args, dp_error *err);
    void (*destroy)(struct dp_cpu_op *op); /* frees the op itself */
    dp_cpu_device *device;
    size_t in_bytes[DP_OP_MAX_INPUTS];
    size_t param_bytes[DP_OP_MAX_PARAMS];
} dp_cpu_op;

/* One per kind of operation. Each fills *out, whose desc, backend and out (plain) are already there; the
 * state's common part is filled by the caller. */
dp_status dp_cpu_linear_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out,
                               dp_error *err);
dp_status dp_cpu_conv2d_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out,
                               dp_error *err);
dp_status dp_cpu_relu_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out, dp_error *err);
dp_status dp_cpu_pool_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out, dp_error *err);
dp_status dp_cpu_flatten_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out,
                                dp_error *err);
dp_status dp_cpu_batch_norm_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out,
                                   dp_error *err);
dp_status dp_cpu_add_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out, dp_error *err);
dp_status dp_cpu_concat_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out,
                               dp_error *err);
dp_status dp_cpu_deconv2d_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out,
                                 dp_error *err);
dp_status dp_cpu_upsample_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out,
                                 dp_error *err);
dp_status dp_cpu_average_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out,
                                dp_error *err);
dp_status dp_cpu_dropout_create(dp_cpu_device *device, const dp_op_request *request, dp_op *out,
                                dp_error *err); /* both kinds */

/* The destroy of an op that owns nothing else. */
void dp_cpu_op_free(dp_cpu_op *op);

/* Labels outside the classes: DP_ERROR_MISMATCH, nothing written. */
dp_status dp_cpu_loss(int threads, const dp_loss_args *args, dp_error *err);
void dp_cpu_update(int threads, const dp_update_args *args);

/* Calls body(context, begin, end) for contiguous parts of [0, count), one for each thread at most and none
 * smaller than grain (but the only one). With one thread it is a plain call: OpenMP is never entered. */
void dp_cpu_for(int threads, int64_t count, int64_t grain,
                void (*body)(const void *context, int64_t begin, int64_t end), const void *context);

/* Gradients of a fused ReLU: gradient = output > 0 ? gradient : 0, in place (NaN outputs let it pass). */
void dp_cpu_relu_mask(int threads, int64_t count, const float *output, float *gradient);

/* Copies past the caches, by the calling thread, which ends any number of them with the second call before
 * anyone is told that they are there. Source and destination do not overlap. */
void dp_cpu_stream(void *destination, const void *source, size_t bytes);
void dp_cpu_stream_end(void);

/* target += source, by all threads. */
void dp_cpu_add(int threads, int64_t count, const float *source, float *target);

/* target = source, or target += source, by the calling thread. */
void dp_cpu_store(int64_t count, const float *source, float *target, bool accumulate);

static inline size_t dp_align64(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Adds a part to a block of memory, such as the workspace, and returns its offset. */
static inline size_t dp_cpu_reserve(size_t *total, size_t bytes)
{
    size_t at = *total;
    *total += dp_align64(bytes);
    return at;
}

#endif
