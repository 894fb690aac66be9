/* The DataParallel engine: one host thread, stream and replica per device; weights, gradient sum and
 * optimizer on the primary, device_ids[0]. The arithmetic is that of torch.nn.DataParallel. STABLE.
 *
 *     // One step on devices 0 and 1 over a batch of 128; afterwards the outputs, gathered.
 *     dp_status example(dp_context *context, const dp_model *model, const float *weights, const float *x,
 *                       const int32_t *labels, float *outputs, dp_error *err)
 *     {
 *         dp_engine_config config = dp_engine_defaults();
 *         config.device_ids = (int[]){0, 1};
 *         config.device_count = 2;
 *         dp_step step = {.batch = {.samples = 128, .x = x, .y = labels}, .lr = 0.05, .update = true};
 *         dp_step_result result;
 *         dp_engine *engine = NULL;
 *         dp_status status = dp_engine_create(context, model, &config, &engine, err);
 *         if (status == DP_OK)
 *             status = dp_engine_set_weights(engine, weights, err);
 *         if (status == DP_OK)
 *             status = dp_engine_train(engine, &step, &result, err);
 *         if (status == DP_OK)
 *             status = dp_engine_forward(engine, &step.batch, outputs, err);
 *         dp_engine_free(engine);
 *         return status;
 *     }
 *
 * Calls on one engine come from one thread (the coordinator). */
#ifndef DPTRAIN_ENGINE_H
#define DPTRAIN_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dptrain/context.h"
#include "dptrain/model.h"
#include "dptrain/status.h"
#include "dptrain/trace.h"

DP_BEGIN_DECLARATIONS

typedef struct dp_engine dp_engine;

typedef enum dp_loss_kind {
    DP_LOSS_CROSS_ENTROPY, /* targets: int32 labels */
    DP_LOSS_BCE_WITH_LOGITS,
    DP_LOSS_MSE,
    DP_LOSS_L1, /* the others: float32 of the output's shape */
} dp_loss_kind;

typedef enum dp_loss_mode {
    DP_LOSS_GATHER,  /* the criterion runs on the output device over the gathered outputs */
    DP_LOSS_REPLICA, /* each replica averages over its chunk; the loss is the mean of these means */
    DP_LOSS_GLOBAL,  /* each replica sums; the sums are divided once by the batch's terms */
} dp_loss_mode;

typedef enum dp_split_kind {
    DP_SPLIT_CHUNK,    /* torch.chunk */
    DP_SPLIT_BALANCED, /* sizes differ by one at most */
    DP_SPLIT_SHARES,   /* in proportion to shares[], largest remainder, ties to the earlier device */
} dp_split_kind;

typedef struct dp_optimizer_config {
    bool adamw; /* else SGD */
    double momentum, weight_decay;
    bool nesterov;
} dp_optimizer_config;

enum { DP_ENGINE_MAX_DEVICES = 64 };

typedef struct dp_engine_config {
    const int *device_ids; /* read during create; device_ids[0] is the primary; NULL: all devices */
    int device_count;      /* of device_ids */
    int output_device;     /* where gather mode gathers: one of device_ids; -1: the primary */
    int dim; /* along which the samples lie in x, outputs and targets that have their shape (labels have the
                one dimension), and along which batches are scattered and outputs gathered: [C, samples, H, W]
                and [classes, samples] for 1. Any but 0 costs the coordinator a pass over the batch. */
    dp_split_kind split;
    const double *shares; /* DP_SPLIT_SHARES: one per device, at least one above 0 */
    dp_loss_kind criterion;
    double pos_weight; /* BCE; 1 by default */
    dp_loss_mode loss_mode;
    dp_optimizer_config optimizer;
    const char *const *freeze; /* patterns: parameters whose names match get no gradient */
    int freeze_count;
    bool direct_convolution; /* never Winograd */
    /* Weights and gradients travel in buckets of whole operations, of up to so many bytes each; an operation
     * that is larger travels alone. 0: 10 MiB, and 1 MiB where the first of a pass begins to travel. */
    size_t bucket_bytes;
    uint64_t seed; /* of dropout */
    bool dry_run;  /* memory is booked but not taken: dp_engine_plan and dp_engine_report say what a run would
                      need, nothing can be run */
    /* A watchdog: called (in the thread that waits for the devices) when no device has come any further for
     * this long; `where` says what each one is at, on one line. Called again while that lasts, each time
     * after twice as long. The wait itself goes on: a hanging GPU cannot be let go of. 0 or NULL: none. */
    double stall_seconds;
    void (*stalled)(void *user, const char *where);
    void *stalled_user;
    bool evaluation_only; /* no gradients and no optimizer state: dp_engine_evaluate and _forward serve,
                             training fails */
    dp_trace *trace;      /* where spans are recorded; NULL: nowhere */
} dp_engine_config;

dp_engine_config dp_engine_defaults(void);

/* How `batch` samples are split: chunk sizes by device (0: it sits the batch out). For DP_SPLIT_CHUNK the
 * sizes are torch.chunk's. Returns how many devices get samples. */
int dp_split_batch(dp_split_kind kind, const double *shares, int devices, int64_t batch,
                   int64_t *chunk_sizes);

/* Whether device ids, output device and shares make sense: what dp_engine_create checks first, for those who
 * want to know before they read data. DP_ERROR_USAGE names what is visible. */
dp_status dp_engine_check(const dp_context *context, const dp_engine_config *config, dp_error *err);

/* Whether training batches of this size can be split so: no chunk may leave a batch normalisation one value
 * per channel. What dp_engine_plan checks first. DP_ERROR_USAGE shows the split. */
dp_status dp_engine_check_batch(const dp_context *context, const dp_model *model,
                                const dp_engine_config *config, int64_t batch, dp_error *err);

/* torch.nn.DataParallel(module, device_ids, output_device, dim). Starts the worker threads and allocates
 * parameters, gradients and optimizer state (see evaluation_only). DP_ERROR_USAGE: ids that do not exist or
 * repeat, a dim that input or outputs do not have, a model that dp_model_to put elsewhere than on
 * device_ids[0] (with one id it is moved there). The context and the model must outlive the engine. Owner:
 * the caller. */
dp_status dp_engine_create(dp_context *context, const dp_model *model, const dp_engine_config *config,
                           dp_engine **out, dp_error *err);
void dp_engine_free(dp_engine *engine); /* joins the workers; NULL is fine */

/* Weights of the primary in the order of dp_model_param, dp_model_elements floats. Setting them resets
 * nothing else. */
dp_status dp_engine_set_weights(dp_engine *engine, const float *weights, dp_error *err);
dp_status dp_engine_get_weights(dp_engine *engine, float *weights, dp_error *err);

/* Running statistics of the primary, in the order of dp_model_buffer: dp_model_buffer_elements floats and
 * dp_model_counters counters. A new engine has their initial values. */
dp_status dp_engine_set_buffers(dp_engine *engine, const float *values, const int64_t *counters,
                                dp_error *err);
dp_status dp_engine_get_buffers(dp_engine *engine, float *values, int64_t *counters, dp_error *err);

/* Weights and buffers together. */
dp_status dp_engine_set_state(dp_engine *engine, const dp_model_state *state, dp_error *err);
dp_status dp_engine_get_state(dp_engine *engine, dp_model_state *state, dp_error *err);

/* What the optimizer carries from step to step; with the weights, all that the next update depends on. */
typedef struct dp_optimizer_state {
    int64_t updates;  /* made so far: AdamW corrects its moments' bias by it */
    float *moment[2]; /* the caller's, dp_model_elements floats each, laid out as the weights; only the first
                         dp_optimizer_moments of them are touched. 0 where a parameter is not trained. NULL,
                         when they are set: that one stays as it is */
} dp_optimizer_state;

/* How many moments there are: 0 for SGD without momentum, 1 for SGD with (its velocity), 2 for AdamW. */
int dp_optimizer_moments(const dp_optimizer_config *config);
dp_status dp_engine_get_optimizer(dp_engine *engine, dp_optimizer_state *state, dp_error *err);
dp_status dp_engine_set_optimizer(dp_engine *engine, const dp_optimizer_state *state, dp_error *err);

/* One parameter's part of the weights (moment 0) or of a moment (1 or 2), for hosts without room for all at
 * once: dp_model_param(model, param)->elements floats, the caller's. Where a parameter is not trained, its
 * moments are 0, and setting them does nothing. DP_ERROR_USAGE for a parameter or a moment that there is not.
 */
dp_status dp_engine_get_param(dp_engine *engine, int moment, int param, float *out, dp_error *err);
dp_status dp_engine_set_param(dp_engine *engine, int moment, int param, const float *values, dp_error *err);

/* Makes everything that batches of this size need (shapes, primitives, memory), for training or for
 * evaluation alone. Steps with sizes that were not planned plan them on the way: correct, but that step
 * allocates. */
dp_status dp_engine_plan(dp_engine *engine, int64_t batch, bool training, dp_error *err);

/* The phases of a step. */
typedef enum dp_phase {
    DP_PHASE_WAIT,
    DP_PHASE_SCATTER,
    DP_PHASE_BROADCAST,
    DP_PHASE_FORWARD,
    DP_PHASE_GATHER,
    DP_PHASE_LOSS,
    DP_PHASE_BACKWARD,
    DP_PHASE_REDUCE, /* with the optimizer fused in */
    DP_PHASE_OPTIMIZER,
    DP_PHASES
} dp_phase;

const char *dp_phase_name(dp_phase phase);

/* A batch in host memory (dp_context_host_alloc's is fastest), plain [samples, ...] for dim 0. Valid until
 * the step's result. A label that is no class of the model is DP_ERROR_USAGE and named with its sample,
 * before anything is computed: where the batch is handed over, in stage, begin, train or evaluate. */
typedef struct dp_host_batch {
    int64_t samples;
    const float *x;
    const void *y;
} dp_host_batch;

typedef struct dp_step {
    dp_host_batch batch;
    double lr;
    double loss_scale;    /* gradients are those of loss * loss_scale (1 / accumulation steps); 0 means 1 */
    bool update;          /* sum the window's gradients and step the optimizer; else only accumulate */
    uint32_t random_step; /* dropout: its random numbers are functions of the seed, this number, and the
                             sample's place in the batch; to be different in every step of a run */
} dp_step;

typedef struct dp_step_result {
    double loss;                                 /* by the loss mode; not scaled */
    int devices;                                 /* that got samples */
    int64_t chunk_sizes[DP_ENGINE_MAX_DEVICES];  /* of the used devices, in order */
    int used_devices[DP_ENGINE_MAX_DEVICES];     /* which: index into device_ids */
    double device_losses[DP_ENGINE_MAX_DEVICES]; /* each one's mean over its chunk */
    int64_t correct; /* cross entropy: samples whose largest logit is the label's; BCE: outputs above 0 whose
                        target is above 0.5 */
    int64_t predicted, actual;       /* BCE: outputs above 0; targets above 0.5 */
    bool finite;                     /* the loss and, on an update, every gradient were finite */
    char nonfinite_what[192];        /* otherwise: which device and what (a loss; the first such parameter) */
    double phase_ms[DP_PHASES];      /* partitions the step as the coordinator saw it */
    double overlapped_ms[DP_PHASES]; /* work of other devices hidden behind it */
} dp_step_result;

/* One step. An update that met a gradient that is not finite has still been made (result->finite is false).
 */
dp_status dp_engine_train(dp_engine *engine, const dp_step *step, dp_step_result *result, dp_error *err);

/* The same in two halves, so that the next batch can be fetched while this one is computed: begin returns at
 * once; stage (optional) queues the transfer of the next batch; finish waits for the result. The batch that
 * was staged must be the next begun. */
dp_status dp_engine_begin(dp_engine *engine, const dp_step *step, dp_error *err);
dp_status dp_engine_stage(dp_engine *engine, const dp_host_batch *next, dp_error *err);
dp_status dp_engine_finish(dp_engine *engine, dp_step_result *result, dp_error *err);

/* The coordinator has waited this long for data. Before begin it is the next step's phase `wait`; between
 * begin and finish only what outlasts the devices' work is. */
void dp_engine_waited(dp_engine *engine, double seconds);

/* Forward alone: the mean loss over the batch (whatever the mode) and the counts. */
dp_status dp_engine_evaluate(dp_engine *engine, const dp_host_batch *batch, dp_step_result *result,
                             dp_error *err);

/* Forward alone, without a criterion: what module(x) returns. `outputs` (host memory; samples times one
 * sample's output elements) gets them gathered along dim, in the order of the samples; batch->y is not read.
 */
dp_status dp_engine_forward(dp_engine *engine, const dp_host_batch *batch, float *outputs, dp_error *err);

/* Forgets gradients that were accumulated without an update. */
void dp_engine_drop_gradients(dp_engine *engine);

/* ---- what the devices did ---- */

enum { DP_PURPOSES = 10 };
const char *dp_memory_purpose(int purpose); /* "parameters", "gradients", ... */

typedef struct dp_device_report {
    char device[24];      /* "cpu:0" */
    int64_t samples;      /* trained on */
    int64_t steps;        /* batches that this engine trained on */
    double busy_fraction; /* of the time that they took */
    uint64_t peak_bytes[DP_PURPOSES];
    uint64_t peak_total_bytes;
    uint64_t allocations; /* calls to the device's allocator so far */
} dp_device_report;

/* A stretch of one device's time in one phase, in milliseconds after the coordinator began the step. */
typedef struct dp_timeline_span {
    dp_phase phase;
    bool busy; /* else it waits for another device */
    double begin_ms, end_ms;
} dp_timeline_span;

/* The newest update of the largest batch so far, as a device lived it: at most max spans, in order, without
 * gaps. Returns how many. */
enum { DP_TIMELINE_MAX = 511 };
int dp_engine_timeline(const dp_engine *engine, int index, int max, dp_timeline_span *out);

int dp_engine_devices(const dp_engine *engine);
dp_status dp_engine_report(const dp_engine *engine, int index, dp_device_report *out, dp_error *err);

DP_END_DECLARATIONS

#endif
