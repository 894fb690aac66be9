/* Runs of train: what they compute, and what the log says of it. */
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

/* 54 samples to train on, 10 held out. */
#define SMALL \
    "train --model mlp --hidden 16 --data synthetic:64 --logical-devices 2 --batch-size 16 --n-epoch 2"

START_TEST(a_run_prints_its_result_and_logs_its_steps)
{
    const run *r = dptrain(SMALL);
    assert_succeeds(r);
    ck_assert_int_eq(strncmp(last_line(r->out), "validation accuracy ", 20), 0);
    ck_assert_str_eq(last_line(r->out) + strlen(last_line(r->out)) - 2, " %");
    assert_contains(r->out, "cpu:1");
    assert_contains(r->err, "using CPU devices");
    assert_contains(r->err, "batch 16 = 8 + 8 on 2 devices");
    assert_contains(r->err, "12,730 parameters");

    json_t *all = read_log("model/log.jsonl", NULL);
    ck_assert_uint_eq(json_array_size(all), 1 + 2 * (4 + 1) + 2 + 1);
    const json_t *start = at(all, 0), *first = at(all, 1), *tail = at(all, 4), *epoch = at(all, 5),
                 *end = at(all, -1), *device = at(all, -3);
    ck_assert_str_eq(string_of(start, "event"), "start");
    ck_assert_str_eq(string_of(start, "model"), "mlp");
    ck_assert_str_eq(string_of(start, "loss"), "cross_entropy");
    ck_assert_str_eq(string_of(start, "loss_mode"), "gather");
    ck_assert_str_eq(string_of(start, "output_device"), "cpu:0");
    ck_assert_str_eq(list_of(start, "devices"), "[\"cpu:0\",\"cpu:1\"]");
    ck_assert_double_eq(number_of(start, "parameters"), 12730);
    ck_assert_double_eq(number_of(start, "batch_size"), 16);
    ck_assert_double_eq(number_of(start, "seed"), 0);
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(start, "command"), 1)), "train");

    ck_assert_str_eq(string_of(first, "event"), "batch");
    ck_assert_double_eq(number_of(first, "epoch"), 0);
    ck_assert_double_eq(number_of(first, "batch"), 0);
    ck_assert_double_eq(number_of(first, "step"), 1);
    ck_assert_double_eq(number_of(first, "samples"), 16);
    ck_assert_str_eq(list_of(first, "chunk_sizes"), "[8,8]");
    ck_assert_double_eq_tol(number_of(first, "lr"), 0.001, 1e-9);
    ck_assert_uint_eq(json_array_size(json_object_get(first, "device_losses")), 2);
    ck_assert_uint_eq(json_object_size(json_object_get(first, "phase_ms")), 9);
    ck_assert_str_eq(list_of(tail, "chunk_sizes"), "[3,3]"); /* 54 = 3 * 16 + 6 */

    ck_assert_str_eq(string_of(epoch, "event"), "epoch");
    double sum = 0;
    for (int i = 1; i <= 4; i++)
        sum += number_of(at(all, i), "loss") * number_of(at(all, i), "samples");
    ck_assert_double_eq_tol(number_of(epoch, "train_loss"), sum / 54, 1e-7);
    ck_assert(number_of(epoch, "valid_accuracy") >= 0 && number_of(epoch, "valid_accuracy") <= 1);
    ck_assert(isfinite(number_of(epoch, "valid_loss")) && number_of(epoch, "samples_per_second") > 0);

    ck_assert_str_eq(string_of(device, "event"), "device");
    ck_assert_str_eq(string_of(device, "device"), "cpu:0");
    ck_assert_double_eq(number_of(device, "samples"), 54); /* half of two epochs */
    ck_assert_uint_eq(json_object_size(json_object_get(device, "peak_bytes")), 10);
    ck_assert(number_of(device, "peak_total_bytes") >= 12730 * 3 * 4);
    ck_assert_str_eq(string_of(end, "event"), "end");
    ck_assert_str_eq(string_of(end, "status"), "completed");
    ck_assert_double_eq(number_of(end, "steps"), 8);
    json_decref(all);
}
END_TEST

START_TEST(it_learns)
{
    write_idx("digits", 64, 16);
    const run *r = dptrain("train --model linear --data idx:digits --lr 0.5 --n-epoch 20 --quiet");
    assert_succeeds(r);
    ck_assert_str_eq(last_line(r->out), "test accuracy 100.0 %");
}
END_TEST

START_TEST(the_same_command_gives_the_same_bits)
{
    assert_succeeds(dptrain(SMALL " --quiet --model-dir a --save a.safetensors"));
    assert_succeeds(dptrain(SMALL " --quiet --model-dir b --save b.safetensors --num-workers 1"));
    assert_succeeds(dptrain(SMALL " --quiet --model-dir c --save c.safetensors --seed 1"));
    assert_same_file("a.safetensors", "b.safetensors");
    assert_same_file("a/model_epoch_0.safetensors", "b/model_epoch_0.safetensors");
    dp_safetensors *a = open_weights("a.safetensors"), *c = open_weights("c.safetensors");
    const char *name = dp_safetensors_at(a, 0)->name;
    ck_assert(element(a, name, 0) != element(c, name, 0));
    dp_safetensors_close(a);
    dp_safetensors_close(c);
}
END_TEST

START_TEST(options_can_be_written_in_several_ways)
{
    assert_succeeds(
        dptrain("train --model=mlp --hidden 16 --data synthetic:64 --batch_size=4 --batch-size 32 "
                "--n_epoch 1 --quiet --seed 3 --seed=4"));
    json_t *start = read_log("model/log.jsonl", "start");
    ck_assert_double_eq(number_of(at(start, 0), "batch_size"), 32);
    ck_assert_double_eq(number_of(at(start, 0), "seed"), 4);
    json_decref(start);
}
END_TEST

START_TEST(neutral_values_are_accepted_where_a_model_has_no_use_for_them)
{
    assert_succeeds(
        dptrain("train --model linear --data synthetic:64 --hidden 512,512 --dropout 0 --optimizer "
                "adamw --momentum 0 --n-epoch 1 --accumulation-steps 0 --quiet"));
}
END_TEST

START_TEST(quiet_says_nothing_but_the_result)
{
    const run *r = dptrain(SMALL " --quiet --loss-mode replica --lr-scale linear");
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "");
    assert_contains(last_line(r->out), "validation accuracy");
}
END_TEST

START_TEST(print_freq_sets_the_lines_of_an_epoch)
{
    const run *r = dptrain(SMALL " --print-freq 2 --n-epoch 1");
    assert_lacks(r->err, "batch 1/4");
    assert_contains(r->err, "epoch 0  batch 2/4");
    assert_lacks(r->err, "batch 3/4");
    assert_contains(r->err, "epoch 0  batch 4/4");
    assert_lacks(r->err, "\r");
}
END_TEST

START_TEST(replica_mode_warns_as_pytorch_does)
{
    static const char warning[] =
        "Was asked to gather along dimension 0, but all input tensors were scalars; "
        "will instead unsqueeze and return a vector.";
    const run *r = dptrain(SMALL " --loss-mode replica --batch-size 5");
    assert_succeeds(r);
    const char *found = strstr(r->err, warning);
    ck_assert_msg(found != NULL, "%s", r->err);
    assert_lacks(found + 1, warning); /* once */
    assert_contains(r->err,
                    "note: so PyTorch says that the loss is the mean of the devices' mean losses; with "
                    "uneven chunks");
    r = dptrain(SMALL " --loss-mode replica --batch-size 6 --drop-last --overwrite");
    assert_succeeds(r);
    assert_contains(r->err, "the mean of the devices' mean losses\n");
    r = dptrain(SMALL " --loss-mode replica --device-ids 1 --overwrite");
    assert_succeeds(r);
    assert_lacks(r->err, warning); /* a scalar loss on one device */
    r = dptrain(SMALL " --loss-mode global --overwrite");
    assert_succeeds(r);
    assert_lacks(r->err, warning);
}
END_TEST

START_TEST(devices_beyond_the_chunks_sit_out)
{
    const run *r = dptrain("train --model linear --data synthetic:64 --logical-devices 8 --batch-size 9 "
                           "--max-steps 1");
    assert_succeeds(r);
    assert_contains(r->err, "batch 9 = 2 + 2 + 2 + 2 + 1 on 5 devices");
    assert_contains(r->err, "uses 5 of 8 devices");
    json_t *batch = read_log("model/log.jsonl", "batch");
    ck_assert_str_eq(list_of(at(batch, 0), "chunk_sizes"), "[2,2,2,2,1]");
    json_decref(batch);
}
END_TEST

START_TEST(devices_are_chosen_by_option_and_environment)
{
    setenv("DPTRAIN_LOGICAL_DEVICES", "3", 1);
    assert_succeeds(
        dptrain("train --model linear --data synthetic:64 --batch-per-device 4 --max-steps 1 --quiet"));
    json_t *all = read_log("model/log.jsonl", NULL);
    ck_assert_str_eq(list_of(at(all, 0), "devices"), "[\"cpu:0\",\"cpu:1\",\"cpu:2\"]");
    ck_assert_double_eq(number_of(at(all, 0), "batch_size"), 12);
    json_decref(all);
    assert_succeeds(
        dptrain("train --model linear --data synthetic:64 --logical-devices 4 --device-ids 3,1 "
                "--output-device 1 --split 1,3 --batch-size 8 --max-steps 1 --quiet --overwrite"));
    all = read_log("model/log.jsonl", NULL);
    ck_assert_str_eq(list_of(at(all, 0), "devices"), "[\"cpu:3\",\"cpu:1\"]");
    ck_assert_str_eq(string_of(at(all, 0), "output_device"), "cpu:1");
    ck_assert_str_eq(list_of(at(all, 1), "chunk_sizes"), "[2,6]");
    json_decref(all);
}
END_TEST

START_TEST(the_rate_follows_its_schedule)
{
    const run *r = dptrain(SMALL " --n-epoch 5 --lr 0.01 --lr-step 2 --lr-gamma 0.5 --lr-scale linear");
    assert_succeeds(r);
    assert_contains(r->err, "lr is 0.01 times 2 devices");
    json_t *batches = read_log("model/log.jsonl", "batch");
    const double expected[] = {0.02, 0.02, 0.01, 0.01, 0.005};
    for (int e = 0; e < 5; e++)
        ck_assert_double_eq_tol(number_of(at(batches, 4 * e), "lr"), expected[e], 1e-9);
    json_decref(batches);
}
END_TEST

START_TEST(windows_are_stepped_and_limited)
{
    /* 4 batches an epoch: windows of 3 and 1 */
    assert_succeeds(dptrain(SMALL " --accumulation-steps 3 --quiet"));
    json_t *all = read_log("model/log.jsonl", NULL);
    ck_assert_double_eq(number_of(at(all, -1), "steps"), 4);
    ck_assert_double_eq(number_of(at(all, 1), "step"), 0);
    ck_assert_double_eq(number_of(at(all, 3), "step"), 1);
    ck_assert_double_eq(number_of(at(all, 4), "step"), 2);
    json_decref(all);
    assert_succeeds(dptrain(SMALL " --max-steps 5 --quiet --overwrite"));
    all = read_log("model/log.jsonl", "epoch");
    ck_assert_uint_eq(json_array_size(all), 2); /* the second of one batch */
    json_decref(all);
    ck_assert(file_exists("model/model_epoch_1.safetensors"));
    assert_succeeds(dptrain(SMALL " --drop-last --quiet --overwrite"));
    all = read_log("model/log.jsonl", "batch");
    ck_assert_uint_eq(json_array_size(all), 6);
    json_decref(all);
}
END_TEST

/* One window of two halves is one batch of the whole. */
START_TEST(accumulation_gives_the_gradient_of_the_whole_batch)
{
    static const char line[] =
        "train --model linear --data synthetic:32 --valid-split 0 --no-shuffle --n-epoch 1 "
        "--lr 0.1 --logical-devices 2 --quiet";
    assert_succeeds(dptrain("%s --batch-size 32 --save whole --model-dir a", line));
    assert_succeeds(dptrain("%s --batch-size 16 --accumulation-steps 2 --save halves --model-dir b", line));
    dp_safetensors *whole = open_weights("whole"), *halves = open_weights("halves");
    for (int t = 0; t < dp_safetensors_count(whole); t++) {
        const dp_tensor *w = dp_safetensors_at(whole, t);
        for (int64_t i = 0; i < w->elements; i++)
            ck_assert_float_eq_tol(dp_tensor_float(w, i), element(halves, w->name, i), 1e-6F);
    }
    dp_safetensors_close(whole);
    dp_safetensors_close(halves);
}
END_TEST

START_TEST(values_are_fitted_with_mse)
{
    write_values("data.safetensors", 40);
    const run *r = dptrain("train --model linear --data safetensors:data.safetensors --lr 0.3 --n-epoch 30");
    assert_succeeds(r);
    assert_contains(r->err, "loss mse");
    ck_assert_int_eq(strncmp(last_line(r->out), "validation loss 0.0", 19), 0);
    json_t *epoch = read_log("model/log.jsonl", "epoch");
    ck_assert(number_of(at(epoch, -1), "train_loss") < 0.05 * number_of(at(epoch, 0), "train_loss"));
    ck_assert_ptr_null(json_object_get(at(epoch, 0), "valid_accuracy"));
    json_decref(epoch);
    r = dptrain(
        "train --model linear --data safetensors:data.safetensors --overwrite --valid-split 0 --loss l1 "
        "--n-epoch 1 --quiet");
    assert_succeeds(r);
    ck_assert_int_eq(strncmp(last_line(r->out), "training loss ", 14), 0);
    static const char line[] = "train --model linear --data safetensors:data.safetensors --quiet --overwrite";
    assert_fails(dptrain("%s --num-classes 3", line), 2, "2 target values");
    assert_fails(dptrain("%s --loss cross_entropy", line), 2, "whose targets are values");
}
END_TEST

START_TEST(a_test_part_of_the_data_is_used_unless_switched_off)
{
    write_idx("digits", 32, 12);
    const run *r = dptrain("train --model linear --data idx:digits --n-epoch 1");
    assert_succeeds(r);
    assert_contains(r->err, "tested on 12 samples");
    assert_contains(last_line(r->out), "test accuracy");
    r = dptrain("train --model linear --data idx:digits --n-epoch 1 --valid-split 0 --overwrite --quiet");
    assert_succeeds(r);
    assert_contains(last_line(r->out), "training loss");
    r = dptrain("train --model linear --data idx:digits --n-epoch 1 --valid-split 0.3 --overwrite --quiet");
    assert_fails(r, 2, "a test part of its own");
    /* eval of that last checkpoint uses the test part all the same */
    r = dptrain("eval --init model/model_best.safetensors --data idx:digits --json");
    assert_succeeds(r);
    json_t *json = json_loads(r->out, 0, NULL);
    ck_assert_str_eq(string_of(json, "part"), "test");
    ck_assert_double_eq(number_of(json, "samples"), 12);
    json_decref(json);
}
END_TEST

START_TEST(what_is_not_finite_ends_the_run)
{
    /* the second epoch's rate is too high by far */
    const run *r = dptrain(SMALL " --lr-step 1 --lr-gamma 1e30 --quiet");
    assert_fails(r, 3, "not finite in epoch 1, batch 1");
    assert_contains(r->err, "--lr");
    json_t *all = read_log("model/log.jsonl", NULL);
    ck_assert(json_is_null(json_object_get(at(all, -1), "loss")));
    json_decref(all);
    ck_assert(!file_exists("model/model_epoch_1.safetensors"));
    assert_succeeds(dptrain("eval --init model/model_best.safetensors --data synthetic:64"));

    r = dptrain(SMALL " --lr 1e30 --max-steps 1 --quiet --overwrite"); /* only the validation meets it */
    assert_fails(r, 3, "validation loss after epoch 0");
    all = read_log("model/log.jsonl", NULL);
    ck_assert_str_eq(string_of(at(all, -1), "event"), "epoch");
    ck_assert(json_is_null(json_object_get(at(all, -1), "valid_loss")));
    json_decref(all);
}
END_TEST

/* Reads a terminal until the program has closed it. */
static void read_terminal(int terminal, char *out, size_t size)
{
    size_t used = 0;
    for (;;) {
        ssize_t n = read(terminal, out + used, size - 1 - used);
        if (n <= 0) /* Linux reports the end as EIO */
            break;
        used += (size_t)n;
    }
    out[used] = 0;
}

START_TEST(a_terminal_gets_a_bar_that_fits)
{
    enum { COLUMNS = 50 };
    static char out[1 << 16];
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    ck_assert_int_ge(terminal, 0);
    ck_assert_int_eq(grantpt(terminal), 0);
    ck_assert_int_eq(unlockpt(terminal), 0);
    ck_assert_int_eq(ioctl(terminal, TIOCSWINSZ, &(struct winsize){.ws_row = 24, .ws_col = COLUMNS}), 0);
    char command[256];
    snprintf(command, sizeof command, "TERM=xterm %%s " SMALL " >/dev/null 2>%s", ptsname(terminal));
    pid_t child = fork();
    if (child == 0)
        _exit(dptrain_shell(command)->code);
    read_terminal(terminal, out, sizeof out);
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(terminal);
    const char *bar = strstr(out, "\repoch 0 [");
    ck_assert_msg(bar != NULL, "%s", out);
    ck_assert_uint_lt(strcspn(bar + 1, "\033"), COLUMNS);
    assert_contains(bar, "\033[Kepoch 0  training loss"); /* the bar is wiped before the epoch's line */
}
END_TEST

/* 45 samples in batches of 13, 13, 13 and 6: with seven devices the last has fewer samples than devices. */
START_TEST(odd_batches_give_the_weights_of_one_device)
{
    static const int devices[] = {2, 4, 6, 7};
    static const char *const modes[] = {"gather", "global"};
#define ODD                                                                                               \
    "train --model linear --data synthetic:53 --batch-size 13 --n-epoch 2 --lr 0.05 --quiet --overwrite " \
    "--loss-mode %s --logical-devices %d --save %s"
    assert_succeeds(dptrain(ODD, modes[_i], 1, "one"));
    dp_safetensors *one = open_weights("one");
    for (size_t d = 0; d < sizeof devices / sizeof *devices; d++) {
        assert_succeeds(dptrain(ODD, modes[_i], devices[d], "many"));
        dp_safetensors *many = open_weights("many");
        for (int t = 0; t < dp_safetensors_count(one); t++) {
            const dp_tensor *tensor = dp_safetensors_at(one, t);
            for (size_t i = 0; i < tensor->bytes / sizeof(float); i++)
                ck_assert_float_eq_tol(element(many, tensor->name, (int64_t)i),
                                       element(one, tensor->name, (int64_t)i), 1e-5f);
        }
        dp_safetensors_close(many);
    }
    dp_safetensors_close(one);
#undef ODD
}
END_TEST

Suite *train_suite(void)
{
    Suite *s = suite_create("train");
    TCase *c = tcase_create("train");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_add_test(c, a_run_prints_its_result_and_logs_its_steps);
    tcase_add_test(c, it_learns);
    tcase_add_test(c, the_same_command_gives_the_same_bits);
    tcase_add_test(c, options_can_be_written_in_several_ways);
    tcase_add_test(c, neutral_values_are_accepted_where_a_model_has_no_use_for_them);
    tcase_add_test(c, quiet_says_nothing_but_the_result);
    tcase_add_test(c, print_freq_sets_the_lines_of_an_epoch);
    tcase_add_test(c, replica_mode_warns_as_pytorch_does);
    tcase_add_test(c, devices_beyond_the_chunks_sit_out);
    tcase_add_test(c, devices_are_chosen_by_option_and_environment);
    tcase_add_test(c, the_rate_follows_its_schedule);
    tcase_add_test(c, windows_are_stepped_and_limited);
    tcase_add_test(c, accumulation_gives_the_gradient_of_the_whole_batch);
    tcase_add_test(c, values_are_fitted_with_mse);
    tcase_add_test(c, a_test_part_of_the_data_is_used_unless_switched_off);
    tcase_add_test(c, what_is_not_finite_ends_the_run);
    tcase_add_test(c, a_terminal_gets_a_bar_that_fits);
    tcase_add_loop_test(c, odd_batches_give_the_weights_of_one_device, 0, 2);
    suite_add_tcase(s, c);
    return s;
}
