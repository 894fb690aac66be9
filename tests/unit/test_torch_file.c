/* PyTorch's files: those that PyTorch wrote, others made byte by byte, and those that we write. */
#include <check.h>
#include <stdbool.h>
#include <stdint.h>

#include "io/torch_file.h"
#include "io/weights_file.h"
#include "scratch.h"
#include "torch_files.h"

#define CORPUS "tests/fuzz/corpus/torch/"

/* ---- what PyTorch 1.13 wrote; see tests/fuzz/make_torch_corpus.py ---- */

typedef struct expected {
    const char *name;
    dp_dtype dtype;
    int rank;
    int64_t shape[3];
    float values[24];
} expected;

static void check_sample(const char *name, const expected *wanted, int count)
{
    static const char *const kinds[] = {"zip", "legacy"};
    for (int k = 0; k < 2; k++) {
        char path[128];
        dp_weights_file *file;
        dp_error err = {0};
        snprintf(path, sizeof path, CORPUS "%s-%s", kinds[k], name);
        ck_assert_msg(dp_weights_file_open(path, &file, &err) == DP_OK, "%s", err.message);
        ck_assert(dp_weights_file_is_torch(file));
        ck_assert_ptr_null(dp_weights_file_metadata(file, "model"));
        ck_assert_int_eq(dp_weights_file_count(file), count);
        for (int i = 0; i < count; i++) {
            const dp_tensor *t = dp_weights_file_at(file, i);
            ck_assert_str_eq(t->name, wanted[i].name);
            ck_assert_int_eq(t->dtype, wanted[i].dtype);
            ck_assert_int_eq(t->rank, wanted[i].rank);
            for (int d = 0; d < t->rank; d++)
                ck_assert_int_eq(t->shape[d], wanted[i].shape[d]);
            for (int64_t e = 0; e < t->elements; e++)
                ck_assert_msg(dp_tensor_float(t, e) == wanted[i].values[e], "%s: %s[%lld]", path, t->name,
                              (long long)e);
        }
        dp_weights_file_close(file);
    }
}

START_TEST(views_of_one_storage_are_read_by_their_strides)
{
    expected wanted[] = {
        {"whole", DP_F32, 2, {3, 4}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
        {"transposed", DP_F32, 2, {4, 3}, {0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}},
        {"part", DP_F32, 2, {2, 2}, {5, 6, 9, 10}},
        {"column", DP_F32, 1, {3}, {3, 7, 11}},
        {"expanded", DP_F32, 2, {2, 3}, {7, 7, 7, 7, 7, 7}},
        {"scalar", DP_I64, 0, {0}, {5}},
        {"empty", DP_F32, 2, {0, 3}, {0}},
        {"module.permuted", DP_I16, 3, {4, 2, 3}, {0}},
    };
    for (int i = 0; i < 24; i++) /* index (a, b, c) of the permuted was (b, c, a) */
        wanted[7].values[i] = (float)(i / 3 % 2 * 12 + i % 3 * 4 + i / 6);
    check_sample("views", wanted, 8);
}
END_TEST

START_TEST(every_dtype_is_read)
{
    static const expected wanted[] = {
        {"float32", DP_F32, 1, {3}, {0, 1, 3}}, {"float64", DP_F64, 1, {3}, {0, 1, 3}},
        {"float16", DP_F16, 1, {3}, {0, 1, 3}}, {"bfloat16", DP_BF16, 1, {3}, {0, 1, 3}},
        {"int64", DP_I64, 1, {3}, {0, 1, 3}},   {"int32", DP_I32, 1, {3}, {0, 1, 3}},
        {"int16", DP_I16, 1, {3}, {0, 1, 3}},   {"int8", DP_I8, 1, {3}, {0, 1, 3}},
        {"uint8", DP_U8, 1, {3}, {0, 1, 3}},    {"bool", DP_BOOL, 1, {3}, {0, 1, 1}},
    };
    check_sample("dtypes", wanted, 10);
}
END_TEST

START_TEST(state_dicts_are_found_where_they_usually_are)
{
    /* after one step of SGD with gradient 1 and rate 0.1 */
    static const expected wanted[] = {{"weight", DP_F32, 2, {1, 2}, {0.9F, 1.9F}},
                                      {"bias", DP_F32, 1, {1}, {2.9F}}};
    check_sample("checkpoint", wanted, 2);
    check_sample("parameters", wanted, 2);
    check_sample("protocol-4", wanted, 2);
}
END_TEST

/* ---- made by hand: sound ---- */

START_TEST(hand_made_files_are_read)
{
    static const float transposed[6] = {0, 1, 2, 0.5F, 1.5F, 2.5F};
    make_legacy(LITERAL(SOUND));
    check_reads(six);
    make_zip(LITERAL(SOUND));
    check_reads(six);
#define ACCEPT(pickle, values)        \
    do {                              \
        make_legacy(LITERAL(pickle)); \
        check_reads(values);          \
        make_zip(LITERAL(pickle));    \
        check_reads(values);          \
    } while (0)
    ACCEPT("\x80\2}" TEXT("\1", "w") REBUILD(STORAGE, "K\0", SIZE, "K\1K\2\x86") "s.", transposed);
    /* under a name, the first of the known ones; what else there is does not matter */
    ACCEPT("\x80\2}(" TEXT("\5", "model") "}" WEIGHT "s" TEXT("\5", "epoch") "K\1u.", six);
    ACCEPT("\x80\2}(" TEXT("\5", "model") "N" TEXT("\x0a", "state_dict") "}" WEIGHT "su.", six);
    ACCEPT("\x80\2}(" WEIGHT TEXT("\1", "n") "NK\7G01234567u.", six);
    /* Python 2's OrderedDict and texts; _rebuild_tensor of before 0.4 */
    ACCEPT("\x80\2"
           "ccollections\nOrderedDict\n](]"
           "U\1w"
           "a"
           "ctorch._utils\n_rebuild_tensor\n(" STORAGE "K\0" SIZE STRIDES "tRa"
           "e\x85R.",
           six);
    /* parameters: a call, an object with its tensor, an object with its state */
    ACCEPT("\x80\2}" TEXT("\1", "w") "ctorch._utils\n_rebuild_parameter\n(" TENSOR "\x88)tRs.", six);
    ACCEPT("\x80\2}" TEXT("\1", "w") "ctorch.nn.parameter\nParameter\n" TENSOR "\x85\x81s.", six);
    ACCEPT("\x80\2}" TEXT("\1", "w") "ctorch.nn.parameter\nParameter\n)\x81(" TENSOR "NNNNtbs.", six);
    /* a size as torch.Size, attributes of the dictionary, a memo, protocol 4's names */
    ACCEPT("\x80\2}" TEXT("\1", "w") REBUILD(STORAGE, "K\0", "ctorch\nSize\n" SIZE "\x85R", STRIDES) "s}b.",
           six);
    ACCEPT("\x80\4\x95\0\0\0\0\0\0\0\0}" TEXT("\1", "w") "\x94" TENSOR "h\0"
                                                         "0s.",
           six);
    ACCEPT("\x80\4}" TEXT("\1", "w") TEXT("\x0c", "torch._utils")
               TEXT("\x12", "_rebuild_tensor_v2") "\x93(" STORAGE "K\0" SIZE STRIDES "\x89)tRs.",
           six);
}
END_TEST

START_TEST(a_view_of_a_legacy_storage_begins_where_it_says)
{
    static const char pickle[] =
        "\x80\2}" TEXT("\1", "w") REBUILD("(" TEXT("\7", "storage") "ctorch\nFloatStorage\n" TEXT("\1", "0")
                                              TEXT("\3", "cpu") "K\6(" TEXT("\1", "1") "K\2K\4ttQ",
                                          "K\1", "K\3\x85", "K\1\x85") "s.";
    make_legacy(LITERAL(pickle));
    dp_error err = {0};
    dp_torch_file *file;
    unsigned char *copy;
    ck_assert_msg(parse(made.bytes, made.size, &file, &copy, &err) == DP_OK, "%s", err.message);
    for (int i = 0; i < 3; i++)
        ck_assert_float_eq(dp_tensor_float(dp_torch_at(file, 0), i), six[3 + i]);
    dp_torch_close(file);
    free(copy);
}
END_TEST

/* ---- writing ---- */

START_TEST(what_is_written_is_read)
{
    const double wide[4] = {1, -2, 3e300, 0};
    const uint16_t halves[2] = {0x3c00, 0xc000};
    const int64_t counter = 1LL << 40;
    const uint8_t flags[3] = {1, 0, 1};
    const dp_tensor tensors[] = {
        {.name = "a.weight",
         .dtype = DP_F64,
         .rank = 3,
         .shape = {2, 1, 2},
         .elements = 4,
         .bytes = 32,
         .data = wide},
        {.name = "half", .dtype = DP_F16, .rank = 1, .shape = {2}, .elements = 2, .bytes = 4, .data = halves},
        {.name = "n", .dtype = DP_I64, .elements = 1, .bytes = 8, .data = &counter},
        {.name = "\xc3\xa9",
         .dtype = DP_BOOL,
         .rank = 1,
         .shape = {3},
         .elements = 3,
         .bytes = 3,
         .data = flags},
        {.name = "none", .dtype = DP_BF16, .rank = 2, .shape = {0, 4}, .data = NULL},
    };
    dp_error err = {0};
    dp_weights_file *file;
    ck_assert_msg(dp_torch_write(scratch("out.pt"), tensors, 5, &err) == DP_OK, "%s", err.message);
    ck_assert_msg(dp_weights_file_open(scratch("out.pt"), &file, &err) == DP_OK, "%s", err.message);
    ck_assert_int_eq(dp_weights_file_count(file), 5);
    for (int i = 0; i < 5; i++) {
        const dp_tensor *t = dp_weights_file_at(file, i);
        ck_assert_str_eq(t->name, tensors[i].name);
        ck_assert_int_eq(t->dtype, tensors[i].dtype);
        ck_assert_int_eq(t->rank, tensors[i].rank);
        for (int d = 0; d < t->rank; d++)
            ck_assert_int_eq(t->shape[d], tensors[i].shape[d]);
        ck_assert_uint_eq(t->bytes, tensors[i].bytes);
        if (t->bytes)
            ck_assert_mem_eq(t->data, tensors[i].data, t->bytes);
    }
    dp_weights_file_close(file);
    ck_assert_int_eq(dp_torch_write(scratch("nowhere/out.pt"), tensors, 5, &err), DP_ERROR_IO);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("torch_file");
    TCase *c = tcase_create("torch_file");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, scratch_make, scratch_remove);
    tcase_add_test(c, views_of_one_storage_are_read_by_their_strides);
    tcase_add_test(c, every_dtype_is_read);
    tcase_add_test(c, state_dicts_are_found_where_they_usually_are);
    tcase_add_test(c, hand_made_files_are_read);
    tcase_add_test(c, a_view_of_a_legacy_storage_begins_where_it_says);
    tcase_add_test(c, what_is_written_is_read);
    suite_add_tcase(s, c);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
