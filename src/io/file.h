/* Files: the library's only calls of open, read, write, sync and rename. */
#ifndef DP_IO_FILE_H
#define DP_IO_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"

/* A file that appears whole or not at all: written to PATH.tmp-PID beside it, synced, renamed over PATH, the
 * directory synced. */
typedef struct dp_atomic_file dp_atomic_file;
dp_status dp_atomic_check(const char *path, dp_error *err); /* whether no directory or device is in the way */
dp_status dp_atomic_open(const char *path, dp_atomic_file **out, dp_error *err);
dp_status dp_atomic_write(dp_atomic_file *file, const void *bytes, size_t size, dp_error *err);
dp_status dp_atomic_commit(dp_atomic_file *file, dp_error *err); /* ends it, success or not */
void dp_atomic_abandon(dp_atomic_file *file);                    /* removes what was written; NULL is fine */
/* fsync, which no signal interrupts; a file system that has nothing to sync is fine. Else -1, and errno. */
int dp_fsync(int descriptor);
/* Removes the temporary files of path that processes left behind which are no more. */
dp_status dp_atomic_remove_stale(const char *path, dp_error *err);
/* Copies a regular file, whole or not at all. */
dp_status dp_file_copy(const char *from, const char *to, dp_error *err);

/* Renames whatever lies at path to PATH.aside-1, or the first such name that is free; replaces nothing. *out:
 * the new name. Owner: the caller. */
dp_status dp_file_move_aside(const char *path, char **out, dp_error *err);

/* A regular file, open for reading. Files are read and never mapped: where another program shortens a mapped
 * file, the next access ends the process (SIGBUS), while a read is an error. */
typedef struct dp_file dp_file;
dp_status dp_file_open(const char *path, dp_file **out, dp_error *err); /* owner: the caller */
size_t dp_file_size(const dp_file *file);                               /* when it was opened */
/* n bytes from offset on, all of them or DP_ERROR_IO. Any number of threads at once. */
dp_status dp_file_read_at(const dp_file *file, size_t offset, void *out, size_t n, dp_error *err);
void dp_file_close(dp_file *file); /* NULL is fine */

/* The whole of a regular file; an empty one gives size 0 and NULL. Owner: the caller, dp_free. */
dp_status dp_file_read(const char *path, void **bytes, size_t *size, dp_error *err);

/* Whether the failure to read a file says that what it held is lost: it is gone, no file, unsound, or its
 * disk is failing. False where it may yet be read: by another user, with fewer files open, with more memory.
 */
bool dp_file_is_damaged(const dp_error *err);

/* Continues a CRC-32 (zlib's) with all bytes from `first` on. */
dp_status dp_file_checksum(const dp_file *file, size_t first, uint32_t *crc, dp_error *err);

/* Creates a directory and its missing parents, which then last; one that exists is fine. */
dp_status dp_make_directories(const char *path, dp_error *err);
bool dp_file_exists(const char *path);

#endif
