/* PyTorch's .pt and .pth files: the zip archives of torch.save since 1.6, and the sequence of pickles before
 * it (both are defined by torch/serialization.py). Read is a state dict: names and tensors, alone or under
 * "state_dict", "model" or "model_state_dict"; what else a checkpoint holds is passed over. Nothing in the
 * file is executed. */
#ifndef DP_IO_TORCH_FILE_H
#define DP_IO_TORCH_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "io/safetensors.h"

typedef struct dp_torch_file dp_torch_file;

/* Do the bytes begin like a file of torch.save's? */
bool dp_torch_recognises(const void *bytes, size_t size);

/* Reads and checks a file in memory, which must outlive the result. DP_ERROR_IO with `name`, which stands for
 * the path, and what is wrong or refused. Owner: the caller. */
dp_status dp_torch_parse(const void *bytes, size_t size, const char *name, dp_torch_file **out,
                         dp_error *err);
void dp_torch_close(dp_torch_file *file); /* NULL is fine */

/* Tensors in the order of the state dict, their contents in C order whatever the strides were. */
int dp_torch_count(const dp_torch_file *file);
const dp_tensor *dp_torch_at(const dp_torch_file *file, int index);

/* Writes a state dict for torch.load, with weights_only or without: a zip archive, whole or not at all. */
dp_status dp_torch_write(const char *path, const dp_tensor *tensors, int count, dp_error *err);

#endif
