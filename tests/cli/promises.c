/* What the manual promises to the letter: every option in the help, every field of the log, every file. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "harness.h"

#define SMALL "train --model mlp --hidden 16 --data synthetic:64 --n-epoch 2 --batch-size 16 --quiet "

START_TEST(help_lists_every_option)
{
    static const struct {
        const char *name, *argument;
        int commands;
    } options[] = {
#define X(id, name, argument, commands, help) {"\n  --" name, argument, commands},
#include "cli/options.def"
#undef X
    };
    static const struct {
        const char *name;
        int bit;
    } commands[] = {{"train", CLI_TRAIN},
                    {"eval", CLI_EVAL},
                    {"devices", CLI_DEVICES},
                    {"convert", CLI_CONVERT},
                    {"report", CLI_REPORT}};
    for (size_t c = 0; c < sizeof commands / sizeof *commands; c++) {
        const run *r = dptrain("%s --help", commands[c].name);
        assert_succeeds(r);
        for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
            char line[64];
            snprintf(line, sizeof line, "%s %s", options[i].name,
                     options[i].argument ? options[i].argument : "");
            if (options[i].commands & commands[c].bit)
                assert_contains(r->out, line);
            else
                assert_lacks(r->out, line);
        }
    }
}
END_TEST

START_TEST(a_run_leaves_nothing_that_was_not_promised)
{
    assert_succeeds(dptrain(SMALL "--model-dir saved --save final"));
    static const char *const promised[] = {".lock",
                                           "log.jsonl",
                                           "model_best.safetensors",
                                           "model_epoch_0.safetensors",
                                           "model_epoch_1.safetensors",
                                           "resume.json",
                                           "resume_state_4.safetensors",
                                           "resume_state_8.safetensors"};
    enum { COUNT = sizeof promised / sizeof *promised };
    DIR *d = opendir("saved");
    ck_assert_ptr_nonnull(d);
    int found = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        bool known = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
        for (int i = 0; i < COUNT; i++)
            if (strcmp(promised[i], e->d_name) == 0) {
                known = true;
                found++;
            }
        ck_assert_msg(known, "'%s' was not promised", e->d_name);
    }
    closedir(d);
    ck_assert_int_eq(found, COUNT);
    ck_assert(file_exists("final"));
}
END_TEST

static void assert_keys(const json_t *event, const char *const *keys)
{
    for (int i = 0; keys[i]; i++)
        ck_assert_msg(json_object_get(event, keys[i]) != NULL, "no \"%s\" in %s", keys[i],
                      string_of(event, "event"));
}

static const char *const phases[] = {"wait", "scatter",  "broadcast", "forward",   "gather",
                                     "loss", "backward", "reduce",    "optimizer", NULL},
                         *const purposes[] = {"parameters",       "gradients",   "optimizer",
                                              "buffers",          "activations", "inputs",
                                              "gathered_outputs", "loss",        "staging",
                                              "workspace",        NULL};

START_TEST(the_log_has_every_field)
{
    assert_succeeds(dptrain(SMALL "--logical-devices 3"));
    json_t *all = read_log("model/log.jsonl", NULL);
    assert_keys(at(all, 0), (const char *[]){"event", "version", "command", "model", "parameters", "devices",
                                             "output_device", "loss_mode", "batch_size", "seed", NULL});
    assert_keys(at(all, 1), (const char *[]){"event", "epoch", "batch", "step", "samples", "chunk_sizes",
                                             "loss", "device_losses", "lr", "phase_ms", NULL});
    assert_keys(at(all, 5), (const char *[]){"event", "epoch", "train_loss", "valid_loss", "valid_accuracy",
                                             "seconds", "samples_per_second", NULL});
    assert_keys(at(all, -2), (const char *[]){"event", "device", "samples", "busy_fraction", "peak_bytes",
                                              "peak_total_bytes", NULL});
    assert_keys(at(all, -1), (const char *[]){"event", "status", "steps", "seconds", NULL});
    const json_t *peaks = json_object_get(at(all, -2), "peak_bytes");
    ck_assert_uint_eq(json_object_size(peaks), 10);
    for (int i = 0; purposes[i]; i++)
        ck_assert(number_of(peaks, purposes[i]) >= 0);
    double share = number_of(at(all, -2), "busy_fraction");
    ck_assert(share > 0 && share <= 1);
    json_decref(all);
}
END_TEST

/* A step's phases are nine, none negative, and an epoch's add up to the time it took. */
START_TEST(phases_partition_the_steps)
{
    assert_succeeds(dptrain("train --model lenet --data synthetic:480 --valid-split 0 --batch-size 48 "
                            "--n-epoch 2 --logical-devices 2 --threads-per-device 1 --quiet"));
    json_t *batches = read_log("model/log.jsonl", "batch"), *epochs = read_log("model/log.jsonl", "epoch");
    ck_assert_uint_eq(json_array_size(batches), 20);
    double sum = 0;
    for (int i = 10; i < 20; i++) {
        const json_t *spent = json_object_get(at(batches, i), "phase_ms");
        ck_assert_uint_eq(json_object_size(spent), 9);
        for (int p = 0; phases[p]; p++) {
            ck_assert(number_of(spent, phases[p]) >= 0);
            sum += number_of(spent, phases[p]);
        }
        ck_assert(number_of(spent, "forward") > 0);
    }
    /* nothing has fetched an epoch's first batch ahead */
    ck_assert(number_of(json_object_get(at(batches, 10), "phase_ms"), "wait") > 0);
    double whole = 1000 * number_of(at(epochs, 1), "seconds");
    ck_assert_msg(sum <= 1.01 * whole && sum >= 0.8 * whole, "%g ms of phases in an epoch of %g ms", sum,
                  whole);
    json_decref(batches);
    json_decref(epochs);
}
END_TEST

START_TEST(more_devices_than_samples)
{
    assert_succeeds(dptrain(SMALL "--logical-devices 64 --batch-size 3 --max-steps 2"));
    json_t *batches = read_log("model/log.jsonl", "batch");
    ck_assert_str_eq(list_of(at(batches, 1), "chunk_sizes"), "[1,1,1]");
    ck_assert_uint_eq(json_array_size(json_object_get(at(batches, 1), "device_losses")), 3);
    json_decref(batches);
    json_t *devices = read_log("model/log.jsonl", "device");
    ck_assert_uint_eq(json_array_size(devices), 64);
    ck_assert_double_eq(number_of(at(devices, 2), "samples"), 2);
    ck_assert_double_eq(number_of(at(devices, 3), "samples"), 0);
    json_decref(devices);
}
END_TEST

/* The loss of a run does not depend on the devices, but for the last bits. */
START_TEST(the_number_of_devices_changes_no_loss)
{
    static const char *const modes[] = {"gather", "global"};
    for (int m = 0; m < 2; m++) {
        double first = 0;
        for (int n = 1; n <= 4; n++) {
            assert_succeeds(
                dptrain(SMALL "--lr 0.1 --logical-devices %d --loss-mode %s --overwrite", n, modes[m]));
            json_t *epochs = read_log("model/log.jsonl", "epoch");
            double loss = number_of(at(epochs, -1), "valid_loss");
            json_decref(epochs);
            first = n == 1 ? loss : first;
            ck_assert_double_eq_tol(loss, first, 1e-5);
        }
    }
}
END_TEST

START_TEST(a_log_on_a_full_disk_ends_the_run)
{
    assert_fails(dptrain(SMALL "--log /dev/full"), 1, "cannot write '/dev/full': No space left on device");
    ck_assert(!file_exists("model/model_epoch_0.safetensors"));
}
END_TEST

START_TEST(data_that_is_cut_short_is_an_io_error)
{
    write_values("values", 40);
    ck_assert_int_eq(truncate("values", 500), 0);
    assert_fails(dptrain("train --model linear --data safetensors:values --quiet"), 1, "'values'");
    ck_assert_int_eq(truncate("values", 5), 0);
    assert_fails(dptrain("train --model linear --data safetensors:values --quiet"), 1, "'values'");
    write_idx("digits", 32, 12);
    ck_assert_int_eq(truncate("digits/train-images-idx3-ubyte", 100), 0);
    assert_fails(dptrain("train --model linear --data idx:digits --quiet"), 1, "train-images-idx3-ubyte");
    ck_assert(!file_exists("model"));
}
END_TEST

START_TEST(what_is_not_finite_names_the_device)
{
    assert_fails(dptrain(SMALL "--logical-devices 2 --device-ids 1,0 --lr-step 1 --lr-gamma 1e30"), 3,
                 "cpu:");
    const run *r = dptrain("eval --init model/model_epoch_0.safetensors --data synthetic:64 --json");
    assert_succeeds(r); /* the checkpoint before is whole */
}
END_TEST

START_TEST(no_step_is_taken_before_files_are_known_to_be_writable)
{
    assert_fails(dptrain(SMALL "--save /dev/null"), 1, "'/dev/null'");
    ck_assert(!file_exists("model/log.jsonl"));
    ck_assert(!file_exists("model/model_epoch_0.safetensors"));
}
END_TEST

Suite *promises_suite(void)
{
    Suite *s = suite_create("promises");
    TCase *c = tcase_create("promises");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_add_test(c, help_lists_every_option);
    tcase_add_test(c, a_run_leaves_nothing_that_was_not_promised);
    tcase_add_test(c, the_log_has_every_field);
    tcase_add_test(c, phases_partition_the_steps);
    tcase_add_test(c, more_devices_than_samples);
    tcase_add_test(c, the_number_of_devices_changes_no_loss);
    tcase_add_test(c, a_log_on_a_full_disk_ends_the_run);
    tcase_add_test(c, data_that_is_cut_short_is_an_io_error);
    tcase_add_test(c, what_is_not_finite_names_the_device);
    tcase_add_test(c, no_step_is_taken_before_files_are_known_to_be_writable);
    suite_add_tcase(s, c);
    return s;
}
