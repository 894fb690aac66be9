/* The safetensors format: 8 bytes of little-endian header length, a JSON header, the tensors' bytes.
 * https://github.com/huggingface/safetensors describes it. The reader trusts nothing: lengths, offsets (in
 * range, not overlapping, without holes), dtypes, shapes and duplicate names are checked before a tensor is
 * used. */
#ifndef DP_IO_SAFETENSORS_H
#define DP_IO_SAFETENSORS_H

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

typedef struct dp_metadata {
    char *key, *value;
} dp_metadata;

typedef struct dp_safetensors dp_safetensors;

/* Reads and checks the file. DP_ERROR_IO with the file's name and what is wrong. Owner: the caller. */
dp_status dp_safetensors_open(const char *path, dp_safetensors **out, dp_error *err);
/* Reads and checks the header alone; contents stay in the file (which may be larger than memory) and are to
 * be had with dp_safetensors_read. */
dp_status dp_safetensors_open_header(const char *path, dp_safetensors **out, dp_error *err);
/* n bytes of a tensor's contents from byte `first` on. Any number of threads at once. DP_ERROR_IO also where
 * the file has become shorter since. */
dp_status dp_safetensors_read(const dp_safetensors *file, const dp_tensor *tensor, size_t first, void *out,
                              size_t n, dp_error *err);
/* The same from memory, which must outlive the result (for fuzzing). `name` stands for the path in messages.
 */
dp_status dp_safetensors_parse(const void *bytes, size_t size, const char *name, dp_safetensors **out,
                               dp_error *err);
void dp_safetensors_close(dp_safetensors *file); /* NULL is fine */

int dp_safetensors_count(const dp_safetensors *file);
const dp_tensor *dp_safetensors_at(const dp_safetensors *file, int index); /* in order of their data */
const dp_tensor *dp_safetensors_find(const dp_safetensors *file, const char *name); /* NULL if absent */
const char *dp_safetensors_metadata(const dp_safetensors *file, const char *key);   /* NULL if absent */

/* Element i as a float, whatever the dtype (F16 and BF16 included). */
float dp_tensor_float(const dp_tensor *tensor, int64_t i);
/* Element i of an integer or bool tensor. */
int64_t dp_tensor_int(const dp_tensor *tensor, int64_t i);

/* Writes tensors and metadata to path: to a temporary file beside it, synced, then renamed over it, so that
 * path is whole or as it was. Header keys keep the given order; data is padded so that it starts at a
 * multiple of 8. */
dp_status dp_safetensors_write(const char *path, const dp_tensor *tensors, int count,
                               const dp_metadata *metadata, int metadata_count, dp_error *err);

/* Contents that are not all in memory at once: fetch gives those of tensor `index`, which stay valid until it
 * is called again. */
typedef struct dp_tensor_source {
    dp_status (*fetch)(void *user, int index, const void **data, dp_error *err);
    void *user;
} dp_tensor_source;

/* The contents of tensor `index`: its data, or from the source where that is NULL. */
dp_status dp_tensor_contents(const dp_tensor *tensors, int index, const dp_tensor_source *source,
                             const void **data, dp_error *err);
/* dp_safetensors_write, with the contents of tensors whose data are NULL fetched one after the other. */
dp_status dp_safetensors_write_from(const char *path, const dp_tensor *tensors, int count,
                                    const dp_tensor_source *source, const dp_metadata *metadata,
                                    int metadata_count, dp_error *err);

#endif
