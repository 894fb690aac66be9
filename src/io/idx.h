/* MNIST's IDX format (http://yann.lecun.com/exdb/mnist), raw or gzip-compressed: unsigned bytes only, which
 * is all that MNIST-like sets use. */
#ifndef DP_IO_IDX_H
#define DP_IO_IDX_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct dp_idx {
    int rank;
    int64_t shape[4];
    size_t bytes;
    uint8_t *data; /* owner: the caller, dp_idx_clear */
} dp_idx;

/* Reads the whole file; gzip is recognised by its first bytes. DP_ERROR_IO with the path and what is wrong.
 */
dp_status dp_idx_read(const char *path, dp_idx *out, dp_error *err);
/* The same from memory (for fuzzing). */
dp_status dp_idx_parse(const void *bytes, size_t size, const char *name, dp_idx *out, dp_error *err);
void dp_idx_clear(dp_idx *idx);

#endif
