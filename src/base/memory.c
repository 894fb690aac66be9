#include "base/memory.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static dp_status out_of_memory(dp_error *err, const char *what, size_t count, size_t size)
{
    return dp_fail(err, DP_ERROR_MEMORY, "out of memory: cannot allocate %zu x %zu bytes for %s", count, size,
                   what);
}

/* No object may be larger than PTRDIFF_MAX; allocators refuse it, some (under sanitizers) by ending the
 * program. */
static bool possible(size_t count, size_t size, size_t *bytes)
{
    return !__builtin_mul_overflow(count, size, bytes) && *bytes <= PTRDIFF_MAX - 64;
}

dp_status dp_calloc(size_t count, size_t size, const char *what, void *out_pointer, dp_error *err)
{
    size_t bytes;
    void *p = possible(count, size, &bytes) ? calloc(1, bytes ? bytes : 1) : NULL;
    memcpy(out_pointer, &p, sizeof p);
    return p ? DP_OK : out_of_memory(err, what, count, size);
}

dp_status dp_realloc(void *pointer, size_t count, size_t size, const char *what, dp_error *err)
{
    size_t bytes;
    if (!possible(count, size, &bytes))
        return out_of_memory(err, what, count, size);
    void *old;
    memcpy(&old, pointer, sizeof old);
    void *p = realloc(old, bytes ? bytes : 1);
    if (!p)
        return out_of_memory(err, what, count, size);
    memcpy(pointer, &p, sizeof p);
    return DP_OK;
}

dp_status dp_aligned_alloc(size_t bytes, const char *what, void *out_pointer, dp_error *err)
{
    void *p = NULL;
    if (possible(bytes, 1, &bytes))
        p = aligned_alloc(64, bytes ? (bytes + 63) / 64 * 64 : 64);
    memcpy(out_pointer, &p, sizeof p);
    return p ? DP_OK : out_of_memory(err, what, bytes, 1);
}

dp_status dp_strdup(const char *text, char **out, dp_error *err)
{
    size_t n = strlen(text) + 1;
    DP_TRY(dp_calloc(n, 1, "a string", out, err));
    memcpy(*out, text, n);
    return DP_OK;
}

void dp_free(void *pointer)
{
    free(pointer);
}
