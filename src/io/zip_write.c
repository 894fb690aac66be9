/* Writing zip archives; see zip.h. */
#include <string.h>
#include <zlib.h>

#include "base/memory.h"
#include "io/file.h"
#include "io/zip.h"

enum { LOCAL_BYTES = 30, CENTRAL_BYTES = 46, END_BYTES = 22, ALIGNMENT = 64, UTF8_NAMES = 0x800 };

/* Everything is written within the limits of archives without Zip64. */
static const uint64_t most_bytes = UINT32_MAX;
static const size_t most_entries = 65535;

struct dp_zip_writer {
    dp_atomic_file *file;
    uint64_t at;
    unsigned char *central; /* the directory so far */
    size_t central_size, count;
};

static void put(unsigned char *at, int width, uint64_t value)
{
    for (int i = 0; i < width; i++)
        at[i] = (unsigned char)(value >> 8 * i);
}

dp_status dp_zip_create(const char *path, dp_zip_writer **out, dp_error *err)
{
    *out = NULL;
    dp_zip_writer *zip;
    DP_TRY(dp_calloc(1, sizeof *zip, "a zip archive", &zip, err));
    dp_status status = dp_atomic_open(path, &zip->file, err);
    if (status != DP_OK) {
        dp_free(zip);
        return status;
    }
    *out = zip;
    return DP_OK;
}

static dp_status write_bytes(dp_zip_writer *zip, const void *bytes, size_t size, dp_error *err)
{
    zip->at += size;
    return dp_atomic_write(zip->file, bytes, size, err);
}

/* What a local header and the directory say alike: version, flags, method, time, checksum, sizes, lengths. */
static void put_common(unsigned char *at, uint32_t checksum, size_t size, size_t name_length, size_t extra)
{
    put(at, 2, 10); /* version 1.0 reads it */
    put(at + 2, 2, UTF8_NAMES);
    put(at + 8, 2, 1 << 5 | 1); /* 1 January 1980: the same weights give the same file */
    put(at + 10, 4, checksum);
    put(at + 14, 4, size);
    put(at + 18, 4, size);
    put(at + 22, 2, name_length);
    put(at + 24, 2, extra);
}

static dp_status add_central(dp_zip_writer *zip, const char *name, size_t name_length, uint64_t offset,
                             uint32_t checksum, size_t size, dp_error *err)
{
    size_t needed = zip->central_size + CENTRAL_BYTES + name_length;
    DP_TRY(dp_realloc(&zip->central, needed, 1, "a zip directory", err));
    unsigned char *at = zip->central + zip->central_size;
    memset(at, 0, CENTRAL_BYTES);
    memcpy(at, "PK\1\2", 4);
    put(at + 4, 2, 10);
    put_common(at + 6, checksum, size, name_length, 0);
    put(at + 42, 4, offset);
    memcpy(at + CENTRAL_BYTES, name, name_length);
    zip->central_size = needed;
    zip->count++;
    return DP_OK;
}

dp_status dp_zip_add(dp_zip_writer *zip, const char *name, const void *data, size_t size, dp_error *err)
{
    size_t name_length = strlen(name);
    uint64_t offset = zip->at, unaligned = offset + LOCAL_BYTES + name_length + 4;
    size_t padding = (size_t)((ALIGNMENT - unaligned % ALIGNMENT) % ALIGNMENT);
    if (size > most_bytes - ALIGNMENT - name_length || unaligned + padding > most_bytes - size ||
        zip->count == most_entries)
        return dp_fail(err, DP_ERROR_IO, "more than 4 GiB, or %zu tensors, do not fit into one archive",
                       most_entries);
    /* The padding stands in an extra field of an id that nobody reads, PyTorch's "FB". */
    unsigned char header[LOCAL_BYTES] = "PK\3\4", extra[4 + ALIGNMENT] = "FB";
    uint32_t checksum = (uint32_t)crc32_z(crc32_z(0, NULL, 0), data, size);
    put_common(header + 4, checksum, size, name_length, 4 + padding);
    put(extra + 2, 2, padding);
    DP_TRY(write_bytes(zip, header, sizeof header, err));
    DP_TRY(write_bytes(zip, name, name_length, err));
    DP_TRY(write_bytes(zip, extra, 4 + padding, err));
    DP_TRY(write_bytes(zip, data, size, err));
    return add_central(zip, name, name_length, offset, checksum, size, err);
}

dp_status dp_zip_commit(dp_zip_writer *zip, dp_error *err)
{
    unsigned char end[END_BYTES] = "PK\5\6";
    put(end + 8, 2, zip->count);
    put(end + 10, 2, zip->count);
    put(end + 12, 4, zip->central_size);
    put(end + 16, 4, zip->at);
    dp_status status = DP_OK;
    if (zip->central_size > most_bytes || zip->at > most_bytes - zip->central_size)
        status = dp_fail(err, DP_ERROR_IO, "more than 4 GiB do not fit into one archive");
    if (status == DP_OK)
        status = write_bytes(zip, zip->central, zip->central_size, err);
    if (status == DP_OK)
        status = write_bytes(zip, end, sizeof end, err);
    if (status == DP_OK) {
        status = dp_atomic_commit(zip->file, err);
        zip->file = NULL;
    }
    dp_zip_abandon(zip);
    return status;
}

void dp_zip_abandon(dp_zip_writer *zip)
{
    if (!zip)
        return;
    dp_atomic_abandon(zip->file);
    dp_free(zip->central);
    dp_free(zip);
}
