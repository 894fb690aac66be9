#include <math.h>
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

dp_status dp_evaluate_with(dp_engine *engine, dp_loader *loader, bool labels, dp_evaluation *result,
                           dp_error *err)
{
    double loss = 0;
    int64_t correct = 0, samples = 0;
    DP_TRY(dp_loader_start(loader, 0, 0, err));
    for (;;) {
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
        dp_loader_release(loader, batch);
    }
    *result = (dp_evaluation){.samples = samples,
                              .loss = loss / (double)samples,
                              .accuracy = (double)correct / (double)samples,
                              .has_accuracy = labels};
    return DP_OK;
}

dp_status dp_evaluate(dp_context *context, const dp_model *model, const dp_model_state *state,
                      const dp_dataset *dataset, const dp_engine_config *config, int64_t batch_size,
                      int workers, dp_evaluation *result, dp_error *err)
{
    dp_engine *engine = NULL;
    dp_loader *loader = NULL;
    dp_status status;
    dp_engine_config forward = *config;
    const dp_loader_config batches = {.dataset = dataset, .batch_size = batch_size, .workers = workers};
    forward.evaluation_only = true;
    DP_TRY(dp_check_fit(model, config, dataset, err));
    /* The engine first: memory that copies fast is to be had once a device is open. */
    if ((status = dp_engine_create(context, model, &forward, &engine, err)) == DP_OK &&
        (status = dp_make_loader(context, &batches, &loader, err)) == DP_OK &&
        (status = dp_engine_set_state(engine, state, err)) == DP_OK)
        status = dp_evaluate_with(engine, loader, config->criterion == DP_LOSS_CROSS_ENTROPY, result, err);
    if (status == DP_OK && !isfinite(result->loss))
        status = dp_fail(err, DP_ERROR_NONFINITE, "the loss of model '%s' on this data is not finite",
                         dp_model_name(model));
    dp_engine_free(engine);
    dp_loader_free(loader);
    return status;
}
