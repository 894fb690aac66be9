/* The training loop: epochs of windows of micro-batches, validation, checkpoints. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "base/thread.h"
#include "dptrain/report.h"
#include "io/file.h"
#include "train/trainer.h"

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

/* ---- an epoch ---- */

static bool wants_stop(const dp_trainer *t)
{
    return t->observer && t->observer->stop && t->observer->stop(t->observer->user);
}

static dp_status next_batch(dp_trainer *t, const dp_batch **out, dp_error *err)
{
    double began = dp_now();
    DP_TRY(dp_loader_next(t->loader, out, err));
    dp_engine_waited(t->engine, dp_now() - began);
    return DP_OK;
}

/* Does this micro-batch end its accumulation window: the A-th, or the epoch's last? */
static bool ends_window(const dp_trainer *t, int64_t batch)
{
    return (batch + 1) % t->config->accumulation_steps == 0 || batch + 1 == t->progress.batches;
}

static dp_status fail_nonfinite(const dp_trainer *t, const dp_batch *batch, const dp_step_result *r,
                                dp_error *err)
{
    const dp_train_progress *p = &t->progress;
    char fault[DP_FAULT_SIZE];
    dp_batch_fault(dp_dataset_info_of(t->train), batch, fault);
    return dp_fail(err, DP_ERROR_NONFINITE,
                   "not finite in epoch %lld, batch %lld (step %lld): %s; %s; checkpoints are as they were",
                   (long long)p->epoch, (long long)p->batch, (long long)p->step, r->nonfinite_what,
                   *fault ? fault : "a lower --lr may help");
}

static dp_status take_result(dp_trainer *t, const dp_batch *batch, const dp_step_result *r, dp_error *err)
{
    dp_train_progress *p = &t->progress;
    dp_run_state *s = &t->state;
    p->seconds = dp_now() - t->epoch_began;
    p->loss = r->loss;
    p->samples += batch->samples;
    s->loss_sum += r->loss * (double)batch->samples;
    p->average = s->loss_sum / (double)p->samples;
    s->batch = p->batch + 1;
    s->step = p->step;
    s->samples = p->samples;
    s->epoch_seconds = p->seconds;
    s->ended = t->is_saved = false;
    DP_TRY(dp_log_batch(t->log, p, r, err));
    if (t->observer && t->observer->batch)
        t->observer->batch(t->observer->user, p);
    return r->finite ? DP_OK : fail_nonfinite(t, batch, r, err);
}

/* One micro-batch: while the devices compute it, the next one is fetched and sent ahead. */
static dp_status run_batch(dp_trainer *t, const dp_batch **batch, dp_error *err)
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
    t->has_reached_limit = c->max_steps > 0 && t->progress.step >= c->max_steps;
    if (!t->has_reached_limit)
        DP_TRY(next_batch(t, &next, err));
    if (next) {
        const dp_host_batch ahead = {next->samples, next->x, next->y};
        DP_TRY(dp_engine_stage(t->engine, &ahead, err));
    }
    dp_step_result result;
    DP_TRY(dp_engine_finish(t->engine, &result, err));
    DP_TRY(take_result(t, current, &result, err));
    dp_loader_release(t->loader, current);
    *batch = next;
    return DP_OK;
}

/* A checkpoint within the epoch. */
static dp_status save_here(dp_trainer *t, dp_error *err)
{
    if (!t->is_saved)
        t->state.log = dp_log_position(t->log);
    return dp_trainer_save(t, err);
}

/* Between steps: a checkpoint that is due, and the wish to stop. An open window has no place in a
 * checkpoint: it is closed first. */
static dp_status between_batches(dp_trainer *t, dp_error *err)
{
    const dp_train_config *c = t->config;
    if (!ends_window(t, t->progress.batch))
        return DP_OK;
    t->interrupted = wants_stop(t);
    bool due = c->save_every > 0 && t->state.step % c->save_every == 0 && !t->has_reached_limit;
    return due ? save_here(t, err) : DP_OK;
}

static void begin_epoch(dp_trainer *t)
{
    const dp_run_state *s = &t->state;
    t->progress = (dp_train_progress){.epoch = s->epoch,
                                      .batch = s->batch - 1,
                                      .batches = dp_loader_batches(t->loader),
                                      .step = s->step,
                                      .samples = s->samples,
                                      .average = s->samples ? s->loss_sum / (double)s->samples : 0,
                                      .seconds = s->epoch_seconds,
                                      .lr = dp_learning_rate(t->config, s->epoch),
                                      .engine = t->engine};
    t->epoch_began = dp_now() - s->epoch_seconds;
}

/* From where the run is to the epoch's end, the limit of steps, or an interruption. */
static dp_status train_epoch(dp_trainer *t, dp_error *err)
{
    begin_epoch(t);
    t->interrupted = wants_stop(t);
    if (t->interrupted || t->has_reached_limit)
        return DP_OK;
    DP_TRY(dp_loader_start(t->loader, t->state.epoch, t->state.batch, err));
    const dp_batch *batch;
    DP_TRY(next_batch(t, &batch, err));
    while (batch && !t->has_reached_limit && !t->interrupted) {
        DP_TRY(run_batch(t, &batch, err));
        DP_TRY(between_batches(t, err));
    }
    return DP_OK;
}

/* ---- after an epoch ---- */

static dp_status validate(dp_trainer *t, dp_epoch_summary *e, dp_evaluation *v, dp_error *err)
{
    if (!t->valid_loader)
        return DP_OK;
    DP_TRY(dp_evaluate_with(t->engine, t->config->engine.criterion, t->valid_loader, t->valid, t->observer, v,
                            &t->interrupted, err));
    e->validated = true;
    e->valid_loss = v->loss;
    e->has_accuracy = v->has_accuracy;
    e->valid_accuracy = v->accuracy;
    e->has_overlap = v->has_overlap;
    e->valid_iou = v->iou;
    e->valid_f1 = v->f1;
    return DP_OK;
}

/* The state after the epoch's end. Where the limit of steps cut the epoch short, the run can go on within it
 * later: the position and the sums stay, and the epoch's event will be cut off the log. */
static void conclude(dp_trainer *t, const dp_epoch_summary *e, dp_log_mark before)
{
    dp_run_state *s = &t->state;
    bool whole = s->batch == t->progress.batches;
    s->last = *e;
    s->has_last = s->ended = true;
    t->is_saved = false;
    s->log = whole ? dp_log_position(t->log) : before;
    if (!whole)
        return;
    s->epoch++;
    s->batch = s->samples = 0;
    s->loss_sum = s->epoch_seconds = 0;
}

static dp_status end_epoch(dp_trainer *t, dp_error *err)
{
    const dp_train_progress *p = &t->progress;
    dp_run_state *s = &t->state;
    dp_epoch_summary e = {.epoch = p->epoch,
                          .epochs = t->config->epochs,
                          .train_loss = p->average,
                          .seconds = p->seconds,
                          .samples_per_second = p->seconds > 0 ? (double)p->samples / p->seconds : 0};
    dp_evaluation v = {0};
    DP_TRY(validate(t, &e, &v, err));
    if (t->interrupted)
        return DP_OK;
    double judged = e.validated ? e.valid_loss : e.train_loss;
    e.best = !s->has_best || judged < s->best;
    dp_log_mark before = dp_log_position(t->log);
    DP_TRY(dp_log_epoch(t->log, &e, err));
    if (!isfinite(judged))
        return dp_fail(
            err, DP_ERROR_NONFINITE,
            "the validation loss after epoch %lld is not finite in %s; %scheckpoints are as they were",
            (long long)p->epoch, v.nonfinite, v.data_at_fault ? "" : "a lower --lr may help, ");
    if (e.best)
        s->best = judged;
    s->has_best = true;
    conclude(t, &e, before);
    DP_TRY(dp_trainer_save(t, err));
    DP_TRY(dp_trainer_export(t, err));
    if (t->observer && t->observer->epoch)
        t->observer->epoch(t->observer->user, &e);
    return DP_OK;
}

/* ---- the run ---- */

static dp_status end_run(dp_trainer *t, dp_error *err)
{
    dp_train_summary *s = t->summary;
    if (t->interrupted)
        DP_TRY(save_here(t, err));
    DP_TRY(dp_engine_get_buffers(t->engine, t->tensors.model.buffers, t->tensors.model.counters, err));
    if (t->result)
        DP_TRY(dp_engine_get_weights(t->engine, t->result->weights, err));
    if (!t->interrupted)
        DP_TRY(dp_trainer_save_final(t, err));
    s->devices = dp_engine_devices(t->engine);
    for (int k = 0; k < s->devices; k++) {
        DP_TRY(dp_trainer_report(t, k, &s->device[k], err));
        dp_timeline_span timeline[DP_TIMELINE_MAX];
        int spans = dp_engine_timeline(t->engine, k, DP_TIMELINE_MAX, timeline);
        DP_TRY(dp_log_device(t->log, &s->device[k], spans, timeline, err));
    }
    s->seconds = dp_now() - t->began;
    return dp_log_end(t->log, t->interrupted ? "interrupted" : "completed", t->state.step, s->seconds, err);
}

static dp_status take_steps(dp_trainer *t, dp_error *err)
{
    t->began = dp_now() - t->state.seconds;
    DP_TRY(dp_trainer_start(t, err));
    while (t->state.epoch < t->config->epochs) {
        DP_TRY(train_epoch(t, err));
        if (!t->interrupted)
            DP_TRY(end_epoch(t, err));
        if (t->interrupted || t->has_reached_limit)
            break;
    }
    return end_run(t, err);
}

/* What was asked of a run that has nothing left to do. */
static dp_status finish_again(dp_trainer *t, dp_error *err)
{
    const dp_run_state *s = &t->state;
    dp_trainer_note(t,
                    "the run in '%s' is finished: %lld whole epoch%s, %lld step%s; nothing is left to train",
                    t->resumed_from, (long long)s->epoch, dp_s(s->epoch), (long long)s->step, dp_s(s->step));
    DP_TRY(dp_run_file_read(&t->file, t->model, &t->tensors, err));
    DP_TRY(dp_trainer_settle(t, err));
    DP_TRY(dp_trainer_export(t, err));
    DP_TRY(dp_trainer_save_final(t, err));
    t->summary->finished = true;
    t->summary->seconds = s->seconds;
    return t->log_path ? dp_log_complete(t->log_path, s->step, s->seconds, err) : DP_OK;
}

/* The state that training begins from, unless a file holds it. */
static dp_status make_state(dp_trainer *t, dp_error *err)
{
    if (!t->result) {
        DP_TRY(dp_model_state_create(t->model, &t->own, err));
        dp_model_state_init(t->model, t->config->seed, &t->own);
    }
    t->tensors.model = t->result ? *t->result : t->own;
    return DP_OK;
}

static dp_status run(dp_trainer *t, dp_error *err)
{
    DP_TRY(make_state(t, err));
    DP_TRY(dp_trainer_locate(t, err));
    DP_TRY(dp_trainer_is_finished(t) ? finish_again(t, err) : take_steps(t, err));
    t->summary->steps = t->state.step;
    t->summary->interrupted = t->interrupted;
    t->summary->has_last = t->state.has_last;
    t->summary->last = t->state.last;
    return DP_OK;
}

static void close_run(dp_trainer *t)
{
    dp_engine_free(t->engine);
    dp_loader_free(t->loader);
    dp_loader_free(t->valid_loader);
    dp_log_close(t->log);
    dp_model_dir_close(&t->dir);
    dp_settings_clear(&t->settings);
    dp_run_file_close(&t->file);
    dp_run_tensors_clear(&t->tensors);
    dp_model_state_free(&t->own);
    dp_free(t->log_path);
    dp_free(t->resumed_from);
}

/* After all that records has been freed. A run that failed, or had nothing to do, leaves no trace. */
static dp_status close_trace(dp_trainer *t, dp_status status, dp_error *err)
{
    uint64_t dropped;
    if (!t->trace || status != DP_OK || t->summary->finished) {
        dp_trace_abandon(t->trace);
        return status;
    }
    DP_TRY(dp_trace_close(t->trace, &dropped, err));
    if (dropped > 0)
        dp_trainer_note(t, "the trace in '%s' is not complete: %llu span%s left out, as it holds %d at most",
                        t->config->trace, (unsigned long long)dropped, dropped == 1 ? " was" : "s were",
                        DP_TRACE_MAX_SPANS);
    return DP_OK;
}

/* The log of a run that was finished before may be gone, or damaged and moved aside. */
static dp_status write_report(const dp_trainer *t, dp_error *err)
{
    if (t->summary->finished && !dp_file_exists(t->log_path))
        return dp_fail(err, DP_ERROR_IO,
                       "cannot write '%s': the log of the finished run is not at '%s' any more; leave out "
                       "--report, or train again with --overwrite",
                       t->config->report, t->log_path);
    return dp_report_write(t->log_path, t->config->report, err);
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
    dp_trainer t = {.config = &own,
                    .observer = observer,
                    .context = context,
                    .model = model,
                    .train = train,
                    .valid = valid,
                    .summary = summary,
                    .dir = {.lock = -1},
                    .result = state};
    dp_status status = config->trace ? dp_trace_open(config->trace, &t.trace, err) : DP_OK;
    own.engine.trace = t.trace;
    if (status == DP_OK)
        status = run(&t, err);
    if (status == DP_OK && config->report)
        status = write_report(&t, err);
    close_run(&t);
    return close_trace(&t, status, err);
}
