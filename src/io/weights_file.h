/* A file of named tensors, safetensors or PyTorch's: which one it is, its first bytes say. */
#ifndef DP_IO_WEIGHTS_FILE_H
#define DP_IO_WEIGHTS_FILE_H

#include <stdbool.h>

#include "base/error.h"
#include "io/safetensors.h"

typedef struct dp_weights_file dp_weights_file;

/* Reads and checks the whole file. DP_ERROR_IO with its name and what is wrong. Owner: the caller. */
dp_status dp_weights_file_open(const char *path, dp_weights_file **out, dp_error *err);
void dp_weights_file_close(dp_weights_file *file); /* NULL is fine */

bool dp_weights_file_is_torch(const dp_weights_file *file);
int dp_weights_file_count(const dp_weights_file *file);
const dp_tensor *dp_weights_file_at(const dp_weights_file *file, int index);
/* NULL if absent, as always in PyTorch's files. */
const char *dp_weights_file_metadata(const dp_weights_file *file, const char *key);

#endif
