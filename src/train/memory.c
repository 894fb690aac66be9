/* What a run would take of each device, and the largest batch that fits: the engine plans the run's batches
 * without taking memory for them. */
#include "train/train.h"

dp_status dp_plan_batches(dp_engine *engine, const dp_dataset *train, const dp_dataset *valid,
                          const dp_train_config *config, dp_error *err)
{
    const dp_dataset *sets[] = {train, valid};
    for (int i = 0; i < 2; i++) {
        if (!sets[i])
            continue;
        int64_t samples = dp_dataset_info_of(sets[i])->samples, tail = samples % config->batch_size;
        if (samples >= config->batch_size)
            DP_TRY(dp_engine_plan(engine, config->batch_size, i == 0, err));
        if (tail > 0 && !(i == 0 && config->drop_last))
            DP_TRY(dp_engine_plan(engine, tail, i == 0, err));
    }
    return DP_OK;
}

dp_status dp_train_memory(dp_context *context, const dp_model *model, const dp_dataset *train,
                          const dp_dataset *valid, const dp_train_config *config, dp_device_report *reports,
                          int *devices, dp_error *err)
{
    int ids[DP_ENGINE_MAX_DEVICES];
    dp_train_config own = *config;
    own.engine = dp_with_all_devices(context, &config->engine, ids);
    own.engine.dry_run = true;
    dp_engine *engine;
    *devices = 0;
    DP_TRY(dp_check_fit(model, &config->engine, train, err));
    DP_TRY(dp_engine_create(context, model, &own.engine, &engine, err));
    dp_status status = dp_plan_batches(engine, train, valid, &own, err);
    int count = dp_engine_devices(engine);
    for (int k = 0; k < count && status == DP_OK; k++)
        status = dp_engine_report(engine, k, &reports[k], err);
    if (status == DP_OK)
        *devices = count;
    dp_engine_free(engine);
    return status;
}

/* The most that any device would hold with batches of this size. */
static dp_status fullest(dp_context *context, const dp_model *model, const dp_dataset *train,
                         const dp_dataset *valid, const dp_train_config *config, int64_t batch, uint64_t *out,
                         dp_error *err)
{
    dp_device_report reports[DP_ENGINE_MAX_DEVICES];
    dp_train_config own = *config;
    int devices;
    own.batch_size = batch;
    DP_TRY(dp_train_memory(context, model, train, valid, &own, reports, &devices, err));
    *out = 0;
    for (int k = 0; k < devices; k++)
        if (reports[k].peak_total_bytes > *out)
            *out = reports[k].peak_total_bytes;
    return DP_OK;
}

/* Memory grows with the batch: bisection. A size that cannot be trained at all (a batch normalisation with
 * one value per channel) counts as too small to matter: its neighbours decide. */
dp_status dp_train_largest_batch(dp_context *context, const dp_model *model, const dp_dataset *train,
                                 const dp_dataset *valid, const dp_train_config *config, uint64_t bytes,
                                 int64_t *batch, dp_error *err)
{
    int64_t fits = 0, fails = config->batch_size + 1;
    while (fails - fits > 1) {
        int64_t middle = fits + (fails - fits) / 2;
        uint64_t wanted = 0;
        dp_status status = fullest(context, model, train, valid, config, middle, &wanted, err);
        if (status != DP_OK && status != DP_ERROR_USAGE)
            return status;
        if (wanted <= bytes)
            fits = middle;
        else
            fails = middle;
    }
    *batch = fits;
    return DP_OK;
}
