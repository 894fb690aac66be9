#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/file.h"
#include "train/train.h"

dp_status dp_model_dir_file(const dp_model_dir *dir, const char *name, char **out, dp_error *err)
{
    size_t size = strlen(dir->path) + strlen(name) + 2;
    DP_TRY(dp_calloc(size, 1, "a path", out, err));
    snprintf(*out, size, "%s/%s", dir->path, name);
    return DP_OK;
}

static dp_status lock(dp_model_dir *dir, dp_error *err)
{
    char *path;
    DP_TRY(dp_model_dir_file(dir, ".lock", &path, err));
    dp_status status = DP_OK;
    dir->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (dir->lock < 0)
        status = dp_fail(err, DP_ERROR_IO, "cannot write '%s': %s", path, strerror(errno));
    else if (flock(dir->lock, LOCK_EX | LOCK_NB) != 0)
        status =
            errno == EWOULDBLOCK
                ? dp_fail(err, DP_ERROR_IO,
                          "another run is using '%s'; wait for it or choose another --model-dir", dir->path)
                : dp_fail(err, DP_ERROR_IO, "cannot lock '%s': %s", path, strerror(errno));
    dp_free(path);
    return status;
}

static bool is_checkpoint(const char *name)
{
    return fnmatch("model_epoch_*.safetensors", name, 0) == 0 || strcmp(name, "model_best.safetensors") == 0;
}

/* Calls `each` for every checkpoint in the directory. */
static dp_status for_checkpoints(const dp_model_dir *dir,
                                 dp_status (*each)(const dp_model_dir *dir, const char *name, dp_error *err),
                                 dp_error *err)
{
    DIR *d = opendir(dir->path);
    if (!d)
        return dp_fail(err, DP_ERROR_IO, "cannot read directory '%s': %s", dir->path, strerror(errno));
    dp_status status = DP_OK;
    struct dirent *entry;
    while (status == DP_OK && (entry = readdir(d)) != NULL)
        if (is_checkpoint(entry->d_name))
            status = each(dir, entry->d_name, err);
    closedir(d);
    return status;
}

static dp_status refuse(const dp_model_dir *dir, const char *name, dp_error *err)
{
    return dp_fail(err, DP_ERROR_USAGE,
                   "'%s' already holds a checkpoint (%s); use --overwrite to start afresh or another "
                   "--model-dir",
                   dir->path, name);
}

static dp_status remove_file(const dp_model_dir *dir, const char *name, dp_error *err)
{
    char *path;
    DP_TRY(dp_model_dir_file(dir, name, &path, err));
    dp_status status = unlink(path) == 0 || errno == ENOENT
                           ? DP_OK
                           : dp_fail(err, DP_ERROR_IO, "cannot remove '%s': %s", path, strerror(errno));
    dp_free(path);
    return status;
}

dp_status dp_model_dir_open(const char *path, bool overwrite, dp_model_dir *out, dp_error *err)
{
    *out = (dp_model_dir){.lock = -1};
    DP_TRY(dp_make_directories(path, err));
    DP_TRY(dp_strdup(path, &out->path, err));
    dp_status status = lock(out, err);
    if (status == DP_OK && !overwrite)
        status = for_checkpoints(out, refuse, err);
    if (status != DP_OK)
        dp_model_dir_close(out);
    return status;
}

dp_status dp_model_dir_clear(const dp_model_dir *dir, dp_error *err)
{
    return for_checkpoints(dir, remove_file, err);
}

void dp_model_dir_close(dp_model_dir *dir)
{
    if (dir->lock >= 0)
        close(dir->lock);
    dp_free(dir->path);
    *dir = (dp_model_dir){.lock = -1};
}
