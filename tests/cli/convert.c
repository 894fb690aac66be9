/* Weights between PyTorch's files and safetensors: convert, and --init of a .pt. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness.h"
#include "io/torch_file.h"

#define STILL                                                                                         \
    "train --model linear --data synthetic:64 --max-steps 1 --lr 1e-30 --weight-decay 0 --overwrite " \
    "--quiet "

static void write_bytes(const char *path, const char *bytes, size_t size)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, size, f), size);
    ck_assert_int_eq(fclose(f), 0);
}

START_TEST(weights_travel_both_ways)
{
    assert_succeeds(
        dptrain("train --model lenet --data synthetic:64 --n-epoch 1 --quiet --save a.safetensors"));
    const run *r = dptrain("convert a.safetensors a.pt");
    assert_succeeds(r);
    ck_assert_str_eq(r->out, "a.pt: 8 tensors, 6.7 MB\n");
    ck_assert_str_eq(r->err, "");
    assert_succeeds(dptrain("convert a.pt b.safetensors"));
    assert_succeeds(dptrain("convert a.pt again.pth"));
    assert_same_file("a.pt", "again.pth");
    dp_safetensors *a = open_weights("a.safetensors"), *b = open_weights("b.safetensors");
    ck_assert_int_eq(dp_safetensors_count(b), 8);
    ck_assert_str_eq(dp_safetensors_metadata(b, "format"), "pt");
    ck_assert_ptr_null(dp_safetensors_metadata(b, "model"));
    for (int i = 0; i < 8; i++) {
        const dp_tensor *x = dp_safetensors_at(a, i), *y = dp_safetensors_find(b, x->name);
        ck_assert_ptr_nonnull(y);
        ck_assert_uint_eq(y->bytes, x->bytes);
        ck_assert_mem_eq(y->data, x->data, x->bytes);
    }
    dp_safetensors_close(a);
    dp_safetensors_close(b);
    assert_fails(dptrain("convert a.safetensors c.safetensors"), 2, "'a.safetensors' is safetensors already");
    ck_assert(!file_exists("c.safetensors"));
}
END_TEST

START_TEST(training_starts_from_a_pt)
{
    assert_succeeds(dptrain(STILL "--seed 3 --save a.safetensors"));
    assert_succeeds(dptrain("convert a.safetensors a.pt"));
    assert_succeeds(dptrain(STILL "--seed 4 --init a.pt --save b.safetensors"));
    dp_safetensors *a = open_weights("a.safetensors"), *b = open_weights("b.safetensors");
    for (int i = 0; i < 7840; i++)
        ck_assert_float_eq(element(a, "weight", i), element(b, "weight", i));
    dp_safetensors_close(a);
    dp_safetensors_close(b);
    assert_fails(dptrain("train --model mlp --data synthetic:64 --quiet --overwrite --init a.pt"), 2,
                 "missing key(s)");
}
END_TEST

/* As of DataParallel(model).state_dict(). */
START_TEST(prefixed_names_are_understood)
{
    enum { WEIGHT = 7840, BIAS = 10 };
    static float weight[WEIGHT], bias[BIAS];
    for (int i = 0; i < WEIGHT; i++)
        weight[i] = (float)(i % 29 + 1) * 0.001F;
    for (int i = 0; i < BIAS; i++)
        bias[i] = (float)(i + 1);
    const dp_tensor tensors[] = {{.name = "module.weight",
                                  .dtype = DP_F32,
                                  .rank = 2,
                                  .shape = {10, 784},
                                  .elements = WEIGHT,
                                  .bytes = sizeof weight,
                                  .data = weight},
                                 {.name = "module.bias",
                                  .dtype = DP_F32,
                                  .rank = 1,
                                  .shape = {10},
                                  .elements = BIAS,
                                  .bytes = sizeof bias,
                                  .data = bias}};
    dp_error err;
    ck_assert_msg(dp_torch_write("m.pth", tensors, 2, &err) == DP_OK, "%s", err.message);
    const run *r =
        dptrain("train --model linear --data synthetic:64 --max-steps 1 --lr 1e-30 --weight-decay 0 "
                "--init m.pth --save out");
    assert_succeeds(r);
    assert_contains(r->err, "'module.' stripped from 2 names");
    dp_safetensors *out = open_weights("out");
    for (int i = 0; i < WEIGHT; i++)
        ck_assert_float_eq(element(out, "weight", i), weight[i]);
    dp_safetensors_close(out);
}
END_TEST

START_TEST(eval_needs_to_know_the_model)
{
    assert_succeeds(dptrain(STILL "--save a.safetensors"));
    assert_succeeds(dptrain("convert a.safetensors a.pt"));
    const run *r = dptrain("eval --init a.pt --data synthetic:64");
    assert_fails(r, 2, "'a.pt' does not say which model it is for");
    assert_contains(r->err, "train with --init 'a.pt' and a --model");
}
END_TEST

START_TEST(nothing_in_a_pickle_is_executed)
{
    static const char command[] = "\x80\2\x8a\x0al\xfc\x9c"
                                  "F\xf9 j\xa8P\x19.\x80\2M\xe9\3.\x80\2}\x8c\x0dlittle_endian\x88s."
                                  "\x80\2"
                                  "cos\nsystem\n\x8c\x09touch got\x85R.";
    write_bytes("evil.pt", command, sizeof command - 1);
    assert_fails(dptrain("convert evil.pt out.safetensors"), 1, "it asks for 'os.system'");
    assert_fails(dptrain(STILL "--init evil.pt"), 1, "nothing was executed");
    assert_fails(dptrain("eval --init evil.pt --data synthetic:64"), 1, "cannot read 'evil.pt'");
    ck_assert(!file_exists("got"));
    ck_assert(!file_exists("out.safetensors"));
}
END_TEST

/* Whatever its name promises; a file that is cut off is still told to be one. */
START_TEST(junk_is_said_to_be_neither)
{
    static const struct {
        const char *bytes;
        size_t size;
    } junk[] = {{"", 0},
                {"PK", 2},
                {"neither of the two", 18},
                {"\2\0\0\0\0\0\0\0[]", 10},
                {"\377\377\377\377\377\377\377\377{", 9}};
    for (size_t i = 0; i < sizeof junk / sizeof *junk; i++) {
        write_bytes("junk.pt", junk[i].bytes, junk[i].size);
        assert_fails(dptrain(STILL "--init junk.pt"), 1, "cannot read 'junk.pt': neither a PyTorch file (");
        assert_fails(dptrain("convert junk.pt out.safetensors"), 1, ") nor a safetensors file (");
    }
    write_bytes("junk.pt", "\377\0\0\0\0\0\0\0{}", 10);
    assert_fails(dptrain(STILL "--init junk.pt"), 1, "cannot read 'junk.pt': truncated: ");
}
END_TEST

START_TEST(a_failed_conversion_leaves_the_old_file)
{
    assert_succeeds(dptrain(STILL "--save a.safetensors"));
    write_bytes("old.pt", "old", 3);
    assert_fails(dptrain_shell("ulimit -f 8; %s convert a.safetensors old.pt"), 1, "cannot write 'old.pt'");
    struct stat st;
    ck_assert_int_eq(stat("old.pt", &st), 0);
    ck_assert_int_eq(st.st_size, 3);
    ck_assert_int_eq(truncate("a.safetensors", 20000), 0);
    assert_fails(dptrain("convert a.safetensors old.pt"), 1, "'a.safetensors'");
    ck_assert_int_eq(stat("old.pt", &st), 0);
    ck_assert_int_eq(st.st_size, 3);
    assert_fails(dptrain("convert a.safetensors nowhere/a.pt"), 1, "a.safetensors");
    ck_assert_int_eq(mkdir("folder.pt", 0777), 0);
    assert_succeeds(dptrain(STILL "--save a.safetensors"));
    assert_fails(dptrain("convert a.safetensors folder.pt"), 1, "'folder.pt': it is a directory");
    assert_fails(dptrain("convert a.safetensors nowhere/a.pt"), 1, "cannot write 'nowhere/a.pt'");
    assert_succeeds(dptrain("convert a.safetensors old.pt"));
    ck_assert_int_eq(link("old.pt", "other.pt"), 0);
    assert_fails(dptrain("convert old.pt other.pt"), 2, "written over the file that is converted");
}
END_TEST

Suite *convert_suite(void)
{
    Suite *s = suite_create("convert");
    TCase *c = tcase_create("convert");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_add_test(c, weights_travel_both_ways);
    tcase_add_test(c, training_starts_from_a_pt);
    tcase_add_test(c, prefixed_names_are_understood);
    tcase_add_test(c, eval_needs_to_know_the_model);
    tcase_add_test(c, nothing_in_a_pickle_is_executed);
    tcase_add_test(c, junk_is_said_to_be_neither);
    tcase_add_test(c, a_failed_conversion_leaves_the_old_file);
    suite_add_tcase(s, c);
    return s;
}
