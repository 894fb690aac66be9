/* Host memory of the library's own. All of it goes through here, so that one place can count it and one place
 * can make it fail in a test. */
#ifndef DP_BASE_MEMORY_H
#define DP_BASE_MEMORY_H

#include <stddef.h>

#include "base/error.h"

/* Zeroed memory for count elements of the given size; checks the product for overflow. `what` names the thing
 * for the message. Owner: the caller, who frees it with dp_free. *out is NULL after a failure. */
dp_status dp_calloc(size_t count, size_t size, const char *what, void *out_pointer, dp_error *err);

/* Grows *pointer to count elements; the old block stays valid after a failure. New bytes are not set. */
dp_status dp_realloc(void *pointer, size_t count, size_t size, const char *what, dp_error *err);

/* As dp_calloc, aligned to 64 bytes (a cache line, and the widest vector of today's CPUs), not zeroed. */
dp_status dp_aligned_alloc(size_t bytes, const char *what, void *out_pointer, dp_error *err);

dp_status dp_strdup(const char *text, char **out, dp_error *err);

void dp_free(void *pointer);

#endif
