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
/* y = a + b, through max(0, .) if relu */
cudaError_t dp_sum(cudaStream_t stream, const float *a, const float *b, bool relu, float *y, int64_t count);

/* ---- batch_norm.cu ---- */

/* x, more (a second input, or NULL) and y are [batch, channels, plane]; weight and bias, which may be NULL,
 * and the running values are [channels]. running = rest * running + momentum * the batch's. batch * plane may
 * not exceed 2^30. */
typedef struct dp_batch_norm_shape {
    int64_t batch, channels, plane;
    float epsilon, momentum, rest;
    bool relu;
} dp_batch_norm_shape;

/* Blocks that share a channel; channels times that must not exceed INT_MAX. partial has two floats for each
 * of them and of the channels, saved two for each channel. */
int64_t dp_batch_norm_pieces(const dp_batch_norm_shape *shape);
/* By the batch's own moments. saved and, together, the running values may be NULL. */
cudaError_t dp_batch_norm_train(cudaStream_t stream, const dp_batch_norm_shape *shape, const float *x,
                                const float *more, const float *weight, const float *bias, float *y,
                                float *partial, float *saved, float *running_mean, float *running_variance);
cudaError_t dp_batch_norm_infer(cudaStream_t stream, const dp_batch_norm_shape *shape, const float *x,
                                const float *more, const float *weight, const float *bias, float *y,
                                const float *running_mean, const float *running_variance);
/* saved is what the training pass wrote. gate is y where a second input and ReLU come together, else NULL;
 * then dy = 0 where gate <= 0, in place. dx, dweight and dbias may be NULL; the last two (+)= . */
cudaError_t dp_batch_norm_backward(cudaStream_t stream, const dp_batch_norm_shape *shape, const float *x,
                                   const float *gate, const float *saved, const float *weight,
                                   const float *bias, float *dy, float *partial, float *dx, bool accumulate,
                                   float *dweight, float *dbias);

/* ---- concat.cu ---- */

/* out, [samples, a_size + b_size], from [samples, a_size] and [samples, b_size], and back; in the second a or
 * b may be NULL. */
cudaError_t dp_concat(cudaStream_t stream, const float *a, const float *b, float *out, int64_t samples,
                      int64_t a_size, int64_t b_size);
cudaError_t dp_split(cudaStream_t stream, const float *from, float *a, float *b, int64_t samples,
                     int64_t a_size, int64_t b_size);

/* ---- resample.cu ---- */

/* Bilinear to twice the size, corners not aligned: y is [planes, 2 height, 2 width]. Elements of x: at most
 * INT_MAX. */
cudaError_t dp_upsample2x_forward(cudaStream_t stream, const float *x, float *y, int64_t planes, int height,
                                  int width);
cudaError_t dp_upsample2x_backward(cudaStream_t stream, const float *dy, float *dx, int64_t planes,
                                   int height, int width);

/* Means over windows: that of output i of n over size s begins at floor(i s / n) and ends before
 * ceil((i + 1) s / n). Elements of x and of y: at most INT_MAX. */
typedef struct dp_average_shape {
    int64_t planes;
    int in[2], out[2];
} dp_average_shape;

cudaError_t dp_average_forward(cudaStream_t stream, const dp_average_shape *shape, const float *x, float *y);
cudaError_t dp_average_backward(cudaStream_t stream, const dp_average_shape *shape, const float *dy,
                                float *dx);

/* ---- dropout.cu ---- */

/* Philox4x32-10 as in base/rng.c: the key is the seed; word i % 4 of block i / 4 belongs to element i. An
 * element is kept, times scale, if the upper 24 bits of its word are at least threshold. */
typedef struct dp_dropout_parameters {
    uint64_t seed;
    uint64_t first_element; /* of each sample, a multiple of 4 */
    uint32_t purpose, step, first_sample, threshold;
    float scale;
    int64_t samples, elements,
        repeat; /* each number serves `repeat` neighbours: [samples, elements, repeat] */
} dp_dropout_parameters;

/* y may be x. samples * elements * repeat: at most INT_MAX. */
cudaError_t dp_dropout(cudaStream_t stream, const dp_dropout_parameters *parameters, const float *x,
                       float *y);

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

typedef struct dp_sample_counts { /* dp_loss_counts of device.h */
    int32_t correct, predicted, actual;
} dp_sample_counts;

typedef struct dp_loss_parameters {
    dp_loss_rule rule;
    int64_t samples, elements;
    const float *output;
    const void *target; /* int32 [samples] or float [samples, elements] */
    float pos_weight, scale;
    float *sample_loss;
    dp_sample_counts *counts; /* may be NULL */
    float *gradient;          /* may be NULL, may be output */
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
