#define ZLIB_CONST /* zlib then promises not to write to its input */

#include "io/idx.h"

#include <limits.h>
#include <stdbool.h>
#include <string.h>
#include <zlib.h>

#include "base/memory.h"
#include "io/file.h"

enum {
    TYPE_UNSIGNED_BYTE = 0x08,
    MAX_RANK = 4,
    /* Deflate cannot do better than about 1032 to 1: what announces more is a lie and is refused before any
     * memory is spent on it. */
    MAX_INFLATION = 1100,
};

/* Bytes of the file in order, inflated if it is compressed. */
typedef struct byte_source {
    const unsigned char *next;
    size_t left;
    bool compressed, ended; /* ended: the end of the last compressed stream was seen */
    z_stream stream;
} byte_source;

static const char *type_name(unsigned type)
{
    switch (type) {
    case 0x09:
        return "signed bytes";
    case 0x0B:
        return "16-bit integers";
    case 0x0C:
        return "32-bit integers";
    case 0x0D:
        return "32-bit floats";
    case 0x0E:
        return "64-bit floats";
    default:
        return NULL;
    }
}

static dp_status source_open(byte_source *source, const void *bytes, size_t size, dp_error *err)
{
    *source = (byte_source){.next = bytes, .left = size};
    if (size < 2 || source->next[0] != 0x1f || source->next[1] != 0x8b)
        return DP_OK;
    if (inflateInit2(&source->stream, 16 + MAX_WBITS) != Z_OK) /* 16: a gzip wrapper */
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory for zlib");
    source->compressed = true;
    return DP_OK;
}

static void source_close(byte_source *source)
{
    if (source->compressed)
        inflateEnd(&source->stream);
}

static uInt at_most(size_t n)
{
    return n < UINT_MAX ? (uInt)n : UINT_MAX;
}

/* A compressed file may be several gzip files end to end, and may be padded with zeros: gunzip reads both
 * (RFC 1952, section 2.2). After the end of one stream: begins the next, or ends. */
static dp_status next_member(byte_source *source, dp_error *err)
{
    const unsigned char *next = source->next;
    if (source->left >= 2 && next[0] == 0x1f && next[1] == 0x8b) {
        if (inflateReset(&source->stream) != Z_OK)
            return dp_fail(err, DP_ERROR_INTERNAL, "zlib cannot begin another gzip stream");
        return DP_OK;
    }
    while (source->left > 0 && *source->next == 0) {
        source->next++;
        source->left--;
    }
    source->ended = true;
    return DP_OK;
}

/* Up to n bytes to out; *got is how many came before the end. */
static dp_status inflate_some(byte_source *source, unsigned char *out, size_t n, size_t *got, dp_error *err)
{
    z_stream *z = &source->stream;
    *got = 0;
    while (*got < n && !source->ended) {
        uInt room = at_most(n - *got), offered = at_most(source->left);
        z->next_in = source->next;
        z->avail_in = offered;
        z->next_out = out + *got;
        z->avail_out = room;
        int rc = inflate(z, Z_NO_FLUSH);
        source->next += offered - z->avail_in;
        source->left -= offered - z->avail_in;
        *got += room - z->avail_out;
        if (rc == Z_STREAM_END)
            DP_TRY(next_member(source, err));
        else if (rc == Z_BUF_ERROR)
            return dp_fail(err, DP_ERROR_IO, "the gzip stream is truncated");
        else if (rc == Z_MEM_ERROR)
            return dp_fail(err, DP_ERROR_MEMORY, "out of memory for zlib");
        else if (rc != Z_OK)
            return dp_fail(err, DP_ERROR_IO, "the gzip stream is corrupt (%s)", z->msg ? z->msg : "zlib");
    }
    return DP_OK;
}

static dp_status take(byte_source *source, unsigned char *out, size_t n, const char *what, dp_error *err)
{
    size_t got = source->left < n ? source->left : n;
    if (source->compressed) {
        DP_TRY(inflate_some(source, out, n, &got, err));
    } else if (got > 0) {
        memcpy(out, source->next, got);
        source->next += got;
        source->left -= got;
    }
    if (got < n)
        return dp_fail(err, DP_ERROR_IO, "truncated: %zu of %zu bytes of %s", got, n, what);
    return DP_OK;
}

/* Asking for one byte more makes zlib check the stream's length and checksum. */
static dp_status expect_end(byte_source *source, dp_error *err)
{
    size_t extra = 0;
    unsigned char byte;
    if (source->compressed)
        DP_TRY(inflate_some(source, &byte, 1, &extra, err));
    if (extra > 0 || source->left > 0)
        return dp_fail(err, DP_ERROR_IO, "more bytes follow than its header announces");
    return DP_OK;
}

static uint32_t big_endian(const unsigned char bytes[4])
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static dp_status read_header(byte_source *source, dp_idx *out, dp_error *err)
{
    unsigned char magic[4], dimensions[4 * MAX_RANK];
    DP_TRY(take(source, magic, sizeof magic, "the header", err));
    if (magic[0] != 0 || magic[1] != 0)
        return dp_fail(err, DP_ERROR_IO, "not an IDX file: it begins with %02x %02x %02x %02x", magic[0],
                       magic[1], magic[2], magic[3]);
    if (magic[2] != TYPE_UNSIGNED_BYTE) {
        const char *type = type_name(magic[2]);
        return type ? dp_fail(err, DP_ERROR_IO, "it holds %s; only unsigned bytes (type 0x08) are supported",
                              type)
                    : dp_fail(err, DP_ERROR_IO, "not an IDX file: unknown element type 0x%02x", magic[2]);
    }
    if (magic[3] < 1 || magic[3] > MAX_RANK)
        return dp_fail(err, DP_ERROR_IO, "it has %d dimensions; 1 to %d are supported", magic[3], MAX_RANK);
    out->rank = magic[3];
    DP_TRY(take(source, dimensions, 4 * (size_t)out->rank, "the header", err));
    int64_t bytes = 1;
    for (int d = 0; d < out->rank; d++) {
        out->shape[d] = big_endian(dimensions + 4 * d);
        if (__builtin_mul_overflow(bytes, out->shape[d], &bytes))
            return dp_fail(err, DP_ERROR_IO, "its dimensions are too large for any file");
    }
    out->bytes = (size_t)bytes;
    return DP_OK;
}

static dp_status read_body(byte_source *source, size_t file_size, dp_idx *out, dp_error *err)
{
    size_t most = source->compressed ? file_size * MAX_INFLATION : source->left;
    if (out->bytes > most)
        return dp_fail(err, DP_ERROR_IO,
                       "truncated: its header announces %zu bytes, more than the file can hold", out->bytes);
    DP_TRY(dp_calloc(out->bytes, 1, "the contents of an IDX file", &out->data, err));
    DP_TRY(take(source, out->data, out->bytes, "data", err));
    return expect_end(source, err);
}

dp_status dp_idx_parse(const void *bytes, size_t size, const char *name, dp_idx *out, dp_error *err)
{
    *out = (dp_idx){0};
    byte_source source;
    dp_status status = source_open(&source, bytes, size, err);
    if (status == DP_OK)
        status = read_header(&source, out, err);
    if (status == DP_OK)
        status = read_body(&source, size, out, err);
    source_close(&source);
    if (status != DP_OK) {
        dp_error_prefix(err, "cannot read '%s'", name);
        dp_idx_clear(out);
    }
    return status;
}

dp_status dp_idx_read(const char *path, dp_idx *out, dp_error *err)
{
    *out = (dp_idx){0};
    void *bytes;
    size_t size;
    DP_TRY(dp_file_read(path, &bytes, &size, err));
    dp_status status = dp_idx_parse(bytes, size, path, out, err);
    dp_free(bytes);
    return status;
}

void dp_idx_clear(dp_idx *idx)
{
    dp_free(idx->data);
    *idx = (dp_idx){0};
}
