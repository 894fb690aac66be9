/* A run under way: start.c brings it to its first step, trainer.c takes the steps, save.c keeps what was
 * reached. */
#ifndef DP_TRAIN_TRAINER_H
#define DP_TRAIN_TRAINER_H

#include "train/train.h"

typedef struct dp_trainer {
    const dp_train_config *config;
    const dp_train_observer *observer;
    dp_context *context;
    const dp_model *model;
    const dp_dataset *train, *valid;
    dp_train_summary *summary;

    dp_model_dir dir;
    char *log_path; /* NULL: there is no log */
    dp_log *log;
    dp_trace *trace; /* NULL: none */
    dp_settings settings;
    dp_model_state *result; /* the caller's; NULL: the weights go to files alone */
    dp_model_state own; /* where there is no result: the state's memory, weights until the engine has them */
    dp_run_tensors tensors;
    dp_engine *engine;
    dp_loader *loader, *valid_loader;

    dp_run_state state;     /* where the run is; times and devices' samples are set when it is saved */
    dp_run_file file;       /* the state that it continues, until its tensors have been read */
    char *resumed_from;     /* the directory whose newest state the run continues; NULL: a fresh start */
    bool elsewhere;         /* ... and it is not model_dir */
    bool is_saved;          /* `state`, as it is */
    bool has_reached_limit; /* max_steps */
    bool interrupted;
    int64_t samples_before[DP_ENGINE_MAX_DEVICES]; /* by device: of the run that this one continues */

    dp_train_progress progress; /* of the epoch under way */
    double epoch_began, began;  /* as if this process had done all of it */
} dp_trainer;

__attribute__((format(printf, 2, 3))) void dp_trainer_note(const dp_trainer *t, const char *format, ...);
__attribute__((format(printf, 2, 3))) void dp_trainer_warn(const dp_trainer *t, const char *format, ...);

/* ---- start.c ---- */

/* Settles where the run begins, without touching a device or a file of an earlier run. */
dp_status dp_trainer_locate(dp_trainer *t, dp_error *err);
/* Nothing is left to do: neither epochs nor steps. */
bool dp_trainer_is_finished(const dp_trainer *t);
/* Before a run that continues, or has nothing left to do, writes: what is in the way of its log or its states
 * is moved aside, and resume.json names the state that it goes by. */
dp_status dp_trainer_settle(dp_trainer *t, dp_error *err);
/* Engine, loaders, files; tells the observer and the log. */
dp_status dp_trainer_start(dp_trainer *t, dp_error *err);

/* ---- save.c ---- */

/* dp_engine_report, with the samples of the run that this one continues. */
dp_status dp_trainer_report(const dp_trainer *t, int index, dp_device_report *out, dp_error *err);

/* Makes `state`, with the engine's weights and moments, the newest checkpoint. */
dp_status dp_trainer_save(dp_trainer *t, dp_error *err);
/* Writes the checkpoint files of the epoch that ended with this state. */
dp_status dp_trainer_export(dp_trainer *t, dp_error *err);
/* Writes config->save, if it is wanted. */
dp_status dp_trainer_save_final(dp_trainer *t, dp_error *err);

#endif
