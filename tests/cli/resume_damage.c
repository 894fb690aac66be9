/* Disks that fail, and what is damaged, gone or in the way where a run is to continue. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "resume.h"

START_TEST(a_full_disk_leaves_the_last_checkpoint)
{
    assert_succeeds(dptrain(RUN "--n-epoch 3 --model-dir whole"));
    assert_succeeds(dptrain(RUN "--n-epoch 1"));
    /* in blocks of 512 bytes: the log fits, the state does not */
    assert_fails(dptrain_shell("ulimit -f 60; %s " RUN "--n-epoch 3"), 1, "cannot write 'model/");
    assert_succeeds(dptrain(RUN "--n-epoch 3"));
    assert_same_runs("whole", "model", 3);
}
END_TEST

/* Found before the first step: hours later it would be the end of the run. */
START_TEST(what_is_in_the_way_of_a_file_is_found_at_once)
{
    static const char *const names[] = {"model_best.safetensors",
                                        "model_epoch_1.safetensors",
                                        "resume_state_4.safetensors",
                                        "resume.json",
                                        "log.jsonl",
                                        ".lock"};
    char path[64];
    snprintf(path, sizeof path, "model/%s", names[_i]);
    ck_assert_int_eq(mkdir("model", 0777), 0);
    ck_assert_int_eq(mkdir(path, 0777), 0);
    assert_fails(dptrain(RUN), 1, path);
    ck_assert(!file_exists("model/model_epoch_0.safetensors"));
    if (strcmp(names[_i], "log.jsonl") != 0) /* else it holds no event */
        ck_assert(!file_exists("model/log.jsonl"));
    ck_assert_int_eq(rmdir(path), 0);
    assert_succeeds(dptrain(RUN));
}
END_TEST

/* Turns one bit of the byte at that place; a negative one counts from the end. */
static void flip(const char *path, long place)
{
    FILE *f = fopen(path, "r+b");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fseek(f, place, place < 0 ? SEEK_END : SEEK_SET), 0);
    int byte = getc(f);
    ck_assert_int_eq(fseek(f, place, place < 0 ? SEEK_END : SEEK_SET), 0);
    ck_assert_int_eq(putc(byte ^ 4, f), byte ^ 4);
    ck_assert_int_eq(fclose(f), 0);
}

static void append(const char *path, const char *text)
{
    FILE *f = fopen(path, "a");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_ge(fputs(text, f), 0);
    ck_assert_int_eq(fclose(f), 0);
}

/* Of a run that goes on, and of a finished one. */
START_TEST(a_log_that_is_no_log_is_moved_aside)
{
    int steps = _i == 0 ? 6 : 8;
    assert_succeeds(dptrain(RUN "--model-dir whole"));
    assert_succeeds(dptrain(RUN "--max-steps %d", steps));
    append("model/log.jsonl.aside-1", "older\n"); /* stays */
    ck_assert_int_eq(truncate("model/log.jsonl", 0), 0);
    append("model/log.jsonl", "my notes\nwithout an end");
    assert_succeeds(dptrain_shell("cp model/log.jsonl notes # %s"));
    const run *r = dptrain(RUN);
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "warning: 'model/log.jsonl' is damaged or no log: it was moved to "
                             "'model/log.jsonl.aside-2'\n");
    assert_same_file("notes", "model/log.jsonl.aside-2");
    assert_same_files("whole", "model", 2);
    if (steps == 6)
        assert_ends_well("model");
}
END_TEST

/* One bit in the middle: what can still be read is kept beside. */
START_TEST(a_damaged_log_is_moved_aside)
{
    assert_succeeds(dptrain(RUN "--max-steps 6"));
    flip("model/log.jsonl", 1); /* the quotation mark of the first key */
    assert_succeeds(dptrain_shell("cp model/log.jsonl damaged # %s"));
    assert_contains(dptrain(RUN)->err, "moved to 'model/log.jsonl.aside-1'");
    assert_same_file("damaged", "model/log.jsonl.aside-1");
    assert_ends_well("model");
}
END_TEST

/* Of the finished run, which has nothing to log any more: a page cannot be made of what there is not. */
START_TEST(a_report_needs_the_log_of_the_finished_run)
{
    assert_succeeds(dptrain(RUN));
    if (_i == 0)
        flip("model/log.jsonl", 1);
    else
        ck_assert_int_eq(unlink("model/log.jsonl"), 0);
    const run *r = dptrain(RUN "--report page.html --save final");
    ck_assert_int_eq(r->code, 1);
    assert_contains(r->err,
                    "dptrain: error: cannot write 'page.html': the log of the finished run is not at "
                    "'model/log.jsonl' any more; leave out --report, or train again with --overwrite\n");
    ck_assert_int_eq(strncmp(r->err, "warning: 'model/log.jsonl' is damaged", 36) == 0, _i == 0);
    ck_assert(!file_exists("page.html"));
    ck_assert(file_exists("final"));
    assert_succeeds(dptrain(RUN));
}
END_TEST

START_TEST(the_log_of_another_run_keeps_its_events)
{
    assert_succeeds(dptrain(RUN "--model-dir other --seed 1"));
    assert_succeeds(dptrain(RUN "--max-steps 6"));
    json_t *before = read_log("other/log.jsonl", NULL);
    const run *r = dptrain(RUN "--log other/log.jsonl");
    assert_succeeds(r);
    ck_assert_str_eq(r->err,
                     "warning: 'other/log.jsonl' is not as the checkpoint knew it: its events stay, new "
                     "ones are appended\n");
    json_t *after = read_log("other/log.jsonl", NULL);
    ck_assert_int_gt((int)json_array_size(after), (int)json_array_size(before));
    for (int i = 0; i < (int)json_array_size(before); i++)
        ck_assert(json_equal(at(before, i), at(after, i)));
    json_decref(before);
    json_decref(after);
}
END_TEST

START_TEST(what_follows_a_checkpoint_in_the_log_is_cut)
{
    assert_succeeds(dptrain(RUN "--model-dir whole"));
    assert_succeeds(dptrain(RUN "--max-steps 6"));
    append("model/log.jsonl", "garbage\n{\"event\":\"ba");
    const run *r = dptrain(RUN);
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "");
    assert_same_runs("whole", "model", 2);
}
END_TEST

static void damage(const char *path, int how)
{
    static const long places[] = {-5, 0, 1,
                                  40}; /* of a weight, of the length of the header twice, of the header */
    if (how < 4)
        flip(path, places[how]);
    else if (how < 6)
        ck_assert_int_eq(truncate(path, how == 4 ? 0 : 3000), 0);
    else
        ck_assert_int_eq(unlink(path), 0);
}

/* Of a finished run and of one that goes on. */
START_TEST(a_damaged_state_gives_way_to_the_one_before)
{
    bool finished = _i % 2 != 0;
    const char *newest = finished ? "model/resume_state_12.safetensors" : "model/resume_state_10.safetensors";
    char text[64];
    snprintf(text, sizeof text, "continuing after step %d, from 'model/resume_state_", finished ? 11 : 9);
    assert_succeeds(dptrain(RUN "--n-epoch 3 --model-dir whole --save whole.safetensors"));
    assert_succeeds(dptrain(RUN "--n-epoch 3 --save-every 1 --max-steps %d", finished ? 12 : 10));
    damage(newest, _i);
    const run *r = dptrain(RUN "--n-epoch 3 --save-every 1 --save final");
    assert_succeeds(r);
    assert_contains(r->err, "warning: cannot ");
    assert_contains(r->err, newest);
    assert_contains(r->err, text);
    ck_assert_str_eq(strchr(r->err, '\n'), "\n"); /* one line */
    assert_same_file("whole.safetensors", "final");
    assert_same_runs("whole", "model", 3);
    r = dptrain(RUN "--n-epoch 3");
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "");
}
END_TEST

/* Where a text first stands in a file. */
static long place_of(const char *path, const char *text)
{
    static char bytes[4096];
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    size_t size = fread(bytes, 1, sizeof bytes, f);
    ck_assert_int_eq(fclose(f), 0);
    const char *found = memmem(bytes, size, text, strlen(text));
    ck_assert_ptr_nonnull(found);
    return found - bytes;
}

/* A name in the header has no part in the checksum of the contents: with the settings of the run, a tensor
 * that is not there is damage, and not another model. */
START_TEST(a_damaged_name_is_damage_of_its_state)
{
    static const char *const names[] = {"\"model.", "\"moment1.", "\"moment2."};
    const char *newest = "model/resume_state_10.safetensors", *before = "model/resume_state_9.safetensors";
    assert_succeeds(dptrain(RUN "--n-epoch 3 --model-dir whole --save whole.safetensors"));
    assert_succeeds(dptrain(RUN "--n-epoch 3 --save-every 1 --max-steps 10"));
    flip(newest, place_of(newest, names[_i]) + 1);
    const run *r = dptrain(RUN "--n-epoch 3 --save final");
    assert_succeeds(r);
    assert_contains(r->err, "warning: 'model/resume_state_10.safetensors' lacks '");
    assert_contains(r->err, before);
    assert_same_file("whole.safetensors", "final");
}
END_TEST

START_TEST(a_damaged_state_never_counts_as_the_one_before)
{
    assert_succeeds(dptrain(RUN "--n-epoch 3 --model-dir whole"));
    assert_succeeds(dptrain(RUN "--save-every 1 --max-steps 5"));
    flip("model/resume_state_5.safetensors", -5);
    assert_succeeds(dptrain(RUN "--save-every 1 --max-steps 5"));
    flip("model/resume_state_5.safetensors", -5); /* made anew and damaged again */
    const run *r = dptrain(RUN "--save-every 1 --max-steps 6");
    assert_succeeds(r);
    assert_contains(r->err, "continuing after step 4,");
    assert_succeeds(dptrain(RUN "--n-epoch 3 --resume model --model-dir second"));
    assert_same_file("whole/model_best.safetensors", "second/model_best.safetensors");
    /* from another directory too */
    flip("model/resume_state_6.safetensors", -5);
    r = dptrain(RUN "--n-epoch 3 --resume model --model-dir third");
    assert_succeeds(r);
    assert_contains(r->err, "continuing after step 5,");
    assert_same_file("whole/model_epoch_2.safetensors", "third/model_epoch_2.safetensors");
}
END_TEST

/* Other settings are no damage. */
START_TEST(other_settings_are_refused_whatever_is_damaged)
{
    assert_succeeds(dptrain(RUN));
    assert_fails(dptrain(RUN "--lr 0.02 --n-epoch 3"), 2, "learning rate: 0.01 then, 0.02 now");
    flip("model/resume_state_8.safetensors", -5);
    assert_fails(dptrain(RUN "--lr 0.02 --n-epoch 3"), 2, "learning rate: 0.01 then, 0.02 now");
}
END_TEST

START_TEST(two_corrupt_states_are_an_error)
{
    assert_succeeds(dptrain(RUN));
    flip("model/resume_state_4.safetensors", -5);
    flip("model/resume_state_8.safetensors", -5);
    assert_fails(dptrain(RUN), 1,
                 "cannot continue from 'model/resume_state_8.safetensors': its bytes are not those that were "
                 "written; cannot continue from 'model/resume_state_4.safetensors': its bytes are not those "
                 "that were written; --resume never --overwrite starts afresh");
    ck_assert_int_eq(truncate("model/resume_state_8.safetensors", 3000), 0);
    assert_fails(dptrain(RUN), 1, "'model/resume_state_8.safetensors'");
    ck_assert_int_eq(unlink("model/resume_state_8.safetensors"), 0);
    assert_fails(dptrain(RUN), 1, "'model/resume_state_8.safetensors'");
    ck_assert_int_eq(truncate("model/resume.json", 10), 0);
    assert_fails(dptrain(RUN), 1, "'model/resume.json' is corrupt");
    assert_fails(dptrain(RUN), 1, "it names no checkpoint; cannot continue from 'model/resume_state_4.");
    ck_assert_int_eq(unlink("model/resume_state_4.safetensors"), 0);
    assert_fails(dptrain(RUN), 1, "names no checkpoint; no state lies beside it; --resume never");
    assert_succeeds(dptrain(RUN "--overwrite"));
}
END_TEST

/* The marker is damaged or gone, or what it names is no file: sound states beside it are found. */
START_TEST(a_run_continues_from_whatever_is_sound)
{
    assert_succeeds(dptrain(RUN "--n-epoch 3 --model-dir whole --save whole.safetensors"));
    assert_succeeds(dptrain(RUN "--n-epoch 3 --save-every 1 --max-steps 8"));
    ck_assert_int_eq(link("model/resume_state_8.safetensors", "older"), 0);
    assert_succeeds(dptrain(RUN "--n-epoch 3 --save-every 1 --max-steps 10"));
    static const char *const says[] = {
        "warning: 'model/resume.json' is corrupt: it names no checkpoint; continuing after step 10,",
        "warning: cannot read 'model/resume.json': No such file or directory; continuing after step 10,",
        "warning: cannot read 'model/resume.json': it is a directory; continuing after step 10,",
        "warning: cannot read 'model/resume_state_10.safetensors': it is a directory; continuing after step "
        "9,",
        "warning: cannot read 'model/resume_state_10.safetensors': it is not a regular file; continuing "
        "after step 9,",
        /* three that are not sound, and one that no marker names */
        "warning: 'model/resume.json' is corrupt: it names no checkpoint; cannot continue from "
        "'model/resume_state_10.safetensors': its bytes are not those that were written; cannot continue "
        "from 'model/resume_state_9.safetensors': its bytes are not those that were written; continuing "
        "after step 8,"};
    static const char *const obstacle[] = {NULL,
                                           NULL,
                                           "model/resume.json",
                                           "model/resume_state_10.safetensors",
                                           "model/resume_state_10.safetensors",
                                           NULL};
    if (_i == 5) {
        ck_assert_int_eq(rename("older", "model/resume_state_8.safetensors"), 0);
        flip("model/resume_state_10.safetensors", -5);
        flip("model/resume_state_9.safetensors", -5);
    }
    if (_i == 0 || _i == 5)
        ck_assert_int_eq(truncate("model/resume.json", 10), 0);
    else
        ck_assert_int_eq(unlink(_i == 1 ? "model/resume.json" : obstacle[_i]), 0);
    if (_i == 2 || _i == 3)
        ck_assert_int_eq(mkdir(obstacle[_i], 0777), 0);
    else if (_i == 4)
        ck_assert_int_eq(mkfifo(obstacle[_i], 0666), 0);
    assert_fails(dptrain(RUN "--lr 1 --n-epoch 3"), 2, "learning rate: 0.01 then, 1 now"); /* moves nothing */
    const run *r = dptrain(RUN "--n-epoch 3 --save-every 1 --save final");
    assert_succeeds(r);
    ck_assert_msg(strncmp(r->err, says[_i], strlen(says[_i])) == 0, "%s", r->err);
    if (obstacle[_i]) {
        char moved[256];
        snprintf(moved, sizeof moved,
                 "\nwarning: '%s' was in the way of a state: it was moved to '%s.aside-1'\n", obstacle[_i],
                 obstacle[_i]);
        assert_contains(r->err, moved);
    }
    assert_same_file("whole.safetensors", "final");
    assert_same_runs("whole", "model", 3);
    r = dptrain(RUN "--n-epoch 3");
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "");
}
END_TEST

/* The options between "; " and " starts afresh" of an error's line. */
static const char *advice_of(const run *r)
{
    static char options[64];
    const char *from = strstr(r->err, "; --"), *to = strstr(r->err, " starts afresh\n");
    ck_assert_msg(from && to && to - from - 2 < (long)sizeof options, "%s", r->err);
    snprintf(options, sizeof options, "%.*s", (int)(to - from - 2), from + 2);
    return options;
}

/* Nothing sound is left, and the advice is followed, whatever was in the way. */
START_TEST(what_is_advised_starts_afresh)
{
    static const char *const said[] = {
        "error: cannot read 'model/resume.json': it is a directory; no state lies beside it; --",
        "error: cannot read 'model/resume.json': No such file or directory; cannot read "
        "'model/resume_state_4.safetensors': it is a directory; --",
        "error: cannot read 'model/resume_state_8.safetensors': it is not a regular file; cannot read "
        "'model/resume_state_4.safetensors': it is a directory; --",
        "error: 'model/resume.json' is corrupt: it names no checkpoint; no state lies beside it; --"};
    static const char *const moved[] = {"model/resume.json.aside-1",
                                        "model/resume_state_4.safetensors.aside-1",
                                        "model/resume_state_8.safetensors.aside-1", "model"};
    assert_succeeds(dptrain(RUN "--model-dir whole"));
    if (_i < 2) {
        ck_assert_int_eq(mkdir("model", 0777), 0);
        ck_assert_int_eq(mkdir(_i == 0 ? "model/resume.json" : "model/resume_state_4.safetensors", 0777), 0);
    } else {
        assert_succeeds(dptrain(RUN));
        ck_assert_int_eq(unlink("model/resume_state_8.safetensors"), 0);
        ck_assert_int_eq(unlink("model/resume_state_4.safetensors"), 0);
    }
    if (_i == 2) {
        ck_assert_int_eq(mkfifo("model/resume_state_8.safetensors", 0666), 0);
        ck_assert_int_eq(mkdir("model/resume_state_4.safetensors", 0777), 0);
    } else if (_i == 3) {
        ck_assert_int_eq(truncate("model/resume.json", 10), 0);
    }
    /* in the directory itself, by whatever option, and beside it */
    static const char *const options[] = {"", "--resume auto ", "--resume model ",
                                          "--resume model --model-dir other "};
    for (int i = 3; i >= 0; i--) {
        const run *r = dptrain(RUN "%s", options[i]);
        assert_fails(r, 1, said[_i]);
        if (i == 2)
            assert_fails(dptrain(RUN "--resume never"), 2, "use --overwrite to start afresh or another");
        if (i % 3 != 0)
            continue;
        r = dptrain(RUN "%s%s", options[i], advice_of(r));
        assert_succeeds(r);
        assert_same_runs("whole", i == 3 ? "other" : "model", 2);
    }
    ck_assert(file_exists(moved[_i]));
    const run *r = dptrain(RUN);
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "");
}
END_TEST

/* A finished run has nothing to write that would replace what is damaged: it says so once. */
START_TEST(a_finished_run_mends_its_marker)
{
    static const struct {
        int steps; /* of the state that is found */
        const char *said, *moved;
    } cases[] = {
        {8, "'model/resume.json' is corrupt: it names no checkpoint", NULL},
        {8, "cannot read 'model/resume.json': No such file or directory", NULL},
        {8, "cannot read 'model/resume.json': it is a directory", "model/resume.json"},
        {4,
         "cannot continue from 'model/resume_state_8.safetensors': its bytes are not those that were written",
         NULL},
        {4, "cannot read 'model/resume_state_8.safetensors': it is not a regular file",
         "model/resume_state_8.safetensors"},
    };
    const char *moved = cases[_i].moved;
    char want[1024], line[256];
    assert_succeeds(dptrain(RUN "--model-dir whole"));
    assert_succeeds(dptrain(RUN));
    if (_i == 0)
        ck_assert_int_eq(truncate("model/resume.json", 10), 0);
    else if (_i == 3)
        flip("model/resume_state_8.safetensors", -5);
    else
        ck_assert_int_eq(unlink(moved ? moved : "model/resume.json"), 0);
    if (moved)
        ck_assert_int_eq(_i == 2 ? mkdir(moved, 0777) : mkfifo(moved, 0666), 0);
    int n =
        snprintf(want, sizeof want,
                 "warning: %s; 'model/resume_state_%d.safetensors' is the newest sound state: resume.json is "
                 "written anew\n",
                 cases[_i].said, cases[_i].steps);
    if (moved)
        snprintf(want + n, sizeof want - (size_t)n,
                 "warning: '%s' was in the way of a state: it was moved to '%s.aside-1'\n", moved, moved);
    /* what has four steps is finished with one epoch */
    snprintf(line, sizeof line, RUN "--n-epoch %d --save final", cases[_i].steps / 4);
    const run *r = dptrain("%s", line);
    assert_succeeds(r);
    ck_assert_str_eq(r->err, want);
    r = dptrain("%s", line);
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "");
    r = dptrain("train --model linear --data synthetic:64 --batch-size 8 --accumulation-steps 2 --n-epoch %d "
                "--lr 0.01 --optimizer adamw",
                cases[_i].steps / 4);
    assert_succeeds(r);
    assert_contains(r->err, "the run in 'model' is finished: ");
    assert_lacks(r->err, "warning");
    /* and it can go on */
    assert_succeeds(dptrain(RUN "--model-dir whole --n-epoch 3"));
    r = dptrain(RUN "--n-epoch 3");
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "");
    assert_same_runs("whole", "model", 3);
}
END_TEST

/* A file that may not be read is not lost: going back to an older state would lose what it holds. */
START_TEST(a_state_that_may_not_be_read_is_no_damage)
{
    const char *name = _i == 0 ? "model/resume_state_8.safetensors" : "model/resume.json";
    char text[128];
    assert_succeeds(dptrain(RUN "--save final"));
    ck_assert_int_eq(chmod(name, 0), 0);
    snprintf(text, sizeof text, "error: cannot read '%s': Permission denied\n", name);
    assert_fails(dptrain_without_power(RUN), 1, text);
    ck_assert_int_eq(chmod(name, 0644), 0);
    assert_succeeds(dptrain(RUN "--save again"));
    assert_same_file("final", "again");
}
END_TEST

TCase *resume_damage_case(void)
{
    TCase *c = tcase_create("damage");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_add_test(c, a_full_disk_leaves_the_last_checkpoint);
    tcase_add_loop_test(c, what_is_in_the_way_of_a_file_is_found_at_once, 0, 6);
    tcase_add_loop_test(c, a_log_that_is_no_log_is_moved_aside, 0, 2);
    tcase_add_test(c, a_damaged_log_is_moved_aside);
    tcase_add_loop_test(c, a_report_needs_the_log_of_the_finished_run, 0, 2);
    tcase_add_test(c, the_log_of_another_run_keeps_its_events);
    tcase_add_test(c, what_follows_a_checkpoint_in_the_log_is_cut);
    tcase_add_loop_test(c, a_damaged_state_gives_way_to_the_one_before, 0, 7);
    tcase_add_loop_test(c, a_damaged_name_is_damage_of_its_state, 0, 3);
    tcase_add_test(c, a_damaged_state_never_counts_as_the_one_before);
    tcase_add_test(c, other_settings_are_refused_whatever_is_damaged);
    tcase_add_test(c, two_corrupt_states_are_an_error);
    tcase_add_loop_test(c, a_run_continues_from_whatever_is_sound, 0, 6);
    tcase_add_loop_test(c, what_is_advised_starts_afresh, 0, 4);
    tcase_add_loop_test(c, a_finished_run_mends_its_marker, 0, 5);
    tcase_add_loop_test(c, a_state_that_may_not_be_read_is_no_damage, 0, 2);
    return c;
}
