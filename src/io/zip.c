#include "io/zip.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/memory.h"

enum {
    LOCAL_BYTES = 30,
    CENTRAL_BYTES = 46,
    END_BYTES = 22,
    END64_BYTES = 56,
    LOCATOR_BYTES = 20,
    MAX_COMMENT = 65535,
    MAX_ENTRIES = 1 << 20,
};

struct dp_zip {
    const unsigned char *bytes;
    size_t size;
    dp_zip_entry *entries;
    size_t count;
};

static uint64_t number(const unsigned char *at, int width)
{
    uint64_t value = 0;
    for (int i = width - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

static bool begins(const unsigned char *at, const char *signature)
{
    return memcmp(at, signature, 4) == 0;
}

static dp_status damaged(const char *what, dp_error *err)
{
    return dp_fail(err, DP_ERROR_IO, "the zip archive is truncated or damaged: %s", what);
}

/* ---- the end of the archive, which says where its directory is ---- */

typedef struct directory {
    uint64_t begin, size, count;
} directory;

static const unsigned char *find_end(const dp_zip *zip)
{
    for (size_t back = END_BYTES; back <= zip->size && back <= END_BYTES + MAX_COMMENT; back++) {
        const unsigned char *at = zip->bytes + zip->size - back;
        if (begins(at, "PK\5\6") && number(at + 20, 2) == back - END_BYTES)
            return at;
    }
    return NULL;
}

/* Where there is a Zip64 record it is the one that counts. */
static dp_status read_end64(const dp_zip *zip, size_t locator, directory *out, dp_error *err)
{
    uint64_t offset = number(zip->bytes + locator + 8, 8);
    if (offset > locator || locator - offset < END64_BYTES)
        return damaged("its Zip64 record is out of range", err);
    const unsigned char *at = zip->bytes + offset;
    if (!begins(at, "PK\6\6") || number(at + 16, 4) != 0 || number(at + 20, 4) != 0)
        return damaged("its Zip64 record is unsound", err);
    *out = (directory){.begin = number(at + 48, 8), .size = number(at + 40, 8), .count = number(at + 32, 8)};
    return DP_OK;
}

static dp_status find_directory(const dp_zip *zip, directory *out, dp_error *err)
{
    const unsigned char *end = find_end(zip);
    if (!end)
        return damaged("it has no end record", err);
    size_t position = (size_t)(end - zip->bytes);
    *out =
        (directory){.begin = number(end + 16, 4), .size = number(end + 12, 4), .count = number(end + 10, 2)};
    if (position >= LOCATOR_BYTES && begins(end - LOCATOR_BYTES, "PK\6\7"))
        DP_TRY(read_end64(zip, position - LOCATOR_BYTES, out, err));
    else if (number(end + 4, 2) != 0 || number(end + 6, 2) != 0)
        return dp_fail(err, DP_ERROR_IO, "zip archives in several parts are not supported");
    if (out->begin > position || out->size > position - out->begin)
        return damaged("its directory is out of range", err);
    if (out->count > MAX_ENTRIES || out->count > out->size / CENTRAL_BYTES)
        return damaged("its directory is too small for its entries", err);
    return DP_OK;
}

/* ---- entries ---- */

typedef struct central {
    uint64_t flags, method, packed, size, offset, checksum;
    const unsigned char *name;
    size_t name_length;
} central;

/* Sizes and offsets that do not fit into 32 bits stand in an extra field, in this order. */
static dp_status read_extra64(const unsigned char *extra, size_t length, central *c, dp_error *err)
{
    uint64_t *const values[] = {&c->size, &c->packed, &c->offset};
    while (length >= 4) {
        size_t id = number(extra, 2), size = number(extra + 2, 2);
        if (size > length - 4)
            break;
        const unsigned char *at = extra + 4;
        for (size_t i = 0, left = size; id == 1 && i < 3; i++) {
            if (*values[i] != UINT32_MAX)
                continue;
            if (left < 8)
                return damaged("a Zip64 field is too short", err);
            *values[i] = number(at, 8);
            at += 8;
            left -= 8;
        }
        extra += 4 + size;
        length -= 4 + size;
    }
    return DP_OK;
}

/* The local header repeats the name; its other fields may be left empty. */
static dp_status locate(const dp_zip *zip, uint64_t limit, const central *c, dp_zip_entry *out, dp_error *err)
{
    int shown = c->name_length > 100 ? 100 : (int)c->name_length;
    if (c->flags & 1)
        return dp_fail(err, DP_ERROR_IO, "entry '%.*s' of the archive is encrypted", shown, c->name);
    if (c->method != 0)
        return dp_fail(
            err, DP_ERROR_IO,
            "entry '%.*s' of the archive is compressed, which PyTorch's are not: unpack it and pack "
            "it with zip -0",
            shown, c->name);
    if (c->packed != c->size)
        return damaged("an entry has two sizes", err);
    if (c->offset > limit || limit - c->offset < LOCAL_BYTES)
        return damaged("an entry is out of range", err);
    const unsigned char *at = zip->bytes + c->offset;
    uint64_t name_length = number(at + 26, 2), left = limit - c->offset - LOCAL_BYTES;
    uint64_t before = name_length + number(at + 28, 2);
    if (!begins(at, "PK\3\4") || name_length != c->name_length || before > left || c->size > left - before ||
        memcmp(at + LOCAL_BYTES, c->name, c->name_length) != 0)
        return dp_fail(
            err, DP_ERROR_IO,
            "the zip archive is truncated or damaged: entry '%.*s' is not where the directory says", shown,
            c->name);
    *out = (dp_zip_entry){.name = (const char *)c->name,
                          .name_length = c->name_length,
                          .data = at + LOCAL_BYTES + before,
                          .size = (size_t)c->size,
                          .checksum = (uint32_t)c->checksum};
    return DP_OK;
}

/* Reads one entry of the directory from *at on; `left` bytes of it are there. */
static dp_status read_central(const unsigned char *at, uint64_t left, central *c, size_t *used, dp_error *err)
{
    if (left < CENTRAL_BYTES || !begins(at, "PK\1\2"))
        return damaged("its directory is unsound", err);
    size_t name = number(at + 28, 2), extra = number(at + 30, 2), comment = number(at + 32, 2);
    if (name + extra + comment > left - CENTRAL_BYTES)
        return damaged("its directory is unsound", err);
    *c = (central){.flags = number(at + 8, 2),
                   .method = number(at + 10, 2),
                   .checksum = number(at + 16, 4),
                   .packed = number(at + 20, 4),
                   .size = number(at + 24, 4),
                   .offset = number(at + 42, 4),
                   .name = at + CENTRAL_BYTES,
                   .name_length = name};
    *used = CENTRAL_BYTES + name + extra + comment;
    return read_extra64(at + CENTRAL_BYTES + name, extra, c, err);
}

static int compare(const char *a, size_t a_length, const char *b, size_t b_length)
{
    int order = memcmp(a, b, a_length < b_length ? a_length : b_length);
    return order ? order : (a_length > b_length) - (a_length < b_length);
}

static int compare_entries(const void *a, const void *b)
{
    const dp_zip_entry *x = a, *y = b;
    return compare(x->name, x->name_length, y->name, y->name_length);
}

static dp_status read_directory(dp_zip *zip, dp_error *err)
{
    directory d = {0};
    DP_TRY(find_directory(zip, &d, err));
    DP_TRY(dp_calloc((size_t)d.count, sizeof *zip->entries, "a zip directory", &zip->entries, err));
    uint64_t at = d.begin;
    for (; zip->count < d.count; zip->count++) {
        central c;
        size_t used = 0;
        DP_TRY(read_central(zip->bytes + at, d.begin + d.size - at, &c, &used, err));
        DP_TRY(locate(zip, d.begin, &c, &zip->entries[zip->count], err));
        at += used;
    }
    qsort(zip->entries, zip->count, sizeof *zip->entries, compare_entries);
    for (size_t i = 1; i < zip->count; i++)
        if (compare_entries(&zip->entries[i - 1], &zip->entries[i]) == 0)
            return damaged("two entries have the same name", err);
    return DP_OK;
}

dp_status dp_zip_parse(const void *bytes, size_t size, dp_zip **out, dp_error *err)
{
    *out = NULL;
    dp_zip *zip;
    DP_TRY(dp_calloc(1, sizeof *zip, "a zip archive", &zip, err));
    zip->bytes = bytes;
    zip->size = size;
    dp_status status = read_directory(zip, err);
    if (status != DP_OK) {
        dp_zip_free(zip);
        return status;
    }
    *out = zip;
    return DP_OK;
}

void dp_zip_free(dp_zip *zip)
{
    if (!zip)
        return;
    dp_free(zip->entries);
    dp_free(zip);
}

size_t dp_zip_count(const dp_zip *zip)
{
    return zip->count;
}

const dp_zip_entry *dp_zip_at(const dp_zip *zip, size_t index)
{
    return &zip->entries[index];
}

const dp_zip_entry *dp_zip_find(const dp_zip *zip, const char *name)
{
    const dp_zip_entry key = {.name = name, .name_length = strlen(name)};
    return zip->count ? bsearch(&key, zip->entries, zip->count, sizeof *zip->entries, compare_entries) : NULL;
}

dp_status dp_zip_check(const dp_zip_entry *entry, dp_error *err)
{
    if (crc32_z(0, entry->data, entry->size) == entry->checksum)
        return DP_OK;
    return dp_fail(err, DP_ERROR_IO, "entry '%.*s' of the archive does not have its checksum: it is damaged",
                   entry->name_length > 100 ? 100 : (int)entry->name_length, entry->name);
}
