/* The directory of a run: who may write in it, and which of its files go together.
 *
 * A state (resume_state_STEP.safetensors) holds all that continuing needs. It counts once resume.json, which
 * is written after it, names it. Only then are the checkpoints that are made from it written (model_epoch_E,
 * model_best) and older states removed; a run that continues from a state makes its checkpoints again. So at
 * any moment the state that resume.json names is whole, and nothing but it is needed.
 *
 * A disk can still damage it afterwards. So the state before stays, named too, until the next but one is
 * complete: two states at rest, and a third only while it is being written. Where the marker itself is
 * damaged or gone, every state that lies there is looked at; each carries a checksum of all that is in it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/thread.h"
#include "io/file.h"
#include "train/train.h"

enum { LOCK_WAIT_S = 2, LOCK_PAUSE_MS = 20 };

static const char marker[] = "resume.json", lock_name[] = ".lock";
static const char *const marker_keys[DP_KEPT_STATES] = {"complete", "previous"};

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

void dp_epoch_name(int64_t epoch, char out[DP_STATE_NAME_SIZE])
{
    snprintf(out, DP_STATE_NAME_SIZE, "model_epoch_%lld.safetensors", (long long)epoch);
}

/* The number in a name that `make` makes; -1 if the name is none of ours. */
static int64_t number_in(const char *name, void (*make)(int64_t number, char out[DP_STATE_NAME_SIZE]))
{
    char own[DP_STATE_NAME_SIZE];
    long long number = strtoll(name + strcspn(name, "0123456789"), NULL, 10);
    make(number, own);
    return strcmp(own, name) == 0 ? number : -1;
}

static int64_t step_of(const char *name)
{
    return number_in(name, dp_run_state_name);
}

static int64_t epoch_of(const char *name)
{
    return number_in(name, dp_epoch_name);
}

static bool is_checkpoint(const char *name)
{
    return epoch_of(name) >= 0 || strcmp(name, dp_best_name) == 0;
}

static bool matches(const char *pattern, const char *name)
{
    return fnmatch(pattern, name, 0) == 0;
}

/* ---- walking through it ---- */

typedef struct visitor {
    dp_status (*each)(const char *dir, const char *name, const struct visitor *v, dp_error *err);
    const char *kept[DP_KEPT_STATES]; /* for remove_old_state */
    int64_t first_kept;               /* for remove_old_epoch */
    dp_state_list *list;              /* for list_state */
    char **obstacle;                  /* for find_obstacle */
} visitor;

static dp_status visit(const char *dir, const visitor *v, dp_error *err)
{
    DIR *d = opendir(dir);
    if (!d)
        return dp_fail(err, DP_ERROR_IO, "cannot read directory '%s': %s", dir, strerror(errno));
    dp_status status = DP_OK;
    struct dirent *entry;
    errno = 0;
    while (status == DP_OK && (entry = readdir(d)) != NULL) {
        status = v->each(dir, entry->d_name, v, err);
        errno = 0;
    }
    if (status == DP_OK && errno != 0)
        status = dp_fail(err, DP_ERROR_IO, "cannot read directory '%s': %s", dir, strerror(errno));
    closedir(d);
    return status;
}

static dp_status remove_file(const char *dir, const char *name, dp_error *err)
{
    char *path;
    DP_TRY(dp_model_dir_file(dir, name, &path, err));
    dp_status status = unlink(path) == 0 || errno == ENOENT
                           ? DP_OK
                           : dp_fail(err, DP_ERROR_IO, "cannot remove '%s': %s", path, strerror(errno));
    dp_free(path);
    return status;
}

static dp_status remove_half_written(const char *dir, const char *name, const visitor *v, dp_error *err)
{
    (void)v;
    static const char *const patterns[] = {"resume_state_*.safetensors.tmp-*", "resume.json.tmp-*",
                                           "model_epoch_*.safetensors.tmp-*", "model_best.safetensors.tmp-*"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (matches(patterns[i], name))
            return remove_file(dir, name, err);
    return DP_OK;
}

static dp_status remove_checkpoint(const char *dir, const char *name, const visitor *v, dp_error *err)
{
    (void)v;
    return step_of(name) >= 0 || is_checkpoint(name) ? remove_file(dir, name, err) : DP_OK;
}

static dp_status remove_old_state(const char *dir, const char *name, const visitor *v, dp_error *err)
{
    bool old = step_of(name) >= 0;
    for (int i = 0; i < DP_KEPT_STATES; i++)
        old = old && strcmp(name, v->kept[i]) != 0;
    return old ? remove_file(dir, name, err) : DP_OK;
}

static dp_status remove_old_epoch(const char *dir, const char *name, const visitor *v, dp_error *err)
{
    int64_t epoch = epoch_of(name);
    return epoch >= 0 && epoch < v->first_kept ? remove_file(dir, name, err) : DP_OK;
}

static dp_status refuse_checkpoint(const char *dir, const char *name, const visitor *v, dp_error *err)
{
    (void)v;
    if (step_of(name) < 0 && !is_checkpoint(name) && strcmp(name, marker) != 0)
        return DP_OK;
    return dp_fail(err, DP_ERROR_USAGE,
                   "'%s' already holds a checkpoint (%s); use --overwrite to start afresh or another "
                   "--model-dir",
                   dir, name);
}

/* ---- opening ---- */

static dp_status check_file(const char *dir, const char *name, dp_error *err)
{
    char *path;
    DP_TRY(dp_model_dir_file(dir, name, &path, err));
    dp_status status = dp_atomic_check(path, err);
    dp_free(path);
    return status;
}

/* A rename over a directory fails; better now than at the end of the first epoch. */
static dp_status check_checkpoint(const char *dir, const char *name, const visitor *v, dp_error *err)
{
    (void)v;
    return is_checkpoint(name) ? check_file(dir, name, err) : DP_OK;
}

/* What is in the place of a state may be why the run continues from another, or starts afresh: see
 * dp_model_dir_obstacle. */
static dp_status check_state(const char *dir, const char *name, const visitor *v, dp_error *err)
{
    (void)v;
    bool ours = step_of(name) >= 0 || strcmp(name, marker) == 0;
    return ours ? check_file(dir, name, err) : DP_OK;
}

/* Without waiting. What is locked is still DIR/.lock: a run that wrote nothing takes its file and directory
 * with it. */
static dp_status try_lock(dp_model_dir *dir, const char *path, bool *taken, dp_error *err)
{
    struct stat st;
    *taken = false;
    DP_TRY(dp_make_directories(dir->path, err));
    if (dir->lock < 0)
        dir->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (dir->lock < 0)
        return dp_fail(err, DP_ERROR_IO,
                       "cannot write '%s': %s; --model-dir needs a directory that can be written", path,
                       strerror(errno));
    bool locked = flock(dir->lock, LOCK_EX | LOCK_NB) == 0;
    if ((!locked && errno != EWOULDBLOCK) || fstat(dir->lock, &st) != 0)
        return dp_fail(err, DP_ERROR_IO, "cannot lock '%s': %s", path, strerror(errno));
    if (st.st_nlink > 0) {
        *taken = locked;
        return DP_OK;
    }
    close(dir->lock);
    dir->lock = -1;
    return DP_OK;
}

/* A supervisor starts a run anew as soon as it has killed it; but a process that was killed keeps its lock
 * until the memory it had is taken down. */
static dp_status lock(dp_model_dir *dir, dp_error *err)
{
    static const struct timespec pause = {.tv_nsec = LOCK_PAUSE_MS * 1000000L};
    const double deadline = dp_now() + LOCK_WAIT_S;
    bool taken;
    char *path;
    DP_TRY(dp_model_dir_file(dir->path, lock_name, &path, err));
    dp_status status = try_lock(dir, path, &taken, err);
    while (status == DP_OK && !taken && dp_now() < deadline) {
        nanosleep(&pause, NULL);
        status = try_lock(dir, path, &taken, err);
    }
    if (status == DP_OK && !taken)
        status = dp_fail(err, DP_ERROR_IO,
                         "another run is using '%s'; wait for it or choose another --model-dir", dir->path);
    if (status != DP_OK && dir->lock >= 0) {
        close(dir->lock);
        dir->lock = -1;
    }
    dp_free(path);
    return status;
}

dp_status dp_model_dir_open(const char *path, dp_model_dir *out, dp_error *err)
{
    *out = (dp_model_dir){.lock = -1, .created = !dp_file_exists(path)};
    DP_TRY(dp_strdup(path, &out->path, err));
    dp_status status = lock(out, err);
    if (status == DP_OK)
        status = visit(out->path, &(visitor){.each = remove_half_written}, err);
    if (status == DP_OK)
        status = visit(out->path, &(visitor){.each = check_checkpoint}, err);
    if (status != DP_OK)
        dp_model_dir_close(out);
    return status;
}

static dp_status refuse_file(const char *dir, const char *name, const visitor *v, dp_error *err)
{
    (void)v;
    bool ours = strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, lock_name) == 0;
    return ours ? DP_OK : dp_fail(err, DP_ERROR_USAGE, "'%s' holds '%s'", dir, name);
}

/* A run that was refused before it wrote anything leaves no directory behind. */
static void remove_bare(const dp_model_dir *dir)
{
    dp_error err;
    if (visit(dir->path, &(visitor){.each = refuse_file}, &err) == DP_OK &&
        remove_file(dir->path, lock_name, &err) == DP_OK)
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

dp_status dp_model_dir_check_fresh(const dp_model_dir *dir, bool overwrite, dp_error *err)
{
    return overwrite ? DP_OK : visit(dir->path, &(visitor){.each = refuse_checkpoint}, err);
}

/* ---- states ---- */

static dp_status add_state(dp_state_list *list, const char *name, dp_error *err)
{
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->names[i], name) == 0)
            return DP_OK;
    DP_TRY(dp_realloc(&list->names, (size_t)list->count + 1, sizeof *list->names, "names of states", err));
    snprintf(list->names[list->count++], DP_STATE_NAME_SIZE, "%s", name);
    return DP_OK;
}

static dp_status list_state(const char *dir, const char *name, const visitor *v, dp_error *err)
{
    (void)dir;
    return step_of(name) < 0 ? DP_OK : add_state(v->list, name, err);
}

static int newer_first(const void *a, const void *b)
{
    int64_t x = step_of(a), y = step_of(b);
    return (x < y) - (x > y);
}

/* The states that the marker names, the newest first; a name that is none of ours (a path elsewhere never is)
 * counts as none. *names_it: it says which state is complete, or that there is none. */
static dp_status read_names(const json_t *json, dp_state_list *list, bool *names_it, dp_error *err)
{
    const json_t *complete = json_object_get(json, marker_keys[0]);
    *names_it = json_is_null(complete);
    for (int i = 0; i < DP_KEPT_STATES; i++) {
        const char *name = json_string_value(json_object_get(json, marker_keys[i]));
        if (!name || step_of(name) < 0)
            continue;
        DP_TRY(add_state(list, name, err));
        *names_it |= i == 0;
    }
    return DP_OK;
}

static dp_status parse_marker(const char *path, const void *bytes, size_t size, dp_state_list *list,
                              dp_error *err)
{
    json_error_t problem;
    json_t *json = json_loadb(bytes, size, JSON_REJECT_DUPLICATES, &problem);
    if (!json && json_error_code(&problem) == json_error_out_of_memory)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory: cannot read '%s'", path);
    bool names_it;
    dp_status status = read_names(json, list, &names_it, err);
    list->cleared = json_is_null(json_object_get(json, marker_keys[0]));
    json_decref(json);
    if (status == DP_OK && !names_it)
        dp_fail(&list->fault, DP_ERROR_IO, "'%s' is corrupt: it names no checkpoint", path);
    return status;
}

static dp_status read_marker(const char *path, dp_state_list *list, dp_error *err)
{
    void *bytes;
    size_t size;
    dp_status status = dp_file_read(path, &bytes, &size, &list->fault);
    if (status != DP_OK)
        return dp_file_is_damaged(&list->fault) ? DP_OK : dp_fail(err, status, "%s", list->fault.message);
    status = parse_marker(path, bytes, size, list, err);
    dp_free(bytes);
    return status;
}

/* The one that the marker calls complete stays the first: a newer one was not needed by anything yet. */
static dp_status list_states(const char *dir, dp_state_list *list, dp_error *err)
{
    char *path;
    DP_TRY(dp_model_dir_file(dir, marker, &path, err));
    bool there = dp_file_exists(path);
    dp_status status = read_marker(path, list, err);
    dp_free(path);
    if (status != DP_OK || list->cleared)
        return status;
    int first = list->count > 0 && list->fault.status == DP_OK;
    DP_TRY(visit(dir, &(visitor){.each = list_state, .list = list}, err));
    if (list->count > first)
        qsort(list->names + first, (size_t)(list->count - first), sizeof *list->names, newer_first);
    if (list->count == 0 && !there)
        list->fault = (dp_error){0}; /* no run has been here */
    return DP_OK;
}

dp_status dp_model_dir_states(const char *dir, dp_state_list *out, dp_error *err)
{
    *out = (dp_state_list){0};
    dp_status status = list_states(dir, out, err);
    if (status != DP_OK)
        dp_state_list_clear(out);
    return status;
}

void dp_state_list_clear(dp_state_list *list)
{
    dp_free(list->names);
    *list = (dp_state_list){0};
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

/* before: the name of the state before, "": none. */
static dp_status write_marker(const dp_model_dir *dir, const char *complete, const char *before,
                              dp_error *err)
{
    char *path, text[DP_KEPT_STATES * (DP_STATE_NAME_SIZE + 32)];
    int n = snprintf(text, sizeof text, "{\"%s\":\"%s\"", marker_keys[0], complete);
    if (*before)
        n += snprintf(text + n, sizeof text - (size_t)n, ",\"%s\":\"%s\"", marker_keys[1], before);
    snprintf(text + n, sizeof text - (size_t)n, "}\n");
    DP_TRY(dp_model_dir_file(dir->path, marker, &path, err));
    dp_status status = write_text(path, text, err);
    dp_free(path);
    return status;
}

void dp_model_dir_continue(dp_model_dir *dir, const dp_state_list *states, int chosen)
{
    const char *name = states->names[chosen];
    memset(dir->kept, 0, sizeof dir->kept);
    snprintf(dir->kept[0], DP_STATE_NAME_SIZE, "%s", name);
    for (int i = chosen + 1; i < states->count && !*dir->kept[1]; i++)
        if (step_of(states->names[i]) < step_of(name))
            snprintf(dir->kept[1], DP_STATE_NAME_SIZE, "%s", states->names[i]);
    dir->misnamed = chosen > 0 || states->fault.status != DP_OK;
}

dp_status dp_model_dir_repair(dp_model_dir *dir, dp_error *err)
{
    if (dir->misnamed)
        DP_TRY(write_marker(dir, dir->kept[0], dir->kept[1], err));
    dir->misnamed = false;
    return DP_OK;
}

static dp_status find_obstacle(const char *dir, const char *name, const visitor *v, dp_error *err)
{
    dp_status status = *v->obstacle ? DP_OK : check_state(dir, name, v, err);
    return status == DP_ERROR_IO ? dp_model_dir_file(dir, name, v->obstacle, err) : status;
}

dp_status dp_model_dir_obstacle(const dp_model_dir *dir, char **out, dp_error *err)
{
    *out = NULL;
    return visit(dir->path, &(visitor){.each = find_obstacle, .obstacle = out}, err);
}

dp_status dp_model_dir_complete(dp_model_dir *dir, const char *state_name, dp_error *err)
{
    /* The end of an epoch may write its last step's state a second time. */
    const char *before = dir->kept[strcmp(dir->kept[0], state_name) == 0];
    DP_TRY(write_marker(dir, state_name, before, err));
    memmove(dir->kept[1], before, DP_STATE_NAME_SIZE);
    snprintf(dir->kept[0], DP_STATE_NAME_SIZE, "%s", state_name);
    return visit(dir->path, &(visitor){.each = remove_old_state, .kept = {dir->kept[0], dir->kept[1]}}, err);
}

dp_status dp_model_dir_clear(dp_model_dir *dir, dp_error *err)
{
    static const char none[] = "{\"complete\":null}\n";
    memset(dir->kept, 0, sizeof dir->kept);
    if (visit(dir->path, &(visitor){.each = refuse_checkpoint}, NULL) == DP_OK)
        return DP_OK;
    /* A crash before the last state is gone must not bring it back. */
    char *path;
    DP_TRY(dp_model_dir_file(dir->path, marker, &path, err));
    dp_status status = write_text(path, none, err);
    dp_free(path);
    DP_TRY(status);
    DP_TRY(visit(dir->path, &(visitor){.each = remove_checkpoint}, err));
    return remove_file(dir->path, marker, err);
}

dp_status dp_model_dir_prune(const dp_model_dir *dir, int64_t first_kept, dp_error *err)
{
    return visit(dir->path, &(visitor){.each = remove_old_epoch, .first_kept = first_kept}, err);
}
