/* What the files of the CUDA backend share. */
#ifndef DP_CUDA_INTERNAL_H
#define DP_CUDA_INTERNAL_H

#include <pthread.h>

#include "check.h"
#include "conv_plan.h"
#include "device/device.h"

enum { DP_CUDA_MAX_GPUS = 64, DP_CUDA_ALIGNMENT = 256 };

/* dp_device.state. Used by the device's own thread alone after device_enter. */
typedef struct dp_cuda_device {
    char label[16]; /* "cuda:0" */
    int physical;
    int capability;      /* 10 * major + minor */
    cublasHandle_t blas; /* created by the first operation that needs it, destroyed by device_leave */
    cudnnHandle_t dnn;
    cudaStream_t *streams; /* the device's own, while they exist */
    int stream_count;
    enum { DP_CUDA_NOT_ASKED, DP_CUDA_READABLE, DP_CUDA_NOT_READABLE } peers[DP_CUDA_MAX_GPUS];
} dp_cuda_device;

/* Which engine computes a convolution, chosen by the first replica that has this shape. */
typedef struct dp_cuda_conv_entry {
    dp_conv_shape shape;
    int capability, multiprocessors;
    dp_conv_choice choice;
} dp_cuda_conv_entry;

/* dp_backend.state */
typedef struct dp_cuda_backend {
    bool allow_tf32;
    bool mutex_exists;
    pthread_mutex_t mutex; /* guards what follows */
    bool entered[DP_CUDA_MAX_GPUS];
    int first_entered; /* a GPU that may be used for pinned memory; -1: none yet */
    struct dp_cuda_nvml *nvml;
    bool nvml_tried;
    dp_cuda_conv_entry *convs;
    int conv_count;
} dp_cuda_backend;

/* dp_op.state begins with this. */
typedef struct dp_cuda_op {
    dp_status (*forward)(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                         dp_error *err);
    dp_status (*backward)(dp_device *device, dp_op *op, cudaStream_t stream, const dp_op_args *args,
                          dp_error *err);
    void (*destroy)(struct dp_cuda_op *op);
} dp_cuda_op;

static inline dp_cuda_device *dp_cuda_state(const dp_device *device)
{
    return (dp_cuda_device *)device->state;
}

/* Where a part of the workspace begins: the libraries want 256 bytes, the contract promises 64. Whoever uses
 * it asks for DP_CUDA_ALIGNMENT bytes more than it needs. */
static inline char *dp_cuda_align(void *workspace)
{
    uintptr_t mask = DP_CUDA_ALIGNMENT - 1;
    return (char *)(((uintptr_t)workspace + mask) & ~mask);
}

static inline size_t dp_cuda_round_up(size_t bytes)
{
    return (bytes + DP_CUDA_ALIGNMENT - 1) / DP_CUDA_ALIGNMENT * DP_CUDA_ALIGNMENT;
}

/* runtime.c: memory, streams, events, copies. */
dp_status dp_cuda_device_enter(dp_device *device, dp_error *err);
void dp_cuda_device_leave(dp_device *device);
dp_status dp_cuda_memory_alloc(dp_device *device, size_t bytes, void **out, dp_error *err);
void dp_cuda_memory_free(dp_device *device, void *pointer);
dp_status dp_cuda_host_alloc(dp_backend *backend, size_t bytes, void **out, dp_error *err);
void dp_cuda_host_free(dp_backend *backend, void *pointer);
dp_status dp_cuda_stream_create(dp_device *device, const char *name, void **out, dp_error *err);
void dp_cuda_stream_destroy(dp_device *device, void *stream);
dp_status dp_cuda_stream_synchronize(dp_device *device, void *stream, dp_error *err);
dp_status dp_cuda_event_create(dp_device *device, void **out, dp_error *err);
void dp_cuda_event_destroy(dp_device *device, void *event);
dp_status dp_cuda_event_record(dp_device *device, void *event, void *stream, dp_error *err);
dp_status dp_cuda_stream_wait(dp_device *device, void *stream, void *event, dp_error *err);
bool dp_cuda_event_done(dp_device *device, void *event);
dp_status dp_cuda_event_elapsed(dp_device *device, void *start, void *end, double *seconds, dp_error *err);
dp_status dp_cuda_copy(dp_device *device, void *stream, dp_device *to, void *destination, dp_device *from,
                       const void *source, size_t bytes, dp_error *err);
dp_status dp_cuda_fill_zero(dp_device *device, void *stream, void *pointer, size_t bytes, dp_error *err);

/* nvml.c */
bool dp_cuda_free_bytes(dp_device *device, uint64_t *bytes);
void dp_cuda_nvml_close(struct dp_cuda_nvml *nvml); /* NULL is fine */

/* peer.c */
bool dp_cuda_peer_possible(dp_device *device, dp_device *peer);
bool dp_cuda_peer_readable(dp_device *device, dp_device *peer);

/* gemm.c: C = op(A) op(B) + beta C for column-major matrices, op(A) m x k, op(B) k x n. All sizes fit an int
 * (see dp_cuda_gemm_fits). workspace: dp_cuda_gemm_workspace(m, n) bytes. */
typedef struct dp_cuda_gemm {
    bool transpose_a, transpose_b;
    int64_t m, n, k;
    const float *a, *b;
    int64_t row_a, row_b, row_c; /* leading dimensions */
    float beta;
    float *c;
} dp_cuda_gemm;

bool dp_cuda_gemm_fits(int64_t size);
size_t dp_cuda_gemm_workspace(int64_t m, int64_t n);
dp_status dp_cuda_gemm_open(dp_device *device, dp_error *err); /* before the first product */
dp_status dp_cuda_gemm_run(dp_device *device, cudaStream_t stream, const dp_cuda_gemm *gemm, void *workspace,
                           dp_error *err);

/* elementwise.c: for operations whose state is the callbacks alone, or is freed by dp_free. what names the
 * operation when memory runs out. */
dp_status dp_cuda_plain_create(dp_cuda_op callbacks, const char *what, dp_op *out, dp_error *err);
void dp_cuda_plain_destroy(dp_cuda_op *op);
/* Kernels that count elements in an int: DP_ERROR_USAGE if a tensor of the shape has too many. */
dp_status dp_cuda_check_size(const dp_device *device, const char *what, const dp_shape *shape, dp_error *err);

/* Operations: fill out->state, sizes and flags. */
dp_status dp_cuda_linear_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err);
dp_status dp_cuda_conv2d_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err);
dp_status dp_cuda_relu_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err);
dp_status dp_cuda_pool_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err);
dp_status dp_cuda_flatten_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err);
dp_status dp_cuda_batch_norm_create(dp_device *device, const dp_op_request *request, dp_op *out,
                                    dp_error *err);
dp_status dp_cuda_add_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err);
dp_status dp_cuda_concat_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err);
dp_status dp_cuda_upsample_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err);
dp_status dp_cuda_average_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err);
dp_status dp_cuda_dropout_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err);

/* join.c: gradients of a value with several readers. */
dp_status dp_cuda_add(dp_device *device, void *stream, float *target, const float *source, int64_t count,
                      dp_error *err);

/* loss_update.c */
dp_status dp_cuda_loss(dp_device *device, void *stream, const dp_loss_args *args, dp_error *err);
dp_status dp_cuda_update(dp_device *device, void *stream, const dp_update_args *args, dp_error *err);

#endif
