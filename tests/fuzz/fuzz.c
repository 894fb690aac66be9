#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void need(int condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "fuzz: %s\n", what);
        abort();
    }
}

static const char *two_parts(const void *a, size_t a_size, const void *b, size_t b_size)
{
    static int file = -1;
    static char path[40];
    if (file < 0)
        file = memfd_create("input", MFD_CLOEXEC);
    need(file >= 0 && ftruncate(file, 0) == 0, "no file in memory");
    need(pwrite(file, a, a_size, 0) == (ssize_t)a_size, "cannot write the file in memory");
    need(pwrite(file, b, b_size, (off_t)a_size) == (ssize_t)b_size, "cannot write the file in memory");
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    return path;
}

const char *fuzz_file(const void *bytes, size_t size)
{
    return two_parts(bytes, size, "", 0);
}

const char *fuzz_framed_file(const uint8_t *data, size_t size)
{
    const uint8_t *line = size ? memchr(data, '\n', size) : NULL;
    size_t header = line ? (size_t)(line - data) : size;
    uint8_t *framed = malloc(8 + header);
    need(framed != NULL, "out of memory");
    for (int i = 0; i < 8; i++)
        framed[i] = (uint8_t)((uint64_t)header >> 8 * i);
    if (header)
        memcpy(framed + 8, data, header);
    const char *path = two_parts(framed, 8 + header, line ? line + 1 : data, line ? size - header - 1 : 0);
    free(framed);
    return path;
}

void fuzz_check(dp_status status, const dp_error *err)
{
    if (status == DP_OK)
        return;
    need(err->status == status, "the error's status is not the one that was returned");
    need(status != DP_ERROR_INTERNAL, err->message);
    need(err->message[0] != 0 && strlen(err->message) < sizeof err->message, "a failure without a message");
}
