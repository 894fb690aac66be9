/* The directory of a run: who may write in it, and which of its files go together.
 *
 * A state (resume_state_STEP.safetensors) holds all that continuing needs. It counts once resume.json, which
 * is written after it, names it. Only then are the checkpoints that are made from it written (model_epoch_E,
 * model_best) and older states removed; a run that continues from a state makes its checkpoints again. So at
 * any moment the state that resume.json names is whole, and nothing but it is needed.
 *
 * A disk can still damage it afterwards. So the state before stays, named too, until the next but one is
 * complete: two states at rest, and a third only while it is being written. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/file.h"
#include "train/train.h"

static const char marker[] = "resume.json", lock_name[] = ".lock";
static const char *const marker_keys[DP_KEPT_STATES] = {"complete", "previous"};
static const char state_pattern[] = "resume_state_*.safetensors",
                  epoch_pattern[] = "model_epoch_*.safetensors", best_name[] = "model_best.safetensors";

dp_status dp_model_dir_file(const char *dir, const char *name, char **out, dp_error *err)
{
    size_t size = strlen(dir) + strlen(name) + 2;
    DP_TRY(dp_calloc(size, 1, "a path", out, err));
    snprintf(*out, size, "%s/%s", dir, name);
    return DP_OK;
}

void dp_run_state_name(int64_t step, char out[DP_STATE_NAME_SIZE])
{
    snprintf(out, DP_STATE_NAME_SIZE, "resume_state_%lld.safetensors", (long long)step);
}

static bool matches(const char *pattern, const char *name)
{
    return fnmatch(pattern, name, 0) == 0;
}

/* ---- walking through it ---- */

typedef struct visitor {
    dp_status (*each)(const dp_model_dir *dir, const char *name, const struct visitor *v, dp_error *err);
    const char *kept[DP_KEPT_STATES]; /* for remove_old_state */
    int64_t first_kept;               /* for remove_old_epoch */
} visitor;

static dp_status visit(const dp_model_dir *dir, const visitor *v, dp_error *err)
{
    DIR *d = opendir(dir->path);
    if (!d)
        return dp_fail(err, DP_ERROR_IO, "cannot read directory '%s': %s", dir->path, strerror(errno));
    dp_status status = DP_OK;
    struct dirent *entry;
    while (status == DP_OK && (entry = readdir(d)) != NULL)
        status = v->each(dir, entry->d_name, v, err);
    closedir(d);
    return status;
}

static dp_status remove_file(const dp_model_dir *dir, const char *name, dp_error *err)
{
    char *path;
    DP_TRY(dp_model_dir_file(dir->path, name, &path, err));
    dp_status status = unlink(path) == 0 || errno == ENOENT
                           ? DP_OK
                           : dp_fail(err, DP_ERROR_IO, "cannot remove '%s': %s", path, strerror(errno));
    dp_free(path);
    return status;
}

static dp_status remove_half_written(const dp_model_dir *dir, const char *name, const visitor *v,
                                     dp_error *err)
{
    (void)v;
    static const char *const patterns[] = {"resume_state_*.safetensors.tmp-*", "resume.json.tmp-*",
                                           "model_epoch_*.safetensors.tmp-*", "model_best.safetensors.tmp-*"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (matches(patterns[i], name))
            return remove_file(dir, name, err);
    return DP_OK;
}

static dp_status remove_checkpoint(const dp_model_dir *dir, const char *name, const visitor *v, dp_error *err)
{
    (void)v;
    bool ours = matches(state_pattern, name) || matches(epoch_pattern, name) || strcmp(name, best_name) == 0;
    return ours ? remove_file(dir, name, err) : DP_OK;
}

static dp_status remove_old_state(const dp_model_dir *dir, const char *name, const visitor *v, dp_error *err)
{
    bool old = matches(state_pattern, name);
    for (int i = 0; i < DP_KEPT_STATES; i++)
        old = old && strcmp(name, v->kept[i]) != 0;
    return old ? remove_file(dir, name, err) : DP_OK;
}

static dp_status remove_old_epoch(const dp_model_dir *dir, const char *name, const visitor *v, dp_error *err)
{
    long long epoch;
    char own[64];
    if (sscanf(name, "model_epoch_%lld.safetensors", &epoch) != 1 || epoch < 0 || epoch >= v->first_kept)
        return DP_OK;
    snprintf(own, sizeof own, "model_epoch_%lld.safetensors", epoch);
    return strcmp(own, name) == 0 ? remove_file(dir, name, err) : DP_OK;
}

static dp_status refuse_checkpoint(const dp_model_dir *dir, const char *name, const visitor *v, dp_error *err)
{
    (void)v;
    if (!matches(epoch_pattern, name) && strcmp(name, best_name) != 0 && strcmp(name, marker) != 0)
        return DP_OK;
    return dp_fail(err, DP_ERROR_USAGE,
                   "'%s' already holds a checkpoint (%s); use --overwrite to start afresh or another "
                   "--model-dir",
                   dir->path, name);
}

/* ---- opening ---- */

/* A rename over a directory fails; better now than at the end of the first epoch. */
static dp_status check_writable(const dp_model_dir *dir, const char *name, const visitor *v, dp_error *err)
{
    (void)v;
    if (!matches(state_pattern, name) && !matches(epoch_pattern, name) && strcmp(name, best_name) != 0 &&
        strcmp(name, marker) != 0)
        return DP_OK;
    char *path;
    DP_TRY(dp_model_dir_file(dir->path, name, &path, err));
    dp_status status = dp_atomic_check(path, err);
    dp_free(path);
    return status;
}

static dp_status lock(dp_model_dir *dir, dp_error *err)
{
    char *path;
    DP_TRY(dp_model_dir_file(dir->path, lock_name, &path, err));
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

dp_status dp_model_dir_open(const char *path, dp_model_dir *out, dp_error *err)
{
    *out = (dp_model_dir){.lock = -1, .created = !dp_file_exists(path)};
    DP_TRY(dp_make_directories(path, err));
    DP_TRY(dp_strdup(path, &out->path, err));
    dp_status status = lock(out, err);
    if (status == DP_OK)
        status = visit(out, &(visitor){.each = remove_half_written}, err);
    if (status == DP_OK)
        status = visit(out, &(visitor){.each = check_writable}, err);
    if (status != DP_OK)
        dp_model_dir_close(out);
    return status;
}

static dp_status refuse_file(const dp_model_dir *dir, const char *name, const visitor *v, dp_error *err)
{
    (void)v;
    bool ours = strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, lock_name) == 0;
    return ours ? DP_OK : dp_fail(err, DP_ERROR_USAGE, "'%s' holds '%s'", dir->path, name);
}

/* A run that was refused before it wrote anything leaves no directory behind. */
static void remove_bare(const dp_model_dir *dir)
{
    dp_error err;
    if (visit(dir, &(visitor){.each = refuse_file}, &err) == DP_OK &&
        remove_file(dir, lock_name, &err) == DP_OK)
        rmdir(dir->path);
}

void dp_model_dir_close(dp_model_dir *dir)
{
    if (dir->created && dir->lock >= 0)
        remove_bare(dir);
    if (dir->lock >= 0)
        close(dir->lock);
    dp_free(dir->path);
    *dir = (dp_model_dir){.lock = -1};
}

dp_status dp_model_dir_check_free(const dp_model_dir *dir, dp_error *err)
{
    return visit(dir, &(visitor){.each = refuse_checkpoint}, err);
}

/* ---- states ---- */

/* A name in the marker, if it can be one of ours; a path elsewhere never is. */
static bool read_name(const json_t *json, const char *key, char out[DP_STATE_NAME_SIZE])
{
    const char *name = json_string_value(json_object_get(json, key));
    bool sound =
        name && strlen(name) < DP_STATE_NAME_SIZE && matches(state_pattern, name) && !strchr(name, '/');
    strcpy(out, sound ? name : "");
    return sound;
}

/* "" for the state before where none of ours is named. False: it names no state. */
static bool read_marker(const void *bytes, size_t size, char out[DP_KEPT_STATES][DP_STATE_NAME_SIZE])
{
    json_t *json = json_loadb(bytes, size, JSON_REJECT_DUPLICATES, NULL);
    bool sound = read_name(json, marker_keys[0], out[0]);
    read_name(json, marker_keys[1], out[1]);
    json_decref(json);
    return sound;
}

dp_status dp_model_dir_states(const char *dir, char *out[DP_KEPT_STATES], dp_error *err)
{
    char *path, names[DP_KEPT_STATES][DP_STATE_NAME_SIZE];
    out[0] = out[1] = NULL;
    DP_TRY(dp_model_dir_file(dir, marker, &path, err));
    dp_status status = DP_OK;
    void *bytes = NULL;
    size_t size = 0;
    if (dp_file_exists(path)) {
        status = dp_file_read(path, &bytes, &size, err);
        if (status == DP_OK && !read_marker(bytes, size, names))
            status = dp_fail(err, DP_ERROR_IO,
                             "'%s' is corrupt: it names no checkpoint; --overwrite starts afresh", path);
        for (int i = 0; i < DP_KEPT_STATES && status == DP_OK; i++)
            if (*names[i])
                status = dp_model_dir_file(dir, names[i], &out[i], err);
        dp_free(bytes);
    }
    dp_free(path);
    return status;
}

static dp_status write_text(const char *path, const char *text, dp_error *err)
{
    dp_atomic_file *file;
    DP_TRY(dp_atomic_open(path, &file, err));
    dp_status status = dp_atomic_write(file, text, strlen(text), err);
    if (status == DP_OK)
        return dp_atomic_commit(file, err);
    dp_atomic_abandon(file);
    return status;
}

void dp_model_dir_continue(dp_model_dir *dir, char *const states[DP_KEPT_STATES], int chosen)
{
    memset(dir->kept, 0, sizeof dir->kept);
    for (int i = chosen; i < DP_KEPT_STATES && states[i]; i++)
        snprintf(dir->kept[i - chosen], DP_STATE_NAME_SIZE, "%s", strrchr(states[i], '/') + 1);
}

dp_status dp_model_dir_complete(dp_model_dir *dir, const char *state_name, dp_error *err)
{
    char *path, text[DP_KEPT_STATES * (DP_STATE_NAME_SIZE + 32)];
    /* The end of an epoch may write its last step's state a second time. */
    const char *before = dir->kept[strcmp(dir->kept[0], state_name) == 0];
    int n = snprintf(text, sizeof text, "{\"%s\":\"%s\"", marker_keys[0], state_name);
    if (*before)
        n += snprintf(text + n, sizeof text - (size_t)n, ",\"%s\":\"%s\"", marker_keys[1], before);
    snprintf(text + n, sizeof text - (size_t)n, "}\n");
    DP_TRY(dp_model_dir_file(dir->path, marker, &path, err));
    dp_status status = write_text(path, text, err);
    dp_free(path);
    DP_TRY(status);
    memmove(dir->kept[1], before, DP_STATE_NAME_SIZE);
    snprintf(dir->kept[0], DP_STATE_NAME_SIZE, "%s", state_name);
    return visit(dir, &(visitor){.each = remove_old_state, .kept = {dir->kept[0], dir->kept[1]}}, err);
}

dp_status dp_model_dir_clear(dp_model_dir *dir, dp_error *err)
{
    memset(dir->kept, 0, sizeof dir->kept);
    DP_TRY(remove_file(dir, marker, err)); /* first: what it names must be there as long as it is */
    return visit(dir, &(visitor){.each = remove_checkpoint}, err);
}

dp_status dp_model_dir_prune(const dp_model_dir *dir, int64_t first_kept, dp_error *err)
{
    return visit(dir, &(visitor){.each = remove_old_epoch, .first_kept = first_kept}, err);
}
