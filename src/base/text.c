#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { LONGEST_NAME = 64 }; /* longer ones are compared by prefix only */

static char fold(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Insertions, deletions, replacements and swaps of neighbours (optimal string alignment) that turn a into b;
 * upper and lower case count as equal. */
static size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t rows[3][LONGEST_NAME + 1];
    size_t *before = rows[0], *previous = rows[1], *current = rows[2];
    for (size_t j = 0; j <= b_length; j++)
        previous[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        current[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t differs = fold(a[i - 1]) != fold(b[j - 1]);
            size_t best = smaller(previous[j] + 1, current[j - 1] + 1);
            best = smaller(best, previous[j - 1] + differs);
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) && fold(a[i - 2]) == fold(b[j - 1]))
                best = smaller(best, before[j - 2] + 1);
            current[j] = best;
        }
        size_t *oldest = before;
        before = previous;
        previous = current;
        current = oldest;
    }
    return previous[b_length];
}

static bool begins_with(const char *name, const char *prefix, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (fold(name[i]) != fold(prefix[i])) /* also where the name ends first */
            return false;
    }
    return true;
}

/* The only name that begins with text, or NULL. */
static const char *completed_name(const char *text, size_t length, const char *const *names, size_t count)
{
    const char *found = NULL;
    for (size_t i = 0; i < count; i++) {
        if (!begins_with(names[i], text, length))
            continue;
        if (found)
            return NULL;
        found = names[i];
    }
    return found;
}

const char *dp_nearest_name(const char *text, const char *const *names, size_t count)
{
    size_t length = strlen(text);
    if (length == 0)
        return NULL;
    /* A third of what was typed may be wrong, at least one letter, but never all of it. */
    size_t limit = length >= 3 ? length / 3 : length - 1;
    const char *nearest = NULL;
    for (size_t i = 0; i < count && length <= LONGEST_NAME; i++) {
        size_t name_length = strlen(names[i]);
        if (name_length > LONGEST_NAME)
            continue;
        size_t distance = edit_distance(text, length, names[i], name_length);
        if (distance <= limit && (!nearest || distance < limit)) {
            nearest = names[i];
            limit = distance;
        }
    }
    return nearest ? nearest : completed_name(text, length, names, count);
}

bool dp_pattern_matches(const char *pattern, const char *name)
{
    const char *star = NULL, *retry = NULL; /* the last star, and where what follows it is tried next */
    while (*name) {
        if (*pattern == '*') {
            star = pattern++;
            retry = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++;
            name++;
        } else if (star) {
            pattern = star + 1;
            name = ++retry;
        } else {
            return false;
        }
    }
    while (*pattern == '*')
        pattern++;
    return *pattern == '\0';
}

bool dp_is_utf8(const char *text)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000}; /* that needs so many bytes */
    for (const unsigned char *c = (const unsigned char *)text; *c;) {
        int length = *c < 0x80 ? 1 : *c >> 5 == 6 ? 2 : *c >> 4 == 14 ? 3 : *c >> 3 == 30 ? 4 : 0;
        uint32_t value = length == 1 ? *c : *c & (0x7f >> length);
        for (int i = 1; i < length; i++) {
            if (c[i] >> 6 != 2) /* also where the text ends */
                return false;
            value = value << 6 | (c[i] & 0x3f);
        }
        if (!length || value < least[length] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff))
            return false;
        c += length;
    }
    return true;
}

char *dp_format_count(int64_t n, char *buffer, size_t size)
{
    char digits[24], grouped[32];
    uint64_t magnitude = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)magnitude);
    size_t used = 0;
    if (n < 0)
        grouped[used++] = '-';
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            grouped[used++] = ',';
        grouped[used++] = digits[i];
    }
    grouped[used] = '\0';
    snprintf(buffer, size, "%s", grouped);
    return buffer;
}

char *dp_format_rate(double rate, char *buffer, size_t size)
{
    if (rate >= 99.95 && rate < 9e15)
        return dp_format_count((int64_t)(rate + 0.5), buffer, size);
    snprintf(buffer, size, "%.*f", rate >= 9.995 ? 1 : 2, rate);
    return buffer;
}

char *dp_format_bytes(uint64_t bytes, char *buffer, size_t size)
{
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
    if (bytes < 1000) {
        snprintf(buffer, size, "%u B", (unsigned)bytes);
        return buffer;
    }
    double value = (double)bytes / 1000;
    size_t unit = 0;
    while (value >= 999.95 && unit + 1 < sizeof units / sizeof *units) { /* would print as 1000.0 */
        value /= 1000;
        unit++;
    }
    snprintf(buffer, size, "%.1f %s", value, units[unit]);
    return buffer;
}
