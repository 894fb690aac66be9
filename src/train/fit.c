/* Does a data set fit a model and a criterion? An engine reads as much of a batch as the model takes. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "train/train.h"

dp_engine_config dp_with_all_devices(const dp_context *context, const dp_engine_config *config,
                                     int ids[DP_ENGINE_MAX_DEVICES])
{
    dp_engine_config c = *config;
    if (c.device_ids)
        return c;
    c.device_count = dp_context_device_count(context);
    for (int k = 0; k < c.device_count; k++)
        ids[k] = k;
    c.device_ids = ids;
    return c;
}

dp_status dp_check_fit(const dp_model *model, const dp_engine_config *config, const dp_dataset *dataset,
                       dp_error *err)
{
    const dp_dataset_info *d = dp_dataset_info_of(dataset);
    const char *name = dp_model_name(model);
    int64_t shape[3], outputs = 1;
    if (config->dim != 0)
        return dp_fail(err, DP_ERROR_USAGE,
                       "dim %d: batches of a data set have their samples along dimension 0", config->dim);
    int rank = dp_model_input_shape(model, shape);
    if (rank != d->rank || memcmp(shape, d->shape, (size_t)rank * sizeof *shape) != 0)
        return dp_fail(err, DP_ERROR_MISMATCH,
                       "the samples of this data (%s) do not have the shape that model '%s' takes",
                       d->description, name);
    rank = dp_model_output_shape(model, shape);
    for (int i = 0; i < rank; i++)
        outputs *= shape[i];
    bool labels = config->criterion == DP_LOSS_CROSS_ENTROPY;
    if (labels != (d->target == DP_TARGET_LABELS))
        return dp_fail(err, DP_ERROR_MISMATCH, "the criterion %s does not take the targets of this data (%s)",
                       dp_loss_names[config->criterion], d->description);
    if (labels ? d->classes > outputs : d->target_elements != outputs)
        return dp_fail(err, DP_ERROR_MISMATCH,
                       "model '%s' has %lld output%s, which the targets of this data (%s) do not fit", name,
                       (long long)outputs, dp_s(outputs), d->description);
    return DP_OK;
}
