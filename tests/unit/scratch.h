/* A directory of a test's own, and files in it. For one test program each; a fixture makes and removes it. */
#ifndef DP_TESTS_SCRATCH_H
#define DP_TESTS_SCRATCH_H

#include <check.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char scratch_directory[512];

static inline void scratch_make(void)
{
    const char *parent = getenv("TMPDIR");
    snprintf(scratch_directory, sizeof scratch_directory, "%s/dptrain-test-XXXXXX",
             parent ? parent : P_tmpdir);
    ck_assert_ptr_nonnull(mkdtemp(scratch_directory));
}

static inline int scratch_remove_one(const char *path, const struct stat *st, int kind, struct FTW *where)
{
    (void)st;
    (void)kind;
    (void)where;
    return remove(path);
}

static inline void scratch_remove(void)
{
    nftw(scratch_directory, scratch_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* The path of a name in the directory; the last eight stay valid. */
static inline const char *scratch(const char *name)
{
    static char paths[8][2048];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", scratch_directory, name);
    return path;
}

static inline const char *scratch_write(const char *name, const void *bytes, size_t size)
{
    const char *path = scratch(name);
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, size, f), size);
    ck_assert_int_eq(fclose(f), 0);
    return path;
}

#endif
