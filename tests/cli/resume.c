/* Runs that are killed, interrupted or extended, and continue. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "resume.h"

/* ---- what two runs leave behind ---- */

void assert_same_files(const char *a, const char *b, int epochs)
{
    char x[PATH_MAX], y[PATH_MAX];
    for (int e = 0; e < epochs; e++) {
        snprintf(x, sizeof x, "%s/model_epoch_%d.safetensors", a, e);
        snprintf(y, sizeof y, "%s/model_epoch_%d.safetensors", b, e);
        assert_same_file(x, y);
    }
    snprintf(x, sizeof x, "%s/model_best.safetensors", a);
    snprintf(y, sizeof y, "%s/model_best.safetensors", b);
    assert_same_file(x, y);
}

/* Numbers that must be the same to the last bit, in every batch or epoch event. */
static void assert_same_events(const char *a, const char *b, const char *kind, const char *const *keys)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/log.jsonl", a);
    json_t *x = read_log(path, kind);
    snprintf(path, sizeof path, "%s/log.jsonl", b);
    json_t *y = read_log(path, kind);
    ck_assert_msg(json_array_size(x) == json_array_size(y), "%zu and %zu events '%s'", json_array_size(x),
                  json_array_size(y), kind);
    for (int i = 0; i < (int)json_array_size(x); i++)
        for (int k = 0; keys[k]; k++)
            ck_assert_msg(json_equal(json_object_get(at(x, i), keys[k]), json_object_get(at(y, i), keys[k])),
                          "%s %d: '%s' differs", kind, i, keys[k]);
    json_decref(x);
    json_decref(y);
}

void assert_ends_well(const char *directory)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/log.jsonl", directory);
    json_t *all = read_log(path, NULL);
    ck_assert_str_eq(string_of(at(all, -1), "event"), "end");
    ck_assert_str_eq(string_of(at(all, -1), "status"), "completed");
    ck_assert_str_eq(string_of(at(all, 0), "event"), "start");
    json_decref(all);
}

void assert_same_runs(const char *a, const char *b, int epochs)
{
    assert_same_files(a, b, epochs);
    assert_same_events(a, b, "batch",
                       (const char *[]){"epoch", "batch", "step", "loss", "device_losses", "lr", NULL});
    assert_same_events(a, b, "epoch",
                       (const char *[]){"epoch", "train_loss", "valid_loss", "valid_accuracy", NULL});
    assert_ends_well(b);
}

/* ---- killed ---- */

static bool is_long(void)
{
    return getenv("DPTRAIN_TEST_LONG") != NULL;
}

/* Has the next runs killed at that call; 0: not at all. */
static void kill_at(long call)
{
    char text[PATH_MAX + 32];
    if (call == 0) {
        unsetenv("LD_PRELOAD");
        return;
    }
    ck_assert_msg(harness_beside_program("tests/kill_at.so", text, sizeof text), "no %s: build it first",
                  text);
    setenv("LD_PRELOAD", text, 1);
    snprintf(text, sizeof text, "%ld", call);
    setenv("DPTRAIN_KILL_AT", text, 1);
    /* a build with ASan wants to be the first library */
    const char *asan = getenv("ASAN_OPTIONS");
    if (asan && !strstr(asan, "verify_asan_link_order")) {
        snprintf(text, sizeof text, "%s:verify_asan_link_order=0", asan);
        setenv("ASAN_OPTIONS", text, 1);
    }
}

/* A crash at any change of any file, then the same command again; `--save-every 1`: as many as can be. */
START_TEST(a_crash_at_any_point_loses_no_bit)
{
    enum { STRIDE = 23 };
    int stride = is_long() ? 1 : STRIDE, devices = _i;
    char line[512];
    snprintf(line, sizeof line, RUN "--logical-devices %d --save-every 1", devices);
    assert_succeeds(dptrain("%s --model-dir whole --save whole.safetensors", line));
    long kills = 0;
    for (long call = 1 + devices * 5 % stride;; call += stride) {
        kill_at(call);
        const run *r = dptrain("%s --model-dir m --save final", line);
        bool killed = r->code == -1;
        ck_assert_msg(killed || r->code == 0, "call %ld: exit %d: %s", call, r->code, r->err);
        kill_at(0);
        if (killed) {
            r = dptrain("%s --model-dir m --save final", line);
            ck_assert_msg(r->code == 0, "after call %ld: exit %d: %s", call, r->code, r->err);
        }
        assert_same_file("whole.safetensors", "final");
        assert_same_runs("whole", "m", 2);
        assert_succeeds(dptrain_shell("exec rm -r m final # %s"));
        if (!killed)
            break;
        kills++;
    }
    ck_assert_int_ge(kills, 150 / stride);
}
END_TEST

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Killed again and again, whatever it is doing; every other time long enough after its start to get on. */
START_TEST(kills_at_random_moments_lose_no_bit)
{
    int devices = _i, kills = is_long() ? 60 : 6;
    char line[512];
    snprintf(line, sizeof line, RUN "--logical-devices %d --save-every 2", devices);
    double began = seconds();
    assert_succeeds(dptrain("%s --model-dir whole --save whole.safetensors", line));
    double whole = seconds() - began;
    srand((unsigned)devices);
    for (int k = 0; k < kills; k++) {
        pid_t child = dptrain_start("%s --model-dir m --save final", line);
        usleep((useconds_t)(1e6 * whole * ((double)rand() / RAND_MAX)));
        kill(child, SIGKILL);
        const run *r = dptrain_finish(child);
        ck_assert_msg(r->code == -1 || r->code == 0, "exit %d: %s", r->code, r->err);
        if (r->code == 0) { /* it was done before the kill: again from the start */
            assert_same_runs("whole", "m", 2);
            assert_succeeds(dptrain_shell("exec rm -r m # %s"));
        }
    }
    assert_succeeds(dptrain("%s --model-dir m --save final", line));
    assert_same_file("whole.safetensors", "final");
    assert_same_runs("whole", "m", 2);
}
END_TEST

START_TEST(half_written_files_of_killed_runs_are_removed)
{
    assert_succeeds(dptrain(RUN "--n-epoch 1"));
    static const char *const stale[] = {"model/model_epoch_1.safetensors.tmp-999999999",
                                        "model/model_best.safetensors.tmp-999999999",
                                        "model/resume_state_5.safetensors.tmp-999999999",
                                        "model/resume.json.tmp-999999999", "final.tmp-999999999"};
    for (size_t i = 0; i < sizeof stale / sizeof *stale; i++)
        fclose(fopen(stale[i], "w"));
    fclose(fopen("model/mine.tmp-999999999", "w"));
    fclose(fopen("final.tmp-1", "w")); /* of a process that lives */
    assert_succeeds(dptrain(RUN "--save final"));
    for (size_t i = 0; i < sizeof stale / sizeof *stale; i++)
        ck_assert_msg(!file_exists(stale[i]), "%s", stale[i]);
    ck_assert(file_exists("model/mine.tmp-999999999"));
    ck_assert(file_exists("final.tmp-1"));
}
END_TEST

/* A run that is to begin afresh is killed: once it has begun to remove the earlier one, that never comes
 * back. */
START_TEST(what_was_to_be_overwritten_does_not_come_back)
{
    enum { STRIDE = 4 };
    bool refused = false, killed = true;
    assert_succeeds(dptrain(RUN "--n-epoch 1 --save-every 1 --model-dir old"));
    for (long call = 1; killed; call += is_long() ? 1 : STRIDE) {
        assert_succeeds(dptrain_shell("exec cp -r old model # %s"));
        kill_at(call);
        killed = dptrain(RUN "--n-epoch 1 --seed 1 --overwrite")->code == -1;
        kill_at(0);
        bool begun = dptrain_shell("exec cmp -s old/resume.json model/resume.json # %s")->code != 0;
        const run *r = dptrain(RUN "--n-epoch 1 --seed 1");
        if (begun && r->code == 2)
            assert_contains(r->err, "already holds a checkpoint");
        ck_assert_msg(!begun || r->code == 0 || r->code == 2, "call %ld: exit %d: %s", call, r->code, r->err);
        refused |= begun && r->code == 2;
        assert_succeeds(dptrain_shell("exec rm -r model # %s"));
    }
    ck_assert(refused);
}
END_TEST

/* ---- interrupted ---- */

#define ENDLESS                                                                                           \
    "train --model linear --data synthetic:64 --batch-size 2 --accumulation-steps 5 --n-epoch 2000 --lr " \
    "0.001"

/* Waits until the run has logged batches. */
static void wait_for_batches(const char *log)
{
    struct stat st;
    for (int i = 0; i < 6000 && (stat(log, &st) != 0 || st.st_size < 4000); i++)
        usleep(5000);
    ck_assert_int_eq(stat(log, &st), 0);
}

START_TEST(a_signal_ends_a_run_with_a_checkpoint)
{
    static const int signals[] = {SIGINT, SIGTERM}, codes[] = {130, 143};
    pid_t child = dptrain_start(ENDLESS);
    wait_for_batches("model/log.jsonl");
    kill(child, signals[_i]);
    const run *r = dptrain_finish(child);
    ck_assert_msg(r->code == codes[_i], "exit %d: %s", r->code, r->err);
    assert_contains(r->err, "interrupted after ");
    assert_lacks(r->err, "dptrain: error");
    json_t *all = read_log("model/log.jsonl", NULL);
    ck_assert_str_eq(string_of(at(all, -1), "event"), "end");
    ck_assert_str_eq(string_of(at(all, -1), "status"), "interrupted");
    int steps = (int)number_of(at(all, -1), "steps"), i = -2;
    while (strcmp(string_of(at(all, i), "event"), "device") == 0)
        i--;
    /* no window is open: the last batch made a step. 54 samples: 27 batches, 5 full windows and one of 2 */
    int epoch = (int)number_of(at(all, i), "epoch");
    if (strcmp(string_of(at(all, i), "event"), "batch") == 0) {
        int batch = (int)number_of(at(all, i), "batch");
        ck_assert_msg((batch + 1) % 5 == 0 || batch == 26, "batch %d", batch);
        ck_assert_int_eq(steps, 6 * epoch + (batch + 5) / 5);
    }
    json_decref(all);
    /* it continues from there */
    char line[256];
    snprintf(line, sizeof line, ENDLESS " --max-steps %d", steps + 20);
    r = dptrain("%s --save continued", line);
    assert_succeeds(r);
    assert_contains(r->err, "continuing the run in 'model' at epoch ");
    assert_succeeds(dptrain("%s --save whole.safetensors --model-dir whole --quiet", line));
    assert_same_file("continued", "whole.safetensors");
}
END_TEST

START_TEST(a_signal_before_the_first_step_is_heeded)
{
    /* the shell's child starts with the signal pending: it arrives when the handler is there or kills it */
    pid_t child = dptrain_start(ENDLESS " --data synthetic:20000");
    usleep(20000);
    kill(child, SIGTERM);
    const run *r = dptrain_finish(child);
    ck_assert_msg(r->code == 143 || r->code == -1, "exit %d: %s", r->code, r->err);
    assert_succeeds(dptrain(ENDLESS " --data synthetic:20000 --max-steps 3 --quiet"));
}
END_TEST

START_TEST(a_second_signal_quits_at_once)
{
    /* the first is not heeded soon: its window is as long as the run */
    pid_t child = dptrain_start(
        "train --model lenet --data synthetic:4096 --batch-size 64 --accumulation-steps 1000000 --n-epoch 1 "
        "--logical-devices 1 --quiet");
    wait_for_batches("model/log.jsonl");
    kill(child, SIGINT);
    usleep(1000);
    kill(child, SIGTERM);
    const run *r = dptrain_finish(child);
    /* two signals that wait for a busy process may come in either order */
    ck_assert_msg(r->code == 143 || r->code == 130, "exit %d: %s", r->code, r->err);
    json_t *all = read_log("model/log.jsonl", NULL);
    ck_assert_str_eq(string_of(at(all, -1), "event"), "batch");
    json_decref(all);
    ck_assert(!file_exists("model/resume.json"));
}
END_TEST

/* ---- finished, extended, refused ---- */

START_TEST(a_finished_run_started_again_says_so)
{
    assert_succeeds(dptrain(RUN "--save first"));
    json_t *before = read_log("model/log.jsonl", NULL);
    const run *r = dptrain("train --model linear --data synthetic:64 --batch-size 8 --accumulation-steps 2 "
                           "--n-epoch 2 --lr 0.01 --optimizer adamw --save again");
    assert_succeeds(r);
    assert_contains(r->err, "the run in 'model' is finished: 2 whole epochs, 8 steps");
    assert_contains(last_line(r->out), "validation accuracy ");
    assert_same_file("first", "again");
    json_t *after = read_log("model/log.jsonl", NULL);
    ck_assert(json_equal(before, after));
    json_decref(before);
    json_decref(after);
}
END_TEST

START_TEST(more_epochs_and_steps_continue_a_run)
{
    assert_succeeds(dptrain(RUN "--n-epoch 4 --model-dir whole"));
    assert_succeeds(dptrain(RUN "--max-steps 2"));
    assert_succeeds(dptrain(RUN "--max-steps 6"));
    assert_succeeds(dptrain(RUN "--max-steps 6 --n-epoch 4"));
    assert_succeeds(dptrain(RUN "--n-epoch 3"));
    assert_succeeds(dptrain(RUN "--n-epoch 4 --log model/log.jsonl"));
    assert_same_runs("whole", "model", 4);
}
END_TEST

/* Whatever a network keeps beside its weights comes back too: running statistics and their counters, moments,
 * the places of random numbers. The steps end within epochs, too. */
START_TEST(every_kind_of_network_continues)
{
    static const char *const kinds[] = {
        "--model mlp --hidden 8 --optimizer sgd --momentum 0",
        "--model lenet --optimizer sgd --nesterov",
        "--model resnet18_cifar --width 4 --size 16x16 --optimizer adamw",
        "--model vgg16 --width 4 --size 32x32 --optimizer sgd",
        "--model unet16 --width 4 --filters 4 --size 32x32 --optimizer adamw",
        "--model unet_resnet34 --width 4 --filters 4 --deconv --size 64x64 --optimizer adamw",
    };
    char line[512];
    snprintf(line, sizeof line,
             "train --data synthetic:14 --batch-size 5 --logical-devices 2 --n-epoch 3 --quiet %s",
             kinds[_i]);
    assert_succeeds(dptrain("%s --max-steps 5 --model-dir whole --save whole.safetensors", line));
    assert_succeeds(dptrain("%s --max-steps 2 --model-dir m", line));
    assert_succeeds(dptrain("%s --max-steps 4 --model-dir m", line));
    assert_succeeds(dptrain("%s --max-steps 5 --model-dir m --save pieces.safetensors", line));
    assert_same_file("whole.safetensors", "pieces.safetensors");
}
END_TEST

START_TEST(a_resume_with_other_settings_names_them)
{
    static const struct {
        const char *options, *text;
    } others[] = {
        {"--model mlp --hidden 8,9",
         "settings: model: linear then, mlp now; hidden of the model: not set then, [8,9] now; give it"},
        {"--num-classes 11", "settings: outputs of the model: 10 then, 11 now; training data: 54 samples"},
        {"--data synthetic:128", "training data: 54 samples"},
        {"--data synthetic:64 --seed 1", "seed: 0 then, 1 now"},
        {"--batch-size 16", "batch size: 8 then, 16 now"},
        {"--accumulation-steps 1", "accumulation steps: 2 then, 1 now"},
        {"--loss-mode global", "loss mode: gather then, global now"},
        {"--logical-devices 3", "number of devices: 2 then, 3 now"},
        {"--split balanced", "split: chunk then, balanced now"},
        {"--lr 0.02", "learning rate: 0.01 then, 0.02 now"},
        {"--optimizer sgd", "optimizer: adamw then, sgd now"},
        {"--weight-decay 0.1", "weight decay: 0.0001 then, 0.1 now"},
        {"--no-shuffle", "shuffling: on then, off now"},
        {"--drop-last", "dropping the last batch: off then, on now"},
        {"--freeze bias", "frozen parameters: none then, bias now"},
        {"--valid-split 0.3", "validation data: 10 samples"},
        {"--valid-split 0", " then, none now"},
        {"--lr-step 1", "lr step: 30 then, 1 now"},
        {"--mean 0.5 --std 2", "contents"},
    };
    assert_succeeds(dptrain(RUN "--logical-devices 2"));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const run *r = dptrain(RUN "--n-epoch 3 --logical-devices 2 %s", others[i].options);
        assert_fails(r, 2, others[i].text);
        assert_contains(r->err, "the run in 'model' cannot continue with other settings");
    }
    ck_assert(!file_exists("model/model_epoch_2.safetensors"));
    /* what changes no weight may change */
    assert_succeeds(dptrain(RUN "--n-epoch 3 --logical-devices 2 --num-workers 1 --print-freq 3 --save s "
                                "--log other.jsonl --save-every 3 --keep 1"));
    ck_assert(!file_exists("model/model_epoch_1.safetensors"));
    ck_assert(file_exists("model/model_epoch_2.safetensors"));
    ck_assert(file_exists("model/model_best.safetensors"));
}
END_TEST

/* The same data by another way, and other data by the same. */
START_TEST(data_are_known_by_their_contents)
{
    write_values("a.safetensors", 40);
    write_values("b.safetensors", 40);
#define VALUES "train --model linear --quiet --data safetensors:"
    assert_succeeds(dptrain(VALUES "a.safetensors --n-epoch 1"));
    assert_succeeds(dptrain(VALUES "b.safetensors --n-epoch 2"));
    FILE *f = fopen("b.safetensors", "r+b");
    ck_assert_ptr_nonnull(f);
    fseek(f, -4, SEEK_END);
    fwrite("\0\0\0\1", 1, 4, f);
    fclose(f);
    assert_fails(dptrain(VALUES "b.safetensors --n-epoch 3"), 2, "training data: ");
#undef VALUES
}
END_TEST

START_TEST(a_run_continues_in_another_directory)
{
    assert_succeeds(dptrain(RUN "--n-epoch 3 --model-dir whole"));
    assert_succeeds(dptrain(RUN "--max-steps 6 --model-dir first"));
    const run *r = dptrain(RUN "--n-epoch 3 --resume first --model-dir second");
    assert_succeeds(r);
    assert_same_file("whole/model_epoch_2.safetensors", "second/model_epoch_2.safetensors");
    assert_same_file("whole/model_best.safetensors", "second/model_best.safetensors");
    assert_ends_well("second");
    ck_assert(!file_exists("first/model_epoch_2.safetensors"));
    /* over a checkpoint only if that is wanted */
    r = dptrain(RUN "--n-epoch 3 --resume first --model-dir second");
    assert_fails(r, 2, "'second' already holds a checkpoint");
    assert_contains(r->err, "without --resume the run in it continues");
    assert_succeeds(dptrain(RUN "--n-epoch 3 --model-dir second"));
    assert_succeeds(dptrain(RUN "--n-epoch 3 --resume first --model-dir second --overwrite"));
    assert_same_file("whole/model_epoch_2.safetensors", "second/model_epoch_2.safetensors");
    assert_succeeds(dptrain(RUN "--n-epoch 3 --resume first --model-dir first"));
    assert_same_runs("whole", "first", 3);
    assert_fails(dptrain(RUN "--resume nowhere"), 1, "cannot read directory 'nowhere'");
}
END_TEST

START_TEST(resume_goes_before_init)
{
    assert_succeeds(dptrain(RUN "--n-epoch 1 --save weights --model-dir w"));
    assert_succeeds(dptrain(RUN "--n-epoch 1"));
    const run *r = dptrain("train --model linear --data synthetic:64 --batch-size 8 --accumulation-steps 2 "
                           "--n-epoch 2 --lr 0.01 --optimizer adamw --init nowhere");
    assert_succeeds(r); /* the file is not even read */
    assert_contains(r->err, "continuing the run in 'model' at epoch 1, batch 0, after 4 steps (--init");
    assert_succeeds(dptrain(RUN "--model-dir whole"));
    assert_same_runs("whole", "model", 2);
    assert_fails(dptrain(RUN "--overwrite --init nowhere"), 1, "'nowhere'");
    ck_assert(file_exists("model/model_epoch_1.safetensors"));
}
END_TEST

Suite *resume_suite(void)
{
    Suite *s = suite_create("resume");
    TCase *c = tcase_create("resume");
    tcase_set_timeout(c, is_long() ? 1200 : 60);
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_add_test(c, half_written_files_of_killed_runs_are_removed);
    tcase_add_loop_test(c, a_signal_ends_a_run_with_a_checkpoint, 0, 2);
    tcase_add_test(c, a_signal_before_the_first_step_is_heeded);
    tcase_add_test(c, a_second_signal_quits_at_once);
    tcase_add_test(c, a_finished_run_started_again_says_so);
    tcase_add_test(c, more_epochs_and_steps_continue_a_run);
    tcase_add_loop_test(c, every_kind_of_network_continues, 0, 6);
    tcase_add_test(c, a_resume_with_other_settings_names_them);
    tcase_add_test(c, data_are_known_by_their_contents);
    tcase_add_test(c, a_run_continues_in_another_directory);
    tcase_add_test(c, resume_goes_before_init);
    suite_add_tcase(s, c);
    suite_add_tcase(s, resume_damage_case());
    TCase *killed = tcase_create("killed");
    tcase_set_tags(killed, "slow"); /* left out of `make quick` */
    tcase_set_timeout(killed, is_long() ? 1200 : 60);
    tcase_add_checked_fixture(killed, harness_enter, harness_leave);
    tcase_add_loop_test(killed, a_crash_at_any_point_loses_no_bit, 1, 4);
    tcase_add_test(killed, what_was_to_be_overwritten_does_not_come_back);
    tcase_add_loop_test(killed, kills_at_random_moments_lose_no_bit, 1, 4);
    suite_add_tcase(s, killed);
    return s;
}
