/* The loop around the engine: epochs, validation, checkpoints, the log. STABLE.
 *
 *     // Five epochs on all devices of the context; checkpoints and log go to ./model.
 *     dp_status example(dp_context *context, const dp_model *model, const dp_dataset *train_set,
 *                       const dp_dataset *valid_set, dp_model_state *state, dp_error *err)
 *     {
 *         dp_train_config config = dp_train_defaults();
 *         config.epochs = 5;
 *         config.lr = 0.05;
 *         config.model_dir = "model";
 *         dp_train_summary summary;
 *         dp_model_state_init(model, config.seed, state);
 *         return dp_train(context, model, state, train_set, valid_set, &config, NULL, &summary, err);
 *     }
 *
 * Nothing is printed: what happens is told to a dp_train_observer. */
#ifndef DPTRAIN_TRAIN_H
#define DPTRAIN_TRAIN_H

#include <stdbool.h>
#include <stdint.h>

#include "dptrain/data.h"
#include "dptrain/engine.h"
#include "dptrain/model.h"

DP_BEGIN_DECLARATIONS

/* ---- names, in the order of their enums, NULL-terminated ---- */

extern const char *const dp_loss_names[];      /* dp_loss_kind: "cross_entropy", ... */
extern const char *const dp_loss_mode_names[]; /* dp_loss_mode: "gather", "replica", "global" */

/* ---- weights in files ---- */

enum { DP_NORMALIZE_MAX = 4 };

/* What a checkpoint says besides its weights. */
typedef struct dp_checkpoint_info {
    dp_loss_kind criterion;
    double pos_weight;
    int normalize_channels; /* as in dp_dataset_info */
    float mean[DP_NORMALIZE_MAX], std[DP_NORMALIZE_MAX];
    uint64_t data_seed;
    double valid_split;
    int64_t epoch; /* that it was written after; -1 for final weights */
} dp_checkpoint_info;

/* Writes weights and buffers as safetensors with PyTorch's names and shapes, whole or not at
 * all. */
dp_status dp_checkpoint_write(const char *path, const dp_model *model, const dp_model_state *state,
                              const dp_checkpoint_info *info, dp_error *err);
/* Reads what a checkpoint says and builds its model. DP_ERROR_MISMATCH for a sound file that carries no
 * description. Owner of the model: the caller. */
dp_status dp_checkpoint_open(const char *path, dp_model **model, dp_checkpoint_info *info, dp_error *err);

typedef struct dp_load_report {
    int loaded;   /* parameters and buffers */
    int stripped; /* names from which "module." was taken */
    int skipped;  /* with partial: what the model has and the file had not, or had in another shape */
} dp_load_report;

/* Fills weights and buffers from a file by name (a counter that it lacks is left as it is). A "module." that
 * starts a name (or follows a dot) and is not in the model's is stripped. DP_ERROR_MISMATCH lists missing,
 * unexpected and mis-shaped names; with partial what fits is loaded, and only a file of which nothing fits is
 * an error. */
dp_status dp_weights_load(const char *path, const dp_model *model, bool partial, dp_model_state *state,
                          dp_load_report *report, dp_error *err);

/* ---- training ---- */

typedef struct dp_train_config {
    dp_engine_config engine; /* batches of a data set have their samples first: dim is 0 */
    int64_t batch_size;      /* global */
    int64_t epochs;
    int64_t max_steps; /* optimizer steps; 0: no limit */
    double lr;
    int64_t lr_step; /* lr * lr_gamma^(epoch div lr_step); 0: constant */
    double lr_gamma;
    int64_t accumulation_steps; /* at least 1 */
    bool shuffle, drop_last;
    uint64_t seed;
    int workers;
    const char *model_dir; /* checkpoints and the log go there; NULL: neither */
    bool overwrite;        /* start afresh in a directory that holds checkpoints */
    const char *save;      /* final weights; may be NULL */
    const char *log;       /* NULL: log.jsonl in model_dir */
    const char *trace;     /* a file in the Trace Event Format (trace.h); NULL: none */
    double valid_split;    /* for the checkpoint: how the data was opened */
    uint64_t data_seed;
    int argument_count; /* for the log: the command line */
    const char *const *arguments;
} dp_train_config;

dp_train_config dp_train_defaults(void);

/* Learning rate of an epoch. */
double dp_learning_rate(const dp_train_config *config, int64_t epoch);

typedef struct dp_train_start {
    const dp_train_config *config;
    const dp_model *model;
    const dp_dataset_info *train, *valid; /* valid: NULL without validation */
    int64_t batches;                      /* an epoch */
    int devices;                          /* that a full batch uses */
    int64_t chunk_sizes[DP_ENGINE_MAX_DEVICES];
} dp_train_start;

typedef struct dp_train_progress {
    int64_t epoch, batch, batches, step;
    int64_t samples;      /* of this epoch so far */
    double loss, average; /* of this batch; of the epoch so far, by samples */
    double seconds;       /* of this epoch so far */
    double lr;
    const dp_engine *engine; /* for dp_engine_report */
} dp_train_progress;

typedef struct dp_epoch_summary {
    int64_t epoch, epochs;
    double train_loss;
    bool validated;
    double valid_loss, valid_accuracy; /* accuracy: 0..1, labels only */
    bool has_accuracy, best;
    double seconds, samples_per_second;
} dp_epoch_summary;

/* Each may be NULL. Called on the thread that called dp_train. */
typedef struct dp_train_observer {
    void *user;
    void (*start)(void *user, const dp_train_start *start);
    void (*batch)(void *user, const dp_train_progress *progress);
    void (*epoch)(void *user, const dp_epoch_summary *epoch);
    void (*note)(void *user, const char *text); /* one line worth telling */
} dp_train_observer;

typedef struct dp_train_summary {
    int64_t steps; /* of the optimizer */
    double seconds;
    dp_epoch_summary last;
    int devices;
    dp_device_report device[DP_ENGINE_MAX_DEVICES];
} dp_train_summary;

/* Trains from `state`, which holds the result afterwards. valid may be NULL.
 * Errors: DP_ERROR_MISMATCH for data that the model or the criterion does not take; DP_ERROR_NONFINITE names
 * epoch, batch, device and what was not finite (checkpoints stay as they were); DP_ERROR_USAGE for a
 * directory that already holds checkpoints; DP_ERROR_IO for files, and for a directory that another run is
 * using. */
dp_status dp_train(dp_context *context, const dp_model *model, dp_model_state *state, const dp_dataset *train,
                   const dp_dataset *valid, const dp_train_config *config, const dp_train_observer *observer,
                   dp_train_summary *summary, dp_error *err);

typedef struct dp_evaluation {
    int64_t samples;
    double loss, accuracy; /* accuracy: 0..1, labels only */
    bool has_accuracy;
} dp_evaluation;

/* The mean loss, and the accuracy for labels, of a model in this state over a data set. */
dp_status dp_evaluate(dp_context *context, const dp_model *model, const dp_model_state *state,
                      const dp_dataset *dataset, const dp_engine_config *config, int64_t batch_size,
                      int workers, dp_evaluation *result, dp_error *err);

DP_END_DECLARATIONS

#endif
