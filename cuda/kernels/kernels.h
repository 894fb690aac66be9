/* Launchers of the kernels. Each enqueues on the stream of the current device and returns what the launch
 * returned. Pointers are of that device (sources of an update: or readable from it) and 64-byte aligned.
 *
 * Read by C and by C++ (nvcc), so it includes nothing of the library. */
#ifndef DP_CUDA_KERNELS_KERNELS_H
#define DP_CUDA_KERNELS_KERNELS_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- elementwise.cu ---- */

cudaError_t dp_relu_forward(cudaStream_t stream, const float *x, float *y, int64_t count);
/* target = gate <= 0 ? 0 : source; target may be source. */
cudaError_t dp_gate(cudaStream_t stream, const float *gate, const float *source, float *target,
                    int64_t count);
/* target += source */
cudaError_t dp_add(cudaStream_t stream, const float *source, float *target, int64_t count);

/* ---- bias.cu ---- */

/* y + bias, through max(0, .) if relu; in place; bias may be NULL. planes: y is [batch, channels, plane] and
 * bias [channels]; columns: y is [rows, columns] and bias [columns]. */
cudaError_t dp_bias_planes(cudaStream_t stream, float *y, const float *bias, bool relu, int64_t batch,
                           int64_t channels, int64_t plane);
cudaError_t dp_bias_columns(cudaStream_t stream, float *y, const float *bias, bool relu, int64_t rows,
                            int64_t columns);

/* The gradient of the bias in two stages with a fixed order of additions. The first: dy = 0 where gate <= 0
 * (gate may be NULL), in place, and partial sums of it: one for each plane, or for each group of rows and
 * column ([groups, columns], groups = dp_bias_gradient_groups(rows)). The second: target (+)= the sums of
 * partial, [rows, columns], down its columns. */
cudaError_t dp_bias_gradient_planes(cudaStream_t stream, float *dy, const float *gate, float *partial,
                                    int64_t planes, int64_t plane);
int64_t dp_bias_gradient_groups(int64_t rows);
cudaError_t dp_bias_gradient_columns(cudaStream_t stream, float *dy, const float *gate, float *partial,
                                     int64_t rows, int64_t columns);
cudaError_t dp_bias_gradient_finish(cudaStream_t stream, const float *partial, int64_t rows, int64_t columns,
                                    bool accumulate, float *target);

/* ---- pooling.cu ---- */

typedef struct dp_pool_shape {
    int64_t planes; /* batch * channels */
    int in[2], out[2], kernel[2], stride[2], padding[2];
    bool relu;
} dp_pool_shape;

/* positions: where in its window each maximum was, dp_max_pool_position_bytes of it per output; NULL: not
 * kept. */
size_t dp_max_pool_position_bytes(const dp_pool_shape *shape);
cudaError_t dp_max_pool_forward(cudaStream_t stream, const dp_pool_shape *shape, const float *x, float *y,
                                void *positions);
cudaError_t dp_max_pool_backward(cudaStream_t stream, const dp_pool_shape *shape, const float *dy,
                                 const void *positions, float *dx);

/* ---- loss.cu ---- */

typedef enum dp_loss_rule {
    DP_RULE_CROSS_ENTROPY,
    DP_RULE_BCE_WITH_LOGITS,
    DP_RULE_SQUARED,
    DP_RULE_ABSOLUTE
} dp_loss_rule;

typedef struct dp_loss_parameters {
    dp_loss_rule rule;
    int64_t samples, elements;
    const float *output;
    const void *target; /* int32 [samples] or float [samples, elements] */
    float pos_weight, scale;
    float *sample_loss;
    int32_t *correct; /* may be NULL */
    float *gradient;  /* may be NULL, may be output */
} dp_loss_parameters;

cudaError_t dp_loss_launch(cudaStream_t stream, const dp_loss_parameters *parameters);

/* ---- update.cu ---- */

enum { DP_UPDATE_MAX_SOURCES = 64 };

typedef struct dp_update_parameters {
    const float *source[DP_UPDATE_MAX_SOURCES]; /* added in this order */
    int64_t count;
    int source_count;
    bool adamw, nesterov;
    float *weight, *moment1, *moment2; /* moment1: NULL for SGD without momentum */
    uint32_t *nonfinite;               /* grows where a sum is not finite */
    float lr, momentum, weight_decay;  /* SGD */
    float keep, rest1, beta2, rest2, step, root,
        eps; /* AdamW: w = keep w - step m / (sqrt(v) / root + eps) */
} dp_update_parameters;

cudaError_t dp_update_launch(cudaStream_t stream, const dp_update_parameters *parameters);

#ifdef __cplusplus
}
#endif

#endif
