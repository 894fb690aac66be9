/* Folders of pictures, and those of them that cannot be used. */
#ifndef DP_IO_FOLDER_H
#define DP_IO_FOLDER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* ---- files that cannot be used, each with its reason ---- */

typedef struct dp_bad_files {
    int64_t count;
    char **reasons; /* owned, as is each */
} dp_bad_files;

/* Adds a reason. */
__attribute__((format(printf, 3, 4))) dp_status dp_bad_file(dp_bad_files *bad, dp_error *err,
                                                            const char *format, ...);
/* If there are any beside so many good ones: DP_ERROR_IO with their number and the first of the reasons; or,
 * with skip, DP_OK after each was told to note (may be NULL). */
dp_status dp_bad_files_settle(const dp_bad_files *bad, int64_t good, bool skip,
                              void (*note)(void *user, const char *text), void *user, dp_error *err);
void dp_bad_files_clear(dp_bad_files *bad);

/* ---- names ---- */

typedef struct dp_named_picture {
    char *path, *stem; /* owned; the stem is the name without folder and ending */
} dp_named_picture;

typedef struct dp_names {
    dp_named_picture *list;
    int64_t count, room;
} dp_names;

/* Adds the folder's pictures by name (.jpg, .jpeg, .png), sorted by it; hidden files and other kinds of files
 * are left out, pictures of kinds that are not read are bad. DP_ERROR_IO for a folder that cannot be read.
 * After a failure, too, the names are the caller's to clear. */
dp_status dp_list_pictures(const char *folder, dp_bad_files *bad, dp_names *names, dp_error *err);
/* Adds the folder's own folders (hidden ones apart), sorted by name; the stem is the whole name. */
dp_status dp_list_folders(const char *folder, dp_names *names, dp_error *err);
/* Adds one picture by its path. */
dp_status dp_names_add(dp_names *names, const char *path, dp_error *err);
void dp_names_clear(dp_names *names);

#endif
