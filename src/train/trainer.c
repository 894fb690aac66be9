/* The training loop: epochs of windows of micro-batches, validation, checkpoints. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/thread.h"
#include "io/file.h"
#include "train/train.h"

dp_train_config dp_train_defaults(void)
{
    return (dp_train_config){
        .engine = dp_engine_defaults(),
        .batch_size = 64,
        .epochs = 10,
        .lr = 0.001,
        .lr_step = 30,
        .lr_gamma = 0.1,
        .accumulation_steps = 1,
        .shuffle = true,
        .workers = 2,
        .valid_split = 0.15,
    };
}

double dp_learning_rate(const dp_train_config *config, int64_t epoch)
{
    return config->lr_step == 0 ? config->lr
                                : config->lr * pow(config->lr_gamma, (double)(epoch / config->lr_step));
}

typedef struct trainer {
    const dp_train_config *config;
    const dp_train_observer *observer;
    dp_context *context;
    const dp_model *model;
    dp_model_state *state;
    const dp_dataset *train, *valid;
    dp_engine *engine;
    dp_loader *loader, *valid_loader;
    dp_model_dir dir;
    dp_log *log;
    dp_trace *trace;
    double best;
    dp_train_summary *summary;

    dp_train_progress progress; /* of the epoch under way */
    double loss_sum, epoch_began;
    bool stopped; /* max_steps is reached */
} trainer;

__attribute__((format(printf, 2, 3))) static void note(const trainer *t, const char *format, ...)
{
    if (!t->observer || !t->observer->note)
        return;
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    t->observer->note(t->observer->user, text);
}

/* ---- before the first step ---- */

/* A last write that cannot succeed is better known before hours of training. */
static dp_status check_save(const char *path, dp_error *err)
{
    dp_atomic_file *file;
    DP_TRY(dp_atomic_open(path, &file, err));
    dp_atomic_abandon(file);
    return DP_OK;
}

static dp_status open_log(trainer *t, dp_error *err)
{
    if (t->config->log)
        return dp_log_open(t->config->log, &t->log, err);
    if (!t->config->model_dir)
        return DP_OK;
    char *path;
    DP_TRY(dp_model_dir_file(&t->dir, "log.jsonl", &path, err));
    dp_status status = dp_log_open(path, &t->log, err);
    dp_free(path);
    return status;
}

/* Nothing of an earlier run is touched before all else is known to be well. */
static dp_status open_files(trainer *t, dp_error *err)
{
    const dp_train_config *c = t->config;
    if (c->model_dir)
        DP_TRY(dp_model_dir_open(c->model_dir, c->overwrite, &t->dir, err));
    if (c->save)
        DP_TRY(check_save(c->save, err));
    DP_TRY(open_log(t, err));
    return c->model_dir ? dp_model_dir_clear(&t->dir, err) : DP_OK;
}

/* Makes everything that the run's batch sizes need, so that no step has to. */
static dp_status plan_batches(trainer *t, dp_error *err)
{
    const dp_train_config *c = t->config;
    const dp_dataset *sets[] = {t->train, t->valid};
    for (int i = 0; i < 2; i++) {
        if (!sets[i])
            continue;
        int64_t samples = dp_dataset_info_of(sets[i])->samples, tail = samples % c->batch_size;
        if (samples >= c->batch_size)
            DP_TRY(dp_engine_plan(t->engine, c->batch_size, i == 0, err));
        if (tail > 0 && !(i == 0 && c->drop_last))
            DP_TRY(dp_engine_plan(t->engine, tail, i == 0, err));
    }
    return DP_OK;
}

static void tell_start(trainer *t, dp_train_start *s)
{
    const dp_train_config *c = t->config;
    *s = (dp_train_start){.config = c,
                          .model = t->model,
                          .train = dp_dataset_info_of(t->train),
                          .valid = t->valid ? dp_dataset_info_of(t->valid) : NULL,
                          .batches = dp_loader_batches(t->loader)};
    int64_t batch = s->train->samples < c->batch_size ? s->train->samples : c->batch_size;
    int64_t sizes[DP_ENGINE_MAX_DEVICES];
    dp_split_batch(c->engine.split, c->engine.shares, c->engine.device_count, batch, sizes);
    for (int k = 0; k < c->engine.device_count; k++)
        if (sizes[k] > 0)
            s->chunk_sizes[s->devices++] = sizes[k];
    if (t->observer && t->observer->start)
        t->observer->start(t->observer->user, s);
    if (s->devices < c->engine.device_count)
        note(t, "a batch of %lld uses %d of %d devices: the others sit it out", (long long)batch, s->devices,
             c->engine.device_count);
    if (c->engine.loss_mode != DP_LOSS_REPLICA || c->engine.device_count == 1)
        return;
    note(t, "Was asked to gather along dimension 0, but all input tensors were scalars; will instead "
            "unsqueeze and "
            "return a vector.");
    for (int k = 1; k < s->devices; k++)
        if (s->chunk_sizes[k] != s->chunk_sizes[0]) {
            note(t,
                 "loss mode replica with uneven chunks: a mean of means counts samples of small chunks more");
            break;
        }
}

static dp_status start(trainer *t, dp_error *err)
{
    const dp_train_config *c = t->config;
    /* The engine first: memory that copies fast is to be had once a device is open. */
    DP_TRY(dp_engine_create(t->context, t->model, &c->engine, &t->engine, err));
    dp_loader_config loader = {.dataset = t->train,
                               .batch_size = c->batch_size,
                               .workers = c->workers,
                               .shuffle = c->shuffle,
                               .drop_last = c->drop_last,
                               .seed = c->seed,
                               .trace = t->trace};
    DP_TRY(dp_make_loader(t->context, &loader, &t->loader, err));
    if (t->valid) {
        loader = (dp_loader_config){.dataset = t->valid,
                                    .batch_size = c->batch_size,
                                    .workers = c->workers,
                                    .trace = t->trace,
                                    .track_name = "validation loader"};
        DP_TRY(dp_make_loader(t->context, &loader, &t->valid_loader, err));
    }
    DP_TRY(dp_engine_set_state(t->engine, t->state, err));
    DP_TRY(plan_batches(t, err));
    DP_TRY(open_files(t, err));
    dp_train_start s;
    tell_start(t, &s);
    return dp_log_start(t->log, &s, t->context, err);
}

/* ---- an epoch ---- */

static dp_status next_batch(trainer *t, const dp_batch **out, dp_error *err)
{
    double began = dp_now();
    DP_TRY(dp_loader_next(t->loader, out, err));
    dp_engine_waited(t->engine, dp_now() - began);
    return DP_OK;
}

/* Does this micro-batch end its accumulation window: the A-th, or the epoch's last? */
static bool ends_window(const trainer *t, int64_t batch)
{
    return (batch + 1) % t->config->accumulation_steps == 0 || batch + 1 == t->progress.batches;
}

static dp_status take_result(trainer *t, const dp_step_result *r, dp_error *err)
{
    dp_train_progress *p = &t->progress;
    int64_t samples = 0;
    for (int k = 0; k < r->devices; k++)
        samples += r->chunk_sizes[k];
    p->loss = r->loss;
    p->samples += samples;
    t->loss_sum += r->loss * (double)samples;
    p->average = t->loss_sum / (double)p->samples;
    DP_TRY(dp_log_batch(t->log, p, r, err));
    if (t->observer && t->observer->batch)
        t->observer->batch(t->observer->user, p);
    if (r->finite)
        return DP_OK;
    return dp_fail(err, DP_ERROR_NONFINITE,
                   "not finite in epoch %lld, batch %lld (step %lld): %s; a lower --lr may help, checkpoints "
                   "are as they were",
                   (long long)p->epoch, (long long)p->batch, (long long)p->step, r->nonfinite_what);
}

/* One micro-batch: while the devices compute it, the next one is fetched and sent ahead. */
static dp_status run_batch(trainer *t, const dp_batch **batch, dp_error *err)
{
    const dp_train_config *c = t->config;
    const dp_batch *current = *batch, *next = NULL;
    t->progress.batch = current->index;
    const dp_step step = {.batch = {current->samples, current->x, current->y},
                          .lr = t->progress.lr,
                          .loss_scale = 1.0 / (double)c->accumulation_steps,
                          .update = ends_window(t, current->index),
                          .random_step =
                              (uint32_t)(t->progress.epoch * t->progress.batches + current->index)};
    DP_TRY(dp_engine_begin(t->engine, &step, err));
    t->progress.step += step.update;
    t->stopped = c->max_steps > 0 && t->progress.step >= c->max_steps;
    if (!t->stopped)
        DP_TRY(next_batch(t, &next, err));
    if (next) {
        const dp_host_batch ahead = {next->samples, next->x, next->y};
        DP_TRY(dp_engine_stage(t->engine, &ahead, err));
    }
    dp_step_result result;
    DP_TRY(dp_engine_finish(t->engine, &result, err));
    dp_loader_release(t->loader, current);
    *batch = next;
    t->progress.seconds = dp_now() - t->epoch_began;
    return take_result(t, &result, err);
}

static dp_status train_epoch(trainer *t, int64_t epoch, dp_error *err)
{
    int64_t step = t->progress.step;
    t->progress = (dp_train_progress){.epoch = epoch,
                                      .batches = dp_loader_batches(t->loader),
                                      .step = step,
                                      .lr = dp_learning_rate(t->config, epoch),
                                      .engine = t->engine};
    t->loss_sum = 0;
    t->epoch_began = dp_now();
    DP_TRY(dp_loader_start(t->loader, epoch, 0, err));
    const dp_batch *batch;
    DP_TRY(next_batch(t, &batch, err));
    while (batch && !t->stopped)
        DP_TRY(run_batch(t, &batch, err));
    return DP_OK;
}

/* ---- after an epoch ---- */

static void describe_data(const trainer *t, int64_t epoch, dp_checkpoint_info *out)
{
    const dp_dataset_info *d = dp_dataset_info_of(t->train);
    *out = (dp_checkpoint_info){.criterion = t->config->engine.criterion,
                                .pos_weight = t->config->engine.pos_weight,
                                .normalize_channels = d->normalize_channels,
                                .data_seed = t->config->data_seed,
                                .valid_split = t->config->valid_split,
                                .epoch = epoch};
    memcpy(out->mean, d->mean, sizeof out->mean);
    memcpy(out->std, d->std, sizeof out->std);
}

static dp_status save_checkpoints(trainer *t, int64_t epoch, bool best, dp_error *err)
{
    if (!t->config->model_dir)
        return DP_OK;
    char name[64], *path;
    dp_checkpoint_info info;
    describe_data(t, epoch, &info);
    DP_TRY(dp_engine_get_state(t->engine, t->state, err));
    snprintf(name, sizeof name, "model_epoch_%lld.safetensors", (long long)epoch);
    for (int i = 0; i < 1 + best; i++) {
        DP_TRY(dp_model_dir_file(&t->dir, i == 0 ? name : "model_best.safetensors", &path, err));
        dp_status status = dp_checkpoint_write(path, t->model, t->state, &info, err);
        dp_free(path);
        DP_TRY(status);
    }
    return DP_OK;
}

static dp_status end_epoch(trainer *t, dp_error *err)
{
    const dp_train_progress *p = &t->progress;
    dp_epoch_summary e = {.epoch = p->epoch,
                          .epochs = t->config->epochs,
                          .train_loss = p->average,
                          .seconds = p->seconds,
                          .samples_per_second = p->seconds > 0 ? (double)p->samples / p->seconds : 0};
    if (t->valid_loader) {
        dp_evaluation v;
        bool labels = t->config->engine.criterion == DP_LOSS_CROSS_ENTROPY;
        DP_TRY(dp_evaluate_with(t->engine, t->valid_loader, labels, &v, err));
        e.validated = true;
        e.valid_loss = v.loss;
        e.has_accuracy = v.has_accuracy;
        e.valid_accuracy = v.accuracy;
    }
    double judged = e.validated ? e.valid_loss : e.train_loss;
    e.best = p->epoch == 0 || judged < t->best;
    if (e.best)
        t->best = judged;
    DP_TRY(dp_log_epoch(t->log, &e, err));
    if (e.validated && !isfinite(e.valid_loss))
        return dp_fail(err, DP_ERROR_NONFINITE,
                       "the validation loss after epoch %lld is not finite; a lower --lr may help, "
                       "checkpoints are as they were",
                       (long long)p->epoch);
    DP_TRY(save_checkpoints(t, p->epoch, e.best, err));
    t->summary->last = e;
    if (t->observer && t->observer->epoch)
        t->observer->epoch(t->observer->user, &e);
    return DP_OK;
}

static dp_status end_run(trainer *t, double seconds, dp_error *err)
{
    dp_train_summary *s = t->summary;
    s->steps = t->progress.step;
    s->seconds = seconds;
    DP_TRY(dp_engine_get_state(t->engine, t->state, err));
    if (t->config->save) {
        dp_checkpoint_info info;
        describe_data(t, -1, &info);
        DP_TRY(dp_checkpoint_write(t->config->save, t->model, t->state, &info, err));
    }
    s->devices = dp_engine_devices(t->engine);
    for (int k = 0; k < s->devices; k++) {
        DP_TRY(dp_engine_report(t->engine, k, &s->device[k], err));
        DP_TRY(dp_log_device(t->log, &s->device[k], err));
    }
    return dp_log_end(t->log, "completed", s->steps, seconds, err);
}

static dp_status run(trainer *t, dp_error *err)
{
    double began = dp_now();
    DP_TRY(start(t, err));
    for (int64_t epoch = 0; epoch < t->config->epochs && !t->stopped; epoch++) {
        DP_TRY(train_epoch(t, epoch, err));
        DP_TRY(end_epoch(t, err));
    }
    return end_run(t, dp_now() - began, err);
}

/* After all that records has been freed. A run that failed leaves no trace. */
static dp_status close_trace(trainer *t, dp_status status, dp_error *err)
{
    uint64_t dropped;
    if (!t->trace || status != DP_OK) {
        dp_trace_abandon(t->trace);
        return status;
    }
    DP_TRY(dp_trace_close(t->trace, &dropped, err));
    if (dropped > 0)
        note(t, "the trace in '%s' is not complete: %llu spans were left out, as it holds %d at most",
             t->config->trace, (unsigned long long)dropped, DP_TRACE_MAX_SPANS);
    return DP_OK;
}

dp_status dp_train(dp_context *context, const dp_model *model, dp_model_state *state, const dp_dataset *train,
                   const dp_dataset *valid, const dp_train_config *config, const dp_train_observer *observer,
                   dp_train_summary *summary, dp_error *err)
{
    memset(summary, 0, sizeof *summary);
    if (config->batch_size < 1 || config->epochs < 1 || config->accumulation_steps < 1)
        return dp_fail(err, DP_ERROR_USAGE, "batch size, epochs and accumulation steps must be at least 1");
    DP_TRY(dp_check_fit(model, &config->engine, train, err));
    if (valid)
        DP_TRY(dp_check_fit(model, &config->engine, valid, err));
    int ids[DP_ENGINE_MAX_DEVICES];
    dp_train_config own = *config;
    own.engine = dp_with_all_devices(context, &config->engine, ids);
    trainer t = {.config = &own,
                 .observer = observer,
                 .context = context,
                 .model = model,
                 .state = state,
                 .train = train,
                 .valid = valid,
                 .dir = {.lock = -1},
                 .summary = summary};
    dp_status status = config->trace ? dp_trace_open(config->trace, &t.trace, err) : DP_OK;
    own.engine.trace = t.trace;
    if (status == DP_OK)
        status = run(&t, err);
    dp_engine_free(t.engine);
    dp_loader_free(t.loader);
    dp_loader_free(t.valid_loader);
    status = close_trace(&t, status, err);
    dp_log_close(t.log);
    dp_model_dir_close(&t.dir);
    return status;
}
