/* The model directory and the log: who may write where, and what survives a failure. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

#define SMALL "train --model linear --data synthetic:64 --batch-size 16 --n-epoch 2 --quiet "

START_TEST(a_run_leaves_its_checkpoints)
{
    assert_succeeds(dptrain(SMALL "--model-dir deep/er --save deep/er/final.safetensors"));
    ck_assert(file_exists("deep/er/model_epoch_0.safetensors"));
    ck_assert(file_exists("deep/er/model_epoch_1.safetensors"));
    ck_assert(file_exists("deep/er/model_best.safetensors"));
    ck_assert(file_exists("deep/er/log.jsonl"));
    ck_assert(!file_exists("model"));
    dp_safetensors *last = open_weights("deep/er/model_epoch_1.safetensors");
    dp_safetensors *final = open_weights("deep/er/final.safetensors");
    for (int i = 0; i < 7840; i++)
        ck_assert_float_eq(element(last, "weight", i), element(final, "weight", i));
    dp_safetensors_close(last);
    dp_safetensors_close(final);
}
END_TEST

START_TEST(the_best_is_that_of_the_lowest_validation_loss)
{
    assert_succeeds(dptrain(SMALL "--n-epoch 5 --lr 0.5")); /* random labels: it soon gets worse */
    json_t *epochs = read_log("model/log.jsonl", "epoch");
    int best = 0;
    for (int e = 1; e < 5; e++)
        if (number_of(at(epochs, e), "valid_loss") < number_of(at(epochs, best), "valid_loss"))
            best = e;
    json_decref(epochs);
    char name[64];
    snprintf(name, sizeof name, "model/model_epoch_%d.safetensors", best);
    assert_same_file(name, "model/model_best.safetensors");
    /* of a run that continues in another directory, too, which then is one to continue in */
    ck_assert_int_lt(best, 3);
    assert_succeeds(dptrain(SMALL "--n-epoch 4 --lr 0.5 --model-dir first"));
    assert_succeeds(dptrain(SMALL "--n-epoch 4 --lr 0.5 --resume first --model-dir second"));
    assert_same_file(name, "second/model_best.safetensors");
    const run *r = dptrain(SMALL "--n-epoch 5 --lr 0.5 --model-dir second");
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "");
    assert_same_file(name, "second/model_best.safetensors");
    assert_same_file("model/model_epoch_4.safetensors", "second/model_epoch_4.safetensors");
}
END_TEST

START_TEST(a_directory_that_holds_checkpoints_is_not_overwritten_by_chance)
{
    assert_succeeds(dptrain(SMALL "--n-epoch 3"));
    json_t *before = read_log("model/log.jsonl", NULL);
    const run *r = dptrain(SMALL "--resume never");
    assert_fails(r, 2, "'model' already holds a checkpoint (");
    assert_contains(r->err, "use --overwrite to start afresh or another --model-dir");
    json_t *after = read_log("model/log.jsonl", NULL);
    ck_assert(json_equal(before, after)); /* the log is as it was */
    json_decref(before);
    json_decref(after);
    /* nor by a run that fails before its first step */
    assert_fails(dptrain(SMALL "--overwrite --log nowhere/log"), 1, "'nowhere/log'");
    assert_fails(dptrain(SMALL "--overwrite --save nowhere/w"), 1, "'nowhere/w'");
    ck_assert(file_exists("model/model_epoch_2.safetensors"));
    static const char *const users[] = {
        "model/model_epoch_final.safetensors", "model/model_epoch_02.safetensors",
        "model/resume_state_of_may.safetensors", "model/resume_state_4.safetensors~"};
    for (size_t i = 0; i < sizeof users / sizeof *users; i++)
        ck_assert_int_eq(link("model/model_epoch_2.safetensors", users[i]), 0);
    assert_succeeds(dptrain(SMALL "--overwrite"));
    for (size_t i = 0; i < sizeof users / sizeof *users; i++)
        ck_assert_msg(file_exists(users[i]), "%s is gone", users[i]);
    ck_assert(!file_exists("model/model_epoch_2.safetensors"));
    ck_assert(file_exists("model/model_epoch_1.safetensors"));
    /* nor by one that finds nothing to continue from */
    assert_succeeds(dptrain_shell("exec rm model/resume.json model/resume_state_4.safetensors "
                                  "model/resume_state_8.safetensors # %s"));
    assert_fails(dptrain(SMALL), 2, "'model' already holds a checkpoint (model_");
    ck_assert(file_exists("model/model_epoch_1.safetensors"));
}
END_TEST

START_TEST(one_run_at_a_time_uses_a_directory)
{
    ck_assert_int_eq(mkdir("model", 0777), 0);
    int lock = open("model/.lock", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    ck_assert_int_ge(lock, 0);
    ck_assert_int_eq(flock(lock, LOCK_EX), 0);
    assert_fails(dptrain(SMALL), 1, "another run is using 'model'");
    /* a process that dies takes a moment to let go */
    pid_t dying = fork();
    if (dying == 0) {
        usleep(500000);
        _exit(0);
    }
    close(lock);
    assert_succeeds(dptrain(SMALL));
    ck_assert_int_eq(waitpid(dying, NULL, 0), dying);
}
END_TEST

/* One that is refused, having made the directory, takes it and the lock's file with it. */
START_TEST(a_lock_that_is_gone_is_made_anew)
{
    ck_assert_int_eq(mkdir("model", 0777), 0);
    int lock = open("model/.lock", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    ck_assert_int_ge(lock, 0);
    ck_assert_int_eq(flock(lock, LOCK_EX), 0);
    pid_t refused = fork();
    if (refused == 0) {
        usleep(500000);
        _exit(unlink("model/.lock") != 0 || rmdir("model") != 0);
    }
    close(lock);
    int status;
    assert_succeeds(dptrain(SMALL));
    ck_assert_int_eq(waitpid(refused, &status, 0), refused);
    ck_assert_int_eq(status, 0);
    ck_assert(file_exists("model/.lock"));
}
END_TEST

static int entries_of(const char *directory)
{
    char line[256];
    snprintf(line, sizeof line, "exec sh -c 'ls -A %s | wc -l' # %%s", directory);
    return atoi(dptrain_shell(line)->out);
}

START_TEST(a_directory_that_cannot_be_written_is_an_error)
{
    ck_assert_int_eq(mkdir("ro", 0555), 0);
    assert_fails(dptrain_without_power(SMALL "--model-dir ro"), 1,
                 "cannot write 'ro/.lock': Permission denied; --model-dir needs a directory that can be "
                 "written");
    assert_fails(dptrain_without_power(SMALL "--model-dir ro/in/it"), 1,
                 "cannot create directory 'ro/in/it': Permission denied");
    assert_fails(dptrain_without_power(SMALL "--log ro/log"), 1, "cannot write 'ro/log': Permission denied");
    assert_fails(dptrain_without_power(SMALL "--save ro/w"), 1, "cannot write 'ro/w': Permission denied");
    ck_assert_int_eq(entries_of("ro"), 0);
    ck_assert(!file_exists("model"));
    /* a run whose directory has become so stays as it is, and can be continued in another */
    assert_succeeds(dptrain(SMALL "--model-dir old"));
    int entries = entries_of("old");
    ck_assert_int_eq(chmod("old", 0555), 0);
    assert_fails(dptrain_without_power(SMALL "--n-epoch 3 --model-dir old"), 1,
                 "cannot write 'old/model_best.safetensors': Permission denied");
    json_t *all = read_log("old/log.jsonl", NULL); /* it was found before the first step */
    ck_assert_str_eq(string_of(at(all, -1), "event"), "end");
    json_decref(all);
    ck_assert_int_eq(unlink("old/.lock"), 0);
    assert_fails(dptrain_without_power(SMALL "--n-epoch 3 --model-dir old"), 1, "cannot write 'old/.lock'");
    ck_assert_int_eq(entries_of("old"), entries - 1);
    assert_succeeds(dptrain_without_power(SMALL "--n-epoch 3 --resume old --model-dir new"));
    assert_succeeds(dptrain(SMALL "--n-epoch 3 --model-dir whole"));
    assert_same_file("whole/model_epoch_2.safetensors", "new/model_epoch_2.safetensors");
}
END_TEST

START_TEST(a_file_in_the_place_of_the_directory_is_an_error)
{
    FILE *f = fopen("model", "w");
    ck_assert_ptr_nonnull(f);
    fclose(f);
    assert_fails(dptrain(SMALL), 1, "'model'");
    assert_fails(dptrain(SMALL "--model-dir model/below"), 1, "'model");
}
END_TEST

/* A disk that fills up: the log fits, the checkpoint does not. */
START_TEST(a_full_disk_ends_the_run_and_spoils_no_checkpoint)
{
    /* in blocks of 512 bytes */
    assert_fails(dptrain_shell("ulimit -f 40; %s " SMALL "--model-dir other"), 1, "cannot write");
    ck_assert(!file_exists("other/model_epoch_0.safetensors"));
    ck_assert(!file_exists("other/model_best.safetensors"));
    /* not even the log's first line */
    assert_fails(dptrain_shell("ulimit -f 1; %s " SMALL "--model-dir third"), 1,
                 "cannot write 'third/log.jsonl'");
}
END_TEST

START_TEST(names_that_are_not_text_are_logged_as_far_as_they_go)
{
    assert_succeeds(dptrain(SMALL "--model-dir m\xff"));
    json_t *start = read_log("m\xff/log.jsonl", "start");
    assert_contains(list_of(at(start, 0), "command"), "\"m?\"");
    json_decref(start);
}
END_TEST

START_TEST(what_a_run_wrote_is_named)
{
    static const char command[] =
        "train --device cpu --model linear --data synthetic:64 --n-epoch 1 --overwrite "
        "--save end.safetensors --report run.html --trace run.json";
    const run *r = dptrain(command);
    assert_succeeds(r);
    assert_contains(r->err,
                    "weights written to end.safetensors\nreport written to run.html\ntrace written to "
                    "run.json\n");
    r = dptrain("%s --quiet", command);
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "");
    r = dptrain("train --device cpu --model linear --data synthetic:64 --n-epoch 1 --report again.html "
                "--trace again.json");
    assert_succeeds(r); /* there was nothing left to do, so nothing to trace */
    assert_contains(r->err, "report written to again.html\n");
    assert_lacks(r->err, "trace written");
}
END_TEST

START_TEST(no_output_is_written_over_another_file_of_the_run)
{
    write_values("data", 64);
    assert_succeeds(dptrain(SMALL "--data safetensors:data --save weights"));
    dp_safetensors_close(open_weights("weights"));
#define AGAIN SMALL "--data safetensors:data --overwrite "
    assert_fails(dptrain(AGAIN "--log data"), 2, "--log 'data' would be written over the file of --data");
    assert_fails(dptrain(AGAIN "--save ./data"), 2,
                 "--save './data' would be written over the file of --data");
    assert_fails(dptrain(AGAIN "--init weights --log model/../weights"), 2, "over the file of --init");
    ck_assert_int_eq(link("data", "other-name"), 0);
    assert_fails(dptrain(AGAIN "--log other-name"), 2, "over the file of --data");
    assert_fails(dptrain(AGAIN "--save new --log model/../new"), 2, "--save and --log name the same file");
    assert_fails(dptrain(AGAIN "--save model/.lock"), 2, "a name that the run itself uses");
    assert_fails(dptrain(AGAIN "--save model/log.jsonl"), 2, "a name that the run itself uses");
    assert_fails(dptrain(AGAIN "--save model/resume.json"), 2, "a name that the run itself uses");
    assert_fails(dptrain(AGAIN "--log model/resume_state_4.safetensors"), 2,
                 "a name that the run itself uses");
    assert_fails(dptrain(AGAIN "--log model/model_epoch_1.safetensors"), 2,
                 "a name that the run itself uses");
    assert_fails(dptrain_args((const char *[]){"train", "--save", "", NULL}), 2,
                 "--save needs the name of a file");
    ck_assert(!file_exists("new"));
    dp_safetensors_close(open_weights("data")); /* still whole, all of it */
    assert_succeeds(dptrain(AGAIN "--log model/log.jsonl --init weights --save elsewhere"));
#undef AGAIN
}
END_TEST

START_TEST(a_log_that_nobody_reads_does_not_hang)
{
    ck_assert_int_eq(mkfifo("fifo", 0666), 0);
    assert_fails(dptrain(SMALL "--log fifo"), 1, "cannot write 'fifo'");
}
END_TEST

START_TEST(a_result_that_cannot_be_printed_is_an_error)
{
    assert_fails(dptrain_shell("%s " SMALL ">/dev/full"), 1, "cannot write to standard output");
    ck_assert(file_exists("model/model_best.safetensors"));
    /* with stdout closed, the result must not land in the first file that is opened */
    assert_fails(dptrain_shell("%s " SMALL "--overwrite >&-"), 1, "cannot write to standard output");
    json_t *events = read_log("model/log.jsonl", NULL); /* every line is an object */
    json_decref(events);
    struct stat lock;
    ck_assert_int_eq(stat("model/.lock", &lock), 0);
    ck_assert_int_eq(lock.st_size, 0);
}
END_TEST

Suite *files_suite(void)
{
    Suite *s = suite_create("files");
    TCase *c = tcase_create("files");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_add_test(c, a_run_leaves_its_checkpoints);
    tcase_add_test(c, what_a_run_wrote_is_named);
    tcase_add_test(c, no_output_is_written_over_another_file_of_the_run);
    tcase_add_test(c, a_log_that_nobody_reads_does_not_hang);
    tcase_add_test(c, the_best_is_that_of_the_lowest_validation_loss);
    tcase_add_test(c, a_directory_that_holds_checkpoints_is_not_overwritten_by_chance);
    tcase_add_test(c, one_run_at_a_time_uses_a_directory);
    tcase_add_test(c, a_lock_that_is_gone_is_made_anew);
    tcase_add_test(c, a_directory_that_cannot_be_written_is_an_error);
    tcase_add_test(c, a_file_in_the_place_of_the_directory_is_an_error);
    tcase_add_test(c, a_full_disk_ends_the_run_and_spoils_no_checkpoint);
    tcase_add_test(c, names_that_are_not_text_are_logged_as_far_as_they_go);
    tcase_add_test(c, a_result_that_cannot_be_printed_is_an_error);
    suite_add_tcase(s, c);
    return s;
}
