/* Pictures decoded ahead of the devices by loader threads (base/ahead.c), handed out in order. What waits is
 * bounded by their number and by their pixels. */
#include "base/ahead.h"
#include "base/memory.h"
#include "train/predict.h"

/* Decoded pixels that may wait: one picture of the largest size that is read. */
static const int64_t most_pixels = DP_IMAGE_MAX_PIXELS;

struct dp_decoder {
    const dp_predictor *predictor;
    const dp_input *inputs;
    dp_ready *slots; /* decoded pictures; all else is empty */
    int64_t slot_count;
    dp_ahead *ahead;
};

static dp_status decode(void *user, int thread, int64_t item, int64_t slot, dp_error *err)
{
    dp_decoder *d = user;
    (void)thread;
    dp_status status = dp_predict_prepare(d->predictor, &d->inputs[item], &d->slots[slot], err);
    if (status != DP_OK)
        dp_ready_clear(&d->slots[slot]);
    return status;
}

static int64_t pixels_of(const void *user, int64_t item)
{
    return ((const dp_decoder *)user)->inputs[item].pixels;
}

static dp_status prepare(dp_decoder *d, int64_t count, dp_error *err)
{
    const dp_predict_config *c = d->predictor->config;
    int workers = c->workers < count ? c->workers : (int)count;
    /* A batch that waits, and a picture that each thread is at. */
    d->slot_count = c->batch_size + workers;
    d->slot_count = d->slot_count < count ? d->slot_count : count + 1;
    DP_TRY(dp_calloc((size_t)d->slot_count, sizeof *d->slots, "decoded pictures", &d->slots, err));
    const dp_ahead_config ahead = {.name = "dp-loader",
                                   .threads = workers,
                                   .slots = d->slot_count,
                                   .most_held = 1,
                                   .make = decode,
                                   .cost = pixels_of,
                                   .most_cost = most_pixels,
                                   .user = d};
    DP_TRY(dp_ahead_create(&ahead, &d->ahead, err));
    dp_ahead_start(d->ahead, 0, count);
    return DP_OK;
}

dp_status dp_decoder_create(const dp_predictor *predictor, const dp_input *inputs, int64_t count,
                            dp_decoder **out, dp_error *err)
{
    dp_decoder *d;
    *out = NULL;
    if (predictor->config->workers < 1)
        return dp_fail(err, DP_ERROR_USAGE, "pictures are decoded by at least one thread");
    DP_TRY(dp_calloc(1, sizeof *d, "decoded pictures", &d, err));
    d->predictor = predictor;
    d->inputs = inputs;
    dp_status status = prepare(d, count, err);
    if (status != DP_OK) {
        dp_decoder_free(d);
        return status;
    }
    *out = d;
    return DP_OK;
}

dp_status dp_decoder_next(dp_decoder *d, dp_ready *out, dp_error *err)
{
    int64_t slot;
    *out = (dp_ready){0};
    DP_TRY(dp_ahead_next(d->ahead, &slot, err));
    *out = d->slots[slot];
    d->slots[slot] = (dp_ready){0};
    dp_ahead_release(d->ahead, slot);
    return DP_OK;
}

void dp_ready_clear(dp_ready *ready)
{
    dp_image_clear(&ready->image);
    dp_free(ready->sample);
    *ready = (dp_ready){0};
}

void dp_decoder_free(dp_decoder *d)
{
    if (!d)
        return;
    dp_ahead_free(d->ahead);
    for (int64_t i = 0; d->slots && i < d->slot_count; i++)
        dp_ready_clear(&d->slots[i]);
    dp_free(d->slots);
    dp_free(d);
}
