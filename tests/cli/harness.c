#include "harness.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../unit/scratch.h"

static char program[PATH_MAX];

bool harness_find_program(void)
{
    const char *given = getenv("DPTRAIN");
    const char *path = given && *given ? given : "build/dptrain";
    if (realpath(path, program) && access(program, X_OK) == 0)
        return true;
    fprintf(stderr, "test_cli: no program '%s': build it first, or name it in DPTRAIN\n", path);
    return false;
}

void harness_enter(void)
{
    unsetenv("DPTRAIN_LOGICAL_DEVICES");
    scratch_make();
    ck_assert_int_eq(chdir(scratch_directory), 0);
}

void harness_leave(void)
{
    ck_assert_int_eq(chdir("/"), 0);
    scratch_remove();
}

/* ---- running ---- */

static void read_text(const char *path, char *out, size_t size)
{
    FILE *f = fopen(path, "rb");
    ck_assert_ptr_nonnull(f);
    out[fread(out, 1, size - 1, f)] = 0;
    fclose(f);
}

/* Until the program has begun, a signal to the child waits: Check's handler, which the child inherits, would
 * end the tests. */
static pid_t start(char *const *argv)
{
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        int out = open("stdout.txt", O_WRONLY | O_CREAT | O_TRUNC, 0666);
        int err = open("stderr.txt", O_WRONLY | O_CREAT | O_TRUNC, 0666);
        if (out >= 0 && err >= 0 && dup2(out, STDOUT_FILENO) >= 0 && dup2(err, STDERR_FILENO) >= 0)
            execvp(argv[0], argv);
        _exit(127);
    }
    return child;
}

const run *dptrain_finish(pid_t child)
{
    static run r;
    int status;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    r.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    read_text("stdout.txt", r.out, sizeof r.out);
    read_text("stderr.txt", r.err, sizeof r.err);
    return &r;
}

static const run *spawn(char *const *argv)
{
    return dptrain_finish(start(argv));
}

enum { MAX_ARGUMENTS = 100 };

const run *dptrain_without_power(const char *arguments)
{
    char line[1024];
    snprintf(line, sizeof line, "exec %s %%s %s",
             geteuid() == 0 ? "setpriv --bounding-set=-dac_override,-dac_read_search" : "", arguments);
    return dptrain_shell(line);
}

const run *dptrain_args(const char *const *args)
{
    char *argv[MAX_ARGUMENTS + 2] = {program};
    for (int i = 0; args[i]; i++) {
        ck_assert_int_lt(i, MAX_ARGUMENTS);
        argv[i + 1] = (char *)args[i];
    }
    return spawn(argv);
}

static pid_t start_line(const char *format, va_list list)
{
    char line[4096];
    char *argv[MAX_ARGUMENTS + 2] = {program};
    vsnprintf(line, sizeof line, format, list);
    int count = 1;
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) {
        ck_assert_int_le(count, MAX_ARGUMENTS);
        argv[count++] = word;
    }
    return start(argv);
}

pid_t dptrain_start(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    pid_t child = start_line(format, list);
    va_end(list);
    return child;
}

const run *dptrain(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    pid_t child = start_line(format, list);
    va_end(list);
    return dptrain_finish(child);
}

const run *dptrain_shell(const char *shell)
{
    char line[2 * PATH_MAX];
    const char *mark = strstr(shell, "%s");
    ck_assert_ptr_nonnull(mark);
    snprintf(line, sizeof line, "%.*s'%s'%s", (int)(mark - shell), shell, program, mark + 2);
    return spawn((char *[]){"sh", "-c", line, NULL});
}

bool harness_beside_program(const char *name, char *out, size_t size)
{
    snprintf(out, size, "%.*s%s", (int)(strrchr(program, '/') + 1 - program), program, name);
    return access(out, R_OK) == 0;
}

/* ---- asserting ---- */

void assert_contains(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "\"%s\" is not in:\n%s", part, text);
}

void assert_lacks(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) == NULL, "\"%s\" is in:\n%s", part, text);
}

/* What a program printed is cut: Check takes messages of 8 KB at most, and a sanitizer's report is longer. */
void assert_fails(const run *r, int code, const char *text)
{
    static const char prefix[] = "dptrain: error: ";
    ck_assert_msg(r->code == code, "exit %d, not %d: %.2000s%.4000s", r->code, code, r->out, r->err);
    ck_assert_msg(strncmp(r->err, prefix, sizeof prefix - 1) == 0, "stderr: %.4000s", r->err);
    const char *end = strchr(r->err, '\n');
    ck_assert_msg(end && !end[1], "stderr is not one line: %.4000s", r->err);
    assert_contains(r->err, text);
}

void assert_succeeds(const run *r)
{
    ck_assert_msg(r->code == 0, "exit %d: %.4000s", r->code, r->err);
}

int assert_fits(const char *text)
{
    int count = 0;
    for (const char *line = text; *line; count++) {
        size_t length = strcspn(line, "\n");
        ck_assert_msg(length <= 80, "wider than 80 columns: %.*s", (int)length, line);
        ck_assert_msg(length == 0 || line[length - 1] != ' ', "ends in a blank: %.*s", (int)length, line);
        line += length + (line[length] == '\n');
    }
    return count;
}

const char *last_line(const char *text)
{
    static char line[1024];
    size_t n = strlen(text);
    ck_assert(n > 0 && text[n - 1] == '\n');
    const char *start = text + n - 1;
    while (start > text && start[-1] != '\n')
        start--;
    snprintf(line, sizeof line, "%.*s", (int)(text + n - 1 - start), start);
    return line;
}

bool file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

/* By the block, as every assertion is noted in a file. */
void assert_same_file(const char *a, const char *b)
{
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    ck_assert_msg(f && g, "cannot read %s", f ? b : a);
    char x[1 << 14], y[1 << 14];
    size_t got, before = 0;
    do {
        got = fread(x, 1, sizeof x, f);
        size_t other = fread(y, 1, sizeof y, g), same = 0;
        while (same < got && same < other && x[same] == y[same])
            same++;
        ck_assert_msg(same == got && same == other, "%s and %s differ at byte %zu", a, b, before + same);
        before += got;
    } while (got == sizeof x);
    ck_assert_msg(!ferror(f) && !ferror(g), "cannot read all of %s and %s", a, b);
    fclose(f);
    fclose(g);
}

/* ---- the log ---- */

json_t *read_log(const char *path, const char *event)
{
    FILE *f = fopen(path, "r");
    ck_assert_msg(f != NULL, "cannot read %s: %s", path, strerror(errno));
    json_t *list = json_array();
    char line[1 << 14];
    while (fgets(line, sizeof line, f)) {
        json_t *one = json_loads(line, 0, NULL);
        ck_assert_msg(json_is_object(one), "not an object: %s", line);
        if (!event || strcmp(string_of(one, "event"), event) == 0)
            json_array_append(list, one);
        json_decref(one);
    }
    fclose(f);
    return list;
}

json_t *parse_json(const char *text)
{
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    ck_assert_msg(json != NULL, "no JSON: %s", text);
    return json;
}

json_t *read_json(const char *path)
{
    json_error_t error;
    json_t *json = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    ck_assert_msg(json != NULL, "%s: %s", path, error.text);
    return json;
}

const json_t *at(const json_t *events, int i)
{
    size_t n = json_array_size(events);
    const json_t *event = json_array_get(events, i < 0 ? n - (size_t)-i : (size_t)i);
    ck_assert_msg(event != NULL, "the log has %zu such events", n);
    return event;
}

double number_of(const json_t *event, const char *key)
{
    const json_t *value = json_object_get(event, key);
    ck_assert_msg(json_is_number(value), "no number \"%s\"", key);
    return json_number_value(value);
}

const char *string_of(const json_t *event, const char *key)
{
    const char *value = json_string_value(json_object_get(event, key));
    ck_assert_msg(value != NULL, "no string \"%s\"", key);
    return value;
}

const char *list_of(const json_t *event, const char *key)
{
    static char text[1024];
    ck_assert_msg(json_is_array(json_object_get(event, key)), "no list \"%s\"", key);
    char *dump = json_dumps(json_object_get(event, key), JSON_COMPACT);
    snprintf(text, sizeof text, "%s", dump);
    free(dump);
    return text;
}

/* ---- files ---- */

dp_safetensors *open_weights(const char *path)
{
    dp_safetensors *file;
    dp_error err;
    ck_assert_msg(dp_safetensors_open(path, &file, &err) == DP_OK, "%s", err.message);
    return file;
}

float element(const dp_safetensors *file, const char *name, int64_t i)
{
    const dp_tensor *t = dp_safetensors_find(file, name);
    ck_assert_msg(t != NULL, "no tensor %s", name);
    return dp_tensor_float(t, i);
}

void write_values(const char *path, int64_t n)
{
    float *x = calloc((size_t)n * 6, sizeof *x), *y = x + 4 * n;
    for (int64_t i = 0; i < 4 * n; i++)
        x[i] = (float)((i * 37) % 19) / 19 - 0.5F;
    for (int64_t i = 0; i < n; i++) {
        y[2 * i] = x[4 * i] - x[4 * i + 1];
        y[2 * i + 1] = 2 * x[4 * i + 3];
    }
    const dp_tensor tensors[] = {{.name = "x",
                                  .dtype = DP_F32,
                                  .rank = 2,
                                  .shape = {n, 4},
                                  .elements = 4 * n,
                                  .bytes = (size_t)n * 16,
                                  .data = x},
                                 {.name = "y",
                                  .dtype = DP_F32,
                                  .rank = 2,
                                  .shape = {n, 2},
                                  .elements = 2 * n,
                                  .bytes = (size_t)n * 8,
                                  .data = y}};
    dp_error err;
    ck_assert_msg(dp_safetensors_write(path, tensors, 2, NULL, 0, &err) == DP_OK, "%s", err.message);
    free(x);
}

static void write_idx_file(const char *path, int rank, const int *shape, int (*value)(int i))
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    int count = 1;
    fwrite((unsigned char[]){0, 0, 8, (unsigned char)rank}, 1, 4, f);
    for (int d = 0; d < rank; d++) {
        count *= shape[d];
        fwrite((unsigned char[]){0, 0, (unsigned char)(shape[d] >> 8), (unsigned char)shape[d]}, 1, 4, f);
    }
    for (int i = 0; i < count; i++)
        fputc(value(i), f);
    ck_assert_int_eq(fclose(f), 0);
}

static int label(int sample)
{
    return sample % 4;
}

static int pixel(int i)
{
    return i % 16 == label(i / 16) ? 250 : (i * 7) % 16;
}

static void write_idx_part(const char *directory, const char *part, int samples)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s-images-idx3-ubyte", directory, part);
    write_idx_file(path, 3, (int[]){samples, 4, 4}, pixel);
    snprintf(path, sizeof path, "%s/%s-labels-idx1-ubyte", directory, part);
    write_idx_file(path, 1, &samples, label);
}

void write_idx(const char *directory, int train, int test)
{
    ck_assert_int_eq(mkdir(directory, 0777), 0);
    write_idx_part(directory, "train", train);
    write_idx_part(directory, "t10k", test);
}
