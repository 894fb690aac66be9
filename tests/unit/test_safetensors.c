/* Safetensors: what is written can be read, and what is unsound is refused with a reason. */
#include <check.h>
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rng.h"
#include "base/memory.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "scratch.h"

/* ---- making files by hand ---- */

static unsigned char made[1 << 16];

/* A file with this header and `data` bytes 0, 1, 2, ...; returns its size. */
static size_t make(const char *header, size_t data)
{
    size_t length = strlen(header);
    ck_assert_uint_lt(8 + length + data, sizeof made);
    for (int i = 0; i < 8; i++)
        made[i] = (unsigned char)((uint64_t)length >> 8 * i);
    memcpy(made + 8, header, length);
    for (size_t i = 0; i < data; i++)
        made[8 + length + i] = (unsigned char)i;
    return 8 + length + data;
}

/* The header alone, read from a file, must lead to the same verdict and, but for the name, to the same words.
 */
static void check_stream(const void *bytes, size_t size, dp_status status, const dp_error *err)
{
    static int memory = -1; /* a file that no disk slows down */
    char path[40];
    dp_safetensors *file;
    dp_error streamed = {0};
    if (memory < 0)
        memory = memfd_create("stream", MFD_CLOEXEC);
    ck_assert_int_eq(ftruncate(memory, 0), 0);
    ck_assert_int_eq(pwrite(memory, bytes, size, 0), (ssize_t)size);
    snprintf(path, sizeof path, "/proc/self/fd/%d", memory);
    ck_assert_int_eq(dp_safetensors_open_header(path, &file, &streamed), status);
    if (status != DP_OK) {
        ck_assert_ptr_null(file);
        ck_assert_str_eq(strstr(streamed.message, "': "), strstr(err->message, "': "));
    }
    dp_safetensors_close(file);
}

/* Parses a copy that ends where its memory ends, so that reading beyond is seen by a sanitizer. All that a
 * caller can look at is looked at. */
static dp_status parse(const void *bytes, size_t size, dp_error *err)
{
    unsigned char *copy = malloc(size ? size : 1);
    if (size)
        memcpy(copy, bytes, size);
    dp_safetensors *file;
    dp_status status = dp_safetensors_parse(copy, size, "the-file", &file, err);
    for (int i = 0; status == DP_OK && i < dp_safetensors_count(file); i++) {
        const dp_tensor *tensor = dp_safetensors_at(file, i);
        ck_assert_ptr_eq(dp_safetensors_find(file, tensor->name), tensor);
        ck_assert_int_ge(tensor->elements, 0);
        ck_assert_uint_eq(tensor->bytes, (size_t)tensor->elements * dp_dtype_size(tensor->dtype));
        float sum = 0;
        for (int64_t e = 0; e < tensor->elements; e++)
            sum += dp_tensor_float(tensor, e) + (float)dp_tensor_int(tensor, e);
        (void)sum;
    }
    if (status != DP_OK)
        ck_assert_ptr_null(file);
    dp_safetensors_close(file);
    free(copy);
    check_stream(bytes, size, status, err);
    return status;
}

static void check_refused(size_t size, const char *why)
{
    dp_error err = {0};
    ck_assert_msg(parse(made, size, &err) == DP_ERROR_IO, "accepted, or a wrong status; wanted: %s", why);
    ck_assert_msg(strstr(err.message, "cannot read 'the-file': ") == err.message, "%s", err.message);
    ck_assert_msg(strstr(err.message, why) != NULL, "%s (wanted: %s)", err.message, why);
    for (const char *c = err.message; *c; c++)
        ck_assert_msg((unsigned char)*c >= 0x20, "not one line: %s", err.message);
}

static void check_header_refused(const char *header, size_t data, const char *why)
{
    check_refused(make(header, data), why);
}

static void check_accepted(const char *header, size_t data)
{
    dp_error err = {0};
    ck_assert_msg(parse(made, make(header, data), &err) == DP_OK, "%s", err.message);
}

/* ---- round trip ---- */

START_TEST(what_is_written_is_read)
{
    dp_error err = {0};
    const float w[6] = {1, -2, 3.5f, 0, 1e-30f, 1e30f};
    const int64_t labels[3] = {0, -1, INT64_MAX};
    const uint8_t odd[3] = {7, 8, 255};
    const float scalar[1] = {42};
    const dp_tensor tensors[] = {
        {.name = "fc.weight", .dtype = DP_F32, .rank = 2, .shape = {2, 3}, .bytes = sizeof w, .data = w},
        {.name = "odd", .dtype = DP_U8, .rank = 1, .shape = {3}, .bytes = 3, .data = odd},
        {.name = "labels", .dtype = DP_I64, .rank = 1, .shape = {3}, .bytes = 24, .data = labels},
        {.name = "empty", .dtype = DP_F32, .rank = 2, .shape = {0, 5}, .bytes = 0, .data = NULL},
        {.name = "a \"quoted\"\n\xc3\xa9 name", .dtype = DP_F32, .bytes = 4, .data = scalar},
    };
    const dp_metadata metadata[] = {{"model", "{\"name\": \"lenet\", \"line\": \"a\\n\"}"}, {"format", "pt"}};
    const char *path = scratch("file.safetensors");
    ck_assert_msg(dp_safetensors_write(path, tensors, 5, metadata, 2, &err) == DP_OK, "%s", err.message);

    dp_safetensors *file;
    ck_assert_msg(dp_safetensors_open(path, &file, &err) == DP_OK, "%s", err.message);
    ck_assert_int_eq(dp_safetensors_count(file), 5);
    for (int i = 0; i < 5; i++) {
        const dp_tensor *tensor = dp_safetensors_find(file, tensors[i].name);
        ck_assert_ptr_nonnull(tensor);
        ck_assert_int_eq(tensor->dtype, tensors[i].dtype);
        ck_assert_int_eq(tensor->rank, tensors[i].rank);
        ck_assert_int_eq(memcmp(tensor->shape, tensors[i].shape, sizeof tensor->shape), 0);
        ck_assert_uint_eq(tensor->bytes, tensors[i].bytes);
        if (tensor->bytes)
            ck_assert_int_eq(memcmp(tensor->data, tensors[i].data, tensor->bytes), 0);
    }
    ck_assert_int_eq(dp_tensor_int(dp_safetensors_find(file, "labels"), 2),
                     INT64_MAX); /* lies at an odd place */
    ck_assert(dp_tensor_float(dp_safetensors_find(file, "fc.weight"), 1) == -2);
    ck_assert_ptr_null(dp_safetensors_find(file, "fc"));
    ck_assert_ptr_null(dp_safetensors_find(file, "__metadata__"));
    ck_assert_str_eq(dp_safetensors_metadata(file, "model"), metadata[0].value);
    ck_assert_str_eq(dp_safetensors_metadata(file, "format"), "pt");
    ck_assert_ptr_null(dp_safetensors_metadata(file, "none"));
    dp_safetensors_close(file);
    dp_safetensors_close(NULL);
}
END_TEST

START_TEST(the_written_bytes_are_as_specified)
{
    dp_error err = {0};
    const float w[2] = {1, 2}, b[1] = {3};
    const dp_tensor tensors[] = {
        {.name = "w", .dtype = DP_F32, .rank = 1, .shape = {2}, .bytes = 8, .data = w},
        {.name = "b", .dtype = DP_F32, .rank = 1, .shape = {1}, .bytes = 4, .data = b},
    };
    const dp_metadata metadata[] = {{"k", "v"}};
    const char *want = "{\"__metadata__\":{\"k\":\"v\"},"
                       "\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                       "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}";
    const char *path = scratch("file.safetensors");
    ck_assert(dp_safetensors_write(path, tensors, 2, metadata, 1, &err) == DP_OK);
    void *bytes;
    size_t size;
    ck_assert(dp_file_read(path, &bytes, &size, &err) == DP_OK);
    const char *text = bytes;
    uint64_t length;
    memcpy(&length, text, 8);
    ck_assert_uint_eq(length % 8, 0);
    ck_assert_uint_lt(length - strlen(want), 8);
    ck_assert_int_eq(memcmp(text + 8, want, strlen(want)), 0);
    for (size_t i = 8 + strlen(want); i < 8 + length; i++)
        ck_assert_int_eq(text[i], ' ');
    ck_assert_uint_eq(size, 8 + length + 12);
    ck_assert_int_eq(memcmp(text + 8 + length, w, 8), 0);
    ck_assert_int_eq(memcmp(text + 16 + length, b, 4), 0);
    dp_free(bytes);

    ck_assert(dp_safetensors_write(path, NULL, 0, NULL, 0, &err) == DP_OK);
    dp_safetensors *file;
    ck_assert_msg(dp_safetensors_open(path, &file, &err) == DP_OK, "%s", err.message);
    ck_assert_int_eq(dp_safetensors_count(file), 0);
    ck_assert_ptr_null(dp_safetensors_metadata(file, "k"));
    dp_safetensors_close(file);
}
END_TEST

/* Contents that stay in the file; it may change under the reader, which is an error and no crash. */
START_TEST(contents_can_stay_in_the_file)
{
    dp_error err = {0};
    const float w[6] = {1, -2, 3, -4, 5, -6};
    const uint8_t odd[3] = {7, 8, 255};
    const dp_tensor tensors[] = {
        {.name = "odd", .dtype = DP_U8, .rank = 1, .shape = {3}, .bytes = 3, .data = odd},
        {.name = "w", .dtype = DP_F32, .rank = 2, .shape = {2, 3}, .bytes = sizeof w, .data = w},
    };
    const char *path = scratch("file.safetensors");
    ck_assert(dp_safetensors_write(path, tensors, 2, NULL, 0, &err) == DP_OK);
    dp_safetensors *file;
    float two[2];
    for (int whole = 0; whole < 2; whole++) {
        ck_assert_msg((whole ? dp_safetensors_open : dp_safetensors_open_header)(path, &file, &err) == DP_OK,
                      "%s", err.message);
        const dp_tensor *tensor = dp_safetensors_find(file, "w");
        ck_assert((tensor->data != NULL) == whole);
        ck_assert_msg(dp_safetensors_read(file, tensor, 4, two, 8, &err) == DP_OK, "%s", err.message);
        ck_assert(two[0] == -2 && two[1] == 3);
        ck_assert_int_eq(dp_safetensors_read(file, tensor, 20, two, 8, &err), DP_ERROR_INTERNAL);
        ck_assert_int_eq(dp_safetensors_read(file, tensor, SIZE_MAX, two, 8, &err), DP_ERROR_INTERNAL);
        struct stat st;
        ck_assert_int_eq(stat(path, &st), 0);
        ck_assert_int_eq(truncate(path, st.st_size - 4), 0);
        ck_assert_int_eq(dp_safetensors_read(file, tensor, 16, two, 8, &err), whole ? DP_OK : DP_ERROR_IO);
        if (!whole)
            ck_assert_ptr_nonnull(
                strstr(err.message, "file.safetensors': it became shorter while it was in use"));
        dp_safetensors_close(file);
        ck_assert(dp_safetensors_write(path, tensors, 2, NULL, 0, &err) == DP_OK);
    }
}
END_TEST

START_TEST(what_cannot_be_written_is_refused)
{
    dp_error err = {0};
    static const float w[4];
    dp_tensor two[2] = {{.name = "w", .dtype = DP_F32, .rank = 1, .shape = {4}, .bytes = 16, .data = w},
                        {.name = "w", .dtype = DP_F32, .rank = 1, .shape = {4}, .bytes = 16, .data = w}};
    const char *path = scratch("file.safetensors");
    ck_assert_int_eq(dp_safetensors_write(path, two, 2, NULL, 0, &err), DP_ERROR_INTERNAL);
    two[1].name = "__metadata__";
    ck_assert_int_eq(dp_safetensors_write(path, two, 2, NULL, 0, &err), DP_ERROR_INTERNAL);
    two[1].name = "\xff";
    ck_assert_int_eq(dp_safetensors_write(path, two, 2, NULL, 0, &err), DP_ERROR_INTERNAL);
    two[1].name = "v";
    two[1].shape[0] = 3;
    ck_assert_int_eq(dp_safetensors_write(path, two, 2, NULL, 0, &err), DP_ERROR_INTERNAL);
    two[1].shape[0] = 4;
    const dp_metadata bad[] = {{"k", "\xff"}};
    ck_assert_int_eq(dp_safetensors_write(path, two, 2, bad, 1, &err), DP_ERROR_INTERNAL);
    ck_assert(!dp_file_exists(path));
    ck_assert_int_eq(dp_safetensors_write(scratch("none/file"), two, 2, NULL, 0, &err), DP_ERROR_IO);

    /* A disk that fills up leaves what was there. */
    scratch_write("file.safetensors", "old", 3);
    struct rlimit limit = {50, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    ck_assert_int_eq(dp_safetensors_write(path, two, 2, NULL, 0, &err), DP_ERROR_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "File too large"));
    void *bytes;
    size_t size;
    ck_assert(dp_file_read(path, &bytes, &size, &err) == DP_OK);
    ck_assert_uint_eq(size, 3);
    dp_free(bytes);
}
END_TEST

/* ---- elements ---- */

static float one_float(dp_dtype dtype, const void *bytes)
{
    unsigned char shifted[9];
    memcpy(shifted + 1, bytes, dp_dtype_size(dtype));
    const dp_tensor tensor = {.dtype = dtype, .elements = 1, .data = shifted + 1};
    return dp_tensor_float(&tensor, 0);
}

static float half(uint16_t bits)
{
    return one_float(DP_F16, &bits);
}

START_TEST(every_dtype_becomes_float)
{
    ck_assert(half(0x0000) == 0.0f && !signbit(half(0x0000)) && signbit(half(0x8000)));
    ck_assert(half(0x3c00) == 1.0f && half(0xc000) == -2.0f && half(0x3555) == 0x1.554p-2f);
    ck_assert(half(0x7bff) == 65504.0f && half(0x0400) == 0x1p-14f);
    ck_assert(half(0x0001) == 0x1p-24f && half(0x83ff) == -0x1.ff8p-15f); /* subnormal */
    ck_assert(isinf(half(0x7c00)) && half(0xfc00) < 0 && isnan(half(0x7e01)));
    const uint16_t bf = 0xc049;
    ck_assert(one_float(DP_BF16, &bf) == -3.140625f);
    const double d = 0.1;
    ck_assert(one_float(DP_F64, &d) == 0.1f);
    const int64_t i64 = -3000000000;
    ck_assert(one_float(DP_I64, &i64) == -3e9f);
    const int32_t i32 = -70000;
    ck_assert(one_float(DP_I32, &i32) == -70000.0f);
    const int16_t i16 = -300;
    ck_assert(one_float(DP_I16, &i16) == -300.0f);
    const int8_t i8 = -7;
    ck_assert(one_float(DP_I8, &i8) == -7.0f);
    const uint8_t u8 = 200;
    ck_assert(one_float(DP_U8, &u8) == 200.0f && one_float(DP_BOOL, &u8) == 1.0f);
    ck_assert_str_eq(dp_dtype_name(DP_BF16), "BF16");
    for (int t = 0; t < DP_DTYPES; t++)
        ck_assert(dp_dtype_size((dp_dtype)t) >= 1 && dp_dtype_name((dp_dtype)t)[0]);
}
END_TEST

/* ---- unsound files ---- */

#define T(name, dtype, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

START_TEST(sound_headers_of_other_writers_are_read)
{
    check_accepted("{}", 0);
    check_accepted("{}      ", 0);
    check_accepted("{" T("a", "F32", "[2]", 0, 8) "," T("b", "U8", "[3]", 8, 11) "}", 11);
    check_accepted("{" T("b", "U8", "[3]", 8, 11) "," T("a", "F32", "[2]", 0, 8) "}", 11); /* any order */
    check_accepted("{" T("a", "F32", "[]", 0, 4) "}", 4);
    check_accepted(
        "{" T("e", "F32", "[0]", 4, 4) "," T("a", "F32", "[1]", 0, 4) "," T("f", "I8", "[0,3]", 0, 0) "}", 4);
    check_accepted(
        "{ \"__metadata__\" : {\"a\":\"[[[[[[[[[[[[[[[[ \\\" {{{{\"}, " T("x", "BOOL", "[1]", 0, 1) "}", 1);
    check_accepted("{" T("a", "F32", "[1,1,1,1,1,1,1,1]", 0, 4) "}", 4);
    check_accepted("{\"a\":{\"data_offsets\":[0,2],\"shape\":[1],\"dtype\":\"F16\",\"more\":null}}", 2);
}
END_TEST

START_TEST(a_header_that_does_not_fit_is_refused)
{
    size_t size = make("{" T("a", "F32", "[2]", 0, 8) "}", 8);
    for (size_t cut = 0; cut < size; cut++)
        check_refused(cut, cut < 8 ? "not a safetensors file" : "truncated");
    made[0]++; /* one byte longer: a byte of data in the header */
    check_refused(size, "not valid JSON");
    memset(made, 0xff, 8);
    check_refused(size, "a header of 18446744073709551615 bytes");
    memcpy(made, "\x01\xe1\xf5\x05\0\0\0", 8); /* 100,000,001 */
    check_refused(size, "a header of 100000001 bytes");
    memset(made, 0, 8);
    check_refused(size, "does not begin with '{'");
    make("{}", 0);
    check_refused(9, "truncated");
}
END_TEST

START_TEST(bad_json_is_refused)
{
    check_header_refused(" {}", 0, "does not begin with '{'");
    check_header_refused("[]", 0, "does not begin with '{'");
    check_header_refused("{", 0, "not valid JSON");
    check_header_refused("{}}", 0, "not valid JSON");
    check_header_refused("{} x", 0, "not valid JSON");
    check_header_refused("{\"a\nb\":1}", 0, "not valid JSON");
    check_header_refused("{\"a\xff\":1}", 0, "not valid JSON");
    check_header_refused("{\"a\\u0000b\":1}", 0, "not valid JSON");
    check_header_refused("{" T("a", "F32", "[1]", 0, 4) "," T("a", "F32", "[1]", 0, 4) "}", 4, "duplicate");
    check_header_refused("{" T("a", "F32", "[99999999999999999999]", 0, 4) "}", 4, "too big");
}
END_TEST

START_TEST(deep_nesting_is_refused)
{
    static char header[60001];
    memset(header, '[', 60000);
    memcpy(header, "{\"a\":", 5);
    check_header_refused(header, 0, "nests deeper");
    for (size_t i = 5; i + 5 <= 60000; i += 5)
        memcpy(header + i, "{\"a\":", 5);
    check_header_refused(header, 0, "nests deeper");
}
END_TEST

START_TEST(bad_descriptions_are_refused)
{
    check_header_refused("{\"a\":1}", 0, "'a' is not described by an object");
    check_header_refused("{\"a\":{}}", 0, "'a' has no dtype");
    check_header_refused("{\"a\":{\"dtype\":5}}", 0, "'a' has no dtype");
    check_header_refused("{\"a\":{\"dtype\":\"F32\"}}", 0, "'a' has no shape");
    check_header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets");
    check_header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "data_offsets");
    check_header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}", 4,
                         "data_offsets");
    check_header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4.0]}}", 4,
                         "data_offsets");
    check_header_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":{\"0\":4}}}", 4,
                         "data_offsets");
    check_header_refused("{" T("a", "F8_E4M3", "[4]", 0, 4) "}", 4,
                         "dtype 'F8_E4M3', which is not supported");
    check_header_refused("{" T("a", "f32", "[1]", 0, 4) "}", 4, "dtype 'f32'");
    check_header_refused("{" T("a", "F32", "[-1]", 0, 4) "}", 4, "dimension 0");
    check_header_refused("{" T("a", "F32", "[1.0]", 0, 4) "}", 4, "dimension 0");
    check_header_refused("{" T("a", "F32", "[1,\"1\"]", 0, 4) "}", 4, "dimension 1");
    check_header_refused("{" T("a", "F32", "4", 0, 4) "}", 4, "has no shape");
    check_header_refused("{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, "9 dimensions");
    check_header_refused("{\"__metadata__\":[]}", 0, "__metadata__ is not an object");
    check_header_refused("{\"__metadata__\":{\"k\":5}}", 0, "__metadata__ entry 'k' is not a string");
    check_header_refused("{\"two\\nlines\\u001b[31m\":{}}", 0, "'two?lines?[31m'");
}
END_TEST

START_TEST(shapes_whose_size_overflows_are_refused)
{
    check_header_refused("{" T("a", "F32", "[4294967296,4294967296]", 0, 0) "}", 0, "too large");
    check_header_refused("{" T("a", "F32", "[4294967296,1073741824]", 0, 0) "}", 0,
                         "too large"); /* 2^64 bytes */
    check_header_refused("{" T("a", "F64", "[2305843009213693952]", 0, 0) "}", 0, "too large");
    check_header_refused("{" T("a", "U8", "[9223372036854775807,2,0]", 0, 0) "}", 0, "too large");
    check_header_refused("{" T("a", "U8", "[9223372036854775807]", 0, 9223372036854775807) "}", 8,
                         "truncated");
}
END_TEST

START_TEST(offsets_must_cover_the_data_once)
{
    check_header_refused("{" T("a", "F32", "[2]", 0, 8) "}", 7, "truncated");
    check_header_refused("{" T("a", "F32", "[2]", 0, 8) "}", 9,
                         "bytes after the last tensor that belong to none: 1");
    check_header_refused("{" T("a", "F32", "[2]", 0, 12) "}", 12, "needs 8 bytes, but data_offsets hold 12");
    check_header_refused("{" T("a", "F32", "[3]", 0, 8) "}", 8, "needs 12 bytes");
    check_header_refused("{" T("a", "F32", "[2]", 8, 0) "}", 8, "out of order");
    check_header_refused("{" T("a", "F32", "[2]", -8, 0) "}", 8, "out of order");
    check_header_refused("{" T("a", "F32", "[2]", 4, 12) "}", 12, "'a' comes after a hole");
    check_header_refused("{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[4]", 5, 9) "}", 9,
                         "'b' comes after a hole");
    check_header_refused("{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[4]", 3, 7) "}", 7, "'b' overlaps");
    check_header_refused("{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[4]", 0, 4) "}", 4, "overlaps");
    check_header_refused("{" T("a", "U8", "[4]", 0, 4) "," T("b", "U8", "[0]", 2, 2) "}", 4, "overlaps");
    check_header_refused("{}", 1, "belong to none: 1");
}
END_TEST

START_TEST(files_on_disk_are_named)
{
    dp_error err = {0};
    dp_safetensors *file;
    ck_assert_int_eq(dp_safetensors_open(scratch("none"), &file, &err), DP_ERROR_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "none': No such file or directory"));
    ck_assert_int_eq(dp_safetensors_open(scratch_write("empty", "", 0), &file, &err), DP_ERROR_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "empty': not a safetensors file: 0 bytes long"));
    ck_assert_int_eq(dp_safetensors_open(scratch_directory, &file, &err), DP_ERROR_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "it is a directory"));
}
END_TEST

/* Random damage: a sanitizer watches; here nothing may crash, and what is accepted must hold together. */
START_TEST(random_damage_does_no_harm)
{
    size_t size = make("{\"__metadata__\":{\"k\":\"v\"}," T("a", "F32", "[2,2]", 0, 16) "," T(
                           "bb", "I64", "[1]", 16, 24) "," T("c", "BF16", "[3]", 24, 30) "}",
                       30);
    unsigned char *bytes = malloc(size);
    int accepted = 0;
    dp_error err = {0};
    ck_assert_int_eq(parse(made, size, &err), DP_OK);
    for (uint32_t round = 0; round < 20000; round++) {
        memcpy(bytes, made, size);
        uint64_t changes = 1 + dp_rng_below(1, DP_RNG_TEST, round, 0, 0, 3);
        for (uint64_t c = 0; c < changes; c++) {
            size_t at = dp_rng_below(1, DP_RNG_TEST, round, 1, c, size);
            static const char likely[] = "{}[]\",:0123456789-.eF\\u \n\xff";
            bytes[at] = round % 2 ? (unsigned char)likely[dp_rng_below(1, DP_RNG_TEST, round, 2, c, 26)]
                                  : (unsigned char)dp_rng_below(1, DP_RNG_TEST, round, 3, c, 256);
        }
        size_t length = round % 5 ? size : dp_rng_below(1, DP_RNG_TEST, round, 4, 0, size + 1);
        dp_status status = parse(bytes, length, &err);
        ck_assert(status == DP_OK || status == DP_ERROR_IO);
        accepted += status == DP_OK;
    }
    ck_assert_int_gt(accepted, 100); /* damage to data and names goes unseen, as it must */
    ck_assert_int_lt(accepted, 10000);
    free(bytes);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("safetensors");
    TCase *t = tcase_create("safetensors");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, scratch_make, scratch_remove);
    tcase_add_test(t, what_is_written_is_read);
    tcase_add_test(t, the_written_bytes_are_as_specified);
    tcase_add_test(t, contents_can_stay_in_the_file);
    tcase_add_test(t, what_cannot_be_written_is_refused);
    tcase_add_test(t, every_dtype_becomes_float);
    tcase_add_test(t, sound_headers_of_other_writers_are_read);
    tcase_add_test(t, a_header_that_does_not_fit_is_refused);
    tcase_add_test(t, bad_json_is_refused);
    tcase_add_test(t, deep_nesting_is_refused);
    tcase_add_test(t, bad_descriptions_are_refused);
    tcase_add_test(t, shapes_whose_size_overflows_are_refused);
    tcase_add_test(t, offsets_must_cover_the_data_once);
    tcase_add_test(t, files_on_disk_are_named);
    tcase_add_test(t, random_damage_does_no_harm);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
