/* PyTorch's files made byte by byte, and reading them. */
#ifndef DP_TESTS_TORCH_FILES_H
#define DP_TESTS_TORCH_FILES_H

#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "io/torch_file.h"

/* ---- making files by hand ---- */

typedef struct buffer {
    unsigned char bytes[1 << 17];
    size_t size;
} buffer;

static buffer made, central;
static int entries;

static inline void put(buffer *b, const void *bytes, size_t n)
{
    ck_assert_uint_le(n, sizeof b->bytes - b->size);
    memcpy(b->bytes + b->size, bytes, n);
    b->size += n;
}

static inline void put_number(buffer *b, uint64_t value, int width)
{
    for (int i = 0; i < width; i++, value >>= 8)
        put(b, &(unsigned char){(unsigned char)value}, 1);
}

#define LITERAL(text) (text), sizeof(text) - 1

/* Opcodes; texts have their length before them. */
#define TEXT(length, text) "\x8c" length text
#define STORAGE_OF(class, key, elements) \
    "(" TEXT("\7", "storage") "ctorch\n" class "\n" TEXT("\1", key) TEXT("\3", "cpu") elements "NtQ"
#define STORAGE STORAGE_OF("FloatStorage", "0", "K\6")
#define REBUILD(storage, offset, size, strides) \
    "ctorch._utils\n_rebuild_tensor_v2\n(" storage offset size strides "\x89)tR"
#define SIZE    "K\2K\3\x86"
#define STRIDES "K\3K\1\x86"
#define TENSOR  REBUILD(STORAGE, "K\0", SIZE, STRIDES)
#define WEIGHT  TEXT("\1", "w") TENSOR
#define SOUND   "\x80\2}(" WEIGHT "u."

static const float six[6] = {0, 0.5F, 1, 1.5F, 2, 2.5F};

/* A legacy file around a pickle, with one storage "0" of six floats. */
static inline void make_legacy(const char *pickle, size_t size)
{
    made.size = 0;
    put(&made, LITERAL("\x80\2\x8a\x0al\xfc\x9c"
                       "F\xf9 j\xa8P\x19."));
    put(&made, LITERAL("\x80\2M\xe9\3."));
    put(&made, LITERAL("\x80\2}" TEXT("\x0d", "little_endian") "\x88s."));
    put(&made, pickle, size);
    put(&made, LITERAL("\x80\2]" TEXT("\1", "0") "a."));
    put_number(&made, 6, 8);
    put(&made, six, sizeof six);
}

static inline void begin_zip(void)
{
    made.size = central.size = 0;
    entries = 0;
}

static inline void add_as(const char *name, const void *data, size_t size, int flags, int method,
                          uint32_t checksum)
{
    size_t at = made.size, length = strlen(name);
    put(&made, "PK\3\4", 4);
    put(&central, "PK\1\2", 4);
    put_number(&central, 0, 2);
    for (int k = 0; k < 2; k++) {
        buffer *b = k ? &central : &made;
        put_number(b, 0, 2);
        put_number(b, (uint64_t)flags, 2);
        put_number(b, (uint64_t)method, 2);
        put_number(b, 0, 4);
        put_number(b, checksum, 4);
        put_number(b, size, 4);
        put_number(b, size, 4);
        put_number(b, length, 2);
        put_number(b, 0, 2);
    }
    put(&made, name, length);
    put(&made, data, size);
    put_number(&central, 0, 10);
    put_number(&central, at, 4);
    put(&central, name, length);
    entries++;
}

static inline void add(const char *name, const void *data, size_t size)
{
    add_as(name, data, size, 0, 0, (uint32_t)crc32(0, data, (uInt)size));
}

static inline void end_zip(void)
{
    size_t at = made.size;
    put(&made, central.bytes, central.size);
    put(&made, "PK\5\6\0\0\0\0", 8);
    put_number(&made, (uint64_t)entries, 2);
    put_number(&made, (uint64_t)entries, 2);
    put_number(&made, central.size, 4);
    put_number(&made, at, 4);
    put_number(&made, 0, 2);
}

static inline void make_zip(const char *pickle, size_t size)
{
    begin_zip();
    add("x/data.pkl", pickle, size);
    add("x/data/0", six, sizeof six);
    end_zip();
}

/* ---- reading them ---- */

/* Reads a copy that ends where its memory ends, so that a sanitizer sees what is beyond. */
static inline dp_status parse(const void *bytes, size_t size, dp_torch_file **out, unsigned char **copy,
                              dp_error *err)
{
    *copy = malloc(size ? size : 1);
    ck_assert_ptr_nonnull(*copy);
    memcpy(*copy, bytes, size);
    dp_status status = dp_torch_parse(*copy, size, "the-file", out, err);
    for (int i = 0; status == DP_OK && i < dp_torch_count(*out); i++)
        for (int64_t e = 0; e < dp_torch_at(*out, i)->elements; e++)
            (void)dp_tensor_float(dp_torch_at(*out, i), e);
    if (status != DP_OK)
        ck_assert_ptr_null(*out);
    return status;
}

/* What was made holds w alone, [2, 3] with these values. */
static inline void check_reads(const float values[6])
{
    dp_error err = {0};
    dp_torch_file *file;
    unsigned char *copy;
    ck_assert_msg(parse(made.bytes, made.size, &file, &copy, &err) == DP_OK, "%s", err.message);
    ck_assert_int_eq(dp_torch_count(file), 1);
    const dp_tensor *t = dp_torch_at(file, 0);
    ck_assert_str_eq(t->name, "w");
    ck_assert_int_eq(t->dtype, DP_F32);
    ck_assert_int_eq(t->rank, 2);
    ck_assert_int_eq(t->shape[0], 2);
    ck_assert_int_eq(t->shape[1], 3);
    ck_assert_uint_eq(t->bytes, 24);
    for (int i = 0; i < 6; i++)
        ck_assert_float_eq(dp_tensor_float(t, i), values[i]);
    dp_torch_close(file);
    free(copy);
}

#endif
