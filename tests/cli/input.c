/* Files that are not what they should be: one line that names the file and what is wrong, the right exit
 * code, and a model directory that is as it was. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "harness.h"

#define SHORT "train --model linear --n-epoch 1 --batch-size 4 --quiet "

static void write_bytes(const char *path, const void *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, size, f), size);
    ck_assert_int_eq(fclose(f), 0);
}

/* A safetensors file with this header and `size` bytes behind it. */
static void write_framed(const char *path, const char *header, size_t size)
{
    unsigned char bytes[8192] = {0};
    size_t length = strlen(header);
    ck_assert_uint_lt(8 + length + size, sizeof bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (unsigned char)((uint64_t)length >> 8 * i);
    memcpy(bytes + 8, header, length);
    write_bytes(path, bytes, 8 + length + size);
}

#define TENSOR(name, type, shape, from, to) \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":[" shape "],\"data_offsets\":[" from "," to "]}"

/* As data and as weights, an unsound file is an error of the disk; a sound one that does not fit is the
 * user's. */
static const struct {
    const char *header;
    int size, code;
    const char *data_text;
    const char *init_text; /* as --init; NULL: it is sound */
} framed[] = {
    {"{" TENSOR("x", "F32", "4,2", "0", "32") "," TENSOR("y", "F32", "3", "32", "44") "}", 44, 2,
     "x holds 4 samples", NULL},
    {"{" TENSOR("x", "F32", "0,2", "0", "0") "," TENSOR("y", "F32", "0", "0", "0") "}", 0, 2,
     "x holds no samples", NULL},
    {"{" TENSOR("x", "F32", "4,2", "0", "32") "}", 32, 2, "has no tensor 'y'", NULL},
    {"{" TENSOR("x", "F64", "1,1", "0", "8") "," TENSOR("y", "F32", "1", "8", "12") "}", 12, 2, "x is F64",
     NULL},
    {"{" TENSOR("x", "U8", "2,2", "0", "4") "," TENSOR("y", "I64", "2", "4", "20") "}", 19, 1, "truncated",
     "truncated"},
    {"{" TENSOR("x", "F33", "1", "0", "4") "}", 4, 1, "dtype 'F33'", "dtype 'F33'"},
    {"{" TENSOR("x", "U8", "2", "0", "2") "," TENSOR("y", "U8", "2", "1", "3") "}", 3, 1, "overlaps",
     "overlaps"},
    {"{" TENSOR("x", "U8", "1", "0", "1") "," TENSOR("x", "U8", "1", "1", "2") "}", 2, 1, "duplicate",
     "duplicate"},
    {"{" TENSOR("x", "U8", "4294967296,4294967296,4294967296", "0", "1") "}", 1, 1, "too large", "too large"},
    {"{" TENSOR("x", "U8", "1", "99999999999999999999", "1") "}", 1, 1, "not valid JSON", "not valid JSON"},
    {"{\"x\":[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]}", 0, 1, "nests deeper", "nests deeper"},
    {"{\"x\":1}", 0, 1, "not described by an object", "not described by an object"},
    {"[]", 0, 1, "does not begin with '{'", "neither a PyTorch file"},
    {"{", 0, 1, "not valid JSON", "not valid JSON"},
};

START_TEST(unsound_safetensors_are_refused)
{
    write_framed("bad", framed[_i].header, (size_t)framed[_i].size);
    assert_fails(dptrain(SHORT "--data safetensors:bad"), framed[_i].code, framed[_i].data_text);
    if (framed[_i].init_text) {
        assert_fails(dptrain(SHORT "--data synthetic:8 --init bad"), 1, framed[_i].init_text);
        assert_fails(dptrain("eval --data synthetic:8 --init bad"), 1, framed[_i].init_text);
    }
    ck_assert(!file_exists("model"));
}
END_TEST

START_TEST(headers_that_lie_about_their_length_are_refused)
{
    static const unsigned char endless[12] = {255, 255, 255, 255, 255, 255, 255, 255, '{', '}'},
                               longer[10] = {200, 0};
    write_bytes("bad", endless, sizeof endless);
    assert_fails(dptrain(SHORT "--data safetensors:bad"), 1, "a header of 18446744073709551615 bytes");
    write_bytes("bad", longer, sizeof longer);
    assert_fails(dptrain(SHORT "--data safetensors:bad"), 1,
                 "truncated: a header of 200 bytes in a file of 10");
    write_bytes("bad", longer, 3);
    assert_fails(dptrain(SHORT "--data safetensors:bad"), 1, "3 bytes long");
    write_bytes("bad", longer, 0);
    assert_fails(dptrain(SHORT "--data safetensors:bad"), 1, "0 bytes long");
}
END_TEST

/* Compresses a file, without cut of its last bytes; the raw one goes. */
static void compress_file(const char *path, int cut)
{
    static unsigned char bytes[1 << 16];
    char packed[200];
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    size_t size = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    snprintf(packed, sizeof packed, "%s.gz", path);
    gzFile gz = gzopen(packed, "wb");
    ck_assert_ptr_nonnull(gz);
    ck_assert_int_eq(gzwrite(gz, bytes, (unsigned)size), (int)size);
    ck_assert_int_eq(gzclose(gz), Z_OK);
    ck_assert_int_eq(unlink(path), 0);
    struct stat st;
    ck_assert_int_eq(stat(packed, &st), 0);
    ck_assert_int_eq(truncate(packed, st.st_size - cut), 0);
}

START_TEST(unsound_idx_files_are_refused)
{
    static const char images[] = "digits/train-images-idx3-ubyte",
                      labels[] = "digits/train-labels-idx1-ubyte";
    write_idx("digits", 20, 8);
    assert_succeeds(dptrain(SHORT "--data idx:digits"));
    assert_fails(dptrain(SHORT "--data idx:digits --overwrite --num-classes 2"), 2, "there are 2 classes");
    ck_assert_int_eq(truncate(labels, 27), 0);
    assert_fails(dptrain(SHORT "--data idx:digits --overwrite"), 1, "truncated");
    write_bytes(labels, (unsigned char[]){0, 0, 8, 1, 0, 0, 0, 3, 0, 1, 2}, 11);
    assert_fails(dptrain(SHORT "--data idx:digits --overwrite"), 2, "3 labels");
    write_bytes(labels, (unsigned char[]){0, 0, 9, 1, 0, 0, 0, 0}, 8);
    assert_fails(dptrain(SHORT "--data idx:digits --overwrite"), 1, "signed bytes");
    write_bytes(labels, "labels", 6);
    assert_fails(dptrain(SHORT "--data idx:digits --overwrite"), 1, "not an IDX file");
    compress_file(images, 5);
    assert_fails(dptrain(SHORT "--data idx:digits --overwrite"), 1, "the gzip stream is truncated");
    ck_assert_int_eq(unlink("digits/train-images-idx3-ubyte.gz"), 0);
    write_bytes(images, (unsigned char[]){0, 0, 8, 3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 4}, 16);
    assert_fails(dptrain(SHORT "--data idx:digits --overwrite"), 2, "holds no images");
    ck_assert(file_exists("model/model_best.safetensors")); /* of the run that succeeded */
}
END_TEST

START_TEST(a_checkpoint_of_another_model_is_refused)
{
    assert_succeeds(
        dptrain("train --model mlp --hidden 5 --data synthetic:8 --n-epoch 1 --quiet --save mlp"));
    const run *r = dptrain(SHORT "--data synthetic:8 --init mlp --overwrite");
    assert_fails(r, 2, "'mlp' does not fit model 'linear'; missing key(s): \"weight\", \"bias\"");
    assert_contains(r->err, "unexpected key(s): \"fc1.weight\"");
    assert_fails(dptrain("train --model mlp --hidden 6 --data synthetic:8 --quiet --init mlp --overwrite"), 2,
                 "size mismatch: \"fc1.weight\" is F32 [5, 784] in the file, [6, 784] in the model");
}
END_TEST

/* Deep or enormous values inside the metadata, which is JSON within JSON. */
START_TEST(a_checkpoint_that_lies_about_its_model_is_refused)
{
    static const char *const descriptions[] = {
        "{\\\"model\\\":\\\"linear\\\",\\\"input\\\":[9223372036854775807,9,9],\\\"outputs\\\":10}",
        "{\\\"model\\\":\\\"lenett\\\",\\\"input\\\":[1,28,28],\\\"outputs\\\":10}",
        "{\\\"model\\\":\\\"lenet\\\",\\\"input\\\":[1,1,1],\\\"outputs\\\":10}",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
        "{}",
        "",
    };
    char header[1024];
    snprintf(header, sizeof header, "{\"__metadata__\":{\"model\":\"%s\",\"loss\":\"mse\"}}",
             descriptions[_i]);
    write_framed("bad", header, 0);
    assert_fails(dptrain("eval --init bad --data synthetic:8"), 2, "");
}
END_TEST

/* Another program shortens the data during a run: SIGBUS for a mapped file, an error for one that is read. */
START_TEST(data_that_shrinks_during_a_run_is_an_error)
{
    write_values("data", 200);
    assert_fails(
        dptrain_shell(
            "%s train --model linear --data safetensors:data --n-epoch 1000000 --lr 1e-6 "
            "--batch-size 8 --quiet & run=$!; until [ -s model/model_best.safetensors ]; do sleep 0.1; "
            "done; truncate -s 2000 data; wait $run"),
        1, "cannot read 'data': it became shorter while it was in use");
}
END_TEST

Suite *input_suite(void)
{
    Suite *s = suite_create("input");
    TCase *c = tcase_create("input");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_add_loop_test(c, unsound_safetensors_are_refused, 0, sizeof framed / sizeof *framed);
    tcase_add_test(c, headers_that_lie_about_their_length_are_refused);
    tcase_add_test(c, unsound_idx_files_are_refused);
    tcase_add_test(c, a_checkpoint_of_another_model_is_refused);
    tcase_add_loop_test(c, a_checkpoint_that_lies_about_its_model_is_refused, 0, 6);
    tcase_add_test(c, data_that_shrinks_during_a_run_is_an_error);
    suite_add_tcase(s, c);
    return s;
}
