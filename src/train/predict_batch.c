#include <math.h>

#include "base/memory.h"
#include "base/text.h"
#include "train/predict.h"

static dp_status check_model(const dp_model *model, dp_predictor *p, dp_error *err)
{
    int64_t in[3], out[3];
    int in_rank = dp_model_input_shape(model, in), out_rank = dp_model_output_shape(model, out);
    dp_loss_kind criterion = p->config->info.criterion;
    if (in_rank != 3 || (in[0] != 1 && in[0] != 3))
        return dp_fail(err, DP_ERROR_MISMATCH, "model '%s' does not take pictures", dp_model_name(model));
    p->masks = criterion == DP_LOSS_BCE_WITH_LOGITS && out_rank == 3 && out[0] == 1 && out[1] == in[1] &&
               out[2] == in[2];
    if (!p->masks && !(criterion == DP_LOSS_CROSS_ENTROPY && out_rank == 1))
        return dp_fail(err, DP_ERROR_MISMATCH,
                       "model '%s' makes neither masks (one plane, trained with bce_with_logits) nor labels "
                       "(cross_entropy)",
                       dp_model_name(model));
    p->channels = in[0], p->height = in[1], p->width = in[2];
    p->elements = in[0] * in[1] * in[2];
    p->outputs = out_rank == 3 ? out[1] * out[2] : out[0];
    return DP_OK;
}

static dp_status check_use(const dp_predictor *p, dp_error *err)
{
    const dp_predict_config *c = p->config;
    if (c->batch_size < 1)
        return dp_fail(err, DP_ERROR_USAGE, "a batch needs at least one picture");
    if (p->masks && !c->folder)
        return dp_fail(err, DP_ERROR_USAGE, "masks need a folder to be written to");
    if (!p->masks && (c->overlay || c->resize))
        return dp_fail(err, DP_ERROR_USAGE, "%s is for masks: this model gives labels",
                       c->overlay ? "an overlay" : "resizing");
    int channels = c->info.normalize_channels;
    if (channels > 1 && channels != p->channels)
        return dp_fail(err, DP_ERROR_MISMATCH, "the checkpoint normalises %d channel%s, the model takes %lld",
                       channels, dp_s(channels), (long long)p->channels);
    return DP_OK;
}

dp_status dp_predict_open(dp_context *context, const dp_model *model, const dp_model_state *state,
                          const dp_predict_config *config, dp_predictor *out, dp_error *err)
{
    *out = (dp_predictor){.config = config};
    DP_TRY(check_model(model, out, err));
    DP_TRY(check_use(out, err));
    size_t batch = (size_t)config->batch_size;
    DP_TRY(dp_calloc(batch * (size_t)out->elements, sizeof *out->x, "a batch", &out->x, err));
    DP_TRY(dp_calloc(batch * (size_t)out->outputs, sizeof *out->y, "a batch's outputs", &out->y, err));
    DP_TRY(dp_calloc(batch, sizeof *out->parts, "a batch", &out->parts, err));
    dp_engine_config engine = config->engine;
    engine.evaluation_only = true;
    engine.criterion = config->info.criterion;
    DP_TRY(dp_engine_create(context, model, &engine, &out->engine, err));
    return dp_engine_set_state(out->engine, state, err);
}

void dp_predict_close(dp_predictor *predictor)
{
    dp_mask_writer_free(predictor->writer);
    dp_mask_drop_open(predictor);
    dp_engine_free(predictor->engine);
    dp_free(predictor->x);
    dp_free(predictor->y);
    dp_free(predictor->parts);
}

float *dp_predict_slot(dp_predictor *predictor)
{
    return predictor->x + predictor->filled * predictor->elements;
}

void dp_predict_normalize(const dp_predictor *predictor, float *x)
{
    const dp_checkpoint_info *info = &predictor->config->info;
    const int64_t area = predictor->height * predictor->width;
    for (int64_t e = 0; e < predictor->elements; e++) {
        x[e] /= 255.0f;
        if (info->normalize_channels) {
            int64_t c = info->normalize_channels > 1 ? e / area : 0;
            x[e] = (x[e] - info->mean[c]) / info->std[c];
        }
    }
}

/* The likeliest class, and softmax of its logit. */
static dp_status give_label(const dp_predictor *p, const dp_part *part, const float *logits, dp_error *err)
{
    dp_prediction result = {.picture = part->name->path, .truth = part->truth};
    double sum = 0;
    for (int64_t i = 0; i < p->outputs; i++) {
        if (!isfinite(logits[i]))
            return dp_fail(err, DP_ERROR_NONFINITE, "the output for '%s' is not finite", part->name->path);
        if (logits[i] > logits[result.label])
            result.label = i;
    }
    for (int64_t i = 0; i < p->outputs; i++)
        sum += exp((double)logits[i] - (double)logits[result.label]);
    result.probability = 1 / sum;
    if (result.label < p->config->info.named_classes)
        result.class_name = p->config->info.class_names[result.label];
    if (p->config->done)
        p->config->done(p->config->user, &result);
    return DP_OK;
}

dp_status dp_predict_flush(dp_predictor *p, dp_error *err)
{
    if (p->filled == 0)
        return DP_OK;
    const dp_host_batch batch = {.samples = p->filled, .x = p->x};
    DP_TRY(dp_engine_forward(p->engine, &batch, p->y, err));
    for (int64_t i = 0; i < p->filled; i++) {
        const dp_part *part = &p->parts[i];
        const float *logits = p->y + i * p->outputs;
        DP_TRY(p->masks ? dp_mask_take(p, part, logits, err) : give_label(p, part, logits, err));
    }
    p->filled = 0;
    return DP_OK;
}

dp_status dp_predict_push(dp_predictor *p, dp_part part, dp_error *err)
{
    p->parts[p->filled++] = part;
    return p->filled == p->config->batch_size ? dp_predict_flush(p, err) : DP_OK;
}
