/* The command line: options, and what the commands share. */
#ifndef DP_CLI_CLI_H
#define DP_CLI_CLI_H

#include <float.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "base/error.h"
#include "dptrain/bench.h"
#include "dptrain/predict.h"
#include "dptrain/train.h"

/* ---- options.c ---- */

typedef enum cli_command {
    CLI_TRAIN = 1,
    CLI_EVAL = 2,
    CLI_DEVICES = 4,
    CLI_CONVERT = 8,
    CLI_BENCH = 16,
    CLI_EXPLAIN = 32,
    CLI_PREDICT = 64,
    CLI_REPORT = 128,
} cli_command;

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
    char *const *files;           /* arguments that are no options, where the command takes any */
    int file_count;
    char data_text[4200]; /* what --data-dir is short for */
} cli_options;

/* Parses what follows the command's name. DP_ERROR_USAGE names the option, with the nearest known one. */
dp_status cli_parse(cli_command command, int argc, char **argv, cli_options *out, dp_error *err);
void cli_print_help(cli_command command);
const char *cli_option_name(cli_option option); /* without the dashes */
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

/* A number of bytes from 1 on: digits, perhaps with k, M or G (thousands, as memory is printed) behind. */
dp_status cli_bytes(const cli_options *o, cli_option option, uint64_t *out, dp_error *err);
/* Height and width, "224x224". */
dp_status cli_size(const cli_options *o, cli_option option, int64_t size[2], dp_error *err);

/* ---- setup.c: what the commands have in common ---- */

/* --device, --logical-devices, --threads-per-device, --precision. */
dp_status cli_context_config(const cli_options *o, dp_context_config *out, dp_error *err);
/* Opens the devices and fills config->device_ids (into ids) and device_count. */
dp_status cli_open_devices(const cli_options *o, dp_context **context, int ids[DP_ENGINE_MAX_DEVICES],
                           dp_engine_config *config, dp_error *err);
/* Tries the links between each of hubs and each of config->device_ids, and calls `broken` for those that must
 * not be used. To be called before anything else enters the devices. */
dp_status cli_try_links_to(dp_context *context, const dp_engine_config *config, const int *hubs,
                           int hub_count, void (*broken)(void *user, int a, int b, const char *why),
                           void *user, dp_error *err);
/* The links that a run of this config uses; on stderr, unless quiet, those that must not be.
 * *sound (may be NULL): there were none. */
dp_status cli_try_used_links(dp_context *context, const dp_engine_config *config, bool gathers, bool quiet,
                             bool *sound, dp_error *err);
/* For contexts that will be opened later on the same devices, without another trial: direct transfers between
 * all of them, or between none. */
void cli_settle_links(dp_context_config *config, bool sound);
/* Warns on stderr when the devices do not get on. */
void cli_watch(dp_engine_config *config, bool quiet);
/* What to do about links that hang or damage what they carry. */
extern const char cli_broken_link_hint[];
/* --data, --valid-split, --seed, --mean, --std, --augment, --skip-bad. */
dp_status cli_data_config(const cli_options *o, dp_data_config *out, dp_error *err);
/* Does the source hold pictures in files? */
bool cli_is_pictures(const char *source);
/* A --valid-split that data with a test part of its own has no use for is an error. valid may be NULL. */
dp_status cli_check_split(const cli_options *o, const dp_dataset *valid, dp_error *err);
/* On stderr: masks of 0 and 1, say, where 0 and 255 were meant. No word on other data. */
dp_status cli_warn_of_dark_masks(const dp_dataset *dataset, dp_error *err);
/* On stderr: the start-up table, and PyTorch's warning if the devices are unlike. */
void cli_print_devices(const dp_context *context, const dp_engine_config *config);
/* Devices that share hardware, or are emulated. */
bool cli_times_prove_nothing(const dp_context *context, const dp_engine_config *config);
/* The two variables that decide which GPU has which number. */
extern const char *const cli_cuda_variables[2];
void cli_print_variables(FILE *out);

/* ---- model.c: the model and the split of its batches ---- */

enum { CLI_MAX_CLASSES = 1 << 24 };

/* --model, --model-type and what belongs to them; outputs is 0 without --num-classes. */
dp_status cli_model_config(const cli_options *o, dp_model_config *m, dp_model_traits *traits, dp_error *err);
/* --split and --conv. count: of the shares, 0 for other splits; they are checked when the devices are known.
 */
dp_status cli_split(const cli_options *o, dp_engine_config *e, double shares[DP_ENGINE_MAX_DEVICES],
                    int *count, dp_error *err);
dp_status cli_check_shares(const cli_options *o, const dp_engine_config *e, int shares, dp_error *err);
dp_status cli_output_device(const cli_options *o, dp_engine_config *e, dp_error *err);

/* The model as it takes synthetic data: its usual shape and number of classes unless --size and --num-classes
 * say otherwise; and the criterion of its targets. Owner of the model: the caller. */
dp_status cli_synthetic_model(const cli_options *o, dp_model **out, dp_loss_kind *criterion, dp_error *err);
/* --model list: prints the names. */
bool cli_list_models(const cli_options *o);

/* ---- json.c: NULL when memory runs out, which json_pack and cli_write_json pass on ---- */

json_t *cli_phases_json(const double ms[DP_PHASES]);
json_t *cli_memory_json(const dp_device_report *report); /* peaks by purpose */
json_t *cli_json_list(int count, json_t *(*item)(const void *from, int index), const void *from);
/* Takes over the object. */
dp_status cli_write_json(json_t *json, FILE *file, dp_error *err);

/* ---- outputs.c: files for results, found to be writable before the work begins ---- */

typedef struct cli_output {
    FILE *file; /* NULL: not asked for */
    const char *option, *path;
    bool created; /* it was not there before */
} cli_output;

/* Leaves what the file holds as it is. DP_OK and no file where the option was not given. */
dp_status cli_output_open(const cli_options *o, cli_option option, const char *name, cli_output *out,
                          dp_error *err);
/* Empties the file, so that the result can be written. */
dp_status cli_output_begin(cli_output *out, dp_error *err);
dp_status cli_output_close(cli_output *out, dp_error *err);
/* After a failure: removes a file that was not there before. Harmless after cli_output_close. */
void cli_output_abandon(cli_output *out);

/* ---- paths.c ---- */

/* Are these the same file, or would they be if they existed? */
bool cli_same_file(const char *a, const char *b);
/* Is there a file of this name, and is it JPEG or PNG by its first bytes? */
bool cli_is_picture(const char *path);
/* No output (--save, --log, --trace, --report) may be written over an input (--init, --data), over the other,
 * or under a name that the run uses in model_dir. */
dp_status cli_check_files(const cli_options *o, const char *model_dir, const char *data_source,
                          dp_error *err);

/* ---- signals.c ---- */

void cli_catch_signals(void);
/* Has there been one? For a dp_train_observer. */
bool cli_stop_wanted(void *unused);
int cli_interrupted_code(void); /* 130 after SIGINT, 143 after SIGTERM */

/* ---- dry_run.c ---- */

/* Prints model, plan, split and memory by device. */
dp_status cli_dry_run(dp_context *context, const dp_model *model, const dp_dataset *train,
                      const dp_dataset *valid, const dp_train_config *config, dp_error *err);
/* DP_ERROR_USAGE if a device would need more than `limit` bytes: which, and the largest batch that fits. */
dp_status cli_check_memory(dp_context *context, const dp_model *model, const dp_dataset *train,
                           const dp_dataset *valid, const dp_train_config *config, uint64_t limit,
                           dp_error *err);

/* After a run that failed because a GPU has no more memory: adds to its message the largest batch that would
 * have fitted, as planned, into what is free now. Says nothing where it does not know. */
void cli_suggest_batch(dp_context *context, const dp_model *model, const dp_dataset *train,
                       const dp_dataset *valid, const dp_train_config *config, dp_error *err);

/* ---- progress.c: training as seen on stderr ---- */

typedef struct cli_progress {
    bool quiet, terminal;
    int lines; /* of the live view that are on the screen */
    int64_t print_freq;
    double last_draw;
} cli_progress;

void cli_progress_init(cli_progress *progress, bool quiet, int64_t print_freq);
dp_train_observer cli_observer(cli_progress *progress);
/* Takes the live view off the screen, so that a message can follow. */
void cli_progress_break(cli_progress *progress);

/* ---- live.c: the view itself. `lines` are those that are on the screen, 0 at first ---- */

void cli_live_draw(int *lines, const dp_train_progress *progress);
void cli_live_erase(int *lines);

/* ---- tables.c: results on stdout ---- */

/* What each device did, and the verdict. */
void cli_print_summary(const dp_train_summary *summary, const dp_engine_config *config);
/* "activations 10.0 MB, parameters 6.7 MB": the two purposes that take most, or one where two would need more
 * columns; returns buffer. */
char *cli_most_memory(const dp_device_report *report, int columns, char *buffer, size_t size);
/* To stdout, in lines of at most 80 columns: those after the first are indented by two more. */
enum { CLI_COLUMNS = 80 };
void cli_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- commands: of the whole command line; each returns DP_OK or describes its failure ---- */

/* *code: the exit code after DP_OK, if it is not 0. */
dp_status cli_train(int argc, char **argv, int *code, dp_error *err);
dp_status cli_eval(int argc, char **argv, int *code, dp_error *err);
dp_status cli_predict(int argc, char **argv, int *code, dp_error *err);
dp_status cli_devices(int argc, char **argv, int *code, dp_error *err);
dp_status cli_convert(int argc, char **argv, int *code, dp_error *err);
dp_status cli_report(int argc, char **argv, int *code, dp_error *err);
dp_status cli_bench(int argc, char **argv, int *code, dp_error *err);
dp_status cli_explain(int argc, char **argv, int *code, dp_error *err);
dp_status cli_try_links(int argc, char **argv, int *code, dp_error *err);
void cli_print_lessons(void); /* for its help */

#endif
