/* Pictures in files, decoded when a sample is read: what the sources segmentation:DIR and images:DIR have in
 * common. */
#ifndef DP_DATA_PICTURES_H
#define DP_DATA_PICTURES_H

#include "data/storage.h"

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

/* Files that cannot be used, each with its reason. */
typedef struct dp_bad_files {
    int64_t count;
    char **reasons; /* owned, as is each */
} dp_bad_files;

/* A file name without its folder and its ending. */
typedef struct dp_named_picture {
    char *path, *stem; /* owned */
} dp_named_picture;

/* The folder's pictures by name, sorted by it; hidden files and other kinds of files are left out, pictures
 * of kinds that are not read are bad. DP_ERROR_IO for a folder that cannot be read. Owner: the caller
 * (dp_free_names). */
dp_status dp_list_pictures(const char *folder, dp_bad_files *bad, dp_named_picture **out, int64_t *count,
                           dp_error *err);
void dp_free_names(dp_named_picture *names, int64_t count);
/* The folder's own folders (hidden ones apart), sorted by name: only stem is the name. */
dp_status dp_list_folders(const char *folder, dp_named_picture **out, int64_t *count, dp_error *err);

/* Adds a reason, "%s"-formatted. */
__attribute__((format(printf, 3, 4))) dp_status dp_bad_file(dp_bad_files *bad, dp_error *err,
                                                            const char *format, ...);
void dp_bad_files_clear(dp_bad_files *bad);

/* Appends a sample; the paths are copied. */
dp_status dp_pictures_add(dp_pictures *pictures, const char *image, const char *mask, int32_t label,
                          dp_error *err);
/* Looks at every file's header: what cannot be read, or has another size than its mask, is bad and leaves the
 * list. Then either bad files are an error that names and counts them (DP_ERROR_IO), or, with skip_bad, each
 * is told to config->note. Settles the samples' shape. */
dp_status dp_pictures_check(dp_pictures *pictures, const dp_data_config *config, const char *source,
                            dp_bad_files *bad, dp_storage *storage, dp_error *err);

#endif
