/* What reading and writing PyTorch's files have in common. */
#ifndef DP_IO_TORCH_TYPES_H
#define DP_IO_TORCH_TYPES_H

#include "io/safetensors.h"

/* The class of a storage, by the type of its elements; torch_file.c. */
extern const char *const dp_torch_storages[DP_DTYPES];

#endif
