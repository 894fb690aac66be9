/* Weights that come from files and go to files: --init, --freeze, checkpoints, eval. */
#include <stdlib.h>
#include <string.h>

#include "harness.h"

/* A rate that changes no weight but 0: w - lr * g is w in float32. */
#define STILL \
    "train --model linear --data synthetic:64 --max-steps 1 --lr 1e-30 --weight-decay 0 --overwrite "

typedef struct writer {
    dp_tensor tensors[4];
    int count;
} writer;

static void add(writer *w, const char *name, dp_dtype dtype, int rank, const int64_t *shape, const void *data)
{
    dp_tensor *t = &w->tensors[w->count++];
    *t = (dp_tensor){.name = (char *)name, .dtype = dtype, .rank = rank, .elements = 1, .data = data};
    for (int i = 0; i < rank; i++) {
        t->shape[i] = shape[i];
        t->elements *= shape[i];
    }
    t->bytes = (size_t)t->elements * dp_dtype_size(dtype);
}

static void save(const writer *w, const char *path)
{
    dp_error err;
    ck_assert_msg(dp_safetensors_write(path, w->tensors, w->count, NULL, 0, &err) == DP_OK, "%s",
                  err.message);
}

static float weight[7840];
static float bias[10];
static const int64_t weight_shape[] = {10, 784}, bias_shape[] = {10};

static void fill(void)
{
    for (int i = 0; i < 7840; i++)
        weight[i] = (float)(i % 31 + 1) * 0.001F;
    for (int i = 0; i < 10; i++)
        bias[i] = 0.1F * (float)(i + 1);
}

static void assert_holds_them(const char *path)
{
    dp_safetensors *f = open_weights(path);
    for (int i = 0; i < 7840; i++)
        ck_assert_float_eq(element(f, "weight", i), weight[i]);
    for (int i = 0; i < 10; i++)
        ck_assert_float_eq(element(f, "bias", i), bias[i]);
    dp_safetensors_close(f);
}

START_TEST(init_takes_names_as_in_pytorch)
{
    fill();
    writer plain = {0}, wrapped = {0};
    add(&plain, "weight", DP_F32, 2, weight_shape, weight);
    add(&plain, "bias", DP_F32, 1, bias_shape, bias);
    save(&plain, "plain");
    add(&wrapped, "module.bias", DP_F32, 1, bias_shape, bias);
    add(&wrapped, "module.weight", DP_F32, 2, weight_shape, weight);
    save(&wrapped, "wrapped");
    const run *r = dptrain(STILL "--init plain --save out");
    assert_succeeds(r);
    assert_contains(r->err, "loaded 2 parameters from 'plain'");
    assert_lacks(r->err, "stripped");
    assert_holds_them("out");
    r = dptrain(STILL "--init wrapped --save out");
    assert_succeeds(r);
    assert_contains(r->err, "'module.' stripped from 2 names");
    assert_holds_them("out");
}
END_TEST

START_TEST(init_converts_other_float_types)
{
    fill();
    double wide[7840];
    for (int i = 0; i < 7840; i++)
        wide[i] = (double)weight[i];
    writer w = {0};
    add(&w, "weight", DP_F64, 2, weight_shape, wide);
    add(&w, "bias", DP_F32, 1, bias_shape, bias);
    save(&w, "wide");
    assert_succeeds(dptrain(STILL "--init wide --save out"));
    assert_holds_them("out");
}
END_TEST

START_TEST(init_names_what_does_not_fit)
{
    fill();
    writer w = {0};
    add(&w, "weight", DP_F32, 2, (int64_t[]){10, 783}, weight);
    add(&w, "extra.bias", DP_F32, 1, bias_shape, bias);
    save(&w, "other");
    const run *r = dptrain(STILL "--init other --quiet");
    assert_fails(r, 2, "missing key(s): \"bias\"");
    assert_contains(r->err, "unexpected key(s): \"extra.bias\"");
    assert_contains(r->err, "size mismatch: \"weight\" is F32 [10, 783] in the file, [10, 784] in the model");
    assert_fails(dptrain(STILL "--init other --init-partial --quiet"), 2, "nothing in 'other' fits");

    writer half = {0};
    add(&half, "module.bias", DP_F32, 1, bias_shape, bias);
    add(&half, "extra.bias", DP_F32, 1, bias_shape, bias);
    save(&half, "half");
    r = dptrain(STILL "--init half --init-partial --save out");
    assert_succeeds(r);
    assert_contains(r->err, "loaded 1 parameter from");
    assert_contains(r->err, "1 parameter keeps its initial value");
    dp_safetensors *f = open_weights("out");
    ck_assert_float_eq(element(f, "bias", 9), bias[9]);
    ck_assert(element(f, "weight", 1) != weight[1]);
    dp_safetensors_close(f);
}
END_TEST

START_TEST(init_refuses_two_tensors_for_one_parameter)
{
    fill();
    writer w = {0};
    add(&w, "weight", DP_F32, 2, weight_shape, weight);
    add(&w, "bias", DP_F32, 1, bias_shape, bias);
    add(&w, "module.bias", DP_F32, 1, bias_shape, bias);
    save(&w, "twice");
    assert_fails(dptrain(STILL "--init twice --quiet"), 2, "'bias' twice");
}
END_TEST

START_TEST(a_file_that_is_not_sound_is_an_io_error)
{
    assert_succeeds(dptrain(STILL "--quiet --save good"));
    FILE *from = fopen("good", "rb"), *to = fopen("torn", "wb");
    ck_assert_ptr_nonnull(from);
    ck_assert_ptr_nonnull(to);
    for (int i = 0; i < 20000; i++)
        fputc(fgetc(from), to);
    fclose(from);
    ck_assert_int_eq(fclose(to), 0);
    assert_fails(dptrain(STILL "--init torn --quiet"), 1, "'torn'");
    assert_fails(dptrain("eval --init torn --data synthetic:64"), 1, "'torn'");
    assert_fails(dptrain("eval --init . --data synthetic:64"), 1, "it is a directory");
    assert_succeeds(dptrain("eval --init good --data synthetic:64"));
}
END_TEST

START_TEST(frozen_parameters_keep_their_values)
{
    static const char line[] =
        "train --model mlp --hidden 16 --data synthetic:64 --lr 0.1 --quiet --overwrite";
    assert_succeeds(dptrain("%s --max-steps 1 --lr 1e-30 --weight-decay 0 --save before", line));
    assert_succeeds(dptrain("%s --n-epoch 2 --freeze fc1.weight,*.weight --save after", line));
    dp_safetensors *before = open_weights("before"), *after = open_weights("after");
    int weights = 0, biases = 0;
    for (int t = 0; t < dp_safetensors_count(before); t++) {
        const dp_tensor *b = dp_safetensors_at(before, t), *a = dp_safetensors_find(after, b->name);
        ck_assert_ptr_nonnull(a);
        bool same = memcmp(a->data, b->data, b->bytes) == 0;
        bool frozen = strstr(b->name, ".weight") != NULL;
        ck_assert_msg(same == frozen, "%s", b->name);
        weights += frozen;
        biases += !frozen;
    }
    ck_assert_int_eq(weights, 2);
    ck_assert_int_eq(biases, 2);
    dp_safetensors_close(before);
    dp_safetensors_close(after);
}
END_TEST

START_TEST(checkpoints_are_for_pytorch_too)
{
    assert_succeeds(dptrain("train --model lenet --data synthetic:64 --n-epoch 1 --quiet --seed 5"));
    dp_safetensors *f = open_weights("model/model_best.safetensors");
    ck_assert_int_eq(dp_safetensors_count(f), 8);
    const dp_tensor *conv = dp_safetensors_find(f, "conv1.weight");
    ck_assert_ptr_nonnull(conv);
    ck_assert_int_eq(conv->rank, 4);
    ck_assert_int_eq(conv->dtype, DP_F32);
    ck_assert_str_eq(dp_safetensors_metadata(f, "format"), "pt");
    ck_assert_str_eq(dp_safetensors_metadata(f, "epoch"), "0");
    ck_assert_str_eq(dp_safetensors_metadata(f, "data_seed"), "5");
    assert_contains(dp_safetensors_metadata(f, "model"), "\"lenet\"");
    dp_safetensors_close(f);
}
END_TEST

/* Other seeds hold out other samples; eval takes those of the run. */
START_TEST(eval_repeats_the_validation_of_the_run)
{
    assert_succeeds(dptrain("train --model mlp --hidden 16 --data synthetic:200 --n-epoch 3 --lr 0.1 --quiet "
                            "--seed 9 --valid-split 0.4 --batch-size 32 --logical-devices 2"));
    json_t *epochs = read_log("model/log.jsonl", "epoch");
    for (int e = 0; e < 3; e++) {
        const run *r = dptrain("eval --init model/model_epoch_%d.safetensors --data synthetic:200 --json "
                               "--batch-size 32 --logical-devices 3",
                               e);
        assert_succeeds(r);
        json_t *json = json_loads(r->out, 0, NULL);
        ck_assert_ptr_nonnull(json);
        ck_assert_str_eq(string_of(json, "part"), "validation");
        ck_assert_double_eq(number_of(json, "samples"), 80);
        ck_assert_double_eq(number_of(json, "accuracy"), number_of(at(epochs, e), "valid_accuracy"));
        ck_assert_double_eq_tol(number_of(json, "loss"), number_of(at(epochs, e), "valid_loss"), 1e-6);
        json_decref(json);
    }
    json_decref(epochs);
    const run *r = dptrain("eval --init model/model_epoch_2.safetensors --data synthetic:200");
    assert_contains(r->out, "validation share of synthetic:200");
    assert_contains(last_line(r->out), "accuracy ");
    r = dptrain("eval --init model/model_epoch_2.safetensors --data synthetic:200 --valid-split 0");
    assert_contains(r->out, "all of synthetic:200");
}
END_TEST

START_TEST(eval_normalises_as_the_run_did)
{
    write_idx("digits", 32, 12);
    assert_succeeds(
        dptrain("train --model linear --data idx:digits --lr 0.5 --n-epoch 4 --mean 0.3 --std 0.2 "
                "--quiet"));
    json_t *epochs = read_log("model/log.jsonl", "epoch");
    double loss = number_of(at(epochs, -1), "valid_loss");
    json_decref(epochs);
    const run *r = dptrain("eval --init model/model_epoch_3.safetensors --data idx:digits --json");
    json_t *json = json_loads(r->out, 0, NULL);
    ck_assert_double_eq_tol(number_of(json, "loss"), loss, 1e-6);
    json_decref(json);
    r = dptrain("eval --init model/model_epoch_3.safetensors --data idx:digits --json --mean 0 --std 1");
    json = json_loads(r->out, 0, NULL);
    ck_assert(number_of(json, "loss") > loss + 0.01 || number_of(json, "loss") < loss - 0.01);
    json_decref(json);
}
END_TEST

START_TEST(eval_refuses_what_does_not_fit)
{
    fill();
    writer w = {0};
    add(&w, "weight", DP_F32, 2, weight_shape, weight);
    add(&w, "bias", DP_F32, 1, bias_shape, bias);
    save(&w, "foreign");
    assert_fails(dptrain("eval --init foreign --data synthetic:64"), 2, "does not say which model");
    write_idx("digits", 32, 12);
    write_values("values", 20);
    assert_succeeds(dptrain("train --model linear --data synthetic:64 --n-epoch 1 --quiet --save w"));
    assert_fails(dptrain("eval --init w --data idx:digits"), 2, "shape");
    assert_fails(dptrain("eval --init w --data safetensors:values"), 2, "shape");
    assert_succeeds(
        dptrain("train --model linear --data idx:digits --n-epoch 1 --quiet --save d --num-classes 6 "
                "--overwrite")); /* more outputs than labels is fine */
    assert_succeeds(dptrain("eval --init d --data idx:digits"));
    assert_fails(dptrain("eval --init d"), 2, "give --data SOURCE");
    assert_fails(dptrain("train --model linear --data idx:digits --num-classes 3 --quiet --overwrite"), 2,
                 "3");
}
END_TEST

Suite *weights_suite(void)
{
    Suite *s = suite_create("weights");
    TCase *c = tcase_create("weights");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_add_test(c, init_takes_names_as_in_pytorch);
    tcase_add_test(c, init_converts_other_float_types);
    tcase_add_test(c, init_names_what_does_not_fit);
    tcase_add_test(c, init_refuses_two_tensors_for_one_parameter);
    tcase_add_test(c, a_file_that_is_not_sound_is_an_io_error);
    tcase_add_test(c, frozen_parameters_keep_their_values);
    tcase_add_test(c, checkpoints_are_for_pytorch_too);
    tcase_add_test(c, eval_repeats_the_validation_of_the_run);
    tcase_add_test(c, eval_normalises_as_the_run_did);
    tcase_add_test(c, eval_refuses_what_does_not_fit);
    suite_add_tcase(s, c);
    return s;
}
