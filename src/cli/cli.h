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

/* Every option: identifier, name, argument in the help (NULL: a flag), commands, help text. A default that
 * the help should show stands in the text. */
#define CLI_OPTIONS(X)                                                                                      \
    X(OPT_MODEL, "model", "NAME", CLI_TRAIN, "linear, mlp or lenet; `list` prints the names [lenet]")       \
    X(OPT_HIDDEN, "hidden", "N,N,...", CLI_TRAIN, "mlp: sizes of the hidden layers [512,512]")              \
    X(OPT_DROPOUT, "dropout", "P", CLI_TRAIN, "dropout probability; these models have none, so only 0")     \
    X(OPT_NUM_CLASSES, "num-classes", "C", CLI_TRAIN, "outputs [from the data]")                            \
    X(OPT_DATA, "data", "SOURCE", CLI_TRAIN | CLI_EVAL,                                                     \
      "fashion-mnist, idx:DIR, safetensors:FILE or synthetic[:N] [fashion-mnist]")                          \
    X(OPT_VALID_SPLIT, "valid-split", "F", CLI_TRAIN | CLI_EVAL,                                            \
      "held-out share where the data has no test part; 0: none [0.15; eval: as in training]")               \
    X(OPT_MEAN, "mean", "M,...", CLI_TRAIN | CLI_EVAL,                                                      \
      "normalise inputs: subtract M (one, or one a channel) ...")                                           \
    X(OPT_STD, "std", "S,...", CLI_TRAIN | CLI_EVAL,                                                        \
      "... and divide by S [as usual for the data; eval: as in training]")                                  \
    X(OPT_NUM_WORKERS, "num-workers", "N", CLI_TRAIN | CLI_EVAL, "loader threads [2]")                      \
    X(OPT_NO_SHUFFLE, "no-shuffle", NULL, CLI_TRAIN, "take the samples in their own order")                 \
    X(OPT_DROP_LAST, "drop-last", NULL, CLI_TRAIN, "leave out a last batch that is not full")               \
    X(OPT_BATCH_SIZE, "batch-size", "B", CLI_TRAIN | CLI_EVAL,                                              \
      "the global batch, split over the devices [64]")                                                      \
    X(OPT_BATCH_PER_DEVICE, "batch-per-device", "b", CLI_TRAIN,                                             \
      "the other way to say it: b times the devices")                                                       \
    X(OPT_N_EPOCH, "n-epoch", "E", CLI_TRAIN, "epochs [10]")                                                \
    X(OPT_MAX_STEPS, "max-steps", "S", CLI_TRAIN, "end after S optimizer steps [no limit]")                 \
    X(OPT_OPTIMIZER, "optimizer", "NAME", CLI_TRAIN, "sgd or adamw [sgd]")                                  \
    X(OPT_LR, "lr", "RATE", CLI_TRAIN, "learning rate [0.001]")                                             \
    X(OPT_MOMENTUM, "momentum", "M", CLI_TRAIN, "sgd [0.9]")                                                \
    X(OPT_NESTEROV, "nesterov", NULL, CLI_TRAIN, "sgd: Nesterov's momentum")                                \
    X(OPT_WEIGHT_DECAY, "weight-decay", "W", CLI_TRAIN, "as in torch.optim [1e-4]")                         \
    X(OPT_LR_STEP, "lr-step", "E", CLI_TRAIN, "multiply lr every E epochs; 0: constant [30] ...")           \
    X(OPT_LR_GAMMA, "lr-gamma", "G", CLI_TRAIN, "... by G [0.1]")                                           \
    X(OPT_LR_SCALE, "lr-scale", "HOW", CLI_TRAIN, "none, or linear: lr times the number of devices [none]") \
    X(OPT_ACCUMULATION, "accumulation-steps", "A", CLI_TRAIN,                                               \
      "step every A batches, losses divided by A [1]")                                                      \
    X(OPT_LOSS, "loss", "NAME", CLI_TRAIN, "cross_entropy, bce_with_logits, mse or l1 [from the data]")     \
    X(OPT_POS_WEIGHT, "pos-weight", "W", CLI_TRAIN, "bce_with_logits: weight of the positive term [1]")     \
    X(OPT_FREEZE, "freeze", "PATTERN,...", CLI_TRAIN,                                                       \
      "parameters whose names match get no gradient (* and ?)")                                             \
    X(OPT_SEED, "seed", "N", CLI_TRAIN | CLI_EVAL,                                                          \
      "of weights, order and held-out share [0; eval: as in training]")                                     \
    X(OPT_DEVICE, "device", "KIND", CLI_TRAIN | CLI_EVAL | CLI_DEVICES, "auto, cuda or cpu [auto]")         \
    X(OPT_LOGICAL_DEVICES, "logical-devices", "N", CLI_TRAIN | CLI_EVAL | CLI_DEVICES,                      \
      "expose N devices on whatever hardware there is; also DPTRAIN_LOGICAL_DEVICES [min(4, cores)]")       \
    X(OPT_THREADS, "threads-per-device", "T", CLI_TRAIN | CLI_EVAL,                                         \
      "CPU threads of a device [cores / devices]")                                                          \
    X(OPT_DEVICE_IDS, "device-ids", "0,1,...", CLI_TRAIN | CLI_EVAL,                                        \
      "devices to use; the first is the primary [all]")                                                     \
    X(OPT_OUTPUT_DEVICE, "output-device", "K", CLI_TRAIN, "where outputs are gathered [the first id]")      \
    X(OPT_LOSS_MODE, "loss-mode", "MODE", CLI_TRAIN, "gather, replica or global [gather]")                  \
    X(OPT_SPLIT, "split", "HOW", CLI_TRAIN, "chunk (torch.chunk), balanced, or shares like 1,2,2 [chunk]")  \
    X(OPT_CONV, "conv", "HOW", CLI_TRAIN | CLI_EVAL, "auto, or direct: never Winograd [auto]")              \
    X(OPT_PRECISION, "precision", "P", CLI_TRAIN | CLI_EVAL, "CUDA: fp32 or tf32 [fp32]")                   \
    X(OPT_INIT, "init", "FILE", CLI_TRAIN | CLI_EVAL, "safetensors to start from, or to evaluate")          \
    X(OPT_INIT_PARTIAL, "init-partial", NULL, CLI_TRAIN, "load what fits of --init")                        \
    X(OPT_SAVE, "save", "FILE", CLI_TRAIN, "write the final weights there")                                 \
    X(OPT_MODEL_DIR, "model-dir", "DIR", CLI_TRAIN, "checkpoints and log [model]")                          \
    X(OPT_OVERWRITE, "overwrite", NULL, CLI_TRAIN, "start afresh in a directory that holds checkpoints")    \
    X(OPT_LOG, "log", "FILE", CLI_TRAIN, "one JSON object a line [DIR/log.jsonl]")                          \
    X(OPT_PRINT_FREQ, "print-freq", "N", CLI_TRAIN, "without a terminal: a line every N batches [20]")      \
    X(OPT_QUIET, "quiet", NULL, CLI_TRAIN, "nothing on stderr but errors")                                  \
    X(OPT_JSON, "json", NULL, CLI_EVAL | CLI_DEVICES, "print the result as JSON")                           \
    X(OPT_HELP, "help", NULL, CLI_TRAIN | CLI_EVAL | CLI_DEVICES, "print this")

#define CLI_OPTION_ID(id, name, argument, commands, help) id,
typedef enum cli_option { CLI_OPTIONS(CLI_OPTION_ID) OPT_COUNT } cli_option;
#undef CLI_OPTION_ID

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

/* No output (--save, --log) may be written over an input (--init, --data), over the other, or under a name
 * that the run uses in model_dir. */
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
