/* Pictures in files, decoded when a sample is read: what the sources segmentation:DIR and images:DIR have in
 * common. */
#ifndef DP_DATA_PICTURES_H
#define DP_DATA_PICTURES_H

#include "data/storage.h"
#include "io/folder.h"

/* One sample's files, and its label where there is no mask. */
typedef struct dp_picture {
    char *image, *mask; /* owned; mask: NULL for a labelled picture */
    int32_t label;
    int64_t height, width;
} dp_picture;

struct dp_pictures {
    int64_t count, room;
    dp_picture *list;
    unsigned augment;
    uint64_t seed;
};

/* Appends a sample; the paths are copied. */
dp_status dp_pictures_add(dp_pictures *pictures, const char *image, const char *mask, int32_t label,
                          dp_error *err);
/* Decodes every file once, on several threads: what cannot be read to its end, or has another size than its
 * mask, is bad and leaves the list. Then either bad files are an error that names and counts them
 * (DP_ERROR_IO), or, with skip_bad, each is told to config->note. Settles the samples' shape. */
dp_status dp_pictures_check(dp_pictures *pictures, const dp_data_config *config, const char *source,
                            dp_bad_files *bad, dp_storage *storage, dp_error *err);

#endif
