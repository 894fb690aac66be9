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
 * The same call after a crash continues from the newest checkpoint in "model", to the same bits.
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
    /* The names of the first classes, as in dp_dataset_info; the caller's. dp_checkpoint_open leaves them
     * out: see dp_checkpoint_class_names. */
    int64_t named_classes;
    const char *const *class_names;
} dp_checkpoint_info;

/* Writes weights and buffers as safetensors with PyTorch's names and shapes, whole or not at
 * all. */
dp_status dp_checkpoint_write(const char *path, const dp_model *model, const dp_model_state *state,
                              const dp_checkpoint_info *info, dp_error *err);
/* Reads what a checkpoint says and builds its model. DP_ERROR_MISMATCH for a sound file that carries no
 * description. Owner of the model: the caller. */
dp_status dp_checkpoint_open(const char *path, dp_model **model, dp_checkpoint_info *info, dp_error *err);

typedef struct dp_class_names {
    int64_t count;
    char **list; /* UTF-8; owned, as is each */
} dp_class_names;

/* The names of classes that a checkpoint carries; none is no error. Owner: the caller, who clears them, after
 * a failure too. */
dp_status dp_checkpoint_class_names(const char *path, dp_class_names *out, dp_error *err);
void dp_class_names_clear(dp_class_names *names);

typedef struct dp_load_report {
    int loaded;   /* parameters and buffers */
    int stripped; /* names from which "module." was taken */
    int skipped;  /* with partial: what the model has and the file had not, or had in another shape */
} dp_load_report;

/* Fills weights and buffers from a file, safetensors or PyTorch's .pt, by name (a counter that it lacks is
 * left as it is). A "module." that starts a name (or follows a dot) and is not in the model's is stripped.
 * DP_ERROR_MISMATCH lists missing, unexpected and mis-shaped names; with partial what fits is loaded, and
 * only a file of which nothing fits is an error. */
dp_status dp_weights_load(const char *path, const dp_model *model, bool partial, dp_model_state *state,
                          dp_load_report *report, dp_error *err);

/* Writes the weights of one file into another: a file from torch.save becomes safetensors or, by the name of
 * `to` (.pt or .pth), a zip archive that torch.load reads; safetensors become such an archive, without their
 * metadata. `to` is whole or as it was. *tensors and *bytes say how many there were. DP_ERROR_USAGE for a
 * name that ends otherwise, DP_ERROR_MISMATCH for what is to become what it is. */
dp_status dp_weights_convert(const char *from, const char *to, int *tensors, uint64_t *bytes, dp_error *err);

/* ---- training ---- */

typedef enum dp_resume_mode {
    /* Continue from the newest whole checkpoint in model_dir, if it holds one. Where newer ones, or the note
     * of which is the newest, are damaged, the observer's `warning` says which and why. */
    DP_RESUME_AUTO,
    DP_RESUME_NEVER, /* start afresh; an error if model_dir holds a checkpoint */
    DP_RESUME_FROM,  /* as DP_RESUME_AUTO, from resume_from; an error if there is none */
} dp_resume_mode;

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
    dp_resume_mode resume;
    const char *resume_from; /* a directory; DP_RESUME_FROM alone */
    bool overwrite;          /* where the run starts afresh, what model_dir holds may be overwritten */
    int64_t save_every;      /* optimizer steps between checkpoints within an epoch; 0: at its end alone */
    int64_t keep;            /* newest checkpoints of epochs to keep; 0: all. The best is kept in any case */
    const char *init;        /* weights to start from instead of those given; unused when the run continues */
    bool init_partial;       /* load what fits of it */
    const char *save;        /* final weights; may be NULL */
    const char *log;         /* NULL: log.jsonl in model_dir */
    const char *report;      /* the page of dp_report_write, when the run ends; NULL: none. Needs a log */
    const char *trace;       /* a file in the Trace Event Format (trace.h); NULL: none */
    double valid_split;      /* for the checkpoint: how the data was opened */
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
    bool resumed; /* an earlier run continues at: */
    int64_t epoch, batch, step;
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
    double valid_iou, valid_f1;        /* 0..1, masks only */
    bool has_accuracy, has_overlap, best;
    double seconds, samples_per_second;
} dp_epoch_summary;

/* Each may be NULL. Called on the thread that called dp_train. */
typedef struct dp_train_observer {
    void *user;
    void (*start)(void *user, const dp_train_start *start);
    void (*batch)(void *user, const dp_train_progress *progress);
    void (*epoch)(void *user, const dp_epoch_summary *epoch);
    void (*note)(void *user, const char *text); /* one line worth telling */
    /* Asked between batches. Once it is true, the run ends as soon as no accumulation window is open, after
     * saving a checkpoint. It may read a flag that a signal handler sets. */
    bool (*stop)(void *user);
    void (*warning)(void *user, const char *text); /* one line that nobody should miss */
} dp_train_observer;

typedef struct dp_train_summary {
    int64_t steps; /* of the optimizer, those of the runs that this one continued included */
    double seconds;
    bool interrupted; /* by the observer's stop */
    bool finished;    /* there was nothing left to do; no device was used */
    bool has_last;
    dp_epoch_summary last;
    int devices;
    dp_device_report device[DP_ENGINE_MAX_DEVICES];
} dp_train_summary;

/* Trains from `state`, which holds the result afterwards; NULL: from what dp_model_state_init makes of
 * config->seed, and the weights, which then lie on the devices alone while they train, go to the files only.
 * valid may be NULL.
 *
 * A run that was killed, interrupted, or ended by epochs or max_steps continues when it is called again with
 * the same settings (outputs, epochs and max_steps may differ), to the same bits as if it had never stopped.
 * Checkpoints are made at the end of every epoch, every save_every steps and when the run is stopped.
 *
 * Errors: DP_ERROR_MISMATCH for data that the model or the criterion does not take; DP_ERROR_NONFINITE names
 * epoch, batch, device and what was not finite (checkpoints stay as they were); DP_ERROR_USAGE for a
 * directory that holds checkpoints that may not be overwritten; DP_ERROR_MISMATCH, too, for a checkpoint made
 * with other settings, naming them; DP_ERROR_IO for files (a directory whose checkpoints are all damaged
 * included), and for a directory that another run is using. */
dp_status dp_train(dp_context *context, const dp_model *model, dp_model_state *state, const dp_dataset *train,
                   const dp_dataset *valid, const dp_train_config *config, const dp_train_observer *observer,
                   dp_train_summary *summary, dp_error *err);

/* What dp_train would take of each device (peak_bytes, peak_total_bytes), by its own planning but without
 * taking it. reports: room for DP_ENGINE_MAX_DEVICES. Errors: those of dp_train about devices, data and
 * batches. */
dp_status dp_train_memory(dp_context *context, const dp_model *model, const dp_dataset *train,
                          const dp_dataset *valid, const dp_train_config *config, dp_device_report *reports,
                          int *devices, dp_error *err);
/* The largest batch size, up to the configuration's, with which no device would hold more than `bytes`; 0:
 * none. */
dp_status dp_train_largest_batch(dp_context *context, const dp_model *model, const dp_dataset *train,
                                 const dp_dataset *valid, const dp_train_config *config, uint64_t bytes,
                                 int64_t *batch, dp_error *err);

typedef struct dp_evaluation {
    int64_t samples;
    double loss, accuracy; /* accuracy: 0..1, labels only */
    /* Masks only (bce_with_logits over planes): how well outputs above 0.5 (sigmoid) and targets above 0.5
     * overlap, from counts over the whole set. With T pixels in both, IoU = T / (predicted + actual - T) and
     * F1 = 2 T / (predicted + actual); 1 where there is nothing to find and nothing was found. */
    double iou, f1;
    bool has_accuracy, has_overlap;
    char nonfinite[128]; /* where the loss was not finite first, and what of the data is at fault; else "" */
    bool data_at_fault;
} dp_evaluation;

/* The mean loss, and the accuracy for labels or the overlap for masks, of a model in this state over a data
 * set. */
dp_status dp_evaluate(dp_context *context, const dp_model *model, const dp_model_state *state,
                      const dp_dataset *dataset, const dp_engine_config *config, int64_t batch_size,
                      int workers, dp_evaluation *result, dp_error *err);

DP_END_DECLARATIONS

#endif
