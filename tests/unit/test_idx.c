/* IDX files: sound ones raw and compressed, and every way in which one can be unsound. */
#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <zlib.h>

#include "io/idx.h"
#include "scratch.h"

static const unsigned char images[] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0,  0,  2,  0, 0, 0, 3, /* 2 x 2 x 3 */
                                       1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 255};
enum { HEADER = 16, PIXELS = 12 };

/* Parses a copy that ends where its memory ends, so that reading beyond is seen by a sanitizer. */
static dp_status parse(const void *bytes, size_t size, dp_idx *out, dp_error *err)
{
    unsigned char *copy = malloc(size ? size : 1);
    if (size)
        memcpy(copy, bytes, size);
    dp_status status = dp_idx_parse(copy, size, "the-file", out, err);
    free(copy);
    return status;
}

static void check_refused(const void *bytes, size_t size, const char *why)
{
    dp_error err = {0};
    dp_idx idx = {.rank = 7};
    ck_assert_int_eq(parse(bytes, size, &idx, &err), DP_ERROR_IO);
    ck_assert_msg(strstr(err.message, "cannot read 'the-file': ") == err.message, "%s", err.message);
    ck_assert_msg(strstr(err.message, why) != NULL, "%s (wanted: %s)", err.message, why);
    ck_assert_ptr_null(idx.data);
    ck_assert_int_eq(idx.rank, 0);
}

static void check_images(const dp_idx *idx)
{
    ck_assert_int_eq(idx->rank, 3);
    ck_assert_int_eq(idx->shape[0], 2);
    ck_assert_int_eq(idx->shape[1], 2);
    ck_assert_int_eq(idx->shape[2], 3);
    ck_assert_uint_eq(idx->bytes, PIXELS);
    ck_assert_int_eq(memcmp(idx->data, images + HEADER, PIXELS), 0);
}

/* gzip; returns the size. */
static size_t compress_to(unsigned char *out, size_t room, const void *bytes, size_t size)
{
    z_stream z = {0};
    ck_assert_int_eq(deflateInit2(&z, 9, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (unsigned char *)(uintptr_t)bytes;
    z.avail_in = (uInt)size;
    z.next_out = out;
    z.avail_out = (uInt)room;
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    size_t written = room - z.avail_out;
    deflateEnd(&z);
    return written;
}

START_TEST(raw_and_compressed_files_are_read)
{
    dp_error err = {0};
    dp_idx idx;
    unsigned char gz[200];
    ck_assert_msg(parse(images, sizeof images, &idx, &err) == DP_OK, "%s", err.message);
    check_images(&idx);
    dp_idx_clear(&idx);
    ck_assert_ptr_null(idx.data);
    size_t size = compress_to(gz, sizeof gz, images, sizeof images);
    ck_assert_msg(parse(gz, size, &idx, &err) == DP_OK, "%s", err.message);
    check_images(&idx);
    dp_idx_clear(&idx);
    dp_idx_clear(&idx);

    /* From disk; the name does not matter. */
    ck_assert(dp_idx_read(scratch_write("images", gz, size), &idx, &err) == DP_OK);
    check_images(&idx);
    dp_idx_clear(&idx);
    ck_assert(dp_idx_read(scratch_write("images.gz", images, sizeof images), &idx, &err) == DP_OK);
    check_images(&idx);
    dp_idx_clear(&idx);
    ck_assert_int_eq(dp_idx_read(scratch("none"), &idx, &err), DP_ERROR_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "none': No such file"));
}
END_TEST

START_TEST(one_to_four_dimensions_are_read)
{
    for (unsigned char rank = 0; rank <= 5; rank++) {
        unsigned char bytes[4 + 4 * 5 + 1] = {0, 0, 8, rank};
        for (int d = 0; d < rank; d++)
            bytes[4 + 4 * d + 3] = 1;
        bytes[4 + 4 * rank] = 42;
        if (rank < 1 || rank > 4) {
            check_refused(bytes, 5u + 4u * rank, "1 to 4 are supported");
            continue;
        }
        dp_error err = {0};
        dp_idx idx;
        ck_assert_msg(parse(bytes, 5u + 4u * rank, &idx, &err) == DP_OK, "%s", err.message);
        ck_assert_int_eq(idx.rank, rank);
        ck_assert_uint_eq(idx.bytes, 1);
        ck_assert_uint_eq(idx.data[0], 42);
        dp_idx_clear(&idx);
    }
    const unsigned char nothing[] = {0, 0, 8, 1, 0, 0, 0, 0};
    dp_idx idx;
    ck_assert(parse(nothing, sizeof nothing, &idx, NULL) == DP_OK);
    ck_assert_uint_eq(idx.bytes, 0);
    dp_idx_clear(&idx);
}
END_TEST

START_TEST(other_files_and_types_are_named)
{
    unsigned char bytes[sizeof images];
    memcpy(bytes, images, sizeof images);
    bytes[0] = 0x89;
    check_refused(bytes, sizeof bytes, "not an IDX file: it begins with 89 00 08 03");
    bytes[0] = 0;
    const struct {
        unsigned char type;
        const char *name;
    } types[] = {{0x09, "signed bytes"},  {0x0B, "16-bit integers"}, {0x0C, "32-bit integers"},
                 {0x0D, "32-bit floats"}, {0x0E, "64-bit floats"},   {0x0A, "unknown element type 0x0a"}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        bytes[2] = types[i].type;
        check_refused(bytes, sizeof bytes, types[i].name);
    }
}
END_TEST

START_TEST(every_truncation_is_noticed)
{
    unsigned char gz[200];
    for (size_t size = 0; size < sizeof images; size++)
        check_refused(images, size, "truncated");
    size_t whole = compress_to(gz, sizeof gz, images, sizeof images);
    for (size_t size = 2; size < whole; size++)
        check_refused(gz, size, "truncated");
}
END_TEST

START_TEST(trailing_bytes_are_noticed)
{
    unsigned char more[sizeof images + 1], gz[200];
    memcpy(more, images, sizeof images);
    more[sizeof images] = 0;
    check_refused(more, sizeof more, "more bytes follow");
    size_t size = compress_to(gz, sizeof gz, more, sizeof more); /* inside the stream */
    check_refused(gz, size, "more bytes follow");
    size = compress_to(gz, sizeof gz, images, sizeof images); /* behind it */
    gz[size] = 1;
    check_refused(gz, size + 1, "more bytes follow");
}
END_TEST

/* As gunzip reads them: members end to end, an empty one among them, zeros behind the last. */
START_TEST(files_of_several_gzip_members_are_read)
{
    unsigned char gz[400];
    dp_error err = {0};
    for (size_t cut = 0; cut <= sizeof images; cut++) {
        size_t size = compress_to(gz, sizeof gz, images, cut);
        size += compress_to(gz + size, sizeof gz - size, images, 0);
        size += compress_to(gz + size, sizeof gz - size, images + cut, sizeof images - cut);
        memset(gz + size, 0, 3);
        for (size_t padding = 0; padding <= 3; padding++) {
            dp_idx idx;
            ck_assert_msg(parse(gz, size + padding, &idx, &err) == DP_OK, "%s", err.message);
            check_images(&idx);
            dp_idx_clear(&idx);
        }
        check_refused(gz, size - 1, "truncated"); /* within the last member's trailer */
        gz[size + 1] = 7;
        check_refused(gz, size + 2, "more bytes follow");
    }
    size_t size = compress_to(gz, sizeof gz, images, sizeof images);
    size += compress_to(gz + size, sizeof gz - size, images, 1);
    check_refused(gz, size, "more bytes follow");
}
END_TEST

START_TEST(corruption_of_a_compressed_file_is_noticed)
{
    unsigned char gz[200], bad[200];
    size_t size = compress_to(gz, sizeof gz, images, sizeof images);
    /* Name, time and system in gzip's header (bytes 4 to 9) mean nothing; all else is covered by checks. */
    for (size_t i = 10; i < size; i++) {
        for (int bit = 0; bit < 8; bit++) {
            memcpy(bad, gz, size);
            bad[i] ^= (unsigned char)(1 << bit);
            dp_idx idx;
            dp_error err = {0};
            if (parse(bad, size, &idx, &err) == DP_OK) {
                /* Deflate leaves a few bits unused at the end of its last byte. */
                check_images(&idx);
                dp_idx_clear(&idx);
                ck_assert_uint_eq(i, size - 9);
            } else {
                ck_assert_int_eq(err.status, DP_ERROR_IO);
            }
        }
    }
    memcpy(bad, gz, size);
    bad[size - 8] ^= 1;
    check_refused(bad, size, "corrupt (incorrect data check)");
    memcpy(bad, gz, size);
    bad[size - 1] ^= 1;
    check_refused(bad, size, "corrupt (incorrect length check)");
}
END_TEST

START_TEST(announcing_more_than_there_can_be_is_refused)
{
    const unsigned char huge[] = {0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1};
    check_refused(huge, sizeof huge, "too large for any file");
    const unsigned char large[] = {0, 0, 8, 2, 255, 255, 255, 255, 127, 255, 255, 255, 1, 2, 3};
    check_refused(large, sizeof large, "more than the file can hold");
    unsigned char gz[200];
    size_t size = compress_to(gz, sizeof gz, large, sizeof large);
    check_refused(gz, size, "more than the file can hold");
}
END_TEST

/* 64 MiB of zeros behind a header that announces 12 bytes: only a few bytes are ever inflated. */
START_TEST(a_bomb_does_not_go_off)
{
    size_t room = 1 << 20, zeros = 64 << 20;
    unsigned char *bytes = calloc(1, zeros), *gz = malloc(room);
    memcpy(bytes, images, sizeof images);
    size_t size = compress_to(gz, room, bytes, zeros);
    ck_assert_uint_lt(size, 100000);
    check_refused(gz, size, "more bytes follow");

    /* The same that announces all of it is honest, and read. */
    const unsigned char honest[] = {0, 0, 8, 1, 3, 255, 255, 248};
    memcpy(bytes, honest, sizeof honest);
    size = compress_to(gz, room, bytes, zeros);
    dp_idx idx;
    dp_error err = {0};
    ck_assert_msg(parse(gz, size, &idx, &err) == DP_OK, "%s", err.message);
    ck_assert_uint_eq(idx.bytes, zeros - 8);
    dp_idx_clear(&idx);
    free(bytes);
    free(gz);
}
END_TEST

/* Whatever a byte is changed to, the result is a sound file or a refusal. */
START_TEST(no_header_byte_can_do_harm)
{
    unsigned char bytes[sizeof images];
    for (size_t i = 0; i < HEADER; i++) {
        for (int value = 0; value < 256; value++) {
            memcpy(bytes, images, sizeof images);
            bytes[i] = (unsigned char)value;
            dp_idx idx;
            dp_error err = {0};
            dp_status status = parse(bytes, sizeof bytes, &idx, &err);
            if (value == images[i])
                ck_assert_int_eq(status, DP_OK);
            else
                ck_assert_int_eq(status, DP_ERROR_IO);
            dp_idx_clear(&idx);
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("idx");
    TCase *t = tcase_create("idx");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, scratch_make, scratch_remove);
    tcase_add_test(t, raw_and_compressed_files_are_read);
    tcase_add_test(t, one_to_four_dimensions_are_read);
    tcase_add_test(t, other_files_and_types_are_named);
    tcase_add_test(t, every_truncation_is_noticed);
    tcase_add_test(t, trailing_bytes_are_noticed);
    tcase_add_test(t, files_of_several_gzip_members_are_read);
    tcase_add_test(t, corruption_of_a_compressed_file_is_noticed);
    tcase_add_test(t, announcing_more_than_there_can_be_is_refused);
    tcase_add_test(t, a_bomb_does_not_go_off);
    tcase_add_test(t, no_header_byte_can_do_harm);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
