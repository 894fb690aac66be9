/* Every n-th call that can fail does, for every n up to the first run that meets no fault: an error of one
 * line, nothing left behind, no wait without end; a run that continues loses no state. DPTRAIN_FAULTS=all
 * runs every command line, else the first few. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "io/image.h"
#include "io/safetensors.h"
#include "io/torch_file.h"
#include "train/train.h"
#include "tests/faults/inject.h"
#include "../unit/scratch.h"

enum { MAX_ARGUMENTS = 40, RUN_SECONDS = 60, IN_SHORT = 8, FEWER = 3 };

#define TINY "train --device cpu --threads-per-device 1 --num-workers 1 --quiet --overwrite --save final "
#define PICTURES                                                                                 \
    "--model mlp --hidden 2 --data images:pictures --size 3x3 --augment crop,hflip --n-epoch 1 " \
    "--valid-split 0"
#define RESUMED                                                                                             \
    "train --device cpu --threads-per-device 1 --num-workers 1 --quiet --save final --model linear --data " \
    "safetensors:data --batch-size 3 --n-epoch 2 --optimizer adamw --logical-devices "
static const struct command {
    const char *line;
    const char *first; /* options of a run that goes before: the line continues it; NULL: none does */
    bool damaged;      /* its resume.json has been cut off */
} commands[] = {
    {TINY "--model linear --data safetensors:data --batch-size 4 --n-epoch 1 --logical-devices 1", NULL,
     false},
    {TINY "--model mlp --hidden 3 --data idx:digits --batch-size 4 --n-epoch 1 --logical-devices 2 "
          "--trace trace --report page",
     NULL, false},
    {"eval --init weights --data safetensors:data --device cpu --logical-devices 2 --threads-per-device 1 "
     "--num-workers 1 --json",
     NULL, false},
    {"convert weights out.pt", NULL, false},
    {"convert torch.pt out.safetensors", NULL, false},
    {TINY PICTURES " --batch-size 2 --logical-devices 1", NULL, false},
    {"predict --init pictured --data images:pictures --output labels.csv --quiet --device cpu "
     "--logical-devices 2 --threads-per-device 1 --batch-size 3",
     NULL, false},
    {RESUMED "1", "--max-steps 5", false},
    {TINY "--model mlp --hidden 3 --data safetensors:data --batch-size 5 --n-epoch 2 --logical-devices 3 "
          "--loss-mode replica --optimizer adamw --accumulation-steps 2 --num-workers 3",
     NULL, false},
    {TINY
     "--model lenet --data synthetic:6 --batch-size 3 --n-epoch 2 --logical-devices 2 --loss-mode global "
     "--split balanced --freeze *.bias --log elsewhere",
     NULL, false},
    {TINY "--model linear --init weights --data safetensors:data --max-steps 1 --logical-devices 2 "
          "--output-device 1 --device-ids 0,1",
     NULL, false},
    {RESUMED "2 --save-every 1", "--max-steps 4", true},
    {RESUMED "2", "", true}, /* it is finished */
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static bool thorough; /* DPTRAIN_FAULTS=all */

/* ---- what the runs read ---- */

static void write_data(void)
{
    static float x[10 * 4], y[10];
    static unsigned char images[16 + 10 * 4] = {0, 0, 8, 3, 0, 0, 0, 10, 0, 0, 0, 2, 0, 0, 0, 2},
                                          labels[8 + 10] = {0, 0, 8, 1, 0, 0, 0, 10};
    for (int i = 0; i < 40; i++) {
        x[i] = (float)(i % 7) * 0.25F - 0.5F;
        images[16 + i] = (unsigned char)(i * 5);
    }
    for (int i = 0; i < 10; i++) {
        y[i] = x[4 * i] - x[4 * i + 1];
        labels[8 + i] = (unsigned char)(i % 3);
    }
    const dp_tensor tensors[] = {
        {.name = "x", .dtype = DP_F32, .rank = 2, .shape = {10, 4}, .bytes = sizeof x, .data = x},
        {.name = "y", .dtype = DP_F32, .rank = 2, .shape = {10, 1}, .bytes = sizeof y, .data = y}};
    ck_assert(dp_safetensors_write("data", tensors, 2, NULL, 0, NULL) == DP_OK);
    ck_assert(dp_torch_write("torch.pt", tensors, 2, NULL) == DP_OK);
    ck_assert_int_eq(mkdir("digits", 0777), 0);
    scratch_write("digits/train-images-idx3-ubyte", images, sizeof images);
    scratch_write("digits/train-labels-idx1-ubyte", labels, sizeof labels);
    ck_assert_int_eq(system("gzip digits/train-labels-idx1-ubyte"), 0);
    ck_assert_int_eq(mkdir("pictures", 0777), 0);
    for (int i = 0; i < 4; i++) {
        char path[64];
        snprintf(path, sizeof path, "pictures/%d", i / 2);
        ck_assert(i % 2 || mkdir(path, 0777) == 0);
        snprintf(path, sizeof path, "pictures/%d/%d.png", i / 2, i);
        ck_assert(dp_png_write(path, &(dp_image){2 + i, 2, 1, images + 16}, NULL) == DP_OK);
    }
}

/* ---- a run ---- */

static char now[64]; /* which fault is being injected, for a run that does not end */

static void too_long(int signal)
{
    (void)signal;
    (void)!write(STDERR_FILENO, now, strlen(now));
    _exit(1);
}

static dp_status run_line(const char *line, dp_error *err)
{
    static char text[512];
    char *argv[MAX_ARGUMENTS] = {"dptrain"}, *rest = text;
    int argc = 1;
    snprintf(text, sizeof text, "%s", line);
    for (char *word; (word = strsep(&rest, " ")) != NULL;)
        argv[argc++] = word;
    *err = (dp_error){0};
    alarm(RUN_SECONDS);
    int code = 0;
    dp_status status = strcmp(argv[1], "train") == 0     ? cli_train(argc, argv, &code, err)
                       : strcmp(argv[1], "eval") == 0    ? cli_eval(argc, argv, &code, err)
                       : strcmp(argv[1], "predict") == 0 ? cli_predict(argc, argv, &code, err)
                                                         : cli_convert(argc, argv, &code, err);
    alarm(0);
    return status;
}

static int open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

/* What lies in the directory under its own name is whole, and nothing else lies there. */
static void check_directory(const char *directory)
{
    DIR *d = opendir(directory);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        char path[600];
        snprintf(path, sizeof path, "%s/%s", directory, e->d_name);
        ck_assert_msg(strstr(e->d_name, ".tmp-") == NULL, "%s: '%s' was left behind", now, path);
        if (strstr(e->d_name, ".safetensors")) {
            dp_safetensors *file;
            dp_error err;
            ck_assert_msg(dp_safetensors_open(path, &file, &err) == DP_OK, "%s: %s", now, err.message);
            dp_safetensors_close(file);
        }
    }
    if (d)
        closedir(d);
}

/* A description that could not be read for want of memory may pass for one that is unsound. */
static void check_failure(dp_status status, const dp_error *err, fault_kind kind, const char *thread)
{
    bool misread = kind == FAULT_JSON && status == DP_ERROR_MISMATCH;
    ck_assert_msg(status == DP_ERROR_MEMORY || status == DP_ERROR_IO || misread, "%s: status %d, '%s'", now,
                  (int)status, err->message);
    ck_assert_msg(err->status == status && err->message[0] && !strchr(err->message, '\n'), "%s: '%s'", now,
                  err->message);
    if (strncmp(thread, "cpu:", 4) == 0) /* a device's thread: the message says whose */
        ck_assert_msg(strstr(err->message, thread) != NULL, "%s: no '%s' in '%s'", now, thread, err->message);
}

static dp_safetensors *weights_of(const char *path)
{
    dp_safetensors *file;
    dp_error err;
    ck_assert_msg(dp_safetensors_open(path, &file, &err) == DP_OK, "%s", err.message);
    return file;
}

/* A fault that a run may ignore leaves it with the same weights. */
static void check_weights(const dp_safetensors *want)
{
    dp_safetensors *got = weights_of("final");
    for (int i = 0; i < dp_safetensors_count(want); i++) {
        const dp_tensor *a = dp_safetensors_at(want, i), *b = dp_safetensors_find(got, a->name);
        ck_assert_msg(b && memcmp(a->data, b->data, a->bytes) == 0, "%s: other weights", now);
    }
    dp_safetensors_close(got);
}

/* Numbers differ from run to run, and so does how often a device waits in the step whose timeline is kept;
 * names and strings do not: the marks around them are counted, but for those of objects in a list. */
static long quotes_in(const char *path)
{
    FILE *f = fopen(path, "r");
    long n = 0, lists = 0, objects = 0;
    for (int c; f && (c = getc(f)) != EOF;) {
        lists += (c == '[') - (c == ']');
        objects += (c == '{') - (c == '}');
        n += c == '"' && (lists == 0 || objects < 2);
    }
    if (f)
        fclose(f);
    return n;
}

static const char *log_of(const char *line)
{
    return strstr(line, "--log elsewhere") ? "elsewhere" : "model/log.jsonl";
}

/* ---- a run that continues ---- */

static void shell(const char *line)
{
    ck_assert_msg(system(line) == 0, "%s: %s", now, line);
}

/* Of the newest state in the directory, which is sound. */
static int64_t newest_step(const char *directory)
{
    dp_state_list list;
    dp_run_file file;
    dp_error err;
    char path[600];
    ck_assert_msg(dp_model_dir_states(directory, &list, &err) == DP_OK, "%s: %s", now, err.message);
    ck_assert_msg(list.count > 0, "%s: no state is left", now);
    snprintf(path, sizeof path, "%s/%s", directory, list.names[0]);
    ck_assert_msg(dp_run_file_open(path, &file, &err) == DP_OK, "%s: %s", now, err.message);
    int64_t step = file.state.step;
    dp_run_file_close(&file);
    dp_state_list_clear(&list);
    return step;
}

/* What the line continues is put aside as "stopped". */
static void make_stopped(const struct command *c)
{
    char line[512];
    dp_error err;
    snprintf(line, sizeof line, "%s%s%s", c->line, *c->first ? " " : "", c->first);
    shell("rm -rf model final");
    ck_assert_msg(run_line(line, &err) == DP_OK, "%s", err.message);
    if (c->damaged)
        ck_assert_int_eq(truncate("model/resume.json", 10), 0);
    shell("rm -f final && mv model stopped");
}

/* run_line with stderr in the file "said". */
static dp_status run_heard(const char *line, dp_error *err)
{
    FILE *kept = stderr;
    stderr = fopen("said", "w");
    ck_assert_ptr_nonnull(stderr);
    dp_status status = run_line(line, err);
    fclose(stderr);
    stderr = kept;
    return status;
}

/* After a run that failed: as far as the first one came at least, and from there to the same weights. */
static void check_goes_on(const struct command *c, const dp_safetensors *want)
{
    dp_error err;
    ck_assert_msg(newest_step("model") >= newest_step("stopped"), "%s: a state was lost", now);
    ck_assert_msg(run_heard(c->line, &err) == DP_OK, "%s, then without a fault: %s", now, err.message);
    check_weights(want);
}

static bool was_warned(const char *path)
{
    char text[4096];
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    return strstr(text, "the newest sound state") != NULL;
}

/* Returns whether the n-th call was reached. */
static bool run_with_fault(const struct command *c, fault_kind kind, long n, const dp_safetensors *want,
                           long quotes)
{
    const char *thread, *call;
    dp_error err;
    long blocks = live_blocks();
    int files = open_files();
    snprintf(now, sizeof now, "%s, call %ld\n", fault_kind_names[kind], n);
    unlink("final");
    if (c->first)
        shell("rm -rf model && cp -r stopped model");
    inject(kind, n);
    dp_status status = run_heard(c->line, &err);
    bool reached = injected(&thread, &call);
    inject(kind, 0);
    snprintf(now, sizeof now, "%s, call %ld (%s)", fault_kind_names[kind], n, call ? call : "not reached");
    if (reached && status != DP_OK)
        check_failure(status, &err, kind, thread);
    else
        ck_assert_msg(status == DP_OK, "%s: %s", now, err.message);
    /* a state that cannot be read gives way to the one before, and a line says so */
    bool told = c->first && kind == FAULT_READS && was_warned("said");
    ck_assert_msg(!reached || status != DP_OK || told, "%s: nobody noticed", now);
    if (status == DP_OK && want) {
        check_weights(want);
        ck_assert_msg(told || quotes_in(log_of(c->line)) == quotes, "%s: the log lacks something", now);
    }
    check_directory("model");
    check_directory(".");
    ck_assert_msg(live_threads() == 0, "%s: %ld threads are left", now, live_threads());
    ck_assert_msg(live_blocks() == blocks, "%s: %ld blocks are left", now, live_blocks() - blocks);
    ck_assert_msg(open_files() == files, "%s: %d files are left", now, open_files() - files);
    if (status != DP_OK && c->first && (thorough || kind == FAULT_WRITES || n % FEWER == 0))
        check_goes_on(c, want);
    return reached;
}

/* Does the command make calls of this kind at all? */
static bool makes(const struct command *c, fault_kind kind)
{
    bool finished = c->first && !*c->first;
    if (strncmp(c->line, "eval", 4) == 0 || strncmp(c->line, "predict", 7) == 0)
        return kind != FAULT_WRITES;
    return (strncmp(c->line, "convert", 7) != 0 && !finished) || kind != FAULT_THREADS;
}

START_TEST(every_call_may_fail)
{
    const struct command *c = &commands[_i / FAULT_KINDS];
    const char *line = c->line;
    fault_kind kind = (fault_kind)(_i % FAULT_KINDS);
    dp_error err;
    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stdout));
    signal(SIGALRM, too_long);
    write_data();
    ck_assert_msg(run_line(TINY "--model linear --data safetensors:data --n-epoch 1", &err) == DP_OK, "%s",
                  err.message);
    ck_assert_int_eq(rename("final", "weights"), 0);
    if (strstr(line, "--init pictured")) {
        ck_assert_msg(run_line(TINY PICTURES, &err) == DP_OK, "%s", err.message);
        ck_assert_int_eq(rename("final", "pictured"), 0);
    }
    if (c->first)
        shell("rm -r model");
    ck_assert_msg(run_line(line, &err) == DP_OK, "%s", err.message);
    dp_safetensors *want = NULL;
    if (strncmp(line, "train", 5) == 0) {
        ck_assert_int_eq(rename("final", "want"), 0);
        want = weights_of("want");
    }
    if (c->first) {
        make_stopped(c);
        shell("cp -r stopped model");
        ck_assert_msg(run_line(line, &err) == DP_OK, "%s", err.message);
        check_weights(want);
    }
    long quotes = quotes_in(log_of(line));
    /* of a run that continues, in short, a part: it goes through much that the others go through, twice */
    long n = 1, step = c->first && !thorough && kind <= FAULT_JSON ? FEWER : 1;
    while (run_with_fault(c, kind, n, want, quotes))
        n += step;
    ck_assert_msg(n > 1 || !makes(c, kind), "no call of this kind");
    dp_safetensors_close(want);
}
END_TEST

static void enter(void)
{
    unsetenv("DPTRAIN_LOGICAL_DEVICES");
    scratch_make();
    ck_assert_int_eq(chdir(scratch_directory), 0);
}

static void leave(void)
{
    ck_assert_int_eq(chdir("/"), 0);
    scratch_remove();
}

int main(void)
{
    const char *how_many = getenv("DPTRAIN_FAULTS");
    thorough = how_many && strcmp(how_many, "all") == 0;
    Suite *s = suite_create("faults");
    TCase *t = tcase_create("faults");
    tcase_set_timeout(t, thorough ? 600 : 120);
    tcase_add_checked_fixture(t, enter, leave);
    tcase_add_loop_test(t, every_call_may_fail, 0, (thorough ? COMMANDS : IN_SHORT) * FAULT_KINDS);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
