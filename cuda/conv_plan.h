/* Convolutions through cuDNN's graph API: from a shape to an execution plan.
 *
 * Only engines that always give the same bits are taken, and, unless TF32 is allowed, only those that
 * multiply whole float32 numbers. Planning needs a handle, or, without any GPU, a description of one. */
#ifndef DP_CUDA_CONV_PLAN_H
#define DP_CUDA_CONV_PLAN_H

#include <cudnn.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "device/device.h"

typedef enum dp_conv_kind {
    DP_CONV_FORWARD, /* y from x and w */
    DP_CONV_DATA,    /* dx from w and dy */
    DP_CONV_FILTER,  /* dw from x and dy */
    DP_CONV_KINDS
} dp_conv_kind;

/* Tensors are float32, row-major, 16-byte aligned. Compared byte by byte: begin with all zeros. */
typedef struct dp_conv_shape {
    int64_t x[4], w[4], y[4]; /* [N, C, H, W], [O, C, KH, KW], [N, O, OH, OW] */
    int64_t padding[2], stride[2];
    int64_t kind, allow_tf32, direct; /* direct: neither Winograd nor FFT. No padding between the members */
} dp_conv_shape;

/* Of a CONV2D; or, of a CONV_TRANSPOSE2D, that of the convolution whose transpose it is. kind, allow_tf32 and
 * direct are 0. */
dp_conv_shape dp_conv_shape_of(const dp_op_desc *desc);

/* An engine and its settings, as a place in the list that cuDNN's heuristics give. The same place means the
 * same for all devices of one kind. */
typedef struct dp_conv_choice {
    int round, position;
    int64_t engine; /* its number in cuDNN; -1: none chosen yet */
} dp_conv_choice;

/* Where to plan for: one of handle and properties is NULL. label names the device in messages. */
typedef struct dp_conv_target {
    const char *label;
    cudnnHandle_t handle;
    cudnnBackendDescriptor_t properties;
} dp_conv_target;

typedef struct dp_conv_plan dp_conv_plan;

/* Takes the engine of *choice, or, where choice->engine is -1 (or the list has another one there), the first
 * that fits, and writes it to *choice. Owner: the caller, who frees it with dp_conv_plan_free. */
dp_status dp_conv_plan_create(const dp_conv_target *target, const dp_conv_shape *shape,
                              dp_conv_choice *choice, dp_conv_plan **out, dp_error *err);
void dp_conv_plan_free(dp_conv_plan *plan); /* NULL is fine */
size_t dp_conv_plan_workspace(const dp_conv_plan *plan);
/* What cuDNN says of the engine's arithmetic: bit n for cudnnBackendNumericalNote_t n. */
uint32_t dp_conv_plan_notes(const dp_conv_plan *plan);

/* Enqueues the convolution on the handle's stream. One of x, w, y is written, by the plan's kind. */
dp_status dp_conv_plan_execute(dp_conv_plan *plan, cudnnHandle_t handle, const void *x, const void *w,
                               const void *y, void *workspace, dp_error *err);

#endif
