#include "io/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/memory.h"

struct dp_atomic_file {
    int descriptor;
    char *path, *temporary;
    bool failed; /* a write failed: what is there must never become the file */
};

static dp_status cannot(dp_error *err, const char *what, const char *path, int number)
{
    dp_fail(err, DP_ERROR_IO, "cannot %s '%s': %s", what, path, strerror(number));
    if (err)
        err->number = number;
    return DP_ERROR_IO;
}

/* ---- writing ---- */

static void forget(dp_atomic_file *file)
{
    dp_free(file->path);
    dp_free(file->temporary);
    dp_free(file);
}

/* Renaming over a directory fails late, and renaming over a device (/dev/null) would replace it. */
dp_status dp_atomic_check(const char *path, dp_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0 || S_ISREG(st.st_mode))
        return DP_OK;
    return dp_fail(err, DP_ERROR_IO, "cannot write '%s': it is %s", path,
                   S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
}

/* What a killed process of the same id left under the name is removed; O_EXCL then follows no link. */
static int create_temporary(const char *path)
{
    unlink(path);
    return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
}

dp_status dp_atomic_open(const char *path, dp_atomic_file **out, dp_error *err)
{
    *out = NULL;
    DP_TRY(dp_atomic_check(path, err));
    dp_atomic_file *file;
    DP_TRY(dp_calloc(1, sizeof *file, "a file", &file, err));
    size_t room = strlen(path) + sizeof ".tmp-" + 24;
    dp_status status = dp_strdup(path, &file->path, err);
    if (status == DP_OK)
        status = dp_calloc(room, 1, "a file name", &file->temporary, err);
    if (status == DP_OK) {
        snprintf(file->temporary, room, "%s.tmp-%ld", path, (long)getpid());
        file->descriptor = create_temporary(file->temporary);
        if (file->descriptor < 0)
            status = cannot(err, "write", path, errno);
    }
    if (status != DP_OK) {
        forget(file);
        return status;
    }
    *out = file;
    return DP_OK;
}

dp_status dp_atomic_write(dp_atomic_file *file, const void *bytes, size_t size, dp_error *err)
{
    const char *next = bytes;
    while (size > 0) {
        ssize_t written = write(file->descriptor, next, size);
        if (written < 0) {
            if (errno == EINTR)
                continue;
            file->failed = true;
            return cannot(err, "write", file->path, errno);
        }
        next += written;
        size -= (size_t)written;
    }
    return DP_OK;
}

int dp_fsync(int descriptor)
{
    int rc;
    do {
        rc = fsync(descriptor);
    } while (rc != 0 && errno == EINTR);
    /* Some file systems have nothing to sync and say so in these ways. */
    return rc != 0 && (errno == EINVAL || errno == ENOTSUP || errno == EROFS) ? 0 : rc;
}

/* Owner: the caller. */
static dp_status directory_of(const char *path, char **out, dp_error *err)
{
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (slash == path ? 1 : (size_t)(slash - path)) : 1;
    DP_TRY(dp_calloc(length + 1, 1, "a file name", out, err));
    memcpy(*out, slash ? path : ".", length);
    return DP_OK;
}

/* Makes a new name in the directory of path last. A directory that may be written but not read cannot be
 * opened: the name stands, only a power failure could still undo it. */
static dp_status sync_directory_of(const char *path, dp_error *err)
{
    char *directory;
    DP_TRY(directory_of(path, &directory, err));
    dp_status status = DP_OK;
    int descriptor = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) {
        if (errno != EACCES)
            status = cannot(err, "sync directory", directory, errno);
    } else {
        if (dp_fsync(descriptor) != 0)
            status = cannot(err, "sync directory", directory, errno);
        close(descriptor);
    }
    dp_free(directory);
    return status;
}

dp_status dp_atomic_commit(dp_atomic_file *file, dp_error *err)
{
    dp_status status = DP_OK;
    if (file->failed)
        status = dp_fail(err, DP_ERROR_IO, "cannot write '%s': an earlier write failed", file->path);
    else if (dp_fsync(file->descriptor) != 0)
        status = cannot(err, "write", file->path, errno);
    if (close(file->descriptor) != 0 && errno != EINTR && status == DP_OK)
        status = cannot(err, "write", file->path, errno);
    if (status == DP_OK && rename(file->temporary, file->path) != 0)
        status = cannot(err, "write", file->path, errno);
    if (status == DP_OK)
        status = sync_directory_of(file->path, err);
    else
        unlink(file->temporary);
    forget(file);
    return status;
}

void dp_atomic_abandon(dp_atomic_file *file)
{
    if (!file)
        return;
    close(file->descriptor);
    unlink(file->temporary);
    forget(file);
}

/* Is the entry NAME.tmp-PID, of a process that does not exist? */
static bool is_stale(const char *entry, const char *name)
{
    static const char mark[] = ".tmp-";
    size_t length = strlen(name);
    if (strncmp(entry, name, length) != 0 || strncmp(entry + length, mark, sizeof mark - 1) != 0)
        return false;
    const char *digits = entry + length + sizeof mark - 1;
    char *end;
    long process = strtol(digits, &end, 10);
    char running[40];
    snprintf(running, sizeof running, "/proc/%ld", process);
    return *digits >= '1' && *digits <= '9' && !*end && dp_file_exists("/proc/self") &&
           !dp_file_exists(running);
}

dp_status dp_atomic_remove_stale(const char *path, dp_error *err)
{
    char *directory;
    const char *slash = strrchr(path, '/');
    DP_TRY(directory_of(path, &directory, err));
    DIR *d = opendir(directory);
    struct dirent *entry;
    while (d && (entry = readdir(d)) != NULL)
        if (is_stale(entry->d_name, slash ? slash + 1 : path))
            unlinkat(dirfd(d), entry->d_name, 0); /* what cannot be removed does no harm */
    if (d)
        closedir(d);
    dp_free(directory);
    return DP_OK;
}

dp_status dp_file_copy(const char *from, const char *to, dp_error *err)
{
    void *bytes;
    size_t size;
    dp_atomic_file *file;
    DP_TRY(dp_file_read(from, &bytes, &size, err));
    dp_status status = dp_atomic_open(to, &file, err);
    if (status == DP_OK) {
        status = dp_atomic_write(file, bytes, size, err);
        if (status == DP_OK)
            status = dp_atomic_commit(file, err);
        else
            dp_atomic_abandon(file);
    }
    dp_free(bytes);
    return status;
}

/* ---- out of the way ---- */

/* For file systems that have no such renaming: the name is claimed by an empty file (or directory) of our
 * own, which is all that the renaming then replaces. */
static int claim_and_rename(const char *from, const char *to)
{
    struct stat st;
    if (lstat(from, &st) != 0)
        return -1;
    bool directory = S_ISDIR(st.st_mode);
    int descriptor = directory ? mkdir(to, 0777) : open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor < 0)
        return -1;
    if (!directory)
        close(descriptor);
    if (rename(from, to) == 0)
        return 0;
    int number = errno;
    if (directory)
        rmdir(to);
    else
        unlink(to);
    errno = number;
    return -1;
}

static int rename_to_free_name(const char *from, const char *to)
{
    int rc = renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE);
    return rc != 0 && (errno == EINVAL || errno == ENOSYS) ? claim_and_rename(from, to) : rc;
}

dp_status dp_file_move_aside(const char *path, char **out, dp_error *err)
{
    size_t size = strlen(path) + sizeof ".aside-" + 12;
    DP_TRY(dp_calloc(size, 1, "a file name", out, err));
    int number = 0, rc;
    do {
        snprintf(*out, size, "%s.aside-%d", path, ++number);
        rc = rename_to_free_name(path, *out);
    } while (rc != 0 && errno == EEXIST);
    if (rc == 0)
        return DP_OK;
    dp_fail(err, DP_ERROR_IO, "cannot move '%s' to '%s': %s", path, *out, strerror(errno));
    dp_free(*out);
    *out = NULL;
    return DP_ERROR_IO;
}

/* ---- reading ---- */

struct dp_file {
    int descriptor;
    size_t size;
    char *path;
};

static dp_status open_regular(dp_file *file, dp_error *err)
{
    struct stat st;
    file->descriptor =
        open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not keep us waiting */
    if (file->descriptor < 0 || fstat(file->descriptor, &st) != 0)
        return cannot(err, "read", file->path, errno);
    if (!S_ISREG(st.st_mode))
        return dp_fail(err, DP_ERROR_IO, "cannot read '%s': it is %s", file->path,
                       S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
    file->size = (size_t)st.st_size;
    return DP_OK;
}

dp_status dp_file_open(const char *path, dp_file **out, dp_error *err)
{
    *out = NULL;
    dp_file *file;
    DP_TRY(dp_calloc(1, sizeof *file, "a file", &file, err));
    file->descriptor = -1;
    dp_status status = dp_strdup(path, &file->path, err);
    if (status == DP_OK)
        status = open_regular(file, err);
    if (status != DP_OK) {
        dp_file_close(file);
        return status;
    }
    *out = file;
    return DP_OK;
}

size_t dp_file_size(const dp_file *file)
{
    return file->size;
}

dp_status dp_file_read_at(const dp_file *file, size_t offset, void *out, size_t n, dp_error *err)
{
    char *next = out;
    while (n > 0) {
        ssize_t got = pread(file->descriptor, next, n, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return cannot(err, "read", file->path, errno);
        if (got == 0)
            return dp_fail(err, DP_ERROR_IO, "cannot read '%s': it became shorter while it was in use",
                           file->path);
        next += got;
        offset += (size_t)got;
        n -= (size_t)got;
    }
    return DP_OK;
}

void dp_file_close(dp_file *file)
{
    if (!file)
        return;
    if (file->descriptor >= 0)
        close(file->descriptor);
    dp_free(file->path);
    dp_free(file);
}

dp_status dp_file_read(const char *path, void **bytes, size_t *size, dp_error *err)
{
    *bytes = NULL;
    *size = 0;
    dp_file *file;
    DP_TRY(dp_file_open(path, &file, err));
    dp_status status = file->size > 0 ? dp_aligned_alloc(file->size, path, bytes, err) : DP_OK;
    if (status == DP_OK)
        status = dp_file_read_at(file, 0, *bytes, file->size, err);
    if (status == DP_OK) {
        *size = file->size;
    } else {
        dp_free(*bytes);
        *bytes = NULL;
    }
    dp_file_close(file);
    return status;
}

dp_status dp_file_checksum(const dp_file *file, size_t first, uint32_t *crc, dp_error *err)
{
    enum { CHUNK = 1 << 20 };
    void *bytes;
    DP_TRY(dp_calloc(CHUNK, 1, "a file", &bytes, err));
    dp_status status = DP_OK;
    while (status == DP_OK && first < file->size) {
        size_t left = file->size - first, n = left < CHUNK ? left : CHUNK;
        status = dp_file_read_at(file, first, bytes, n, err);
        if (status == DP_OK)
            *crc = (uint32_t)crc32_z(*crc, bytes, n);
        first += n;
    }
    dp_free(bytes);
    return status;
}

bool dp_file_is_damaged(const dp_error *err)
{
    static const int lost[] = {0, ENOENT, ENXIO, ELOOP, EIO, EBADMSG, EUCLEAN};
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++)
        if (err->number == lost[i])
            return err->status == DP_ERROR_IO;
    return false;
}

bool dp_file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

/* ---- directories ---- */

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static dp_status make_directory(const char *path, const char *whole, dp_error *err)
{
    if (mkdir(path, 0777) == 0)
        return sync_directory_of(path, err); /* else what is synced within could go with its directory */
    int number = errno;                      /* before the next call changes it */
    if (is_directory(path))
        return DP_OK;
    if (number == EEXIST)
        return dp_fail(err, DP_ERROR_IO, "cannot create directory '%s': '%s' is not a directory", whole,
                       path);
    return cannot(err, "create directory", whole, number);
}

dp_status dp_make_directories(const char *path, dp_error *err)
{
    if (is_directory(path))
        return DP_OK;
    if (!*path)
        return cannot(err, "create directory", path, ENOENT);
    char *partial;
    DP_TRY(dp_strdup(path, &partial, err));
    dp_status status = DP_OK;
    for (size_t i = 1; status == DP_OK; i++) { /* from 1: the root is there */
        if (path[i] != '/' && path[i] != '\0')
            continue;
        partial[i] = '\0';
        if (path[i - 1] != '/')
            status = make_directory(partial, path, err);
        if (path[i] == '\0')
            break;
        partial[i] = '/';
    }
    dp_free(partial);
    return status;
}
