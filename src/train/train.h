/* Inside the training loop. */
#ifndef DP_TRAIN_TRAIN_H
#define DP_TRAIN_TRAIN_H

#include "base/error.h"
#include "dptrain/train.h"
#include "io/safetensors.h"

/* ---- log.c: log.jsonl, one object a line, flushed ---- */

typedef struct dp_log dp_log;

/* How far a log had come: its length and the CRC-32 of all of it. A checkpoint remembers this, so that a run
 * that continues from it can tell its own log from any other and cut off what came later. */
typedef struct dp_log_mark {
    int64_t bytes;
    uint32_t crc;
} dp_log_mark;

/* Opens the file for writing and changes nothing in it yet. */
dp_status dp_log_open(const char *path, dp_log **out, dp_error *err);
/* What lies where a run that continues has its log. */
typedef enum dp_log_kind {
    DP_LOG_OWN,     /* nothing, or what was marked */
    DP_LOG_OTHER,   /* events, but others */
    DP_LOG_FOREIGN, /* something else, or damaged */
} dp_log_kind;
dp_status dp_log_recognize(const char *path, const dp_log_mark *mark, dp_log_kind *out, dp_error *err);
/* Where the next event goes. Without a mark the log begins afresh. Else what follows the mark is cut off; of
 * a file that is not the one that was marked, only a torn last line is. */
dp_status dp_log_begin(dp_log *log, const dp_log_mark *mark, dp_error *err);
dp_log_mark dp_log_position(const dp_log *log);
/* Makes last what has been written, before a state says how far the log has come. */
dp_status dp_log_sync(const dp_log *log, dp_error *err);
void dp_log_close(dp_log *log); /* NULL is fine, as it is for the events: there is then no log */
dp_status dp_log_start(dp_log *log, const dp_train_start *start, const dp_context *context, dp_error *err);
dp_status dp_log_batch(dp_log *log, const dp_train_progress *progress, const dp_step_result *result,
                       dp_error *err);
dp_status dp_log_epoch(dp_log *log, const dp_epoch_summary *epoch, dp_error *err);
/* The timeline is that of dp_engine_timeline. */
dp_status dp_log_device(dp_log *log, const dp_device_report *report, int spans,
                        const dp_timeline_span *timeline, dp_error *err);
dp_status dp_log_end(dp_log *log, const char *status, int64_t steps, double seconds, dp_error *err);
/* Gives the log of a finished run its last event, if the run was killed before it wrote that. */
dp_status dp_log_complete(const char *path, int64_t steps, double seconds, dp_error *err);

/* ---- state.c: what a checkpoint holds, by name ---- */

/* A view into a dp_model_state: float32 values, or a counter (int64, rank 0); both NULL where the state has
 * no such memory. */
typedef struct dp_state_entry {
    const char *name;
    dp_dtype dtype; /* DP_F32 or DP_I64 */
    int rank;
    int64_t shape[4], elements;
    float *values;
    int64_t *counter;
} dp_state_entry;

int dp_state_count(const dp_model *model);
dp_state_entry dp_state_at(const dp_model *model, const dp_model_state *state, int index);

/* ---- views.c: a model's named tensors in files ---- */

/* Tensors under their names in a file. */
typedef struct dp_views {
    dp_tensor *tensors;
    int count;
} dp_views;

/* Adds the first `count` entries of the state (see dp_state_at), named prefix + their names; without data
 * where the state has none. */
dp_status dp_views_add(dp_views *views, const dp_model *model, const char *prefix,
                       const dp_model_state *state, int count, dp_error *err);
void dp_views_clear(dp_views *views);
/* Fills the entries from `first` to before `end` from the tensors of those names. DP_ERROR_MISMATCH if one is
 * missing or of another type or shape. */
dp_status dp_views_read(const dp_safetensors *file, const char *path, const dp_model *model,
                        const char *prefix, dp_model_state *state, int first, int end, dp_error *err);
/* The tensor for one entry; errors as above. */
dp_status dp_views_find(const dp_safetensors *file, const char *path, const dp_model *model,
                        const char *prefix, const dp_state_entry *entry, const dp_tensor **out,
                        dp_error *err);
/* Index of the first value that is not finite; -1 if there is none. */
int64_t dp_first_nonfinite(const float *values, int64_t count);

/* ---- settings.c: what a run may not change when it continues ---- */

typedef struct dp_settings {
    dp_metadata *list; /* name, value */
    int count;
} dp_settings;

/* Everything that the weights of a run depend on, but how far it goes. The data are known by their shape and
 * by a hash of samples throughout, not by the path they came from. */
dp_status dp_settings_collect(const dp_context *context, const dp_train_config *config, const dp_model *model,
                              const dp_dataset *train, const dp_dataset *valid, dp_settings *out,
                              dp_error *err);
void dp_settings_clear(dp_settings *settings);
/* DP_ERROR_MISMATCH names every difference. `where` is the directory, for the message. */
dp_status dp_settings_compare(const dp_settings *then, const dp_settings *now, const char *where,
                              dp_error *err);

/* ---- run_state.c: what resuming needs ---- */

/* Where a run is. Random numbers need no state: each is a function of seed, purpose and counters. */
typedef struct dp_run_state {
    int64_t epoch, batch, step; /* the next batch; steps made */
    /* of the epoch's batches so far */
    int64_t samples;
    double loss_sum, epoch_seconds;
    double seconds; /* of the run */
    int64_t device_samples[DP_ENGINE_MAX_DEVICES];
    bool has_best;
    double best; /* lowest loss that checkpoints were judged by */
    bool has_last;
    dp_epoch_summary last; /* the newest epoch that was ended (but `epochs`, which is the caller's to set) */
    bool ended;            /* ... and its end is this very state: its checkpoint holds these weights */
    dp_log_mark log;
} dp_run_state;

/* ---- run_tensors.c: the tensors that go with it ---- */

enum { DP_MOMENTS = 2 };

/* Weights are in host memory until an engine holds them, and then there alone, as the optimizer's moments
 * always are. */
typedef struct dp_run_tensors {
    dp_model_state model; /* the caller's; weights NULL: the engine's */
    int moments;          /* that the engine holds, once there is one */
    dp_engine *engine;    /* NULL: there are no moments yet */
    float *fetched;       /* with an engine: room for the largest parameter; owned */
} dp_run_tensors;

/* The engine is where weights and moments are from now on. */
dp_status dp_run_tensors_leave(dp_run_tensors *t, const dp_model *model, dp_engine *engine, dp_error *err);
/* Frees all but the model's state and the engine. */
void dp_run_tensors_clear(dp_run_tensors *t);
/* Are all of them in the file, as the model has them? DP_ERROR_MISMATCH: no. */
dp_status dp_run_tensors_check(const dp_safetensors *file, const char *path, const dp_model *model,
                               const char *prefix, int moments, dp_error *err);
/* Fills them from the file: the model's state in host memory; or the engine's, moments too, a parameter at a
 * time. */
dp_status dp_run_tensors_read(const dp_safetensors *file, const char *path, const dp_model *model,
                              const char *prefix, dp_run_tensors *t, dp_error *err);

/* Them as named tensors: the model's entries (prefix + their names), then, if wanted, the moments. */
typedef struct dp_run_views {
    dp_views list; /* to be cleared by dp_views_clear */
    dp_tensor_source source;
    const dp_model *model;
    const dp_run_tensors *tensors;
} dp_run_views;

/* *out keeps pointers to the tensors, the model and itself. */
dp_status dp_run_views_make(const dp_model *model, const dp_run_tensors *tensors, const char *prefix,
                            bool moments, dp_run_views *out, dp_error *err);
/* A tensor's contents, valid until those of the next are asked for. */
dp_status dp_run_views_contents(const dp_run_views *views, int index, const void **data, dp_error *err);

/* Both as a file. */
dp_status dp_run_state_write(const char *path, const dp_model *model, const dp_settings *settings,
                             const dp_run_state *state, const dp_run_tensors *tensors, dp_error *err);

typedef struct dp_run_file {
    dp_safetensors *file;
    char *path;
    dp_run_state state;
    dp_settings settings;
} dp_run_file;

/* Reads everything but the tensors. */
dp_status dp_run_file_open(const char *path, dp_run_file *out, dp_error *err);
/* Does a file whose settings are those of the run hold the tensors of its model? Else it is damaged:
 * DP_ERROR_IO. */
dp_status dp_run_file_check(const dp_run_file *file, const dp_model *model, int moments, dp_error *err);
dp_status dp_run_file_read(const dp_run_file *file, const dp_model *model, dp_run_tensors *tensors,
                           dp_error *err);
void dp_run_file_close(dp_run_file *file);
/* The description inside such a file, which is not to be trusted. */
dp_status dp_run_state_parse(const char *json, dp_run_state *state, dp_settings *settings, dp_error *err);

/* ---- checkpoint.c ---- */

/* dp_checkpoint_write of a run's tensors. */
dp_status dp_checkpoint_write_run(const char *path, const dp_model *model, const dp_run_tensors *tensors,
                                  const dp_checkpoint_info *info, dp_error *err);

/* ---- model_dir.c: the directory of a run ---- */

enum { DP_STATE_NAME_SIZE = 64, DP_KEPT_STATES = 2 };

static const char dp_best_name[] = "model_best.safetensors";

typedef struct dp_model_dir {
    char *path;
    int lock;     /* of DIR/.lock */
    bool created; /* it was not there before */
    /* The newest state that was read or written whole, and the one before it; "": none. */
    char kept[DP_KEPT_STATES][DP_STATE_NAME_SIZE];
    bool misnamed; /* the marker does not call kept[0] complete */
} dp_model_dir;

/* Makes the directory, locks it (one run at a time: DP_ERROR_IO if another one has it for two more seconds)
 * and removes what killed runs left half written. */
dp_status dp_model_dir_open(const char *path, dp_model_dir *out, dp_error *err);
void dp_model_dir_close(dp_model_dir *dir);
/* DIR/name; owner: the caller. */
dp_status dp_model_dir_file(const char *dir, const char *name, char **out, dp_error *err);
/* The names of states, in the order in which a run tries them: the one that the marker calls complete, then
 * all others, the newest first. */
typedef struct dp_state_list {
    char (*names)[DP_STATE_NAME_SIZE];
    int count;
    bool cleared;   /* the marker says that there is none, whatever lies there */
    dp_error fault; /* DP_OK: the marker is sound, or no run was here; else why it is of no use */
} dp_state_list;

/* The states in a directory, locked or not, sound or not. Owner: the caller, dp_state_list_clear. */
dp_status dp_model_dir_states(const char *dir, dp_state_list *out, dp_error *err);
void dp_state_list_clear(dp_state_list *list);
/* Says from which of its states the run continues: those before it in the list are damaged. */
void dp_model_dir_continue(dp_model_dir *dir, const dp_state_list *states, int chosen);
/* After dp_model_dir_continue: writes the marker anew if it is damaged or calls another state complete, so
 * that the next run goes straight to this one. No state is removed. */
dp_status dp_model_dir_repair(dp_model_dir *dir, dp_error *err);
/* The path of something that is in the place of a state or of the marker and is no file; NULL: there is none.
 * Owner: the caller. */
dp_status dp_model_dir_obstacle(const dp_model_dir *dir, char **out, dp_error *err);
/* Before a run starts afresh: DP_ERROR_USAGE if the directory holds a checkpoint, or something in the place
 * of one, that may not be overwritten. */
dp_status dp_model_dir_check_fresh(const dp_model_dir *dir, bool overwrite, dp_error *err);
/* Removes the checkpoints of an earlier run, among which no obstacle may be; one that has begun to go never
 * counts again. */
dp_status dp_model_dir_clear(dp_model_dir *dir, dp_error *err);
/* The name of the state after `step` steps. */
void dp_run_state_name(int64_t step, char out[DP_STATE_NAME_SIZE]);
void dp_epoch_name(int64_t epoch, char out[DP_STATE_NAME_SIZE]);
/* Says that the state of that name, which has been written, is whole and the newest. The one before
 * stays beside it; all others go. */
dp_status dp_model_dir_complete(dp_model_dir *dir, const char *state_name, dp_error *err);
/* Removes the checkpoints of epochs before first_kept. */
dp_status dp_model_dir_prune(const dp_model_dir *dir, int64_t first_kept, dp_error *err);

/* ---- fit.c ---- */

/* The configuration with device_ids spelt out, into ids where they were left out. */
dp_engine_config dp_with_all_devices(const dp_context *context, const dp_engine_config *config,
                                     int ids[DP_ENGINE_MAX_DEVICES]);
/* DP_ERROR_MISMATCH if samples or targets are not what the model and the criterion take. */
dp_status dp_check_fit(const dp_model *model, const dp_engine_config *config, const dp_dataset *dataset,
                       dp_error *err);

/* ---- memory.c ---- */

/* Makes everything that the run's batch sizes need, so that no step has to. */
dp_status dp_plan_batches(dp_engine *engine, const dp_dataset *train, const dp_dataset *valid,
                          const dp_train_config *config, dp_error *err);

/* ---- evaluate.c ---- */

/* Evaluates on an engine that exists, through a loader over the data set. *stopped (with a result that is
 * not to be used) if the observer, which may be NULL, wanted to stop. */
dp_status dp_evaluate_with(dp_engine *engine, dp_loss_kind criterion, dp_loader *loader,
                           const dp_dataset *dataset, const dp_train_observer *observer,
                           dp_evaluation *result, bool *stopped, dp_error *err);
/* Says which sample of a batch holds NaN or an infinity: "" if none does. */
enum { DP_FAULT_SIZE = 96 };
void dp_batch_fault(const dp_dataset_info *data, const dp_batch *batch, char out[DP_FAULT_SIZE]);
/* A loader whose batches lie in memory that the context's devices copy from fastest. */
dp_status dp_make_loader(dp_context *context, const dp_loader_config *config, dp_loader **out, dp_error *err);

#endif
