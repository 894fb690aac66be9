/* The coordinator: what dptrain/engine.h offers, as jobs for the workers. */
#include "parallel/engine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "optim/optim.h"

/* Buckets below 1 MiB take a fraction of a millisecond and stay the primary's, as on GPUs. */
enum { SPIN_NS = 50000, LEAST_SHARED = 1 << 18 };

dp_engine_config dp_engine_defaults(void)
{
    return (dp_engine_config){
        .output_device = -1, .pos_weight = 1, .optimizer = {.momentum = 0.9, .weight_decay = 1e-4}};
}

/* ---- creating ---- */

/* Without device_ids: all devices. */
static int device_count(const dp_context *context, const dp_engine_config *c)
{
    return c->device_ids ? c->device_count : context->backend->device_count;
}

static int device_id(const dp_engine_config *c, int k)
{
    return c->device_ids ? c->device_ids[k] : k;
}

static dp_status check_devices(const dp_context *context, const dp_engine_config *c, dp_error *err)
{
    const dp_backend *b = context->backend;
    const char *name = b->call->name;
    int count = device_count(context, c);
    if (count < 1 || count > DP_MAX_DEVICES)
        return dp_fail(err, DP_ERROR_USAGE, "%d device ids: 1 to %d are possible", count, DP_MAX_DEVICES);
    bool listed = c->output_device == -1;
    for (int k = 0; k < count; k++) {
        int id = device_id(c, k);
        if (id < 0 || id >= b->device_count)
            return dp_fail(
                err, DP_ERROR_USAGE, "device id %d does not exist: %d device%s visible (%s:0 to %s:%d)", id,
                b->device_count, b->device_count == 1 ? " is" : "s are", name, name, b->device_count - 1);
        for (int j = 0; j < k; j++)
            if (device_id(c, j) == id)
                return dp_fail(
                    err, DP_ERROR_USAGE,
                    "device id %d is listed twice: each device holds one replica (%s:0 to %s:%d are visible)",
                    id, name, name, b->device_count - 1);
        listed |= id == c->output_device;
    }
    if (!listed)
        return dp_fail(err, DP_ERROR_USAGE,
                       "output device %d is not one of the device ids (%s:0 to %s:%d are visible)",
                       c->output_device, name, name, b->device_count - 1);
    return DP_OK;
}

static dp_status check_shares(const dp_engine_config *c, int devices, dp_error *err)
{
    if (c->split != DP_SPLIT_SHARES)
        return DP_OK;
    double sum = 0;
    for (int k = 0; k < devices; k++) {
        if (!(c->shares[k] >= 0) || !isfinite(c->shares[k]))
            return dp_fail(err, DP_ERROR_USAGE, "share %d of the split is not a number of at least 0", k);
        sum += c->shares[k];
    }
    return sum > 0 && isfinite(sum)
               ? DP_OK
               : dp_fail(err, DP_ERROR_USAGE, "a split needs at least one share above 0");
}

dp_status dp_engine_check(const dp_context *context, const dp_engine_config *config, dp_error *err)
{
    DP_TRY(check_devices(context, config, err));
    return check_shares(config, device_count(context, config), err);
}

/* torch.nn.DataParallel's rule and words: with several devices the module is the caller's to move, with one
 * it is moved there. */
static dp_status check_module(const dp_context *context, const dp_model *model, const dp_engine_config *c,
                              dp_error *err)
{
    const char *name = context->backend->call->name;
    int first = device_id(c, 0);
    if (model->device < 0 || model->device == first || device_count(context, c) == 1)
        return DP_OK;
    return dp_fail(
        err, DP_ERROR_USAGE,
        "module must have its parameters and buffers on device %s:%d (device_ids[0]) but found one "
        "of them on device: %s:%d",
        name, first, name, model->device);
}

/* Signals spin briefly only where every thread has a core of its own. */
static uint32_t spin_time(const dp_engine *e)
{
    int threads = 0;
    for (int k = 0; k < e->device_count; k++) {
        if (e->replicas[k].device->properties.shares_hardware)
            return 0;
        threads += e->replicas[k].device->properties.multiprocessors;
    }
    bool cpu = strcmp(e->context->backend->call->name, "cpu") == 0;
    return (cpu ? threads : e->device_count) <= dp_usable_cores() ? SPIN_NS : 0;
}

static dp_status prepare_replicas(dp_engine *e, dp_error *err)
{
    DP_TRY(dp_calloc((size_t)e->device_count, sizeof *e->replicas, "the replicas", &e->replicas, err));
    for (int k = 0; k < e->device_count; k++) {
        e->replicas[k].engine = e;
        e->replicas[k].index = k;
        e->replicas[k].device = &e->context->backend->devices[e->ids[k]];
        e->replicas[k].device->dry = e->config.dry_run;
        dp_ledger_restart(&e->replicas[k].device->ledger);
        if (e->ids[k] == e->config.output_device)
            e->output = &e->replicas[k];
    }
    e->primary = &e->replicas[0];
    if (!e->output)
        e->output = e->primary;
    e->shares_sums =
        e->device_count > 1 && e->context->backend->call->one_memory && !e->config.evaluation_only;
    e->least_shared = LEAST_SHARED;
    e->spin_ns = spin_time(e);
    for (int k = 0; k < e->device_count; k++) {
        dp_replica *r = &e->replicas[k];
        DP_TRY(dp_signal_init(&r->posted, e->spin_ns, err));
        dp_status status = dp_signal_init(&r->done, 0, err); /* the coordinator has no core of its own */
        if (status != DP_OK) {
            dp_signal_destroy(&r->posted);
            return status;
        }
        r->has_mailbox = true;
    }
    return DP_OK;
}

static void describe_model(dp_engine *e)
{
    int64_t in[3], out[3];
    int in_rank = dp_model_input_shape(e->model, in), out_rank = dp_model_output_shape(e->model, out);
    e->input_elements = e->output_elements = 1;
    for (int i = 0; i < in_rank; i++)
        e->input_elements *= in[i];
    for (int i = 0; i < out_rank; i++)
        e->output_elements *= out[i];
    bool labels = e->config.criterion == DP_LOSS_CROSS_ENTROPY;
    e->terms = labels ? 1 : e->output_elements;
    e->target_bytes = labels ? sizeof(int32_t) : (size_t)e->output_elements * sizeof(float);
}

static dp_status start_engine(dp_engine *e, const dp_engine_config *config, dp_error *err)
{
    DP_TRY(dp_arena_create(e->model, config->freeze, config->freeze_count, config->bucket_bytes, &e->arena,
                           err));
    DP_TRY(prepare_replicas(e, err));
    DP_TRY(dp_spans_create_tracks(e, err));
    DP_TRY(dp_workers_start(e, err));
    for (int k = 0; k < e->device_count; k++)
        dp_worker_post(&e->replicas[k], dp_replica_open, NULL);
    DP_TRY(dp_workers_wait(e, err));
    e->opened = true;
    return dp_init_buffers(e, err);
}

dp_status dp_engine_create(dp_context *context, const dp_model *model, const dp_engine_config *config,
                           dp_engine **out, dp_error *err)
{
    *out = NULL;
    DP_TRY(dp_engine_check(context, config, err));
    if (!model->finished)
        return dp_fail(err, DP_ERROR_USAGE, "model '%s' is not finished", model->name);
    DP_TRY(check_module(context, model, config, err));
    DP_TRY(dp_turn_check(model, config, err));
    dp_engine *e;
    DP_TRY(dp_calloc(1, sizeof *e, "the engine", &e, err));
    e->context = context;
    e->model = model;
    e->config = *config;
    e->device_count = device_count(context, config);
    for (int k = 0; k < e->device_count; k++)
        e->ids[k] = device_id(config, k);
    if (config->split == DP_SPLIT_SHARES)
        memcpy(e->shares, config->shares, (size_t)e->device_count * sizeof *e->shares);
    describe_model(e);
    dp_status status = start_engine(e, config, err);
    if (status != DP_OK) {
        dp_engine_free(e);
        return status;
    }
    *out = e;
    return DP_OK;
}

void dp_engine_free(dp_engine *engine)
{
    if (!engine)
        return;
    if (engine->replicas) {
        dp_workers_wait(engine, NULL);
        dp_workers_stop(engine);
        for (int k = 0; k < engine->device_count; k++)
            if (engine->replicas[k].has_mailbox) {
                dp_signal_destroy(&engine->replicas[k].posted);
                dp_signal_destroy(&engine->replicas[k].done);
            }
    }
    for (int k = 0; engine->replicas && k < engine->device_count; k++)
        engine->replicas[k].device->dry = false;
    dp_turn_release(engine);
    dp_free(engine->planned);
    dp_free(engine->counters);
    dp_free(engine->replicas);
    dp_arena_clear(&engine->arena);
    dp_free(engine);
}

dp_status dp_check_idle(dp_engine *e, dp_error *err)
{
    if (e->in_flight)
        return dp_fail(err, DP_ERROR_USAGE, "a training step has begun and was not finished");
    return atomic_load(&e->failed) ? dp_workers_wait(e, err) : DP_OK;
}

void dp_engine_drop_gradients(dp_engine *engine)
{
    memset(engine->has_gradient, 0, sizeof engine->has_gradient);
}

/* ---- plans ---- */

static int split(const dp_engine *e, int64_t batch, int64_t *chunk)
{
    return dp_split_batch(e->config.split, e->shares, e->device_count, batch, chunk);
}

/* A training chunk must not leave a batch normalisation one value per channel: the variance of one value says
 * nothing. */
static dp_status check_norms(const dp_model *model, int devices, int64_t samples, const int64_t *chunk,
                             dp_error *err)
{
    if (model->norm_positions != 1)
        return DP_OK;
    char sizes[256];
    size_t used = 0;
    bool single = false;
    for (int k = 0; k < devices; k++) {
        single |= chunk[k] == 1;
        if (chunk[k] > 0 && used < sizeof sizes)
            used += (size_t)snprintf(sizes + used, sizeof sizes - used, "%s%lld", used ? "," : "",
                                     (long long)chunk[k]);
    }
    if (!single)
        return DP_OK;
    return dp_fail(
        err, DP_ERROR_USAGE,
        "a batch of %lld sample%s is split into %s: batch normalisation in model '%s' cannot train on "
        "one value per channel; choose another batch size or number of devices, or --drop-last if it "
        "is the last batch",
        (long long)samples, dp_s(samples), sizes, model->name);
}

dp_status dp_engine_check_batch(const dp_context *context, const dp_model *model,
                                const dp_engine_config *config, int64_t batch, dp_error *err)
{
    int64_t chunk[DP_MAX_DEVICES];
    int devices = device_count(context, config);
    dp_split_batch(config->split, config->shares, devices, batch, chunk);
    return check_norms(model, devices, batch, chunk, err);
}

static bool is_planned(const dp_engine *e, int64_t batch, bool training)
{
    for (int i = 0; i < e->planned_count; i++)
        if (e->planned[i].samples == batch && e->planned[i].training == training)
            return true;
    return false;
}

dp_status dp_engine_plan(dp_engine *engine, int64_t batch, bool training, dp_error *err)
{
    DP_TRY(dp_check_idle(engine, err));
    if (batch < 1)
        return dp_fail(err, DP_ERROR_USAGE, "a batch of %lld samples cannot be planned", (long long)batch);
    if (training && engine->config.evaluation_only)
        return dp_fail(err, DP_ERROR_USAGE, "this engine was made for evaluation only: it cannot train");
    if (is_planned(engine, batch, training))
        return DP_OK;
    if (engine->is_staged)
        return dp_fail(err, DP_ERROR_USAGE,
                       "a batch is staged: begin its step before other sizes are planned");
    dp_plan_job *job = &engine->planning;
    job->samples = batch;
    job->training = training;
    split(engine, batch, job->chunk);
    if (training)
        DP_TRY(check_norms(engine->model, engine->device_count, batch, job->chunk, err));
    for (int k = 0; k < engine->device_count; k++)
        dp_worker_post(&engine->replicas[k], dp_replica_plan, job);
    DP_TRY(dp_workers_wait(engine, err));
    DP_TRY(dp_turn_reserve(engine, batch, err));
    DP_TRY(dp_realloc(&engine->planned, (size_t)engine->planned_count + 1, sizeof *engine->planned, "plans",
                      err));
    engine->planned[engine->planned_count++] = (dp_planned){batch, training};
    return DP_OK;
}

/* ---- steps ---- */

static dp_status check_runnable(dp_engine *e, dp_error *err)
{
    if (e->config.dry_run)
        return dp_fail(err, DP_ERROR_USAGE, "this engine was made for a dry run: it has no memory to run in");
    return dp_check_idle(e, err);
}

/* Kernels would read past the row of such a sample, or make a NaN of it. */
static dp_status check_labels(const dp_engine *e, const dp_host_batch *batch, dp_error *err)
{
    const int32_t *labels = batch->y;
    for (int64_t i = 0; e->config.criterion == DP_LOSS_CROSS_ENTROPY && i < batch->samples; i++)
        if (labels[i] < 0 || labels[i] >= e->output_elements)
            return dp_fail(err, DP_ERROR_USAGE,
                           "sample %lld of the batch has label %d; model '%s' has classes 0 to %lld",
                           (long long)i, (int)labels[i], e->model->name, (long long)e->output_elements - 1);
    return DP_OK;
}

static void scatter(dp_engine *e, const dp_host_batch *batch, bool training, dp_chunk_job *job)
{
    job->slot = e->next_slot;
    e->next_slot = (e->next_slot + 1) % DP_SLOTS;
    job->samples = batch->samples;
    job->given_x = job->x = batch->x;
    job->y = batch->y;
    dp_turn_batch(e, job);
    job->gathered = training && e->device_count > 1 && e->config.loss_mode == DP_LOSS_GATHER;
    job->used = split(e, batch->samples, job->chunk);
    job->number = ++e->batch_number;
    dp_track_push(e->track, dp_phase_name(DP_PHASE_SCATTER), NULL, job->number, -1);
    int64_t row = 0;
    for (int k = 0; k < e->device_count; k++) {
        job->first_row[k] = row;
        row += job->chunk[k];
    }
    for (int k = 0; k < e->device_count; k++)
        dp_worker_post(&e->replicas[k], dp_receive_chunk, job);
    dp_track_pop(e->track);
}

static void number_records(dp_engine *e, dp_step_job *job)
{
    job->weights_number = e->weights_number;
    job->frozen_number = e->frozen_number;
    if (job->training) {
        e->buffers_number++;
        for (int64_t i = 0; i < e->model->counters; i++)
            e->counters[i]++;
    }
    job->buffers_number = e->buffers_number;
    for (int k = 0; job->training && k < e->device_count; k++) {
        bool used = job->batch.chunk[k] > 0;
        job->has_gradient[k] = e->has_gradient[k];
        job->contributes[k] = e->has_gradient[k] || used;
        e->has_gradient[k] = job->contributes[k] && !job->update;
        if (job->batch.gathered)
            job->output_number[k] = used ? ++e->outputs_sent[k] : e->outputs_sent[k];
        if (job->update && job->contributes[k])
            e->gradients_sent[k]++;
        job->gradient_number[k] = e->gradients_sent[k];
    }
    if (job->batch.gathered)
        job->loss_number = ++e->losses_done;
    if (job->update)
        e->weights_number++;
}

static void begin_step(dp_engine *e, const dp_host_batch *batch)
{
    dp_step_job *job = &e->step;
    e->began = dp_now();
    dp_track_push(e->track, job->training ? "step" : "evaluate", NULL,
                  e->is_staged ? e->staged.number : e->batch_number + 1, -1);
    if (e->is_staged)
        job->batch = e->staged;
    else
        scatter(e, batch, job->training, &job->batch);
    e->is_staged = false;
    number_records(e, job);
    for (int k = 0; k < e->device_count; k++)
        dp_worker_post(&e->replicas[k], dp_replica_begin_step, job);
}

static dp_status finish_step(dp_engine *e, dp_error *err)
{
    for (int k = 0; k < e->device_count; k++)
        dp_worker_post(&e->replicas[k], dp_replica_end_step, &e->step);
    /* Written while the devices compute. */
    dp_error unwritten = {0};
    dp_track_push(e->track, "write trace", NULL, 0, -1);
    dp_status written = dp_trace_flush(e->config.trace, &unwritten);
    dp_track_pop(e->track);
    dp_track_push(e->track, "wait for devices", NULL, e->step.batch.number, -1);
    dp_status status = dp_workers_wait(e, err);
    dp_track_pop(e->track);
    dp_track_pop(e->track);
    if (status == DP_OK && written != DP_OK)
        status = dp_fail(err, written, "%s", unwritten.message);
    return status;
}

dp_status dp_engine_begin(dp_engine *engine, const dp_step *step, dp_error *err)
{
    DP_TRY(check_runnable(engine, err));
    const dp_host_batch *batch = &step->batch;
    if (engine->is_staged && (engine->staged.given_x != batch->x || engine->staged.samples != batch->samples))
        return dp_fail(err, DP_ERROR_USAGE, "another batch is staged than the one to begin with");
    if (!engine->is_staged)
        DP_TRY(check_labels(engine, batch, err));
    DP_TRY(dp_engine_plan(engine, batch->samples, true, err));
    dp_step_job *job = &engine->step;
    job->training = true;
    job->outputs = NULL;
    job->update = step->update;
    job->loss_scale = step->loss_scale == 0 ? 1 : step->loss_scale;
    job->random = (dp_op_random){.seed = engine->config.seed, .step = step->random_step};
    engine->update_count += step->update;
    job->hyper = dp_update_hyper(&engine->config.optimizer, step->lr, engine->update_count);
    begin_step(engine, batch);
    engine->in_flight = true;
    return DP_OK;
}

dp_status dp_engine_stage(dp_engine *engine, const dp_host_batch *next, dp_error *err)
{
    if (engine->is_staged)
        return dp_fail(err, DP_ERROR_USAGE, "a batch is staged already");
    if (atomic_load(&engine->failed) || !is_planned(engine, next->samples, true))
        return DP_OK; /* begin will plan and send it, or finish report the failure: nothing is lost */
    DP_TRY(check_labels(engine, next, err));
    scatter(engine, next, true, &engine->staged);
    engine->is_staged = true;
    return DP_OK;
}

dp_status dp_engine_finish(dp_engine *engine, dp_step_result *result, dp_error *err)
{
    if (!engine->in_flight)
        return dp_fail(err, DP_ERROR_USAGE, "no training step has begun");
    engine->in_flight = false;
    DP_TRY(finish_step(engine, err));
    double seconds = dp_now() - engine->began;
    engine->train_seconds += seconds;
    engine->train_steps++;
    dp_collect_result(engine, seconds, result);
    engine->waited_before = engine->waited_during = 0;
    if (!result->finite)
        return dp_find_nonfinite(engine, result, err);
    return DP_OK;
}

void dp_engine_waited(dp_engine *engine, double seconds)
{
    double now = dp_now();
    const dp_span span = {
        .name = dp_phase_name(DP_PHASE_WAIT), .begin = now - seconds, .end = now, .bucket = -1};
    dp_track_add(engine->track, &span);
    *(engine->in_flight ? &engine->waited_during : &engine->waited_before) += seconds;
}

dp_status dp_engine_train(dp_engine *engine, const dp_step *step, dp_step_result *result, dp_error *err)
{
    DP_TRY(dp_engine_begin(engine, step, err));
    return dp_engine_finish(engine, result, err);
}

/* Forward through all replicas; outputs is NULL for the criterion's result. */
static dp_status run_forward(dp_engine *e, const dp_host_batch *batch, float *outputs, dp_error *err)
{
    DP_TRY(check_runnable(e, err));
    if (e->is_staged)
        return dp_fail(err, DP_ERROR_USAGE, "a batch is staged for training: begin its step first");
    if (!outputs)
        DP_TRY(check_labels(e, batch, err));
    DP_TRY(dp_engine_plan(e, batch->samples, false, err));
    e->step.training = e->step.update = false;
    e->step.outputs = outputs && e->config.dim > 0 ? e->turned.outputs : outputs;
    begin_step(e, batch);
    return finish_step(e, err);
}

dp_status dp_engine_evaluate(dp_engine *engine, const dp_host_batch *batch, dp_step_result *result,
                             dp_error *err)
{
    DP_TRY(run_forward(engine, batch, NULL, err));
    dp_collect_result(engine, dp_now() - engine->began, result);
    return DP_OK;
}

dp_status dp_engine_forward(dp_engine *engine, const dp_host_batch *batch, float *outputs, dp_error *err)
{
    const dp_host_batch inputs = {.samples = batch->samples, .x = batch->x};
    DP_TRY(run_forward(engine, &inputs, outputs, err));
    dp_turn_outputs(engine, batch->samples, outputs);
    return DP_OK;
}

/* ---- reports ---- */

int dp_engine_devices(const dp_engine *engine)
{
    return engine->device_count;
}

const char *dp_memory_purpose(int purpose)
{
    return dp_purpose_name((dp_purpose)purpose);
}

_Static_assert((int)DP_PURPOSES == (int)DP_MEM_PURPOSES, "the public number of purposes");

dp_status dp_engine_report(const dp_engine *engine, int index, dp_device_report *out, dp_error *err)
{
    if (index < 0 || index >= engine->device_count)
        return dp_fail(err, DP_ERROR_USAGE, "there is no device %d in this engine of %d", index,
                       engine->device_count);
    const dp_replica *r = &engine->replicas[index];
    memset(out, 0, sizeof *out);
    snprintf(out->device, sizeof out->device, "%s:%d", r->device->backend->call->name, r->device->id);
    out->samples = r->samples_trained;
    out->steps = engine->train_steps;
    out->busy_fraction = engine->train_seconds > 0 ? r->clock.busy_seconds / engine->train_seconds : 0;
    out->peak_total_bytes = dp_ledger_peaks(&r->device->ledger, out->peak_bytes);
    out->allocations = atomic_load(&r->device->ledger.allocations);
    return DP_OK;
}
