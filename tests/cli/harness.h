/* Runs dptrain as a user does: the program in the environment variable DPTRAIN (build/dptrain by default), in
 * a directory of the test's own. */
#ifndef DP_TESTS_CLI_HARNESS_H
#define DP_TESTS_CLI_HARNESS_H

#include <check.h>
#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "io/safetensors.h"

/* Makes DPTRAIN's path absolute; false, with a message, if there is no such program. */
bool harness_find_program(void);
/* A fixture: a fresh working directory, removed at the end. */
void harness_enter(void);
void harness_leave(void);

typedef struct run {
    int code; /* exit code; -1 if a signal ended it */
    char out[1 << 16], err[1 << 16];
} run;

/* The arguments are split at spaces. The result stays valid until the next call. */
const run *dptrain(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same with its streams redirected by the shell ("%s" in `shell` stands for the program). */
const run *dptrain_shell(const char *shell);
/* As one whom the modes of files concern: root without its power over them, else the user. */
const run *dptrain_without_power(const char *arguments);
/* One argument a string, NULL at the end. */
const run *dptrain_args(const char *const *args);

/* The same in two halves: the process, and its end. One at a time. */
pid_t dptrain_start(const char *format, ...) __attribute__((format(printf, 1, 2)));
const run *dptrain_finish(pid_t child);
/* The absolute path of a file beside the program; false if there is none. */
bool harness_beside_program(const char *name, char *out, size_t size);

/* Exit code, exactly one line on stderr, "dptrain: error: " and `text` in it. */
void assert_fails(const run *r, int code, const char *text);
void assert_succeeds(const run *r);
void assert_contains(const char *text, const char *part);
void assert_lacks(const char *text, const char *part);
/* Lines of at most 80 columns, none of which ends in a blank. Returns how many. */
int assert_fits(const char *text);
/* The last line of text, without its end. Valid until the next call. */
const char *last_line(const char *text);

bool file_exists(const char *path);
void assert_same_file(const char *a, const char *b);

/* The events of a log that are of one kind, or all (NULL). Owner: the caller, json_decref. */
json_t *read_log(const char *path, const char *event);
/* A whole file, or a text, that is one JSON value. Owner: the caller, json_decref. */
json_t *read_json(const char *path);
json_t *parse_json(const char *text);
/* Event number i of the list; a negative i counts from its end. */
const json_t *at(const json_t *events, int i);
double number_of(const json_t *event, const char *key);
const char *string_of(const json_t *event, const char *key);
/* An array of integers as "[8,8]". */
const char *list_of(const json_t *event, const char *key);

/* ---- files to train from ---- */

/* Element i of tensor `name` of a file. */
float element(const dp_safetensors *file, const char *name, int64_t i);
dp_safetensors *open_weights(const char *path);
/* data.safetensors: x [n, 4] and y [n, 2] float32. */
void write_values(const char *path, int64_t n);
/* A directory of MNIST-named files: 4x4 images, label = position of the bright pixel, 4 classes. */
void write_idx(const char *directory, int train, int test);

Suite *usage_suite(void);
Suite *train_suite(void);
Suite *files_suite(void);
Suite *weights_suite(void);
Suite *convert_suite(void);
Suite *promises_suite(void);
Suite *bench_suite(void);
Suite *explain_suite(void);
Suite *input_suite(void);
Suite *memory_suite(void);
Suite *pictures_suite(void);
/* On emulated GPUs, with what lies in `folder` (build/emulated/tools); false if there is no such folder. */
bool emulated_tools_found(const char *folder);
Suite *emulated_suite(void);
Suite *resume_suite(void);

#endif
