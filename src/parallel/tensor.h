/* What scatter and gather of dptrain/tensor.h share. */
#ifndef DP_PARALLEL_TENSOR_H
#define DP_PARALLEL_TENSOR_H

#include <stdbool.h>

#include "base/error.h"
#include "dptrain/tensor.h"

/* A tensor seen along one dimension: `before` rows, each of the dimension's extent times `after` bytes. */
typedef struct dp_extent {
    size_t before, after;
} dp_extent;

/* Refuses a rank, an extent or a size in bytes that cannot be. `what` names the tensor for the message. */
dp_status dp_host_tensor_check(const dp_host_tensor *tensor, const char *what, dp_error *err);
/* The dimension that a number, perhaps negative, means. */
dp_status dp_host_tensor_dim(const dp_host_tensor *tensor, int dim, int *out, dp_error *err);
dp_extent dp_host_tensor_extent(const dp_host_tensor *tensor, int dim);

/* Copies between a chunk and the place of its first index along dim in the whole. */
void dp_host_tensor_copy_chunk(const dp_host_tensor *whole, const dp_host_tensor *chunk, int dim,
                               int64_t first, bool into_whole);

/* "[2, 3]"; returns buffer. */
char *dp_host_tensor_format_shape(const dp_host_tensor *tensor, char *buffer, size_t size);

#endif
