/* The directory of a run: its lock, which states count and in which order, what is removed and what never. */
#include <sys/resource.h>

#include "base/memory.h"
#include "io/file.h"
#include "small_run.h"

static void touch(const char *name)
{
    scratch_write(name, "", 0);
}

START_TEST(a_directory_is_locked_and_cleared_of_checkpoints_alone)
{
    dp_model_dir first, second;
    OK(dp_model_dir_open(scratch("a/b"), &first, &err));
    ck_assert_int_eq(dp_model_dir_open(scratch("a/b"), &second, &err), DP_ERROR_IO);
    assert_says("another run is using");
    dp_model_dir_close(&second); /* as a failed open leaves it */
    OK(dp_model_dir_check_fresh(&first, false, &err));
    touch("a/b/model_epoch_12.safetensors");
    touch("a/b/model_best.safetensors");
    touch("a/b/mine.safetensors");
    touch("a/b/model_best.safetensors.bak");
    touch("a/b/model_best.safetensors.tmp-123");
    dp_model_dir_close(&first);
    OK(dp_model_dir_open(scratch("a/b"), &first, &err)); /* the refused one holds no lock */
    ck_assert(!dp_file_exists(scratch("a/b/model_best.safetensors.tmp-123")));
    ck_assert_int_eq(dp_model_dir_check_fresh(&first, false, &err), DP_ERROR_USAGE);
    assert_says("already holds a checkpoint");
    ck_assert(dp_file_exists(scratch("a/b/model_best.safetensors")));
    OK(dp_model_dir_clear(&first, &err));
    OK(dp_model_dir_check_fresh(&first, false, &err));
    dp_model_dir_close(&first);
    ck_assert(!dp_file_exists(scratch("a/b/model_epoch_12.safetensors")));
    ck_assert(!dp_file_exists(scratch("a/b/model_best.safetensors")));
    ck_assert(dp_file_exists(scratch("a/b/mine.safetensors")));
    ck_assert(dp_file_exists(scratch("a/b/model_best.safetensors.bak")));
}
END_TEST

/* The steps of the directory's states in the order in which they are tried, as "12 9 5"; `fault` is in what
 * is said of the marker ("": nothing). */
static void assert_states(const char *steps, const char *fault)
{
    dp_state_list list;
    char text[256] = "";
    OK(dp_model_dir_states(scratch("m"), &list, &err));
    for (int i = 0; i < list.count; i++) {
        int step = atoi(list.names[i] + strlen("resume_state_"));
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%d", i ? " " : "", step);
    }
    ck_assert_str_eq(text, steps);
    ck_assert_int_eq(list.fault.status, *fault ? DP_ERROR_IO : DP_OK);
    ck_assert_msg(strstr(list.fault.message, fault) != NULL, "'%s'", list.fault.message);
    dp_state_list_clear(&list);
}

static void write_marker(const char *text)
{
    scratch_write("m/resume.json", text, strlen(text));
}

START_TEST(the_newest_state_is_the_one_that_was_completed)
{
    enum { STATES = 4 };
    static const char names[STATES][DP_STATE_NAME_SIZE] = {
        "resume_state_5.safetensors", "resume_state_9.safetensors", "resume_state_12.safetensors",
        "resume_state_13.safetensors"};
    static const char *const written[STATES] = {"5", "5 9", "9 12 5", "12 13 9"}, *const completed[STATES] = {
                                                                                      "5", "9 5", "12 9",
                                                                                      "13 12"};
    dp_model_dir dir;
    char path[300];
    OK(dp_model_dir_open(scratch("m"), &dir, &err));
    assert_states("", "");
    for (int i = 0; i < STATES; i++) {
        snprintf(path, sizeof path, "m/%s", names[i]);
        touch(path); /* written, but not completed */
        assert_states(written[i], i == 0 ? "resume.json': No such file" : "");
        OK(dp_model_dir_complete(&dir, names[i], &err));
        assert_states(completed[i], "");
        for (int k = 0; k < STATES; k++) {
            snprintf(path, sizeof path, "m/%s", names[k]);
            ck_assert_int_eq(dp_file_exists(scratch(path)), k == i || k == i - 1);
        }
    }
    OK(dp_model_dir_complete(&dir, names[3], &err)); /* the same once more */
    assert_states("13 12", "");
    dp_model_dir_close(&dir);
}
END_TEST

/* What lies there counts, by number; what only looks like a state does not. */
START_TEST(a_marker_that_is_of_no_use_is_done_without)
{
    static const char *const wrong[] = {"",
                                        "{}",
                                        "[]",
                                        "{\"complete\":7}",
                                        "{\"complete\":\"other\"}",
                                        "{\"complete\":\"resume_state_/../../x.safetensors\"}",
                                        "{\"complete\":\"resume_state_05.safetensors\"}",
                                        "{\"complete\":\"resume_state_5.safetensors\""};
    dp_model_dir dir;
    char *text;
    size_t size;
    OK(dp_model_dir_open(scratch("m"), &dir, &err));
    touch("m/resume_state_9.safetensors");
    touch("m/resume_state_13.safetensors");
    touch("m/resume_state_100.safetensors");
    touch("m/resume_state_0200.safetensors");
    touch("m/resume_state_-1.safetensors");
    touch("m/resume_state_7.safetensors.tmp-1");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_marker(wrong[i]);
        assert_states("100 13 9", "is corrupt: it names no checkpoint");
    }
    /* what it names counts though it is gone: it is missed */
    write_marker("{\"complete\":\"../x\",\"previous\":\"resume_state_12.safetensors\"}");
    assert_states("100 13 12 9", "is corrupt");
    write_marker("{\"complete\":\"resume_state_12.safetensors\",\"previous\":\"../x\"}");
    assert_states("12 100 13 9", "");
    /* the state before is one that is older */
    dp_state_list list;
    OK(dp_model_dir_states(scratch("m"), &list, &err));
    dp_model_dir_continue(&dir, &list, 0);
    ck_assert_str_eq(dir.kept[0], "resume_state_12.safetensors");
    ck_assert_str_eq(dir.kept[1], "resume_state_9.safetensors");
    OK(dp_model_dir_repair(&dir, &err)); /* there is nothing to mend */
    assert_states("12 100 13 9", "");
    dp_model_dir_continue(&dir, &list, 3);
    ck_assert_str_eq(dir.kept[0], "resume_state_9.safetensors");
    ck_assert_str_eq(dir.kept[1], "");
    OK(dp_model_dir_repair(&dir, &err));
    dp_state_list_clear(&list);
    assert_states("9 100 13", "");
    OK(dp_file_read(scratch("m/resume.json"), (void **)&text, &size, &err));
    ck_assert_int_eq(memcmp(text, "{\"complete\":\"resume_state_9.safetensors\"}\n", size), 0);
    dp_free(text);
    dp_model_dir_close(&dir);
}
END_TEST

/* As a crash leaves it in the midst of dp_model_dir_clear. */
START_TEST(states_that_were_to_go_do_not_count)
{
    dp_model_dir dir;
    OK(dp_model_dir_open(scratch("m"), &dir, &err));
    touch("m/resume_state_9.safetensors");
    write_marker("{\"complete\":null}\n");
    assert_states("", "");
    ck_assert_int_eq(dp_model_dir_check_fresh(&dir, false, &err), DP_ERROR_USAGE);
    OK(dp_model_dir_check_fresh(&dir, true, &err));
    OK(dp_model_dir_clear(&dir, &err));
    OK(dp_model_dir_check_fresh(&dir, false, &err));
    ck_assert(!dp_file_exists(scratch("m/resume_state_9.safetensors")));
    ck_assert(!dp_file_exists(scratch("m/resume.json")));
    /* a state alone is a checkpoint too */
    touch("m/resume_state_3.safetensors");
    ck_assert_int_eq(dp_model_dir_check_fresh(&dir, false, &err), DP_ERROR_USAGE);
    dp_model_dir_close(&dir);
}
END_TEST

/* Only a file that is lost is a reason to go back to an older one. */
START_TEST(what_cannot_be_read_now_is_not_damaged)
{
    dp_run_file file;
    struct rlimit limit;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    touch("state");
    ck_assert_int_eq(dp_run_file_open(scratch("state"), &file, &err), DP_ERROR_IO);
    ck_assert(dp_file_is_damaged(&err)); /* empty */
    ck_assert_int_eq(dp_run_file_open(scratch("none"), &file, &err), DP_ERROR_IO);
    ck_assert(dp_file_is_damaged(&err));
    ck_assert_int_eq(dp_run_file_open(scratch_directory, &file, &err), DP_ERROR_IO);
    ck_assert(dp_file_is_damaged(&err));
    const rlim_t most = limit.rlim_cur;
    limit.rlim_cur = 3;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    dp_status status = dp_run_file_open(scratch("state"), &file, &err);
    limit.rlim_cur = most;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    ck_assert_int_eq(status, DP_ERROR_IO);
    assert_says("Too many open files");
    ck_assert(!dp_file_is_damaged(&err));
    ck_assert_int_eq(dp_run_file_open(scratch("state"), &file, &err), DP_ERROR_IO);
    ck_assert(dp_file_is_damaged(&err)); /* whatever the error before was */
}
END_TEST

START_TEST(old_epochs_are_pruned_by_number)
{
    dp_model_dir dir;
    OK(dp_model_dir_open(scratch("m"), &dir, &err));
    touch("m/model_epoch_9.safetensors");
    touch("m/model_epoch_10.safetensors");
    touch("m/model_epoch_11.safetensors");
    touch("m/model_epoch_09.safetensors"); /* not one of ours */
    touch("m/model_best.safetensors");
    OK(dp_model_dir_prune(&dir, 10, &err));
    ck_assert(!dp_file_exists(scratch("m/model_epoch_9.safetensors")));
    ck_assert(dp_file_exists(scratch("m/model_epoch_10.safetensors")));
    ck_assert(dp_file_exists(scratch("m/model_epoch_11.safetensors")));
    ck_assert(dp_file_exists(scratch("m/model_epoch_09.safetensors")));
    ck_assert(dp_file_exists(scratch("m/model_best.safetensors")));
    dp_model_dir_close(&dir);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("model directory");
    TCase *t = add_case(s, "directory");
    tcase_add_test(t, a_directory_is_locked_and_cleared_of_checkpoints_alone);
    tcase_add_test(t, a_marker_that_is_of_no_use_is_done_without);
    tcase_add_test(t, states_that_were_to_go_do_not_count);
    tcase_add_test(t, what_cannot_be_read_now_is_not_damaged);
    tcase_add_test(t, the_newest_state_is_the_one_that_was_completed);
    tcase_add_test(t, old_epochs_are_pruned_by_number);
    return run_tests(argc, argv, s);
}
