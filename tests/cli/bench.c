/* dptrain bench: what it writes agrees with itself. No test looks at how fast anything is. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

#define QUICK "bench --device cpu --model mlp --hidden 32 --threads-per-device 1 --steps 3 "

static const json_t *member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    ck_assert_msg(value != NULL, "no \"%s\"", key);
    return value;
}

static double sum(const json_t *object)
{
    const char *key;
    json_t *value;
    double total = 0;
    json_object_foreach((json_t *)object, key, value)
    {
        ck_assert_msg(json_is_number(value) && json_number_value(value) >= 0, "%s", key);
        total += json_number_value(value);
    }
    return total;
}

static void assert_close(double a, double b)
{
    ck_assert_msg(fabs(a - b) <= 1e-6 * fabs(b) + 1e-9, "%.9g is not %.9g", a, b);
}

static const char *const phases[] = {"wait", "scatter",  "broadcast", "forward",  "gather",
                                     "loss", "backward", "reduce",    "optimizer"};

static void assert_phases(const json_t *object)
{
    ck_assert_uint_eq(json_object_size(object), sizeof phases / sizeof *phases);
    for (size_t p = 0; p < sizeof phases / sizeof *phases; p++)
        member(object, phases[p]);
}

/* A row of the JSON. `single_batch`: of the one device. */
static void assert_row(const json_t *row, int batch, int single_batch, int devices)
{
    const json_t *one = member(row, "single"), *all = member(row, "parallel"), *list = member(all, "devices");
    ck_assert_int_eq((int)number_of(row, "batch_size"), batch);
    ck_assert_int_eq((int)number_of(one, "batch_size"), single_batch);
    assert_phases(member(all, "phase_ms"));
    assert_phases(member(all, "overlapped_ms"));
    assert_close(sum(member(all, "phase_ms")), number_of(all, "ms_per_step"));
    ck_assert(number_of(all, "ms_low") <= number_of(all, "ms_per_step"));
    ck_assert(number_of(all, "ms_high") >= number_of(all, "ms_per_step"));
    assert_close(number_of(one, "samples_per_second") * number_of(one, "ms_per_step"), 1e3 * single_batch);
    assert_close(number_of(all, "samples_per_second") * number_of(all, "ms_per_step"), 1e3 * batch);
    assert_close(number_of(row, "speedup"),
                 number_of(all, "samples_per_second") / number_of(one, "samples_per_second"));
    assert_close(number_of(row, "efficiency"), number_of(row, "speedup") / devices);
    ck_assert_uint_eq(json_array_size(list), (size_t)devices);
    for (int k = 0; k < devices; k++) {
        const json_t *d = at(list, k);
        ck_assert_uint_eq(json_object_size(member(d, "peak_bytes")), 10);
        ck_assert(number_of(d, "busy_fraction") >= 0 && number_of(d, "busy_fraction") <= 1);
        ck_assert(number_of(d, "peak_total_bytes") <= sum(member(d, "peak_bytes")));
        ck_assert(number_of(d, "peak_total_bytes") > 0);
    }
}

START_TEST(figures_agree_with_each_other)
{
    assert_succeeds(dptrain(QUICK "--logical-devices 3 --device-ids 2,0 --batch-sizes 9,4 --json b.json"));
    json_t *b = read_json("b.json");
    ck_assert_str_eq(string_of(b, "model"), "mlp");
    ck_assert_str_eq(string_of(b, "device"), "cpu");
    ck_assert_int_eq((int)number_of(b, "devices"), 2);
    const json_t *rows = member(b, "rows"), *even = member(b, "break_even_batch_size");
    ck_assert_uint_eq(json_array_size(rows), 2);
    assert_row(at(rows, 0), 9, 9, 2);
    assert_row(at(rows, 1), 4, 4, 2);
    ck_assert_str_eq(string_of(at(member(member(at(rows, 0), "parallel"), "devices"), 0), "device"), "cpu:2");
    bool won[] = {number_of(at(rows, 0), "speedup") > 1, number_of(at(rows, 1), "speedup") > 1};
    if (!won[0])
        ck_assert(json_is_null(even));
    else
        ck_assert_int_eq((int)json_integer_value(even), won[1] ? 4 : 9);
    json_decref(b);
}
END_TEST

START_TEST(weak_scaling_gives_one_device_its_share)
{
    assert_succeeds(dptrain(QUICK "--logical-devices 4 --batch-sizes 10 --scaling weak --json b.json"));
    json_t *b = read_json("b.json");
    ck_assert_str_eq(string_of(b, "scaling"), "weak");
    assert_row(at(member(b, "rows"), 0), 10, 3, 4);
    json_decref(b);
}
END_TEST

/* More devices than samples lose to one, which has as many as each of them: no share of its time is spoken
 * of. */
START_TEST(weak_scaling_is_judged_by_the_whole_of_one_device)
{
    const run *r = dptrain(QUICK "--logical-devices 64 --batch-sizes 2 --scaling weak");
    assert_succeeds(r);
    assert_fits(r->out);
    assert_contains(r->out, "batch 2 loses to one device: ");
    assert_contains(r->out, " ms a step beyond the");
    assert_lacks(r->out, "even share");
}
END_TEST

START_TEST(fewer_samples_than_devices)
{
    const run *r = dptrain(QUICK "--logical-devices 3 --batch-sizes 1 --json b.json");
    assert_succeeds(r);
    assert_contains(r->out, "a batch of 1 leaves 2 of 3 devices without samples");
    json_t *b = read_json("b.json");
    assert_row(at(member(b, "rows"), 0), 1, 1, 3);
    const json_t *devices = member(member(at(member(b, "rows"), 0), "parallel"), "devices");
    ck_assert(number_of(member(at(devices, 0), "peak_bytes"), "activations") > 0);
    ck_assert(number_of(member(at(devices, 2), "peak_bytes"), "activations") == 0);
    json_decref(b);
}
END_TEST

/* On a machine with fewer cores than devices, as 64 of them make sure of. */
START_TEST(times_of_shared_hardware_prove_nothing)
{
    const run *r = dptrain(QUICK "--logical-devices 64 --batch-sizes 2 --json b.json");
    assert_succeeds(r);
    assert_contains(r->out, "the times prove nothing");
    assert_fits(r->out);
    json_t *b = read_json("b.json");
    ck_assert(json_is_true(member(b, "times_prove_nothing")));
    json_decref(b);
}
END_TEST

/* Batch normalisation, a mask, dropout; loss modes, splits. */
START_TEST(models_of_every_kind_are_measured)
{
    static const char *const lines[] = {
        "--model resnet18_cifar --width 4 --batch-sizes 8 --optimizer adamw",
        "--model unet16 --width 2 --filters 2 --size 32x32 --batch-sizes 4 --loss-mode replica",
        "--model unet_resnet34 --width 2 --filters 2 --size 64x64 --batch-sizes 6 --split 1,2",
        "--model linear --num-classes 7 --batch-sizes 4 --loss-mode global --split balanced",
    };
    const run *r =
        dptrain("bench --device cpu --logical-devices 2 --threads-per-device 1 --steps 1 --json b.json %s",
                lines[_i]);
    assert_succeeds(r);
    assert_fits(r->out);
    json_t *b = read_json("b.json");
    int batch = (int)number_of(at(member(b, "rows"), 0), "batch_size");
    assert_row(at(member(b, "rows"), 0), batch, batch, 2);
    json_decref(b);
}
END_TEST

/* Every name of the list, as small as the model can be. */
START_TEST(every_listed_model_is_measured)
{
    static const struct {
        const char *part, *options;
    } smallest[] = {{"_cifar", "--width 2 --size 8x8"},
                    {"unet16", "--width 2 --filters 2 --size 32x32"},
                    {"unet_", "--width 2 --filters 2 --size 64x64"},
                    {"resnet", "--width 2 --size 32x32 --num-classes 10"},
                    {"vgg", "--width 2 --size 32x32 --num-classes 10"},
                    {"", ""}};
    char names[1024];
    int measured = 0;
    snprintf(names, sizeof names, "%.1000s", dptrain("train --model list")->out);
    for (char *rest = names, *name; (name = strtok_r(rest, "\n", &rest)); measured++) {
        int i = 0;
        while (!strstr(name, smallest[i].part))
            i++;
        const run *r = dptrain("bench --device cpu --logical-devices 2 --threads-per-device 1 --steps 1 "
                               "--batch-sizes 4 --json b.json --model %s %s",
                               name, smallest[i].options);
        assert_succeeds(r);
        assert_fits(r->out);
        json_t *b = read_json("b.json");
        ck_assert_str_eq(string_of(b, "model"), name);
        assert_row(at(member(b, "rows"), 0), 4, 4, 2);
        json_decref(b);
    }
    ck_assert_int_ge(measured, 15);
}
END_TEST

START_TEST(a_table_has_a_line_for_each_batch)
{
    FILE *old = fopen("b.csv", "w");
    ck_assert_ptr_nonnull(old);
    for (int i = 0; i < 1000; i++)
        fputs("what was there before\n", old);
    fclose(old);
    const run *r = dptrain(QUICK "--logical-devices 2 --batch-sizes 4,6,8 --csv b.csv");
    assert_succeeds(r);
    ck_assert_int_ge((int)strlen(r->out), 100);
    assert_fits(r->out);
    FILE *f = fopen("b.csv", "r");
    ck_assert_ptr_nonnull(f);
    char line[4096];
    int lines = 0, commas[4] = {0};
    for (; fgets(line, sizeof line, f); lines++) {
        ck_assert_int_lt(lines, 4);
        for (const char *c = line; *c; c++)
            commas[lines] += *c == ',';
        if (lines > 0)
            ck_assert_int_eq(atoi(line), 2 + 2 * lines);
        else
            assert_contains(line, "batch_size,single_ms_per_step,");
        ck_assert_int_eq(commas[lines], commas[0]);
    }
    ck_assert_int_eq(lines, 4);
    ck_assert_int_eq(commas[0], 6 + 9 + 2 * 2);
    fclose(f);
}
END_TEST

START_TEST(a_full_disk_is_an_error)
{
    const run *r = dptrain(QUICK "--logical-devices 2 --batch-sizes 4 --json /dev/full");
    ck_assert_int_eq(r->code, 1);
    assert_contains(r->err, "dptrain: error: cannot write --json '/dev/full': No space left on device");
}
END_TEST

/* `timeout` sends the signal when the measurement, which would take hours, is under way; in the foreground
 * only once: a second one would end the program at once. */
START_TEST(an_interruption_leaves_nothing)
{
    static const char *const lines[] = {
        "timeout --foreground --preserve-status -s INT 2 %s bench --device cpu "
        "--logical-devices 2 --steps 1000000 --json b.json "
        "--csv b.csv",
        "timeout --foreground --preserve-status -s TERM 2 %s bench --device cpu "
        "--logical-devices 2 --steps 1000000 --json b.json"};
    FILE *old = fopen("b.csv", "w");
    ck_assert_ptr_nonnull(old);
    fputs("before\n", old);
    fclose(old);
    const run *r = dptrain_shell(lines[_i]);
    ck_assert_int_eq(r->code, _i == 0 ? 130 : 143);
    assert_lacks(r->err, "error");
    assert_lacks(r->out, "speed-up");
    ck_assert(!file_exists("b.json"));
    old = fopen("b.csv", "r");
    char text[16] = "";
    ck_assert_ptr_nonnull(fgets(text, sizeof text, old));
    ck_assert_str_eq(text, "before\n");
    fclose(old);
}
END_TEST

Suite *bench_suite(void)
{
    Suite *s = suite_create("bench");
    TCase *c = tcase_create("bench");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_add_test(c, figures_agree_with_each_other);
    tcase_add_test(c, weak_scaling_gives_one_device_its_share);
    tcase_add_test(c, weak_scaling_is_judged_by_the_whole_of_one_device);
    tcase_add_test(c, fewer_samples_than_devices);
    tcase_add_test(c, times_of_shared_hardware_prove_nothing);
    tcase_add_loop_test(c, models_of_every_kind_are_measured, 0, 4);
    tcase_add_test(c, every_listed_model_is_measured);
    tcase_add_test(c, a_table_has_a_line_for_each_batch);
    tcase_add_test(c, a_full_disk_is_an_error);
    tcase_add_loop_test(c, an_interruption_leaves_nothing, 0, 2);
    suite_add_tcase(s, c);
    return s;
}
