/* What a run leaves behind: its state, the checkpoints of its epochs, its final weights. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/thread.h"
#include "train/trainer.h"

/* A state with such values could only fail again. */
static dp_status check_finite(const dp_trainer *t, dp_error *err)
{
    dp_run_views v;
    int entries = dp_state_count(t->model), params = dp_model_param_count(t->model);
    dp_status status = dp_run_views_make(t->model, &t->tensors, "", true, &v, err);
    for (int i = 0; i < v.list.count && status == DP_OK; i++) {
        const dp_tensor *tensor = &v.list.tensors[i];
        const void *data;
        status = dp_run_views_contents(&v, i, &data, err);
        if (status != DP_OK || tensor->dtype != DP_F32 || dp_first_nonfinite(data, tensor->elements) < 0)
            continue;
        status = dp_fail(err, DP_ERROR_NONFINITE,
                         "not finite after epoch %lld, batch %lld (step %lld): the %s of '%s'; a lower --lr "
                         "may help, checkpoints are as they were",
                         (long long)t->progress.epoch, (long long)t->progress.batch,
                         (long long)t->progress.step, i < entries ? "value" : "optimizer's state",
                         i < entries ? tensor->name : dp_model_param(t->model, (i - entries) % params)->name);
    }
    dp_views_clear(&v.list);
    return status;
}

dp_status dp_trainer_report(const dp_trainer *t, int index, dp_device_report *out, dp_error *err)
{
    DP_TRY(dp_engine_report(t->engine, index, out, err));
    out->samples += t->samples_before[index];
    return DP_OK;
}

static dp_status write_state(dp_trainer *t, dp_error *err)
{
    char name[DP_STATE_NAME_SIZE], *path;
    DP_TRY(dp_log_sync(t->log, err));
    dp_run_state_name(t->state.step, name);
    DP_TRY(dp_model_dir_file(t->dir.path, name, &path, err));
    dp_status status = dp_run_state_write(path, t->model, &t->settings, &t->state, &t->tensors, err);
    dp_free(path);
    DP_TRY(status);
    return dp_model_dir_complete(&t->dir, name, err);
}

dp_status dp_trainer_save(dp_trainer *t, dp_error *err)
{
    if (t->is_saved || !t->config->model_dir)
        return DP_OK;
    DP_TRY(dp_engine_get_buffers(t->engine, t->tensors.model.buffers, t->tensors.model.counters, err));
    DP_TRY(check_finite(t, err));
    t->state.seconds = dp_now() - t->began;
    for (int k = 0; k < dp_engine_devices(t->engine); k++) {
        dp_device_report report;
        DP_TRY(dp_trainer_report(t, k, &report, err));
        t->state.device_samples[k] = report.samples;
    }
    DP_TRY(write_state(t, err));
    t->is_saved = true;
    return DP_OK;
}

/* ---- checkpoints ---- */

static dp_status write_weights(dp_trainer *t, const char *path, int64_t epoch, dp_error *err)
{
    const dp_dataset_info *d = dp_dataset_info_of(t->train);
    dp_checkpoint_info info = {.criterion = t->config->engine.criterion,
                               .pos_weight = t->config->engine.pos_weight,
                               .normalize_channels = d->normalize_channels,
                               .data_seed = t->config->data_seed,
                               .valid_split = t->config->valid_split,
                               .epoch = epoch,
                               .named_classes = d->named_classes,
                               .class_names = d->class_names};
    memcpy(info.mean, d->mean, sizeof info.mean);
    memcpy(info.std, d->std, sizeof info.std);
    return dp_checkpoint_write_run(path, t->model, &t->tensors, &info, err);
}

static dp_status write_checkpoint(dp_trainer *t, const char *name, dp_error *err)
{
    char *path;
    DP_TRY(dp_model_dir_file(t->dir.path, name, &path, err));
    dp_status status = write_weights(t, path, t->state.last.epoch, err);
    dp_free(path);
    return status;
}

dp_status dp_trainer_export(dp_trainer *t, dp_error *err)
{
    const dp_epoch_summary *e = &t->state.last;
    char name[DP_STATE_NAME_SIZE];
    if (!t->state.ended || !t->config->model_dir)
        return DP_OK;
    dp_epoch_name(e->epoch, name);
    DP_TRY(write_checkpoint(t, name, err));
    if (e->best)
        DP_TRY(write_checkpoint(t, dp_best_name, err));
    return t->config->keep > 0 ? dp_model_dir_prune(&t->dir, e->epoch + 1 - t->config->keep, err) : DP_OK;
}

dp_status dp_trainer_save_final(dp_trainer *t, dp_error *err)
{
    return t->config->save ? write_weights(t, t->config->save, -1, err) : DP_OK;
}
