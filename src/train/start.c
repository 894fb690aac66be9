/* Before the first step: which state the run begins from, and everything that the steps will need. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "base/text.h"
#include "base/thread.h"
#include "io/file.h"
#include "train/trainer.h"

static void tell(const dp_trainer *t, void (*to)(void *user, const char *text), const char *format,
                 va_list args)
{
    char text[2048];
    vsnprintf(text, sizeof text, format, args);
    to(t->observer->user, text);
}

__attribute__((format(printf, 2, 3))) void dp_trainer_note(const dp_trainer *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (t->observer && t->observer->note)
        tell(t, t->observer->note, format, args);
    va_end(args);
}

__attribute__((format(printf, 2, 3))) void dp_trainer_warn(const dp_trainer *t, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (t->observer && t->observer->warning)
        tell(t, t->observer->warning, format, args);
    va_end(args);
}

/* ---- where to begin ---- */

static bool same_directory(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* What cannot be continued from, and why, as far as a line has room. */
typedef struct losses {
    char text[1400];
} losses;

static void add_loss(losses *l, const char *reason)
{
    size_t used = strlen(l->text);
    if (used + strlen(reason) + sizeof "; " <= sizeof l->text)
        snprintf(l->text + used, sizeof l->text - used, "%s%s", used ? "; " : "", reason);
}

/* Nothing is sound. What is advised starts afresh whatever --resume was. */
static dp_status fail_unsound(const dp_trainer *t, const char *directory, const char *lost, dp_error *err)
{
    const char *own = t->config->model_dir;
    bool here = own && same_directory(directory, own);
    return dp_fail(err, DP_ERROR_IO, "%s; --resume never%s starts afresh", lost, here ? " --overwrite" : "");
}

/* The run begins in its own directory, with nothing or with a state from elsewhere. */
static dp_status check_fresh(const dp_trainer *t, dp_error *err)
{
    dp_error one = {0};
    dp_status status = dp_model_dir_check_fresh(&t->dir, t->config->overwrite, &one);
    if (status == DP_OK)
        return DP_OK;
    bool holds_a_run = t->elsewhere && status == DP_ERROR_USAGE;
    return dp_fail(err, status, "%s%s", one.message,
                   holds_a_run ? "; without --resume the run in it continues" : "");
}

/* The states that the run may continue from, and their directory. */
static dp_status choose_states(dp_trainer *t, const char **directory, dp_state_list *states, dp_error *err)
{
    const dp_train_config *c = t->config;
    *directory = c->resume == DP_RESUME_FROM ? c->resume_from : c->model_dir;
    if (c->resume != DP_RESUME_NEVER && *directory)
        DP_TRY(dp_model_dir_states(*directory, states, err));
    if (states->count == 0 && states->fault.status != DP_OK) {
        losses lost = {""};
        add_loss(&lost, states->fault.message);
        add_loss(&lost, "no state lies beside it");
        return fail_unsound(t, *directory, lost.text, err);
    }
    if (c->resume == DP_RESUME_FROM && states->count == 0)
        return dp_fail(err, DP_ERROR_IO, "'%s' holds no checkpoint that a run can continue from", *directory);
    t->elsewhere = states->count > 0 && c->model_dir && !same_directory(*directory, c->model_dir);
    bool fresh = c->model_dir && (states->count == 0 || t->elsewhere);
    return fresh ? check_fresh(t, err) : DP_OK;
}

static dp_status read_state(dp_trainer *t, const char *directory, const char *name, dp_error *err)
{
    char *path;
    DP_TRY(dp_model_dir_file(directory, name, &path, err));
    dp_status status = dp_run_file_open(path, &t->file, err);
    dp_free(path);
    DP_TRY(status);
    t->state = t->file.state;
    status = dp_settings_compare(&t->file.settings, &t->settings, directory, err);
    if (status == DP_OK)
        status = dp_run_file_check(&t->file, t->model, t->tensors.moments, err);
    if (status != DP_OK)
        dp_run_file_close(&t->file); /* another state may be tried */
    return status;
}

static void warn_of_losses(const dp_trainer *t, const char *lost, const char *directory, const char *chosen)
{
    if (dp_trainer_is_finished(t))
        dp_trainer_warn(t, "%s; '%s/%s' is the newest sound state%s", lost, directory, chosen,
                        t->config->model_dir ? ": resume.json is written anew" : "");
    else
        dp_trainer_warn(t,
                        "%s; continuing after step %lld, from '%s/%s', the newest sound state: what was "
                        "trained after it is trained again",
                        lost, (long long)t->state.step, directory, chosen);
}

/* The first state of the list that is not damaged. */
static dp_status read_states(dp_trainer *t, const char *directory, const dp_state_list *states, dp_error *err)
{
    int chosen = 0;
    losses lost = {""};
    dp_error one = {.status = DP_ERROR_IO};
    if (states->fault.status != DP_OK)
        add_loss(&lost, states->fault.message);
    for (; chosen < states->count; chosen++) {
        if (read_state(t, directory, states->names[chosen], &one) == DP_OK)
            break;
        if (!dp_file_is_damaged(&one))
            return dp_fail(err, one.status, "%s", one.message);
        add_loss(&lost, one.message);
    }
    if (chosen == states->count)
        return fail_unsound(t, directory, lost.text, err);
    if (!t->elsewhere)
        dp_model_dir_continue(&t->dir, states, chosen);
    DP_TRY(dp_strdup(directory, &t->resumed_from, err));
    t->has_reached_limit = t->config->max_steps > 0 && t->state.step >= t->config->max_steps;
    if (*lost.text)
        warn_of_losses(t, lost.text, directory, states->names[chosen]);
    return DP_OK;
}

static dp_status load_init(dp_trainer *t, dp_error *err)
{
    const dp_train_config *c = t->config;
    dp_load_report r;
    char stripped[64] = "", kept[64] = "";
    DP_TRY(dp_weights_load(c->init, t->model, c->init_partial, &t->tensors.model, &r, err));
    if (r.stripped)
        snprintf(stripped, sizeof stripped, ", 'module.' stripped from %d name%s", r.stripped,
                 dp_s(r.stripped));
    if (r.skipped)
        snprintf(kept, sizeof kept, ", %d parameter%s", r.skipped,
                 r.skipped == 1 ? " keeps its initial value" : "s keep their initial values");
    dp_trainer_note(t, "loaded %d parameter%s from '%s'%s%s", r.loaded, dp_s(r.loaded), c->init, stripped,
                    kept);
    return DP_OK;
}

/* A last write that cannot succeed is better known before hours of training. */
static dp_status check_save(const char *path, dp_error *err)
{
    dp_atomic_file *file;
    DP_TRY(dp_atomic_remove_stale(path, err));
    DP_TRY(dp_atomic_open(path, &file, err));
    dp_atomic_abandon(file);
    return DP_OK;
}

/* So that a directory that has become read-only is known before the first checkpoint is due. */
static dp_status check_model_dir(const dp_trainer *t, dp_error *err)
{
    char *path;
    DP_TRY(dp_model_dir_file(t->dir.path, dp_best_name, &path, err));
    dp_status status = check_save(path, err);
    dp_free(path);
    return status;
}

static dp_status find_log(dp_trainer *t, dp_error *err)
{
    const dp_train_config *c = t->config;
    if (c->log)
        return dp_strdup(c->log, &t->log_path, err);
    return c->model_dir ? dp_model_dir_file(c->model_dir, "log.jsonl", &t->log_path, err) : DP_OK;
}

dp_status dp_trainer_locate(dp_trainer *t, dp_error *err)
{
    const dp_train_config *c = t->config;
    const char *directory;
    dp_state_list states = {0};
    if (c->model_dir)
        DP_TRY(dp_model_dir_open(c->model_dir, &t->dir, err));
    DP_TRY(find_log(t, err));
    dp_status status = choose_states(t, &directory, &states, err);
    if (status == DP_OK && (c->model_dir || states.count > 0)) {
        status = dp_settings_collect(t->context, c, t->model, t->train, t->valid, &t->settings, err);
        t->tensors.moments = dp_optimizer_moments(&c->engine.optimizer);
    }
    if (status == DP_OK && states.count > 0)
        status = read_states(t, directory, &states, err);
    else if (status == DP_OK && c->init)
        status = load_init(t, err);
    dp_state_list_clear(&states);
    DP_TRY(status);
    t->is_saved = t->resumed_from && !t->elsewhere;
    t->state.last.epochs = c->epochs;
    memcpy(t->samples_before, t->state.device_samples, sizeof t->samples_before);
    if (c->report && !t->log_path)
        return dp_fail(err, DP_ERROR_USAGE, "a report is made from the log, and this run has none");
    if (c->model_dir)
        DP_TRY(check_model_dir(t, err));
    const char *const outputs[] = {c->save, c->report};
    for (int i = 0; i < 2; i++)
        if (outputs[i])
            DP_TRY(check_save(outputs[i], err));
    return DP_OK;
}

bool dp_trainer_is_finished(const dp_trainer *t)
{
    return t->resumed_from && !t->elsewhere &&
           (t->state.epoch >= t->config->epochs || (t->has_reached_limit && t->state.ended));
}

/* ---- what the steps need ---- */

static void drop_weights(dp_trainer *t)
{
    dp_free(t->own.weights);
    t->own.weights = NULL;
    t->tensors.model.weights = NULL;
}

/* The host never holds all of what the engine does: a state goes into it from the file. */
static dp_status fill_engine(dp_trainer *t, dp_error *err)
{
    if (!t->resumed_from)
        DP_TRY(dp_engine_set_state(t->engine, &t->tensors.model, err));
    drop_weights(t);
    DP_TRY(dp_run_tensors_leave(&t->tensors, t->model, t->engine, err));
    if (!t->resumed_from)
        return DP_OK;
    DP_TRY(dp_run_file_read(&t->file, t->model, &t->tensors, err));
    dp_run_file_close(&t->file);
    return dp_engine_set_optimizer(t->engine, &(dp_optimizer_state){.updates = t->state.step}, err);
}

/* The model_best of the run that continues here stays the best until a better one comes. */
static dp_status bring_best(const dp_trainer *t, dp_error *err)
{
    char *from = NULL, *to = NULL;
    dp_status status = dp_model_dir_file(t->resumed_from, dp_best_name, &from, err);
    if (status == DP_OK)
        status = dp_model_dir_file(t->dir.path, dp_best_name, &to, err);
    if (status == DP_OK && dp_file_exists(from))
        status = dp_file_copy(from, to, err);
    dp_free(from);
    dp_free(to);
    return status;
}

static dp_status move_log_aside(const dp_trainer *t, dp_error *err)
{
    char *aside;
    dp_status status = dp_file_move_aside(t->log_path, &aside, err);
    if (status != DP_OK) {
        dp_error_prefix(err, "'%s' is not the log of this run; choose another --log", t->log_path);
        return status;
    }
    dp_trainer_warn(t, "'%s' is damaged or no log: it was moved to '%s'", t->log_path, aside);
    dp_free(aside);
    return DP_OK;
}

static dp_status settle_log(const dp_trainer *t, dp_error *err)
{
    dp_log_kind kind;
    DP_TRY(dp_log_recognize(t->log_path, &t->state.log, &kind, err));
    if (kind == DP_LOG_FOREIGN)
        return move_log_aside(t, err);
    if (kind == DP_LOG_OTHER)
        dp_trainer_warn(t, "'%s' is not as the checkpoint knew it: its events stay, new ones are appended",
                        t->log_path);
    return DP_OK;
}

/* What was no file, and why the run may continue from an older state or start afresh, would be in the way of
 * the next. */
static dp_status move_obstacles(const dp_trainer *t, dp_error *err)
{
    char *path, *aside;
    for (;;) {
        DP_TRY(dp_model_dir_obstacle(&t->dir, &path, err));
        if (!path)
            return DP_OK;
        dp_status status = dp_file_move_aside(path, &aside, err);
        if (status == DP_OK)
            dp_trainer_warn(t, "'%s' was in the way of a state: it was moved to '%s'", path, aside);
        dp_free(path);
        DP_TRY(status);
        dp_free(aside);
    }
}

dp_status dp_trainer_settle(dp_trainer *t, dp_error *err)
{
    if (!t->resumed_from || t->elsewhere)
        return DP_OK;
    if (t->log_path)
        DP_TRY(settle_log(t, err));
    if (!t->config->model_dir)
        return DP_OK;
    DP_TRY(move_obstacles(t, err));
    return dp_model_dir_repair(&t->dir, err);
}

/* Nothing of an earlier run is touched before all else is known to be well. */
static dp_status open_files(dp_trainer *t, dp_error *err)
{
    bool continues = t->resumed_from && !t->elsewhere;
    DP_TRY(dp_trainer_settle(t, err));
    if (t->log_path)
        DP_TRY(dp_log_open(t->log_path, &t->log, err));
    if (t->config->model_dir && !continues) {
        DP_TRY(move_obstacles(t, err));
        DP_TRY(dp_model_dir_clear(&t->dir, err));
    }
    DP_TRY(dp_log_begin(t->log, continues ? &t->state.log : NULL, err));
    if (!t->config->model_dir)
        return DP_OK;
    if (t->elsewhere)
        DP_TRY(bring_best(t, err));
    return t->elsewhere ? DP_OK : dp_trainer_export(t, err);
}

static void note_split(const dp_trainer *t, const dp_train_start *s, int64_t batch)
{
    const dp_train_config *c = t->config;
    if (s->devices < c->engine.device_count)
        dp_trainer_note(t, "a batch of %lld uses %d of %d devices: the others sit it out", (long long)batch,
                        s->devices, c->engine.device_count);
    if (c->engine.loss_mode != DP_LOSS_REPLICA || c->engine.device_count == 1)
        return;
    dp_trainer_note(t, "Was asked to gather along dimension 0, but all input tensors were scalars; will "
                       "instead unsqueeze and return a vector.");
    bool uneven = false;
    for (int k = 1; k < s->devices; k++)
        uneven |= s->chunk_sizes[k] != s->chunk_sizes[0];
    dp_trainer_note(t, "so PyTorch says that the loss is the mean of the devices' mean losses%s",
                    uneven ? "; with uneven chunks a sample of a small chunk counts more than others "
                             "(--loss-mode global: all alike)"
                           : "");
}

static void tell_start(dp_trainer *t, dp_train_start *s)
{
    const dp_train_config *c = t->config;
    *s = (dp_train_start){.config = c,
                          .model = t->model,
                          .train = dp_dataset_info_of(t->train),
                          .valid = t->valid ? dp_dataset_info_of(t->valid) : NULL,
                          .batches = dp_loader_batches(t->loader),
                          .resumed = t->resumed_from != NULL,
                          .epoch = t->state.epoch,
                          .batch = t->state.batch,
                          .step = t->state.step};
    int64_t batch = s->train->samples < c->batch_size ? s->train->samples : c->batch_size;
    int64_t sizes[DP_ENGINE_MAX_DEVICES];
    dp_split_batch(c->engine.split, c->engine.shares, c->engine.device_count, batch, sizes);
    for (int k = 0; k < c->engine.device_count; k++)
        if (sizes[k] > 0)
            s->chunk_sizes[s->devices++] = sizes[k];
    if (t->observer && t->observer->start)
        t->observer->start(t->observer->user, s);
    note_split(t, s, batch);
    if (t->resumed_from)
        dp_trainer_note(t, "continuing the run in '%s' at epoch %lld, batch %lld, after %lld step%s%s",
                        t->resumed_from, (long long)t->state.epoch, (long long)t->state.batch,
                        (long long)t->state.step, dp_s(t->state.step),
                        c->init ? " (--init is not needed)" : "");
}

dp_status dp_trainer_start(dp_trainer *t, dp_error *err)
{
    const dp_train_config *c = t->config;
    if (t->resumed_from)
        drop_weights(t);
    /* The engine first: memory that copies fast is to be had once a device is open. */
    DP_TRY(dp_engine_create(t->context, t->model, &c->engine, &t->engine, err));
    const dp_loader_config train = {.dataset = t->train,
                                    .batch_size = c->batch_size,
                                    .workers = c->workers,
                                    .shuffle = c->shuffle,
                                    .drop_last = c->drop_last,
                                    .seed = c->seed,
                                    .trace = t->trace};
    const dp_loader_config valid = {.dataset = t->valid,
                                    .batch_size = c->batch_size,
                                    .workers = c->workers,
                                    .trace = t->trace,
                                    .track_name = "validation loader"};
    DP_TRY(dp_make_loader(t->context, &train, &t->loader, err));
    if (t->valid)
        DP_TRY(dp_make_loader(t->context, &valid, &t->valid_loader, err));
    if (t->state.batch > dp_loader_batches(t->loader))
        return dp_fail(err, DP_ERROR_IO, "the checkpoint in '%s' is corrupt: batch %lld of %lld",
                       t->resumed_from, (long long)t->state.batch, (long long)dp_loader_batches(t->loader));
    DP_TRY(fill_engine(t, err));
    DP_TRY(dp_plan_batches(t->engine, t->train, t->valid, c, err));
    DP_TRY(open_files(t, err));
    dp_train_start s;
    tell_start(t, &s);
    DP_TRY(dp_log_start(t->log, &s, t->context, err));
    if (!t->elsewhere)
        return DP_OK;
    t->state.log = dp_log_position(t->log);
    DP_TRY(dp_trainer_save(t, err)); /* from here on the run can continue in its own directory */
    return dp_trainer_export(t, err);
}
