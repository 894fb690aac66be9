/* Small helpers on strings. */
#ifndef DP_BASE_TEXT_H
#define DP_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The name nearest to `text` by edit distance (transpositions count as one), or NULL if none is near enough
 * to be what was meant. `names` has `count` entries. */
const char *dp_nearest_name(const char *text, const char *const *names, size_t count);

/* Does a name match a pattern with * and ? (fnmatch without slashes or brackets)? */
bool dp_pattern_matches(const char *pattern, const char *name);

/* Is the text UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above U+10FFFF? */
bool dp_is_utf8(const char *text);

/* 1,234,567 style grouping; returns buffer. */
char *dp_format_count(int64_t n, char *buffer, size_t size);

/* What a noun that is counted ends in: "" or "s". */
static inline const char *dp_s(int64_t n)
{
    return n == 1 ? "" : "s";
}

/* A rate to three digits at least: 1.41, 14.1, 141, 1,410; returns buffer. */
char *dp_format_rate(double rate, char *buffer, size_t size);

/* 12.3 MB style bytes, decimal units; returns buffer. */
char *dp_format_bytes(uint64_t bytes, char *buffer, size_t size);

#endif
