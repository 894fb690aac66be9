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
#include "io/tensor.h"

typedef struct dp_metadata {
    char *key, *value;
} dp_metadata;

typedef struct dp_safetensors dp_safetensors;

/* Do the bytes begin like a safetensors file, whole or cut off? */
bool dp_safetensors_recognises(const void *bytes, size_t size);
/* Reads and checks the file. DP_ERROR_IO with the file's name and what is wrong. Owner: the caller. */
dp_status dp_safetensors_open(const char *path, dp_safetensors **out, dp_error *err);
/* Reads and checks the header alone; contents stay in the file (which may be larger than memory) and are to
 * be had with dp_safetensors_read. */
dp_status dp_safetensors_open_header(const char *path, dp_safetensors **out, dp_error *err);
/* dp_safetensors_open of what is in memory, which must outlive the result (for fuzzing). `name` stands for
 * the path in messages.
 */
dp_status dp_safetensors_parse(const void *bytes, size_t size, const char *name, dp_safetensors **out,
                               dp_error *err);
/* Continues a CRC-32 (zlib's) with the contents of all tensors, of a file whose header alone was read. */
dp_status dp_safetensors_checksum(const dp_safetensors *file, uint32_t *crc, dp_error *err);
/* n bytes of a tensor's contents from byte `first` on. Any number of threads at once. DP_ERROR_IO also where
 * the file has become shorter since. */
dp_status dp_safetensors_read(const dp_safetensors *file, const dp_tensor *tensor, size_t first, void *out,
                              size_t n, dp_error *err);
void dp_safetensors_close(dp_safetensors *file); /* NULL is fine */

int dp_safetensors_count(const dp_safetensors *file);
const dp_tensor *dp_safetensors_at(const dp_safetensors *file, int index); /* in order of their data */
const dp_tensor *dp_safetensors_find(const dp_safetensors *file, const char *name); /* NULL if absent */
const char *dp_safetensors_metadata(const dp_safetensors *file, const char *key);   /* NULL if absent */

/* Writes tensors and metadata to path: to a temporary file beside it, synced, then renamed over it, so that
 * path is whole or as it was. Header keys keep the given order; data is padded so that it starts at a
 * multiple of 8. */
dp_status dp_safetensors_write(const char *path, const dp_tensor *tensors, int count,
                               const dp_metadata *metadata, int metadata_count, dp_error *err);

/* dp_safetensors_write, with the contents of tensors whose data are NULL fetched one after the other. */
dp_status dp_safetensors_write_from(const char *path, const dp_tensor *tensors, int count,
                                    const dp_tensor_source *source, const dp_metadata *metadata,
                                    int metadata_count, dp_error *err);

#endif
