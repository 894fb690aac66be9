/* Scatter and gather of tensors in host memory, along any dimension. UNSTABLE: may change in any version.
 *
 *     // Cuts [4, 6] into [4, 2], [4, 2], [4, 2] along dimension 1, for three devices, and joins them again.
 *     dp_status example(float whole[24], float copy[24], dp_error *err)
 *     {
 *         float a[8], b[8], c[8];
 *         dp_host_tensor x = {.rank = 2, .shape = {4, 6}, .element_bytes = sizeof(float), .data = whole};
 *         dp_host_tensor y = {.data = copy}, parts[3] = {{.data = a}, {.data = b}, {.data = c}};
 *         int64_t sizes[3];
 *         dp_split_batch(DP_SPLIT_CHUNK, NULL, 3, 6, sizes);
 *         dp_status status = dp_scatter(&x, 1, 3, sizes, parts, err);
 *         return status == DP_OK ? dp_gather(parts, 3, 1, &y, err) : status;
 *     }
 */
#ifndef DPTRAIN_TENSOR_H
#define DPTRAIN_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "dptrain/engine.h"
#include "dptrain/status.h"

DP_BEGIN_DECLARATIONS

enum { DP_HOST_TENSOR_MAX_RANK = 8 };

/* A dense array in row-major order. Owner of the data: whoever made it. */
typedef struct dp_host_tensor {
    int rank; /* 0: a scalar */
    int64_t shape[DP_HOST_TENSOR_MAX_RANK];
    size_t element_bytes;
    void *data;
} dp_host_tensor;

/* Cuts `whole` along a dimension (negative: counted from the last, as in PyTorch) into `count` chunks of the
 * given sizes, which add up to its extent there; 0 is a size like any other. dp_split_batch gives
 * torch.chunk's sizes. Fills in rank, shape and element_bytes of every chunk and copies the elements to where
 * its data points, without touching `whole`; a chunk whose data is NULL gets its shape alone, so a first call
 * can tell how much memory a second one needs. Neither may overlap the other.
 * DP_ERROR_USAGE: a scalar, a dimension that is not there, sizes that do not add up, a malformed tensor. */
dp_status dp_scatter(const dp_host_tensor *whole, int dim, int count, const int64_t *sizes,
                     dp_host_tensor *chunks, dp_error *err);

/* The reverse: lays `count` chunks, which agree in all but the extent of that dimension, side by side in
 * `whole`, whose rank, shape and element_bytes are filled in; with whole->data NULL, these alone. Scalars
 * become a vector of `count` (dimension 0 only), as torch.nn.parallel.gather does with a warning.
 * DP_ERROR_USAGE: nothing to gather, chunks that do not fit (naming the first), a dimension that is not
 * there. */
dp_status dp_gather(const dp_host_tensor *chunks, int count, int dim, dp_host_tensor *whole, dp_error *err);

DP_END_DECLARATIONS

#endif
