/* Folders of pictures. */
#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "data/pictures.h"
#include "io/image.h"

/* ---- bad files ---- */

dp_status dp_bad_file(dp_bad_files *bad, dp_error *err, const char *format, ...)
{
    char reason[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    DP_TRY(dp_realloc(&bad->reasons, (size_t)bad->count + 1, sizeof *bad->reasons, "a list of files", err));
    DP_TRY(dp_strdup(reason, &bad->reasons[bad->count], err));
    bad->count++;
    return DP_OK;
}

void dp_bad_files_clear(dp_bad_files *bad)
{
    for (int64_t i = 0; i < bad->count; i++)
        dp_free(bad->reasons[i]);
    dp_free(bad->reasons);
    *bad = (dp_bad_files){0};
}

/* ---- names in a folder ---- */

typedef struct name_list {
    dp_named_picture *names;
    int64_t count, room;
} name_list;

void dp_free_names(dp_named_picture *names, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        dp_free(names[i].path);
        dp_free(names[i].stem);
    }
    dp_free(names);
}

static int by_stem(const void *a, const void *b)
{
    const dp_named_picture *x = a, *y = b;
    int order = strcmp(x->stem, y->stem);
    return order ? order : strcmp(x->path, y->path);
}

static dp_status append(name_list *list, const char *folder, const char *name, bool with_ending,
                        dp_error *err)
{
    if (list->count == list->room) {
        int64_t room = 2 * list->room + 64;
        DP_TRY(dp_realloc(&list->names, (size_t)room, sizeof *list->names, "a list of files", err));
        list->room = room;
    }
    dp_named_picture *n = &list->names[list->count++];
    *n = (dp_named_picture){0};
    size_t size = strlen(folder) + strlen(name) + 2;
    DP_TRY(dp_calloc(size, 1, "a file name", &n->path, err));
    snprintf(n->path, size, "%s/%s", folder, name);
    DP_TRY(dp_strdup(name, &n->stem, err));
    char *dot = strrchr(n->stem, '.');
    if (dot && with_ending)
        *dot = 0;
    return DP_OK;
}

/* Pictures that a user would expect to be read. */
static bool other_picture(const char *name)
{
    static const char *const endings[] = {".bmp", ".gif",  ".tif", ".tiff", ".webp",
                                          ".jp2", ".heic", ".ppm", ".pgm"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof endings / sizeof *endings; i++)
        if (strcasecmp(dot, endings[i]) == 0)
            return true;
    return false;
}

static bool is_folder(const char *folder, const char *name)
{
    char path[4096];
    struct stat st;
    return snprintf(path, sizeof path, "%s/%s", folder, name) < (int)sizeof path && stat(path, &st) == 0 &&
           S_ISDIR(st.st_mode);
}

/* bad is NULL where folders are wanted instead of pictures. */
static dp_status take_entry(name_list *list, const char *folder, const char *name, dp_bad_files *bad,
                            dp_error *err)
{
    if (name[0] == '.')
        return DP_OK;
    if (!bad)
        return is_folder(folder, name) ? append(list, folder, name, false, err) : DP_OK;
    if (dp_image_has_name(name))
        return append(list, folder, name, true, err);
    return other_picture(name) ? dp_bad_file(bad, err, "'%s/%s' is neither JPEG nor PNG", folder, name)
                               : DP_OK;
}

static dp_status read_folder(name_list *list, const char *folder, dp_bad_files *bad, dp_error *err)
{
    DIR *directory = opendir(folder);
    if (!directory)
        return dp_fail(err, DP_ERROR_IO, "cannot read '%s': %s", folder, strerror(errno));
    dp_status status = DP_OK;
    const struct dirent *entry;
    while (status == DP_OK && (errno = 0, entry = readdir(directory)) != NULL)
        status = take_entry(list, folder, entry->d_name, bad, err);
    if (status == DP_OK && errno != 0)
        status = dp_fail(err, DP_ERROR_IO, "cannot read '%s': %s", folder, strerror(errno));
    closedir(directory);
    return status;
}

static dp_status list_sorted(const char *folder, dp_bad_files *bad, dp_named_picture **out, int64_t *count,
                             dp_error *err)
{
    name_list list = {0};
    *out = NULL;
    *count = 0;
    dp_status status = read_folder(&list, folder, bad, err);
    if (status != DP_OK) {
        dp_free_names(list.names, list.count);
        return status;
    }
    if (list.count > 0)
        qsort(list.names, (size_t)list.count, sizeof *list.names, by_stem);
    *out = list.names;
    *count = list.count;
    return DP_OK;
}

dp_status dp_list_pictures(const char *folder, dp_bad_files *bad, dp_named_picture **out, int64_t *count,
                           dp_error *err)
{
    return list_sorted(folder, bad, out, count, err);
}

dp_status dp_list_folders(const char *folder, dp_named_picture **out, int64_t *count, dp_error *err)
{
    return list_sorted(folder, NULL, out, count, err);
}
