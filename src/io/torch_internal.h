/* Inside the readers and the writer of PyTorch's files. */
#ifndef DP_IO_TORCH_INTERNAL_H
#define DP_IO_TORCH_INTERNAL_H

#include <stdbool.h>

#include "io/pickle.h"
#include "io/torch_file.h"
#include "io/zip.h"

/* Where a storage's contents lie. */
typedef struct dp_torch_storage {
    const char *key;
    size_t key_length;
    dp_dtype dtype;            /* legacy files alone */
    int64_t elements;          /* likewise */
    const unsigned char *data; /* NULL: not in the file */
    size_t bytes;
    const dp_zip_entry *unchecked; /* of which this is the contents, until its checksum was looked at */
} dp_torch_storage;

struct dp_torch_file {
    dp_tensor *tensors;
    void **copies; /* of tensor i, or NULL */
    int count;
};

typedef struct dp_torch_reader {
    const unsigned char *bytes;
    size_t size;
    dp_torch_file *file;
    dp_zip *zip; /* NULL: the legacy format */
    dp_pickle *pickle;
    dp_torch_storage *storages; /* sorted by key */
    size_t storage_count;
    size_t copied;
} dp_torch_reader;

/* ---- torch_tensor.c ---- */

/* The class of a storage, by the type of its elements. */
extern const char *const dp_torch_storages[DP_DTYPES];

/* The table of an archive's storages: its entries FOLDER/data/KEY. */
dp_status dp_torch_list_entries(dp_torch_reader *r, const char *folder, size_t folder_length, dp_error *err);
/* That of a legacy file, each storage once, as the pickle describes them ... */
dp_status dp_torch_list_references(dp_torch_reader *r, dp_error *err);
/* ... and where their contents are: in the order of `keys`, from byte `at` on. */
dp_status dp_torch_locate_storages(dp_torch_reader *r, const dp_pickle_value *keys, size_t at, dp_error *err);

/* Is the value a tensor or a parameter, sound or not? */
bool dp_torch_is_tensor(const dp_pickle_value *value);
/* Adds it to the file's tensors, for which there is room. */
dp_status dp_torch_read_tensor(dp_torch_reader *r, const dp_pickle_value *key, const dp_pickle_value *value,
                               dp_error *err);

#endif
