#include "io/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "io/image.h"

enum { NAMED_IN_ERROR = 5 };

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

/* One line: the count, and the first of the reasons; and what can be done, if anything is left then. */
static dp_status refuse(const dp_bad_files *bad, int64_t good, dp_error *err)
{
    char text[1600] = "";
    size_t used = 0;
    int64_t named = bad->count < NAMED_IN_ERROR ? bad->count : NAMED_IN_ERROR;
    for (int64_t i = 0; i < named && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? "; " : "", bad->reasons[i]);
    if (bad->count > named && used < sizeof text)
        snprintf(text + used, sizeof text - used, "; and %lld more", (long long)(bad->count - named));
    const char *advice = good == 0         ? ""
                         : bad->count == 1 ? " (--skip-bad goes on without it)"
                                           : " (--skip-bad goes on without them)";
    return dp_fail(err, DP_ERROR_IO, "%lld file%s cannot be used: %s%s", (long long)bad->count,
                   bad->count == 1 ? "" : "s", text, advice);
}

dp_status dp_bad_files_settle(const dp_bad_files *bad, int64_t good, bool skip,
                              void (*note)(void *user, const char *text), void *user, dp_error *err)
{
    char text[1200];
    if (bad->count == 0)
        return DP_OK;
    if (!skip)
        return refuse(bad, good, err);
    if (!note)
        return DP_OK;
    for (int64_t i = 0; i < bad->count; i++) {
        snprintf(text, sizeof text, "left out: %s", bad->reasons[i]);
        note(user, text);
    }
    snprintf(text, sizeof text, "%lld file%s left out", (long long)bad->count, bad->count == 1 ? "" : "s");
    note(user, text);
    return DP_OK;
}

void dp_bad_files_clear(dp_bad_files *bad)
{
    for (int64_t i = 0; i < bad->count; i++)
        dp_free(bad->reasons[i]);
    dp_free(bad->reasons);
    *bad = (dp_bad_files){0};
}

/* ---- names ---- */

void dp_names_clear(dp_names *names)
{
    for (int64_t i = 0; i < names->count; i++) {
        dp_free(names->list[i].path);
        dp_free(names->list[i].stem);
    }
    dp_free(names->list);
    *names = (dp_names){0};
}

static int by_stem(const void *a, const void *b)
{
    const dp_named_picture *x = a, *y = b;
    int order = strcmp(x->stem, y->stem);
    return order ? order : strcmp(x->path, y->path);
}

static dp_status add_path(dp_names *names, const char *path, bool cut_ending, dp_error *err)
{
    if (names->count == names->room) {
        int64_t room = 2 * names->room + 64;
        DP_TRY(dp_realloc(&names->list, (size_t)room, sizeof *names->list, "a list of files", err));
        names->room = room;
    }
    dp_named_picture *n = &names->list[names->count++];
    *n = (dp_named_picture){0};
    DP_TRY(dp_strdup(path, &n->path, err));
    const char *slash = strrchr(path, '/');
    DP_TRY(dp_strdup(slash ? slash + 1 : path, &n->stem, err));
    char *dot = strrchr(n->stem, '.');
    if (dot && cut_ending)
        *dot = 0;
    return DP_OK;
}

dp_status dp_names_add(dp_names *names, const char *path, dp_error *err)
{
    return add_path(names, path, true, err);
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

/* bad is NULL where folders are wanted instead of pictures. */
static dp_status take_entry(dp_names *names, const char *folder, const char *name, dp_bad_files *bad,
                            dp_error *err)
{
    char path[4096];
    struct stat st;
    bool picture = dp_image_has_name(name);
    if (name[0] == '.' || (bad && !picture && !other_picture(name)))
        return DP_OK;
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return dp_fail(err, DP_ERROR_IO, "a name in '%.200s' is too long", folder);
    if (!bad)
        return stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? add_path(names, path, false, err) : DP_OK;
    return picture ? dp_names_add(names, path, err)
                   : dp_bad_file(bad, err, "'%s' is neither JPEG nor PNG", path);
}

static dp_status read_folder(dp_names *names, const char *folder, dp_bad_files *bad, dp_error *err)
{
    DIR *directory = opendir(folder);
    if (!directory)
        return dp_fail(err, DP_ERROR_IO, "cannot read '%s': %s", folder, strerror(errno));
    dp_status status = DP_OK;
    const struct dirent *entry;
    while (status == DP_OK && (errno = 0, entry = readdir(directory)) != NULL)
        status = take_entry(names, folder, entry->d_name, bad, err);
    if (status == DP_OK && errno != 0)
        status = dp_fail(err, DP_ERROR_IO, "cannot read '%s': %s", folder, strerror(errno));
    closedir(directory);
    return status;
}

static dp_status list_sorted(const char *folder, dp_bad_files *bad, dp_names *names, dp_error *err)
{
    int64_t before = names->count;
    DP_TRY(read_folder(names, folder, bad, err));
    if (names->count > before)
        qsort(names->list + before, (size_t)(names->count - before), sizeof *names->list, by_stem);
    return DP_OK;
}

dp_status dp_list_pictures(const char *folder, dp_bad_files *bad, dp_names *names, dp_error *err)
{
    return list_sorted(folder, bad, names, err);
}

dp_status dp_list_folders(const char *folder, dp_names *names, dp_error *err)
{
    return list_sorted(folder, NULL, names, err);
}
