/* Inside the training loop. */
#ifndef DP_TRAIN_TRAIN_H
#define DP_TRAIN_TRAIN_H

#include "base/error.h"
#include "dptrain/train.h"

/* ---- log.c: log.jsonl, one object a line, flushed ---- */

typedef struct dp_log dp_log;

dp_status dp_log_open(const char *path, dp_log **out, dp_error *err);
void dp_log_close(dp_log *log); /* NULL is fine, as it is for the events: there is then no log */
dp_status dp_log_start(dp_log *log, const dp_train_start *start, const dp_context *context, dp_error *err);
dp_status dp_log_batch(dp_log *log, const dp_train_progress *progress, const dp_step_result *result,
                       dp_error *err);
dp_status dp_log_epoch(dp_log *log, const dp_epoch_summary *epoch, dp_error *err);
dp_status dp_log_device(dp_log *log, const dp_device_report *report, dp_error *err);
dp_status dp_log_end(dp_log *log, const char *status, int64_t steps, double seconds, dp_error *err);

/* ---- model_dir.c: the directory of a run ---- */

typedef struct dp_model_dir {
    char *path;
    int lock; /* of DIR/.lock */
} dp_model_dir;

/* Makes the directory and locks it (one run at a time). Unless they may be overwritten, checkpoints that it
 * holds are a usage error. */
dp_status dp_model_dir_open(const char *path, bool overwrite, dp_model_dir *out, dp_error *err);
/* Removes the checkpoints of an earlier run. */
dp_status dp_model_dir_clear(const dp_model_dir *dir, dp_error *err);
void dp_model_dir_close(dp_model_dir *dir);
/* DIR/name; owner: the caller. */
dp_status dp_model_dir_file(const dp_model_dir *dir, const char *name, char **out, dp_error *err);

/* ---- state.c: what a checkpoint holds, by name ---- */

/* A view into a dp_model_state: float32 values, or a counter (int64, rank 0). */
typedef struct dp_state_entry {
    const char *name;
    int rank;
    int64_t shape[4], elements;
    float *values;
    int64_t *counter;
} dp_state_entry;

int dp_state_count(const dp_model *model);
dp_state_entry dp_state_at(const dp_model *model, const dp_model_state *state, int index);

/* ---- fit.c ---- */

/* The configuration with device_ids spelt out, into ids where they were left out. */
dp_engine_config dp_with_all_devices(const dp_context *context, const dp_engine_config *config,
                                     int ids[DP_ENGINE_MAX_DEVICES]);
/* DP_ERROR_MISMATCH if samples or targets are not what the model and the criterion take. */
dp_status dp_check_fit(const dp_model *model, const dp_engine_config *config, const dp_dataset *dataset,
                       dp_error *err);

/* ---- evaluate.c ---- */

/* Evaluates on an engine that exists, through a loader over the data set. */
dp_status dp_evaluate_with(dp_engine *engine, dp_loader *loader, bool labels, dp_evaluation *result,
                           dp_error *err);
/* A loader whose batches lie in memory that the context's devices copy from fastest. */
dp_status dp_make_loader(dp_context *context, const dp_loader_config *config, dp_loader **out, dp_error *err);

#endif
