/* From the contract's arguments of losses and updates to those of the kernels. */
#include <math.h>

#include "internal.h"
#include "kernels/kernels.h"

_Static_assert(sizeof(dp_sample_counts) == sizeof(dp_loss_counts), "two names of one structure");
_Static_assert((int)DP_UPDATE_MAX_SOURCES >= (int)DP_MAX_DEVICES, "an update takes one source per device");

dp_status dp_cuda_loss(dp_device *device, void *stream, const dp_loss_args *args, dp_error *err)
{
    static const dp_loss_rule rules[DP_CRITERIA] = {
        [DP_CROSS_ENTROPY] = DP_RULE_CROSS_ENTROPY,
        [DP_BCE_WITH_LOGITS] = DP_RULE_BCE_WITH_LOGITS,
        [DP_MSE] = DP_RULE_SQUARED,
        [DP_L1] = DP_RULE_ABSOLUTE,
    };
    const dp_loss_parameters p = {
        .rule = rules[args->criterion],
        .samples = args->samples,
        .elements = args->elements,
        .output = args->output,
        .target = args->target,
        .pos_weight = args->pos_weight,
        .scale = args->scale,
        .sample_loss = args->sample_loss,
        .counts = (dp_sample_counts *)args->counts,
        .gradient = args->gradient,
    };
    DP_CUDA_TRY(dp_cuda_state(device)->label, err, dp_loss_launch(stream, &p));
    return DP_OK;
}

dp_status dp_cuda_update(dp_device *device, void *stream, const dp_update_args *args, dp_error *err)
{
    const char *label = dp_cuda_state(device)->label;
    if (args->source_count < 1 || args->source_count > DP_MAX_DEVICES)
        return dp_fail(err, DP_ERROR_INTERNAL, "%s: an update with %d sources", label, args->source_count);
    dp_update_parameters p = {
        .count = args->count,
        .source_count = args->source_count,
        .adamw = args->kind == DP_ADAMW,
        .nesterov = args->nesterov,
        .weight = args->weight,
        .moment1 = args->moment1,
        .moment2 = args->moment2,
        .nonfinite = args->nonfinite,
        .lr = args->lr,
        .momentum = args->momentum,
        .weight_decay = args->weight_decay,
    };
    for (int k = 0; k < args->source_count; k++)
        p.source[k] = args->sources[k];
    if (p.adamw) {
        /* In double, as differences of nearly equal numbers lose digits in float. */
        p.keep = (float)(1 - (double)args->lr * (double)args->weight_decay);
        p.rest1 = (float)(1 - (double)args->beta1);
        p.beta2 = args->beta2;
        p.rest2 = (float)(1 - (double)args->beta2);
        p.step = (float)((double)args->lr / (double)args->bias1);
        p.root = (float)sqrt((double)args->bias2);
        p.eps = args->eps;
    }
    DP_CUDA_TRY(label, err, dp_update_launch(stream, &p));
    return DP_OK;
}
