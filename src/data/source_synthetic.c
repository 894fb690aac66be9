/* Samples made from the seed: noise on which each class leaves its own pattern, so that training shows. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "data/storage.h"

enum {
    DEFAULT_SAMPLES = 4096,
    /* The second counter of the random streams: which of the numbers of a sample, or of a class. */
    STREAM_NOISE = 0,
    STREAM_LABEL = 1,
    STREAM_PATTERN = 2,
    STREAM_DISC = 3,
};

static const int64_t max_samples = 1000000000;

static dp_status parse_samples(const char *argument, int64_t *out, dp_error *err)
{
    *out = DEFAULT_SAMPLES;
    if (!argument)
        return DP_OK;
    char *end = NULL;
    errno = 0;
    long long n = argument[0] >= '0' && argument[0] <= '9' ? strtoll(argument, &end, 10) : 0;
    if (!end || *end || errno || n < 1 || n > max_samples)
        return dp_fail(err, DP_ERROR_USAGE,
                       "data 'synthetic:%s': the number of samples must be a whole number from 1 to %lld",
                       argument, (long long)max_samples);
    *out = n;
    return DP_OK;
}

/* Patterns are +strength or -strength in each element. The distance between two classes is then about 5.7
 * deviations of the noise, whatever the number of elements: easy to learn, not trivial. */
static void make_sample(float *x, int64_t elements, uint64_t seed, uint32_t sample, uint32_t label)
{
    const float strength = 4.0f / sqrtf((float)elements);
    uint32_t signs[4];
    for (int64_t e = 0; e < elements; e++) {
        if (e % 128 == 0)
            dp_rng_block(seed, DP_RNG_SYNTHETIC, label, STREAM_PATTERN, (uint64_t)e / 128, signs);
        bool up = signs[e % 128 / 32] >> (e % 32) & 1;
        x[e] = dp_rng_normal(seed, DP_RNG_SYNTHETIC, sample, STREAM_NOISE, (uint64_t)e) +
               (up ? strength : -strength);
    }
}

static dp_status make_samples(dp_storage *storage, uint64_t seed, int64_t classes, dp_error *err)
{
    size_t floats;
    if (__builtin_mul_overflow((size_t)storage->samples, (size_t)storage->elements, &floats))
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory: %lld synthetic samples of %lld elements",
                       (long long)storage->samples, (long long)storage->elements);
    DP_TRY(dp_calloc(floats, sizeof *storage->made, "synthetic samples", &storage->made, err));
    DP_TRY(dp_calloc((size_t)storage->samples, sizeof *storage->labels, "labels", &storage->labels, err));
    for (int64_t i = 0; i < storage->samples; i++) {
        uint64_t label =
            dp_rng_below(seed, DP_RNG_SYNTHETIC, (uint32_t)i, STREAM_LABEL, 0, (uint64_t)classes);
        storage->labels[i] = (int32_t)label;
        make_sample(storage->made + i * storage->elements, storage->elements, seed, (uint32_t)i,
                    (uint32_t)label);
    }
    storage->x = (const unsigned char *)storage->made;
    return DP_OK;
}

/* Noise, and a disc that is one and a half deviations brighter: the mask. Its radius is an eighth to three
 * eighths of the image's shorter side. */
static void make_masked(const dp_storage *storage, uint64_t seed, uint32_t sample, float *x, float *mask)
{
    const int64_t channels = storage->shape[0], height = storage->shape[1], width = storage->shape[2];
    float u[3];
    for (int i = 0; i < 3; i++)
        u[i] = dp_rng_uniform(seed, DP_RNG_SYNTHETIC, sample, STREAM_DISC, (uint64_t)i);
    const float side = (float)(height < width ? height : width), radius = side * (0.125f + 0.25f * u[0]);
    const float cy = u[1] * (float)height, cx = u[2] * (float)width;
    for (int64_t i = 0; i < height * width; i++) {
        float dy = (float)(i / width) + 0.5f - cy, dx = (float)(i % width) + 0.5f - cx;
        mask[i] = dy * dy + dx * dx < radius * radius;
    }
    for (int64_t e = 0; e < channels * height * width; e++)
        x[e] = dp_rng_normal(seed, DP_RNG_SYNTHETIC, sample, STREAM_NOISE, (uint64_t)e) +
               1.5f * mask[e % (height * width)];
}

static dp_status make_masked_samples(dp_storage *storage, uint64_t seed, dp_error *err)
{
    size_t floats, mask = (size_t)storage->target_elements, samples = (size_t)storage->samples;
    if (__builtin_mul_overflow(samples, (size_t)storage->elements, &floats))
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory: %zu synthetic samples of %lld elements", samples,
                       (long long)storage->elements);
    DP_TRY(dp_calloc(floats, sizeof *storage->made, "synthetic samples", &storage->made, err));
    DP_TRY(dp_calloc(samples * mask, sizeof *storage->made_values, "synthetic masks", &storage->made_values,
                     err));
    for (size_t i = 0; i < samples; i++)
        make_masked(storage, seed, (uint32_t)i, storage->made + i * (size_t)storage->elements,
                    storage->made_values + i * mask);
    storage->x = (const unsigned char *)storage->made;
    return DP_OK;
}

dp_status dp_open_synthetic(const dp_data_config *config, const char *argument, dp_source *out, dp_error *err)
{
    int64_t samples;
    DP_TRY(parse_samples(argument, &samples, err));
    out->classes = config->classes > 0 ? config->classes : config->synthetic_classes;
    if (!config->synthetic_masks && (out->classes < 1 || out->classes > INT32_MAX))
        return dp_fail(err, DP_ERROR_USAGE, "synthetic data cannot have %lld classes",
                       (long long)out->classes);
    DP_TRY(dp_storage_create(&out->train, err));
    dp_storage *storage = out->train;
    storage->samples = samples;
    storage->target = config->synthetic_masks ? DP_TARGET_MASK : DP_TARGET_LABELS;
    DP_TRY(dp_strdup("synthetic", &storage->labels_path, err));
    DP_TRY(dp_storage_set_shape(storage, 3, config->synthetic_shape, "synthetic", err));
    storage->target_elements = config->synthetic_masks ? storage->shape[1] * storage->shape[2] : 1;
    return config->synthetic_masks ? make_masked_samples(storage, config->seed, err)
                                   : make_samples(storage, config->seed, out->classes, err);
}
