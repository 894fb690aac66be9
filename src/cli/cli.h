/* The command line: options, and what the commands share. */
#ifndef DP_CLI_CLI_H
#define DP_CLI_CLI_H

#include <float.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "dptrain/train.h"

/* ---- options.c ---- */

typedef enum cli_command { CLI_TRAIN = 1, CLI_EVAL = 2, CLI_DEVICES = 4 } cli_command;

/* The options of all commands: options.def is the one place where they are listed. */
typedef enum cli_option {
#define X(id, name, argument, commands, help) id,
#include "cli/options.def"
#undef X
    OPT_COUNT
} cli_option;

typedef struct cli_options {
    cli_command command;
    const char *value[OPT_COUNT]; /* NULL: not given; flags: "" */
} cli_options;

/* Parses what follows the command's name. DP_ERROR_USAGE names the option, with the nearest known one. */
dp_status cli_parse(cli_command command, int argc, char **argv, cli_options *out, dp_error *err);
void cli_print_help(cli_command command);
bool cli_given(const cli_options *o, cli_option option);

/* Bounds of a number that excludes 0 or 1, as near to them as a double can be. */
#define CLI_ABOVE_0 DBL_TRUE_MIN
#define CLI_BELOW_1 (1 - DBL_EPSILON / 2)

/* Typed values: *out keeps its default where the option was not given. Ranges are inclusive. */
dp_status cli_integer(const cli_options *o, cli_option option, int64_t low, int64_t high, int64_t *out,
                      dp_error *err);
dp_status cli_number(const cli_options *o, cli_option option, double low, double high, double *out,
                     dp_error *err);
dp_status cli_choice(const cli_options *o, cli_option option, const char *const *names, int *out,
                     dp_error *err);
/* The same of a text that came another way; `name` is what the message calls it. */
dp_status cli_check_integer(const char *name, const char *text, int64_t low, int64_t high, int64_t *out,
                            dp_error *err);
/* Comma-separated numbers; *count says how many (0: not given). */
dp_status cli_integers(const cli_options *o, cli_option option, int64_t low, int64_t high, int max,
                       int64_t *out, int *count, dp_error *err);
dp_status cli_numbers(const cli_options *o, cli_option option, double low, double high, int max, double *out,
                      int *count, dp_error *err);

/* Height and width, "224x224". */
dp_status cli_size(const cli_options *o, cli_option option, int64_t size[2], dp_error *err);

/* ---- setup.c: what the commands have in common ---- */

/* Opens the devices and fills config->device_ids (into ids) and device_count. */
dp_status cli_open_devices(const cli_options *o, dp_context **context, int ids[DP_ENGINE_MAX_DEVICES],
                           dp_engine_config *config, dp_error *err);
/* --data, --valid-split, --seed, --mean, --std. */
dp_status cli_data_config(const cli_options *o, dp_data_config *out, dp_error *err);
/* A --valid-split that data with a test part of its own has no use for is an error. valid may be NULL. */
dp_status cli_check_split(const cli_options *o, const dp_dataset *valid, dp_error *err);
/* On stderr: the start-up table, and PyTorch's warning if the devices are unlike. */
void cli_print_devices(const dp_context *context, const dp_engine_config *config);
/* The two variables that decide which GPU has which number. */
extern const char *const cli_cuda_variables[2];
void cli_print_variables(FILE *out);

/* ---- paths.c ---- */

/* No output (--save, --log, --trace) may be written over an input (--init, --data), over the other, or under
 * a name that the run uses in model_dir. */
dp_status cli_check_files(const cli_options *o, const char *model_dir, const char *data_source,
                          dp_error *err);

/* ---- progress.c: training as seen on stderr ---- */

typedef struct cli_progress {
    bool quiet, terminal, line_open;
    int64_t print_freq;
    double last_draw;
} cli_progress;

void cli_progress_init(cli_progress *progress, bool quiet, int64_t print_freq);
dp_train_observer cli_observer(cli_progress *progress);
/* Ends a half-drawn progress line, so that a message can follow. */
void cli_progress_break(cli_progress *progress);

/* ---- tables.c: results on stdout ---- */

void cli_print_summary(const dp_train_summary *summary);

/* ---- commands: of the whole command line; each returns DP_OK or describes its failure ---- */

dp_status cli_train(int argc, char **argv, dp_error *err);
dp_status cli_eval(int argc, char **argv, dp_error *err);
dp_status cli_devices(int argc, char **argv, dp_error *err);

#endif
