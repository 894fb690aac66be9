/* Inside the engine: the coordinator (whoever calls dptrain/engine.h) and one worker thread per device.
 *
 * Who owns what: a dp_replica belongs to its worker thread from start to join; the coordinator reads its
 * results only after dp_workers_wait. Jobs belong to the coordinator and stay unchanged while workers run
 * them. Between two workers there are milestones: an event that orders their streams, and a signal that says
 * that its record has been issued. */
#ifndef DP_PARALLEL_ENGINE_H
#define DP_PARALLEL_ENGINE_H

#include <stdatomic.h>

#include "base/thread.h"
#include "base/tracks.h"
#include "device/device.h"
#include "dptrain/engine.h"
#include "nn/plan.h"
#include "parallel/arena.h"
#include "parallel/context.h"

typedef struct dp_replica dp_replica;

/* ---- hand-overs between workers ---- */

/* Something that one device reaches again and again: record number n of the event is issued before the signal
 * says n. */
typedef struct dp_milestone {
    dp_event event;
    dp_signal signal;
    bool exists;
} dp_milestone;

/* ---- jobs: what the coordinator asks for; read-only to the workers ---- */

/* A batch on its way into input slot `slot`, its samples along the first dimension. */
typedef struct dp_chunk_job {
    int slot;
    int64_t samples;
    const float *given_x; /* the caller's; x itself unless samples lie along another dimension there */
    const float *x;
    const void *y; /* NULL: no targets, for a forward pass alone */
    bool gathered; /* targets are wanted on the output device, all of them */
    int64_t chunk[DP_MAX_DEVICES], first_row[DP_MAX_DEVICES]; /* by device */
    int used;
    int64_t number; /* of the engine's batches, from 1 */
} dp_chunk_job;

typedef struct dp_step_job {
    dp_chunk_job batch;
    bool training, update;
    float *outputs; /* a forward pass alone: host memory for the outputs, instead of a criterion */
    double loss_scale;
    dp_update_args hyper;    /* lr and the like; no pointers */
    dp_op_random random;     /* but for first_sample, which is each replica's own */
    uint64_t buffers_number; /* of the running statistics that an evaluation uses */
    /* Numbers of the records that this step waits for (see the milestones of dp_replica). */
    uint64_t weights_number, frozen_number; /* of the weights that forward uses */
    uint64_t output_number[DP_MAX_DEVICES], loss_number;
    uint64_t gradient_number[DP_MAX_DEVICES];
    /* Whose gradients the window has: from earlier micro-steps (they are added to), and with this one (they
     * are summed by an update). */
    bool has_gradient[DP_MAX_DEVICES], contributes[DP_MAX_DEVICES];
} dp_step_job;

typedef struct dp_plan_job {
    int64_t samples; /* of the whole batch */
    int64_t chunk[DP_MAX_DEVICES];
    bool training;
} dp_plan_job;

typedef struct dp_planned {
    int64_t samples;
    bool training;
} dp_planned;

/* ---- time ---- */

enum { DP_MAX_MARKS = 512 };

typedef struct dp_mark {
    dp_event event;
    dp_phase phase; /* of the time that follows */
    bool busy;      /* working, not waiting for another device */
} dp_mark;

/* The time between two marks; seconds of the host's clock (dp_now). */
typedef struct dp_segment {
    dp_phase phase;
    bool busy;
    double begin, end;
} dp_segment;

typedef struct dp_clock {
    dp_mark *marks;
    _Atomic int count;    /* those below it are recorded: the watchdog looks at them */
    double began;         /* dp_now() at the first mark */
    dp_segment *segments; /* of the last step: DP_MAX_MARKS */
    int segment_count;
    dp_segment *kept; /* the timeline: of the newest update of the largest batch, from the step's begin */
    int kept_count;
    int64_t kept_samples;                                           /* of that batch */
    double phase_seconds[DP_PHASES], busy_phase_seconds[DP_PHASES]; /* of the last step */
    double busy_seconds;                                            /* of all steps */
    int ranges;     /* open for profilers: the step, its phase, a wait in it */
    dp_phase shown; /* that phase */
} dp_clock;

/* ---- a device and its replica ---- */

/* Work on the copy stream that a trace shows. */
typedef struct dp_copy_span {
    dp_event begin, end;
    dp_phase phase;
    int bucket;
} dp_copy_span;

/* Where a trace shows a device; NULL without one. */
typedef struct dp_replica_tracks {
    dp_track *thread, *compute, *copy, *input;
    dp_copy_span *copies; /* of the step */
    int count, room;
    double copied_until, received_until; /* ends of the last spans: none begins before */
} dp_replica_tracks;

/* Where a chunk waits for its step. */
typedef struct dp_slot {
    float *x;
    void *y;
    dp_event sent, arrived; /* sent: with a trace only */
    uint64_t received;
} dp_slot;

/* A block of device memory that only grows. */
typedef struct dp_buffer {
    dp_purpose purpose;
    void *data;
    size_t bytes;
} dp_buffer;

typedef struct dp_task {
    dp_status (*run)(dp_replica *replica, const void *argument, dp_error *err);
    const void *argument;
    bool cleanup; /* runs even after the worker has failed */
} dp_task;

enum { DP_MAILBOX_SIZE = 8, DP_SLOTS = 2 };

struct dp_replica {
    dp_engine *engine;
    int index;
    dp_device *device;

    /* The mailbox: tasks are numbered from 1; task n lies in tasks[n % size]. */
    pthread_t thread;
    bool has_mailbox, started;
    dp_task tasks[DP_MAILBOX_SIZE];
    dp_signal posted, done;
    uint64_t post_count;
    dp_status status; /* first failure */
    dp_error error;

    /* input brings the chunks; copy fetches weights, sums gradients and updates. */
    dp_stream compute, copy, input;

    /* Arenas (see arena.h). moments: the primary only. nonfinite: who sums (see reduce.c), else NULL. */
    float *weights, *gradients, *moment1, *moment2;
    uint32_t *nonfinite;
    uint64_t *bucket_number; /* by bucket: which weights are here; unused on the primary */
    float *buffers;          /* running statistics; the primary's are the ones that training keeps */
    uint64_t buffers_number; /* whose number these are; the primary's are always the newest */
    dp_op_random random;     /* of the step that runs */

    dp_milestone *weights_ready; /* by bucket; primary: weights are updated. Number: engine->weights_number */
    dp_milestone
        *gradients_ready; /* by bucket; the window's gradients are complete. Number: updates taken part in */
    dp_event *weights_here;    /* by bucket; orders this device's compute stream behind its copy stream */
    dp_milestone output_ready; /* the chunk's outputs are computed */
    dp_milestone loss_ready;   /* output device: the gradient of the loss is computed */
    int next_bucket;           /* its parts of buckets above it are summed (they go from last to first) */
    void *reduce_staging;      /* primary, where peers cannot be read: copies of their buckets */

    dp_plan **plans;
    int plan_count;
    dp_slot slots[DP_SLOTS];
    dp_buffer input_buffer[DP_SLOTS], target_buffer[DP_SLOTS];
    dp_buffer activations, workspace, gathered, loss_buffer;

    /* Results of a step: per-sample losses and hits, on the device and on the host. */
    int64_t loss_capacity; /* samples */
    float *sample_loss;
    dp_loss_counts *counts;
    float *host_sample_loss;
    dp_loss_counts *host_counts;
    uint32_t *host_nonfinite;

    int64_t samples_trained, step_number; /* step_number: of the engine's batches */
    dp_clock clock;
    dp_replica_tracks tracks;
    int *bucket_mark; /* by bucket; the clock's last mark before its gradients were announced */
};

/* Host memory where a batch is turned, when its samples do not lie along the first dimension (turn.c). */
typedef struct dp_turned {
    void *x[DP_SLOTS], *y[DP_SLOTS];
    float *outputs;
    int64_t samples; /* that there is room for */
} dp_turned;

struct dp_engine {
    dp_context *context;
    const dp_model *model;
    dp_engine_config config; /* device_ids, shares and freeze are copied or unused after create */
    int ids[DP_MAX_DEVICES];
    double shares[DP_MAX_DEVICES];
    int device_count;
    dp_replica *replicas;
    dp_replica *primary, *output;
    dp_arena arena;
    int64_t input_elements, output_elements; /* of one sample */
    dp_turned turned;
    size_t target_bytes;
    int64_t terms;        /* that a mean divides by, per sample */
    bool shares_sums;     /* all devices have one memory: they sum large buckets together (reduce.c) */
    int64_t least_shared; /* elements of such a bucket */
    uint32_t spin_ns;

    uint64_t weights_number, frozen_number; /* how often weights were set or updated */
    uint64_t buffers_number;                /* the same of the buffers */
    int64_t *counters;                      /* dp_model_counters: they count training steps */
    uint64_t outputs_sent[DP_MAX_DEVICES], losses_done, gradients_sent[DP_MAX_DEVICES];
    bool has_gradient[DP_MAX_DEVICES];
    int64_t update_count; /* AdamW's step */

    dp_step_job step; /* in flight between begin and finish */
    dp_chunk_job staged;
    dp_plan_job planning;
    dp_planned *planned; /* batch sizes that every worker has plans for */
    int planned_count;
    bool in_flight, is_staged;
    int next_slot;
    int64_t batch_number; /* batches sent so far */
    dp_track *track;      /* the coordinator's, in a trace */
    double began, train_seconds;
    int64_t train_steps;                 /* that took train_seconds */
    double waited_before, waited_during; /* for data, seconds; of the next step, of the one in flight */

    bool opened; /* every replica has its milestones */
    _Atomic bool failed;
    dp_error first_error; /* what every later call returns */
};

/* ---- worker.c ---- */

dp_status dp_workers_start(dp_engine *engine, dp_error *err);
void dp_workers_stop(dp_engine *engine);
/* Posts a task to one worker, or waits for all posted tasks of all workers and reports the first failure. */
void dp_worker_post(dp_replica *r, dp_status (*run)(dp_replica *, const void *, dp_error *),
                    const void *argument);
dp_status dp_workers_wait(dp_engine *engine, dp_error *err);

dp_status dp_milestone_create(dp_replica *r, dp_milestone *milestone, dp_error *err);
void dp_milestone_destroy(dp_milestone *milestone);
/* Records the event on the stream and says so. */
dp_status dp_announce(dp_milestone *milestone, dp_stream *stream, dp_error *err);
/* Waits (the host) for announcement `number` and orders the stream behind it. The time that the compute
 * stream spends waiting counts as `phase`, but not as busy. */
dp_status dp_await(dp_replica *r, dp_milestone *milestone, uint64_t number, dp_stream *stream, dp_phase phase,
                   const char *what, dp_error *err);

/* ---- watchdog.c ---- */

/* Waits until all posted tasks of all workers are done, and calls config.stalled where they do not get on. */
void dp_watch_workers(dp_engine *engine);

/* ---- replica.c: memory of a device ---- */

dp_status dp_replica_open(dp_replica *r, const void *unused, dp_error *err);
void dp_replica_close(dp_replica *r);
dp_status dp_replica_plan(dp_replica *r, const void *plan_job, dp_error *err);
dp_plan *dp_replica_find_plan(const dp_replica *r, int64_t samples, bool training);
dp_status dp_replica_set_weights(dp_replica *r, const void *weights, dp_error *err);
dp_status dp_replica_get_weights(dp_replica *r, const void *weights, dp_error *err);
dp_status dp_replica_set_buffers(dp_replica *r, const void *values, dp_error *err);
dp_status dp_replica_get_buffers(dp_replica *r, const void *values, dp_error *err);
/* Copy a moment of the optimizer (primary; trained parameters) to or from host memory, laid out as weights.
 */
typedef struct dp_moment_job {
    float *moment; /* r->moment1 or r->moment2 */
    const float *host;
} dp_moment_job;
dp_status dp_replica_set_moment(dp_replica *r, const void *moment_job, dp_error *err);

typedef struct dp_param_job {
    int moment, param;   /* moment 0: the weights */
    float *out;          /* to get it */
    const float *values; /* to set it */
} dp_param_job;
dp_status dp_replica_get_param(dp_replica *r, const void *param_job, dp_error *err);
dp_status dp_replica_set_param(dp_replica *r, const void *param_job, dp_error *err);

/* ---- clock.c ---- */

/* From here on the device's time counts as `phase`. */
dp_status dp_mark_phase(dp_replica *r, dp_phase phase, bool busy, dp_error *err);
/* After the streams were synchronized: adds up the step's phases and keeps its timeline. */
dp_status dp_clock_read(dp_replica *r, const dp_step_job *job, dp_error *err);

/* ---- spans.c ---- */

dp_status dp_spans_create_tracks(dp_engine *engine, dp_error *err); /* the coordinator */
dp_status dp_spans_open(dp_replica *r, dp_error *err);
void dp_spans_close(dp_replica *r);
/* Spans of the device's thread, for profilers and the trace; they nest. Operations are in the trace alone. */
void dp_span_push(dp_replica *r, const char *name);
void dp_span_pop(dp_replica *r);
void dp_span_push_op(dp_replica *r, int program_step);
void dp_span_pop_op(dp_replica *r);
/* Around work on the copy stream. */
dp_status dp_span_begin_copy(dp_replica *r, dp_phase phase, int bucket, dp_error *err);
dp_status dp_span_end_copy(dp_replica *r, dp_error *err);
/* After a step whose segments were read: the streams' spans. */
dp_status dp_spans_read(dp_replica *r, const dp_step_job *job, dp_error *err);
void dp_timeline_keep(dp_replica *r, const dp_step_job *job);

/* ---- the step: scatter.c, broadcast.c, gather.c, reduce.c, data_parallel.c ---- */

dp_status dp_receive_chunk(dp_replica *r, const void *chunk_job, dp_error *err);
/* Before an evaluation: brings the primary's running statistics here, unless they are here already. */
dp_status dp_fetch_buffers(dp_replica *r, uint64_t number, dp_error *err);
/* Brings bucket b of the primary's weights here, unless they are here already, and orders the compute stream
 * behind their arrival. */
dp_status dp_use_bucket(dp_replica *r, int bucket, uint64_t number, dp_error *err);
dp_status dp_gather_and_lose(dp_replica *r, const dp_step_job *job, dp_error *err);
dp_status dp_lose(dp_replica *r, const dp_step_job *job, dp_error *err);
dp_status dp_announce_gradients(dp_replica *r, int bucket, dp_error *err);
/* Do all devices sum and update this bucket together, each its part of it? Else the primary does. */
bool dp_is_shared(const dp_engine *engine, int bucket);
/* Sums and updates this device's parts of the next buckets as far as their gradients are there. */
dp_status dp_reduce_buckets(dp_replica *r, const dp_step_job *job, dp_error *err);
/* With nothing left to compute: all parts that are left, and the compute stream waits for the end of its
 * sums. */
dp_status dp_finish_reduce(dp_replica *r, const dp_step_job *job, dp_error *err);
/* A step in two tasks, so that the next chunk can be sent in between: the first enqueues all of it, the
 * second waits until it is done. */
dp_status dp_replica_begin_step(dp_replica *r, const void *step_job, dp_error *err);
dp_status dp_replica_end_step(dp_replica *r, const void *step_job, dp_error *err);

/* turn.c: batches whose samples lie along config.dim. All three do nothing where that is the first. */
dp_status dp_turn_check(const dp_model *model, const dp_engine_config *config, dp_error *err);
dp_status dp_turn_reserve(dp_engine *engine, int64_t samples, dp_error *err);
void dp_turn_release(dp_engine *engine);
/* Samples first: replaces the job's x and y. */
void dp_turn_batch(dp_engine *engine, dp_chunk_job *job);
/* And back: from turned.outputs to the caller's memory. */
void dp_turn_outputs(const dp_engine *engine, int64_t samples, float *outputs);

/* A call that may not come between begin and finish, or after a failure. */
dp_status dp_check_idle(dp_engine *e, dp_error *err);
/* state.c: the buffers' initial values, so that an engine can be used before any are set. */
dp_status dp_init_buffers(dp_engine *e, dp_error *err);

/* result.c: from the workers' results to a dp_step_result. */
void dp_collect_result(const dp_engine *engine, double seconds, dp_step_result *result);
dp_status dp_find_nonfinite(dp_engine *engine, dp_step_result *result, dp_error *err);

#endif
