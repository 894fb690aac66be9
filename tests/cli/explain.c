/* dptrain explain: each lesson on a screen and as JSON, its figures against what they must be. No test looks
 * at how fast anything is. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

/* Three CPU devices, whatever the machine. */
#define THREE  "--device cpu --logical-devices 3 --threads-per-device 1 "
#define TWENTY "--device cpu --logical-devices 20 --threads-per-device 1 "
#define SMALL  "--model mlp --hidden 16 --steps 2 "

static json_t *lesson(const char *arguments)
{
    const run *r = dptrain("explain %s --json", arguments);
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "");
    json_t *json = parse_json(r->out);
    size_t name = strcspn(arguments, " ");
    ck_assert(strncmp(string_of(json, "lesson"), arguments, name) == 0);
    ck_assert_int_gt((int)strlen(string_of(json, "verdict")), 20);
    return json;
}

static void expect(double got, double wanted, double tolerance)
{
    ck_assert_msg(fabs(got - wanted) <= tolerance, "%.9g is not %.9g", got, wanted);
}

static const char *const lines[] = {
    "loss-average --device cpu",
    "imbalance " SMALL THREE "--batch-size 12",
    "batch-size " SMALL THREE "--batch-sizes 2,6,12",
    "split --batch-size 10 --devices 4",
    "device-ids " THREE,
    "accumulation " SMALL THREE "--batch-size 6",
    "speedup " THREE,
    /* figures and lists of every length */
    "imbalance " SMALL TWENTY "--batch-size 80",
    "imbalance " SMALL THREE "--batch-size 2 --output-device 1 --split 1,1,0",
    "batch-size " SMALL TWENTY "--steps 1 --batch-sizes 1,1000",
    "split --batch-size 1000000000 --devices 64",
    "split --batch-size 1000000000 --devices 16",
    "split --batch-size 5 --devices 9",
    "split --batch-size 1 --devices 1",
    "split --batch-size 9 --devices 3 --split 0,0,1",
    "device-ids --device cpu --logical-devices 20 --threads-per-device 1",
    "accumulation --model linear --steps 1 " TWENTY "--batch-size 40 --accumulation-steps 32",
    "speedup --compute 1e9 --parameters 1 --link 1000 --devices 65536 " THREE,
};

START_TEST(a_lesson_is_a_screen)
{
    char arguments[256];
    unsetenv("COLUMNS"); /* 80 is what there is where nobody says */
    const run *r = dptrain("explain %s", lines[_i]);
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "");
    assert_contains(r->out, "verdict: ");
    assert_contains(r->out, "what to do: ");
    ck_assert_int_le(assert_fits(r->out), 40);
    snprintf(arguments, sizeof arguments, "%s", lines[_i]);
    json_decref(lesson(arguments));
}
END_TEST

START_TEST(the_loss_of_three_samples)
{
    json_t *l = lesson("loss-average --device cpu");
    const json_t *rows = json_object_get(l, "rows");
    ck_assert_uint_eq(json_array_size(rows), 9);
    for (int i = 0; i < 9; i++) {
        bool odd = strcmp(string_of(at(rows, i), "loss_mode"), "replica") == 0 &&
                   number_of(at(rows, i), "devices") == 2;
        expect(number_of(at(rows, i), "loss"), odd ? 0.525 : 1.3 / 3, 1e-6);
        if (odd) {
            ck_assert_str_eq(list_of(at(rows, i), "chunk_sizes"), "[2,1]");
            const json_t *means = json_object_get(at(rows, i), "device_losses");
            expect(json_number_value(at(means, 0)), 0.25, 1e-6);
            expect(json_number_value(at(means, 1)), 0.8, 1e-6);
        }
    }
    json_decref(l);
    const run *r = dptrain("explain loss-average --device cpu");
    assert_contains(r->out, "replica      0.4333       0.5250         0.4333");
}
END_TEST

/* chunk is torch.chunk's 3, 3, 3, 1; nobody is forgotten, nobody is given twice. */
START_TEST(a_batch_is_split)
{
    static const struct {
        const char *arguments;
        int devices, used, samples[8];
    } cases[] = {{"split", 4, 4, {3, 3, 3, 1}},
                 {"split --batch-size 9 --devices 8", 8, 5, {2, 2, 2, 2, 1}},
                 {"split --batch-size 5 --devices 4 --split balanced", 4, 4, {2, 1, 1, 1}},
                 {"split --batch-size 10 --devices 3 --split 1,2,2", 3, 3, {2, 4, 4}},
                 {"split --batch-size 1 --devices 1", 1, 1, {1}}};
    json_t *l = lesson(cases[_i].arguments);
    const json_t *chunks = json_object_get(l, "chunks");
    int first = 0;
    ck_assert_uint_eq(json_array_size(chunks), (size_t)cases[_i].devices);
    ck_assert_int_eq((int)number_of(l, "used_devices"), cases[_i].used);
    for (int k = 0; k < cases[_i].devices; k++) {
        ck_assert_int_eq((int)number_of(at(chunks, k), "samples"), cases[_i].samples[k]);
        if (cases[_i].samples[k] > 0)
            ck_assert_int_eq((int)number_of(at(chunks, k), "first_sample"), first);
        else
            ck_assert(json_is_null(json_object_get(at(chunks, k), "first_sample")));
        first += cases[_i].samples[k];
    }
    json_decref(l);
}
END_TEST

/* The most of a figure over its mean. */
static double factor(const json_t *devices, const char *key)
{
    double sum = 0, most = 0;
    int n = (int)json_array_size(devices);
    for (int k = 0; k < n; k++) {
        double v = number_of(at(devices, k), key);
        sum += v;
        most = v > most ? v : most;
    }
    return most * n / sum;
}

static double gathered(const json_t *setting, int device)
{
    const json_t *d = at(json_object_get(setting, "devices"), device);
    return number_of(json_object_get(d, "peak_bytes"), "gathered_outputs");
}

/* Outputs of 1000 classes, gathered where the setting says and nowhere else. */
START_TEST(the_imbalance_is_where_outputs_are_gathered)
{
    json_t *l =
        lesson("imbalance --model mlp --hidden 16 --num-classes 1000 --steps 2 --batch-size 32 " THREE);
    ck_assert_str_eq(string_of(l, "model"), "mlp");
    ck_assert_int_eq((int)number_of(l, "batch_size"), 32);
    const json_t *settings = json_object_get(l, "settings");
    static const struct {
        const char *mode, *output, *split;
        int samples[3], gathers;
    } wanted[] = {{"gather", "cpu:0", "chunk", {11, 11, 10}, 0},
                  {"replica", "cpu:0", "chunk", {11, 11, 10}, -1},
                  {"global", "cpu:0", "chunk", {11, 11, 10}, -1},
                  {"gather", "cpu:2", "chunk", {11, 11, 10}, 2},
                  {"gather", "cpu:0", "1,2,2", {6, 13, 13}, 0}};
    ck_assert_uint_eq(json_array_size(settings), 5);
    for (int i = 0; i < 5; i++) {
        const json_t *s = at(settings, i), *devices = json_object_get(s, "devices");
        ck_assert_str_eq(string_of(s, "loss_mode"), wanted[i].mode);
        ck_assert_str_eq(string_of(s, "output_device"), wanted[i].output);
        ck_assert_str_eq(string_of(s, "split"), wanted[i].split);
        ck_assert_uint_eq(json_array_size(devices), 3);
        for (int k = 0; k < 3; k++) {
            ck_assert_int_eq((int)number_of(at(devices, k), "samples"), wanted[i].samples[k]);
            ck_assert_uint_eq(json_object_size(json_object_get(at(devices, k), "peak_bytes")), 10);
            if (k == wanted[i].gathers)
                ck_assert(gathered(s, k) >= 32 * 1000 * 4);
            else
                ck_assert(gathered(s, k) == 0);
        }
        expect(number_of(s, "memory_factor"), factor(devices, "peak_total_bytes"), 1e-6);
        expect(number_of(s, "busy_factor"), factor(devices, "busy_fraction"), 1e-6);
    }
    ck_assert(number_of(at(settings, 0), "memory_factor") > number_of(at(settings, 2), "memory_factor"));
    assert_contains(string_of(l, "verdict"), "cpu:0");
    json_decref(l);
}
END_TEST

START_TEST(the_imbalance_of_a_unet_and_of_settings_of_ones_own)
{
    json_t *l =
        lesson("imbalance --model unet16 --width 2 --filters 2 --size 32x32 --batch-size 6 --steps 1 " THREE
               "--device-ids 2,0 --output-device 2 --split balanced");
    const json_t *settings = json_object_get(l, "settings");
    ck_assert_str_eq(string_of(l, "model"), "unet16");
    ck_assert_str_eq(string_of(at(settings, 3), "output_device"), "cpu:2");
    ck_assert_str_eq(string_of(at(settings, 4), "split"), "balanced");
    ck_assert_str_eq(string_of(at(json_object_get(at(settings, 0), "devices"), 0), "device"), "cpu:2");
    json_decref(l);
}
END_TEST

/* Without a model two are shown, a screen each: many outputs, and a U-Net whose load is its activations. */
START_TEST(the_imbalance_of_two_models_when_none_is_named)
{
    static const char arguments[] = "imbalance --steps 1 --batch-size 6 " THREE;
    json_t *l = lesson(arguments);
    const json_t *other = json_object_get(l, "also"), *devices;
    ck_assert_str_eq(string_of(l, "model"), "mlp");
    ck_assert_str_eq(string_of(other, "model"), "unet16");
    ck_assert(number_of(other, "batch_size") == 6);
    ck_assert_uint_eq(json_array_size(json_object_get(other, "settings")), 5);
    ck_assert(gathered(at(json_object_get(l, "settings"), 0), 0) >= 6 * 10000 * 4);
    devices = json_object_get(at(json_object_get(other, "settings"), 0), "devices");
    for (int k = 0; k < 3; k++) {
        const json_t *bytes = json_object_get(at(devices, k), "peak_bytes");
        ck_assert(number_of(bytes, "activations") > number_of(at(devices, k), "peak_total_bytes") / 3);
    }
    json_decref(l);

    const run *r = dptrain("explain %s", arguments);
    assert_succeeds(r);
    const char *second = strstr(r->out, "\nunet16 with 4,096 outputs a sample, batch 6,");
    ck_assert_ptr_nonnull(second);
    ck_assert_ptr_nonnull(strstr(second, "verdict: "));
    assert_fits(r->out);
    ck_assert_int_le(assert_fits(second), 40);
    l = lesson("imbalance --hidden 8 --steps 1 --batch-size 6 " THREE); /* shapes the first, does not suit the
                                                                           other */
    ck_assert_ptr_null(json_object_get(l, "also"));
    json_decref(l);
}
END_TEST

START_TEST(a_lesson_measures_the_batches_that_were_asked_for)
{
    json_t *l = lesson("batch-size " SMALL THREE "--batch-sizes 2,8");
    const json_t *rows = json_object_get(l, "rows"), *even = json_object_get(l, "break_even_batch_size");
    ck_assert_int_eq((int)number_of(l, "devices"), 2);
    ck_assert_uint_eq(json_array_size(rows), 2);
    for (int i = 0; i < 2; i++)
        expect(number_of(at(rows, i), "speedup"),
               number_of(at(rows, i), "single_ms_per_step") / number_of(at(rows, i), "parallel_ms_per_step"),
               1e-6);
    if (json_is_null(even))
        ck_assert(number_of(at(rows, 1), "speedup") <= 1);
    else
        ck_assert(number_of(at(rows, 1), "speedup") > 1);
    json_decref(l);
}
END_TEST

START_TEST(ids_that_fail_fail_in_the_engine)
{
    static const bool works[] = {false, true, true, false, true};
    json_t *l = lesson("device-ids " THREE);
    const json_t *attempts = json_object_get(l, "attempts");
    ck_assert_uint_eq(json_array_size(json_object_get(l, "visible")), 3);
    ck_assert_uint_eq(json_array_size(attempts), 5);
    for (int i = 0; i < 5; i++)
        ck_assert_msg(json_is_true(json_object_get(at(attempts, i), "works")) == works[i], "attempt %d", i);
    assert_contains(string_of(at(attempts, 0), "message"), "device cpu:2 (device_ids[0])");
    assert_contains(string_of(at(attempts, 3), "message"), "device id 2 does not exist");
    json_decref(l);
    setenv("CUDA_VISIBLE_DEVICES", "7,5", 1);
    assert_contains(dptrain("explain device-ids --device cpu")->out, "CUDA_VISIBLE_DEVICES is 7,5");
}
END_TEST

/* 784 x 16 + 16 + 16 x 10 + 10 weights; two transfers of them to and from each of two other devices. */
START_TEST(accumulation_saves_transfers_and_updates)
{
    json_t *l = lesson("accumulation " SMALL THREE "--batch-size 6 --accumulation-steps 8");
    const json_t *ways = json_object_get(l, "ways");
    const double once = 2.0 * 2 * 4 * (784 * 16 + 16 + 16 * 10 + 10);
    expect(number_of(at(ways, 0), "moved_bytes_per_window"), 8 * once, 0.5);
    expect(number_of(at(ways, 1), "moved_bytes_per_window"), once, 0.5);
    expect(number_of(at(ways, 0), "updates"), 32, 0);
    expect(number_of(at(ways, 1), "updates"), 4, 0);
    ck_assert(number_of(at(ways, 0), "held_out_loss") < number_of(at(ways, 1), "held_out_loss"));
    json_decref(l);
}
END_TEST

/* 40 ms, 1 GB at 100 GB/s: one crossing takes 10 ms. */
START_TEST(the_cost_model_is_the_one_that_is_printed)
{
    json_t *l = lesson("speedup --compute 40 --parameters 1e9 --link 100 --devices 6 " THREE);
    const json_t *rows = json_object_get(l, "predictions"), *six = at(rows, -1);
    ck_assert_uint_eq(json_array_size(rows), 4); /* 1, 2, 4, 6 */
    ck_assert_int_eq((int)number_of(six, "devices"), 6);
    const json_t *strong = json_object_get(six, "strong"), *weak = json_object_get(six, "weak");
    expect(number_of(json_object_get(strong, "star"), "ms_per_step"), 40 / 6.0 + 100, 1e-6);
    expect(number_of(json_object_get(strong, "tree"), "ms_per_step"), 40 / 6.0 + 60, 1e-6);
    expect(number_of(json_object_get(strong, "ring"), "ms_per_step"), 40 / 6.0 + 100 / 6.0, 1e-6);
    expect(number_of(json_object_get(weak, "star"), "speedup"), 6 * 40 / 140.0, 1e-6);
    const json_t *check = json_object_get(l, "check"), *runs = json_object_get(check, "runs");
    double bandwidth = 1e6 * number_of(check, "link_gb_per_second"),
           bytes = number_of(check, "parameter_bytes");
    for (int i = 0; i < 2; i++) {
        const json_t *r = at(runs, i);
        double single = number_of(r, "single_ms_per_step"), predicted = number_of(r, "predicted_ms_per_step");
        expect(predicted, single / (i == 0 ? 3 : 1) + 4 * bytes / bandwidth, 1e-5 * predicted);
        expect(number_of(r, "relative_error"), predicted / number_of(r, "measured_ms_per_step") - 1, 1e-5);
    }
    const json_t *roberta = json_object_get(l, "roberta_large");
    const json_t *first = at(json_object_get(roberta, "predictions"), 0);
    expect(number_of(first, "two_seconds"),
           1029 / 2.0 +
               number_of(first, "steps") * 2 * 355e6 * 4 / (1e9 * number_of(roberta, "link_gb_per_second")),
           1e-3);
    expect(number_of(json_object_get(roberta, "measured_seconds"), "two_accumulated"), 580, 0);
    json_decref(l);
}
END_TEST

START_TEST(a_lesson_that_cannot_be_written_is_an_error)
{
    assert_fails(dptrain_shell("%s explain split --json >/dev/full"), 1, "cannot write to standard output");
}
END_TEST

Suite *explain_suite(void)
{
    Suite *s = suite_create("explain");
    TCase *c = tcase_create("explain");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_add_loop_test(c, a_lesson_is_a_screen, 0, sizeof lines / sizeof *lines);
    tcase_add_test(c, the_loss_of_three_samples);
    tcase_add_loop_test(c, a_batch_is_split, 0, 5);
    tcase_add_test(c, the_imbalance_is_where_outputs_are_gathered);
    tcase_add_test(c, the_imbalance_of_a_unet_and_of_settings_of_ones_own);
    tcase_add_test(c, the_imbalance_of_two_models_when_none_is_named);
    tcase_add_test(c, a_lesson_measures_the_batches_that_were_asked_for);
    tcase_add_test(c, ids_that_fail_fail_in_the_engine);
    tcase_add_test(c, accumulation_saves_transfers_and_updates);
    tcase_add_test(c, the_cost_model_is_the_one_that_is_printed);
    tcase_add_test(c, a_lesson_that_cannot_be_written_is_an_error);
    suite_add_tcase(s, c);
    return s;
}
