/* Inside the reader of pickles: what it makes. */
#ifndef DP_IO_PICKLE_INTERNAL_H
#define DP_IO_PICKLE_INTERNAL_H

#include "io/pickle.h"

enum { DP_PICKLE_MAX_VALUES = 1 << 22 };

struct dp_pickle {
    dp_pickle_value **blocks; /* of values, which never move */
    size_t block_count, count;
    const dp_pickle_value *root;
};

/* Another value, empty. DP_ERROR_IO where there are too many. */
dp_status dp_pickle_add(dp_pickle *pickle, dp_pickle_kind kind, dp_pickle_value **out, dp_error *err);

#endif
