/* Files that appear whole or not at all, reading, directories. */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/memory.h"
#include "io/file.h"
#include "scratch.h"

static void check_content(const char *path, const char *want)
{
    dp_error err = {0};
    void *bytes;
    size_t size;
    ck_assert_msg(dp_file_read(path, &bytes, &size, &err) == DP_OK, "%s", err.message);
    ck_assert_uint_eq(size, strlen(want));
    ck_assert(size == 0 || memcmp(bytes, want, size) == 0);
    dp_free(bytes);
}

static int entries(void)
{
    char command[700];
    int n = -1;
    snprintf(command, sizeof command, "ls -A '%s' | wc -l", scratch_directory);
    FILE *p = popen(command, "r");
    ck_assert_ptr_nonnull(p);
    ck_assert_int_eq(fscanf(p, "%d", &n), 1);
    pclose(p);
    return n;
}

static void limit_file_size(rlim_t bytes)
{
    struct rlimit limit = {bytes, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

START_TEST(a_file_appears_when_it_is_committed)
{
    dp_error err = {0};
    dp_atomic_file *f;
    const char *path = scratch("new");
    ck_assert(dp_atomic_open(path, &f, &err) == DP_OK);
    ck_assert(dp_atomic_write(f, "hello ", 6, &err) == DP_OK);
    ck_assert(dp_atomic_write(f, NULL, 0, &err) == DP_OK);
    ck_assert(dp_atomic_write(f, "world", 5, &err) == DP_OK);
    ck_assert(!dp_file_exists(path));
    ck_assert_msg(dp_atomic_commit(f, &err) == DP_OK, "%s", err.message);
    check_content(path, "hello world");
    ck_assert_int_eq(entries(), 1);
}
END_TEST

START_TEST(until_then_the_old_one_stays)
{
    dp_error err = {0};
    dp_atomic_file *f;
    const char *path = scratch_write("file", "old", 3);
    ck_assert(dp_atomic_open(path, &f, &err) == DP_OK);
    ck_assert(dp_atomic_write(f, "newer", 5, &err) == DP_OK);
    check_content(path, "old");
    dp_atomic_abandon(f);
    check_content(path, "old");
    ck_assert_int_eq(entries(), 1);
    dp_atomic_abandon(NULL);

    char stale[64];
    snprintf(stale, sizeof stale, "file.tmp-%ld", (long)getpid());
    scratch_write(stale, "what a killed process of this number left", 41);
    ck_assert(dp_atomic_open(path, &f, &err) == DP_OK);
    ck_assert(dp_atomic_write(f, "new", 3, &err) == DP_OK);
    ck_assert(dp_atomic_commit(f, &err) == DP_OK);
    check_content(path, "new");
    ck_assert_int_eq(entries(), 1);
}
END_TEST

START_TEST(a_bare_name_is_in_the_current_directory)
{
    dp_error err = {0};
    dp_atomic_file *f;
    ck_assert_int_eq(chdir(scratch_directory), 0);
    ck_assert(dp_atomic_open("bare", &f, &err) == DP_OK);
    ck_assert(dp_atomic_write(f, "x", 1, &err) == DP_OK);
    ck_assert_msg(dp_atomic_commit(f, &err) == DP_OK, "%s", err.message);
    check_content(scratch("bare"), "x");
}
END_TEST

START_TEST(a_full_disk_leaves_the_old_one)
{
    dp_error err = {0};
    dp_atomic_file *f;
    static char much[100000];
    const char *path = scratch_write("file", "old", 3);
    limit_file_size(50000); /* the first write is short, the second fails */
    ck_assert(dp_atomic_open(path, &f, &err) == DP_OK);
    ck_assert_int_eq(dp_atomic_write(f, much, sizeof much, &err), DP_ERROR_IO);
    char want[2200];
    snprintf(want, sizeof want, "cannot write '%s': File too large", path);
    ck_assert_str_eq(err.message, want);
    err = (dp_error){0};
    ck_assert_int_eq(dp_atomic_commit(f, &err), DP_ERROR_IO); /* a caller that did not look */
    ck_assert_ptr_nonnull(strstr(err.message, path));
    check_content(path, "old");
    ck_assert_int_eq(entries(), 1);
}
END_TEST

static void check_open_fails(const char *path, const char *why)
{
    dp_error err = {0};
    dp_atomic_file *f;
    char want[2200];
    snprintf(want, sizeof want, "cannot write '%s': %s", path, why);
    ck_assert_int_eq(dp_atomic_open(path, &f, &err), DP_ERROR_IO);
    ck_assert_ptr_null(f);
    ck_assert_str_eq(err.message, want);
}

START_TEST(what_cannot_be_written_is_named)
{
    scratch_write("file", "x", 1);
    check_open_fails(scratch("none/file"), "No such file or directory");
    check_open_fails(scratch("file/below"), "Not a directory");
    check_open_fails(scratch_directory, "it is a directory");
    ck_assert_int_eq(mkfifo(scratch("fifo"), 0600), 0);
    check_open_fails(scratch("fifo"), "it is not a regular file");
    check_open_fails("/dev/null", "it is not a regular file"); /* root could rename over it */
    char long_name[400];
    memset(long_name, 'n', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = '\0';
    check_open_fails(scratch(long_name), "File name too long");
}
END_TEST

static void check_read_fails(const char *path, const char *why)
{
    dp_error err = {0};
    void *bytes = "";
    size_t size = 1;
    char want[2200];
    snprintf(want, sizeof want, "cannot read '%s': %s", path, why);
    ck_assert_int_eq(dp_file_read(path, &bytes, &size, &err), DP_ERROR_IO);
    ck_assert_str_eq(err.message, want);
    ck_assert_ptr_null(bytes);
    ck_assert_uint_eq(size, 0);
}

START_TEST(only_regular_files_are_read)
{
    dp_error err = {0};
    void *bytes;
    size_t size;
    check_content(scratch_write("file", "content", 7), "content");
    scratch_write("empty", "", 0);
    ck_assert(dp_file_read(scratch("empty"), &bytes, &size, &err) == DP_OK);
    ck_assert_ptr_null(bytes);
    ck_assert_uint_eq(size, 0);
    dp_free(bytes);
    check_read_fails(scratch("none"), "No such file or directory");
    check_read_fails(scratch_directory, "it is a directory");
    ck_assert_int_eq(mkfifo(scratch("fifo"), 0600), 0);
    check_read_fails(scratch("fifo"), "it is not a regular file"); /* without waiting for a writer */
    check_read_fails("/dev/zero", "it is not a regular file");
    ck_assert(dp_file_exists(scratch("file")) && dp_file_exists(scratch_directory));
    ck_assert(!dp_file_exists(scratch("none")) && !dp_file_exists(scratch("file/x")));
}
END_TEST

static void check_made(const char *path)
{
    dp_error err = {0};
    struct stat st;
    ck_assert_msg(dp_make_directories(path, &err) == DP_OK, "%s", err.message);
    ck_assert(stat(path, &st) == 0 && S_ISDIR(st.st_mode));
}

START_TEST(directories_are_made_with_their_parents)
{
    check_made(scratch("a/b/c"));
    check_made(scratch("a/b/c"));
    check_made(scratch("a/b/d/"));
    check_made(scratch("x//y///z"));
    check_made("/");
    ck_assert_int_eq(chdir(scratch_directory), 0);
    check_made("relative/one");
    check_made("r");
    check_made("./a/../s");
    ck_assert_int_eq(symlink("a", "link"), 0);
    check_made("link/through");
    ck_assert(dp_file_exists(scratch("a/through")));
}
END_TEST

START_TEST(files_of_processes_that_are_no_more_are_stale)
{
    dp_error err = {0};
    char living[64];
    snprintf(living, sizeof living, "w.tmp-%ld", (long)getpid());
    static const char *const stay[] = {"w",       "w.tmp-",    "w.tmp-x",           "w.tmp-99999999x",
                                       "w.tmp-0", "w.tmp--99", "other.tmp-99999999"};
    enum { COUNT = sizeof stay / sizeof *stay };
    for (int i = 0; i < COUNT; i++)
        scratch_write(stay[i], "", 0);
    scratch_write(living, "", 0);
    scratch_write("w.tmp-99999999", "", 0); /* above the kernel's largest process id, 2^22 */
    ck_assert_int_eq(dp_atomic_remove_stale(scratch("w"), &err), DP_OK);
    ck_assert(!dp_file_exists(scratch("w.tmp-99999999")));
    ck_assert(dp_file_exists(scratch(living)));
    for (int i = 0; i < COUNT; i++)
        ck_assert_msg(dp_file_exists(scratch(stay[i])), "%s", stay[i]);
    ck_assert_int_eq(dp_atomic_remove_stale(scratch("nowhere/w"), &err), DP_OK);
}
END_TEST

START_TEST(a_copy_is_whole_or_not_made)
{
    dp_error err = {0};
    scratch_write("from", "0123456789", 10);
    ck_assert_int_eq(dp_file_copy(scratch("from"), scratch("to"), &err), DP_OK);
    check_content(scratch("to"), "0123456789");
    scratch_write("from", "", 0);
    ck_assert_int_eq(dp_file_copy(scratch("from"), scratch("to"), &err), DP_OK);
    check_content(scratch("to"), "");
    ck_assert_int_eq(dp_file_copy(scratch("none"), scratch("to"), &err), DP_ERROR_IO);
    ck_assert_int_eq(dp_file_copy(scratch("from"), scratch("nowhere/to"), &err), DP_ERROR_IO);
    scratch_write("from", "0123456789", 10);
    limit_file_size(4);
    ck_assert_int_eq(dp_file_copy(scratch("from"), scratch("to"), &err), DP_ERROR_IO);
    check_content(scratch("to"), "");
    ck_assert_int_eq(entries(), 2);
}
END_TEST

static ino_t synced[16];
static int synced_count;

/* In the place of libc's: the library calls this one. */
int fsync(int descriptor)
{
    struct stat st;
    if (fstat(descriptor, &st) == 0 && synced_count < 16)
        synced[synced_count++] = st.st_ino;
    return (int)syscall(SYS_fsync, descriptor);
}

static ino_t inode_of(const char *path)
{
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    return st.st_ino;
}

/* After a power failure a synced file is there only if the entries of all directories above it are. */
START_TEST(new_directories_last)
{
    dp_error err = {0};
    ck_assert(dp_make_directories(scratch("a/b//c/"), &err) == DP_OK);
    ck_assert_int_eq(synced_count, 3);
    ck_assert_uint_eq(synced[0], inode_of(scratch_directory));
    ck_assert_uint_eq(synced[1], inode_of(scratch("a")));
    ck_assert_uint_eq(synced[2], inode_of(scratch("a/b")));
    ck_assert(dp_make_directories(scratch("a/b/c"), &err) == DP_OK);
    ck_assert_int_eq(synced_count, 3); /* none is new */
}
END_TEST

START_TEST(a_file_in_a_directorys_place_is_named)
{
    dp_error err = {0};
    char want[4400], file[2048], path[2048];
    snprintf(file, sizeof file, "%s", scratch_write("file", "x", 1));
    snprintf(path, sizeof path, "%s", scratch("file/b/c"));
    ck_assert_int_eq(dp_make_directories(path, &err), DP_ERROR_IO);
    snprintf(want, sizeof want, "cannot create directory '%s': '%s' is not a directory", path, file);
    ck_assert_str_eq(err.message, want);
    ck_assert_int_eq(dp_make_directories(file, &err), DP_ERROR_IO);
    snprintf(want, sizeof want, "cannot create directory '%s': '%s' is not a directory", file, file);
    ck_assert_str_eq(err.message, want);
    ck_assert_int_eq(dp_make_directories("", &err), DP_ERROR_IO);
    ck_assert_int_eq(dp_make_directories("/proc/none/x", &err), DP_ERROR_IO);
    ck_assert_str_eq(err.message, "cannot create directory '/proc/none/x': No such file or directory");
}
END_TEST

/* ---- out of the way ---- */

static int refusal; /* what a file system says that cannot rename without replacing; 0: it can */

/* In the place of libc's: the library calls this one. */
int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned flags)
{
    errno = refusal;
    return refusal ? -1 : (int)syscall(SYS_renameat2, from_directory, from, to_directory, to, flags);
}

static void move_aside(const char *name, const char *want)
{
    dp_error err = {0};
    char *aside;
    ck_assert_msg(dp_file_move_aside(scratch(name), &aside, &err) == DP_OK, "%s", err.message);
    ck_assert_str_eq(strrchr(aside, '/') + 1, want);
    ck_assert(!dp_file_exists(scratch(name)));
    dp_free(aside);
}

START_TEST(what_is_moved_aside_replaces_nothing)
{
    static const int refusals[] = {0, EINVAL, ENOSYS};
    dp_error err;
    char *aside;
    refusal = refusals[_i];
    scratch_write("f", "first", 5);
    move_aside("f", "f.aside-1");
    scratch_write("f", "second", 6);
    move_aside("f", "f.aside-2");
    check_content(scratch("f.aside-1"), "first");
    check_content(scratch("f.aside-2"), "second");
    /* a directory with what is in it, past a name that is taken */
    ck_assert_int_eq(mkdir(scratch("d"), 0777), 0);
    scratch_write("d/in", "within", 6);
    ck_assert_int_eq(symlink("nowhere", scratch("d.aside-1")), 0);
    move_aside("d", "d.aside-2");
    check_content(scratch("d.aside-2/in"), "within");
    ck_assert_int_eq(entries(), 4);
    ck_assert_int_eq(dp_file_move_aside(scratch("none"), &aside, &err), DP_ERROR_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "none.aside-1': No such file"));
    ck_assert_ptr_null(aside);
    ck_assert_int_eq(entries(), 4);
    refusal = EROFS; /* no want of the file system's abilities */
    scratch_write("f", "third", 5);
    ck_assert_int_eq(dp_file_move_aside(scratch("f"), &aside, &err), DP_ERROR_IO);
    check_content(scratch("f"), "third");
    ck_assert_int_eq(entries(), 5);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("file");
    TCase *t = tcase_create("file");
    tcase_set_timeout(t, 30);
    tcase_add_checked_fixture(t, scratch_make, scratch_remove);
    tcase_add_test(t, a_file_appears_when_it_is_committed);
    tcase_add_test(t, until_then_the_old_one_stays);
    tcase_add_test(t, a_bare_name_is_in_the_current_directory);
    tcase_add_test(t, a_full_disk_leaves_the_old_one);
    tcase_add_test(t, what_cannot_be_written_is_named);
    tcase_add_test(t, only_regular_files_are_read);
    tcase_add_test(t, directories_are_made_with_their_parents);
    tcase_add_test(t, new_directories_last);
    tcase_add_test(t, a_file_in_a_directorys_place_is_named);
    tcase_add_test(t, files_of_processes_that_are_no_more_are_stale);
    tcase_add_test(t, a_copy_is_whole_or_not_made);
    tcase_add_loop_test(t, what_is_moved_aside_replaces_nothing, 0, 3);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
