#include <math.h>
#include <stdio.h>
#include <string.h>

#include "train/train.h"

static dp_status pinned_alloc(void *context, size_t bytes, void **out, dp_error *err)
{
    return dp_context_host_alloc(context, bytes, out, err);
}

static void pinned_free(void *context, void *pointer)
{
    dp_context_host_free(context, pointer);
}

dp_status dp_make_loader(dp_context *context, const dp_loader_config *config, dp_loader **out, dp_error *err)
{
    dp_loader_config pinned = *config;
    pinned.alloc = pinned_alloc;
    pinned.release = pinned_free;
    pinned.alloc_context = context;
    return dp_loader_create(&pinned, out, err);
}

void dp_batch_fault(const dp_dataset_info *d, const dp_batch *batch, char out[DP_FAULT_SIZE])
{
    int64_t input = dp_first_nonfinite(batch->x, batch->samples * d->elements), target = -1;
    if (d->target != DP_TARGET_LABELS)
        target = dp_first_nonfinite(batch->y, batch->samples * d->target_elements);
    *out = 0;
    if (input >= 0 || target >= 0)
        snprintf(out, DP_FAULT_SIZE, "%s %lld of this batch holds NaN or an infinity: the data are at fault",
                 input >= 0 ? "input" : "target",
                 (long long)(input >= 0 ? input / d->elements : target / d->target_elements));
}

static void note_nonfinite(const dp_dataset *dataset, const dp_batch *batch, dp_evaluation *result)
{
    char fault[DP_FAULT_SIZE];
    dp_batch_fault(dp_dataset_info_of(dataset), batch, fault);
    result->data_at_fault = *fault != 0;
    snprintf(result->nonfinite, sizeof result->nonfinite, "batch %lld%s%s", (long long)batch->index,
             *fault ? ": " : "", fault);
}

dp_status dp_evaluate_with(dp_engine *engine, dp_loader *loader, const dp_dataset *dataset,
                           const dp_train_observer *observer, dp_evaluation *result, bool *stopped,
                           dp_error *err)
{
    double loss = 0;
    int64_t correct = 0, samples = 0;
    *stopped = false;
    *result = (dp_evaluation){.has_accuracy = dp_dataset_info_of(dataset)->target == DP_TARGET_LABELS};
    DP_TRY(dp_loader_start(loader, 0, 0, err));
    for (;;) {
        if (observer && observer->stop && observer->stop(observer->user)) {
            *stopped = true;
            return DP_OK;
        }
        const dp_batch *batch;
        dp_step_result r;
        DP_TRY(dp_loader_next(loader, &batch, err));
        if (!batch)
            break;
        const dp_host_batch host = {batch->samples, batch->x, batch->y};
        DP_TRY(dp_engine_evaluate(engine, &host, &r, err));
        loss += r.loss * (double)batch->samples;
        correct += r.correct;
        samples += batch->samples;
        if (!isfinite(r.loss) && !*result->nonfinite)
            note_nonfinite(dataset, batch, result);
        dp_loader_release(loader, batch);
    }
    result->samples = samples;
    result->loss = loss / (double)samples;
    result->accuracy = (double)correct / (double)samples;
    return DP_OK;
}

dp_status dp_evaluate(dp_context *context, const dp_model *model, const dp_model_state *state,
                      const dp_dataset *dataset, const dp_engine_config *config, int64_t batch_size,
                      int workers, dp_evaluation *result, dp_error *err)
{
    dp_engine *engine = NULL;
    dp_loader *loader = NULL;
    dp_status status;
    bool stopped;
    dp_engine_config forward = *config;
    const dp_loader_config batches = {.dataset = dataset, .batch_size = batch_size, .workers = workers};
    forward.evaluation_only = true;
    DP_TRY(dp_check_fit(model, config, dataset, err));
    /* The engine first: memory that copies fast is to be had once a device is open. */
    if ((status = dp_engine_create(context, model, &forward, &engine, err)) == DP_OK &&
        (status = dp_make_loader(context, &batches, &loader, err)) == DP_OK &&
        (status = dp_engine_set_state(engine, state, err)) == DP_OK)
        status = dp_evaluate_with(engine, loader, dataset, NULL, result, &stopped, err);
    if (status == DP_OK && !isfinite(result->loss))
        status = dp_fail(err, DP_ERROR_NONFINITE, "the loss of model '%s' on this data is not finite in %s",
                         dp_model_name(model), result->nonfinite);
    dp_engine_free(engine);
    dp_loader_free(loader);
    return status;
}
