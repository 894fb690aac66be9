/* Data sets: views of a storage. */
#ifndef DP_DATA_DATASET_H
#define DP_DATA_DATASET_H

#include "data/storage.h"

/* A data set of `samples` members of the storage (members NULL: all of it, in order). It shares the storage,
 * and takes over the array, even after a failure. Only a data set to train on is augmented.
 * `source` is for the description. */
dp_status dp_dataset_make(dp_storage *storage, int64_t *members, int64_t samples, bool to_train,
                          const char *source, int64_t classes, dp_dataset **out, dp_error *err);

#endif
