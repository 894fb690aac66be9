/* Tensors as files of weights hold them, whatever the format. */
#ifndef DP_IO_TENSOR_H
#define DP_IO_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef enum dp_dtype {
    DP_F32,
    DP_F64,
    DP_F16,
    DP_BF16,
    DP_I64,
    DP_I32,
    DP_I16,
    DP_I8,
    DP_U8,
    DP_BOOL,
    DP_DTYPES
} dp_dtype;
size_t dp_dtype_size(dp_dtype dtype);
const char *dp_dtype_name(dp_dtype dtype); /* "F32" */

enum { DP_TENSOR_MAX_RANK = 8 };

typedef struct dp_tensor {
    char *name;
    dp_dtype dtype;
    int rank; /* 0 for a scalar */
    int64_t shape[DP_TENSOR_MAX_RANK];
    int64_t elements;
    size_t bytes;
    const void *data; /* reading: the contents (aligned to 1 byte only: copy with memcpy); NULL where they
                         stay in the file */
    size_t offset;    /* reading: of the contents among those of all tensors */
} dp_tensor;

/* Sets elements and bytes from shape and dtype; false if an extent is negative, or if they do not fit into 63
 * bits. */
bool dp_tensor_measure(dp_tensor *tensor);

/* Element i as a float, whatever the dtype (F16 and BF16 included). */
float dp_tensor_float(const dp_tensor *tensor, int64_t i);
/* Element i of an integer or bool tensor. */
int64_t dp_tensor_int(const dp_tensor *tensor, int64_t i);

/* Contents that are not all in memory at once: fetch gives those of tensor `index`, which stay valid until it
 * is called again. */
typedef struct dp_tensor_source {
    dp_status (*fetch)(void *user, int index, const void **data, dp_error *err);
    void *user;
} dp_tensor_source;

/* The contents of tensor `index`: its data, or from the source where that is NULL. */
dp_status dp_tensor_contents(const dp_tensor *tensors, int index, const dp_tensor_source *source,
                             const void **data, dp_error *err);
#endif
