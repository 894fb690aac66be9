/* The log of a run: where it goes on, how it ends, and that it is there as far as a checkpoint says. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "io/file.h"
#include "base/memory.h"
#include "small_run.h"

static void assert_holds(const char *path, const char *text)
{
    void *bytes;
    size_t size;
    OK(dp_file_read(path, &bytes, &size, &err));
    ck_assert_msg(size == strlen(text) && (size == 0 || memcmp(bytes, text, size) == 0), "%.*s", (int)size,
                  (const char *)bytes);
    dp_free(bytes);
}

static dp_log_mark begin(const char *path, const dp_log_mark *mark)
{
    dp_log *log;
    OK(dp_log_open(path, &log, &err));
    OK(dp_log_begin(log, mark, &err));
    dp_log_mark at = dp_log_position(log);
    dp_log_close(log);
    return at;
}

START_TEST(a_log_is_cut_where_its_checkpoint_was_made)
{
    const char *path = scratch_write("log", "{\"a\":1}\n{\"b\":2}\n{\"c", 19);
    dp_log_mark torn = begin(path, &(dp_log_mark){.bytes = -1}); /* unknown: its whole lines stay */
    assert_holds(path, "{\"a\":1}\n{\"b\":2}\n");
    scratch_write("first", "{\"a\":1}\n", 8);
    const dp_log_mark first = begin(scratch("first"), &(dp_log_mark){.bytes = -1});
    ck_assert_int_eq(first.bytes, 8);
    ck_assert_int_eq(torn.bytes, 16);
    dp_log_mark same = begin(path, &torn);
    ck_assert(same.bytes == torn.bytes && same.crc == torn.crc);
    begin(path, &first); /* its first line is what `first` had seen */
    assert_holds(path, "{\"a\":1}\n");
    scratch_write("log", "{\"other\":1}\n{\"b\":2}\n{\"c", 23);
    begin(path, &first); /* another log: nothing but the torn line goes */
    assert_holds(path, "{\"other\":1}\n{\"b\":2}\n");
    begin(path, &torn);
    assert_holds(path, "{\"other\":1}\n{\"b\":2}\n");
    begin(path, NULL);
    assert_holds(path, "");
}
END_TEST

START_TEST(a_finished_runs_log_gets_its_end)
{
    const char *path = scratch_write("log", "{\"event\":\"epoch\"}\n{\"event\":\"en", 31);
    static const char whole[] = "{\"event\":\"epoch\"}\n"
                                "{\"event\":\"end\",\"status\":\"completed\",\"steps\":7,\"seconds\":0.5}\n";
    for (int i = 0; i < 2; i++) {
        OK(dp_log_complete(path, 7, 0.5, &err));
        assert_holds(path, whole);
    }
    OK(dp_log_complete(scratch("none"), 7, 0.5, &err));
    ck_assert(!dp_file_exists(scratch("none")));
    OK(dp_log_complete("/dev/null", 7, 0.5, &err));
}
END_TEST

/* ---- what lasts when ---- */

static char log_path[300];
static int64_t log_synced; /* its bytes when it was synced last */
static int states_written;

/* In the place of libc's: the library calls these. */
int fsync(int descriptor)
{
    struct stat here, log;
    if (fstat(descriptor, &here) == 0 && stat(log_path, &log) == 0 && here.st_ino == log.st_ino)
        log_synced = here.st_size;
    return (int)syscall(SYS_fsync, descriptor);
}

int rename(const char *from, const char *to)
{
    struct stat log;
    if (strstr(to, "/resume_state_")) {
        ck_assert_int_eq(stat(log_path, &log), 0);
        ck_assert_int_gt(log.st_size, 0);
        ck_assert_int_eq(log_synced, log.st_size);
        states_written++;
    }
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

/* Else a power failure could leave a state that knows more of the log than there is. */
START_TEST(a_state_is_there_after_the_events_that_it_knows)
{
    run r;
    open_run(&r, 1, 0.25);
    r.config.model_dir = scratch("model");
    r.config.save_every = 1;
    snprintf(log_path, sizeof log_path, "%s", scratch("model/log.jsonl"));
    ck_assert_int_eq(train(&r, NULL), DP_OK);
    ck_assert_int_ge(states_written, 4); /* 2 epochs of 2 batches */
    close_run(&r);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("log");
    TCase *t = add_case(s, "log");
    tcase_add_test(t, a_log_is_cut_where_its_checkpoint_was_made);
    tcase_add_test(t, a_finished_runs_log_gets_its_end);
    tcase_add_test(t, a_state_is_there_after_the_events_that_it_knows);
    return run_tests(argc, argv, s);
}
