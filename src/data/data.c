/* Opening a source and dividing it into data sets. */
#include "dptrain/data.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "base/text.h"
#include "data/dataset.h"
#include "data/order.h"

typedef dp_status (*open_source)(const dp_data_config *config, const char *argument, dp_source *out,
                                 dp_error *err);

static const char *const source_names[] = {"fashion-mnist", "idx",    "safetensors",
                                           "synthetic",     "images", "segmentation"};
static const open_source source_functions[] = {dp_open_fashion_mnist, dp_open_idx,    dp_open_safetensors,
                                               dp_open_synthetic,     dp_open_images, dp_open_segmentation};
enum { SOURCES = sizeof source_names / sizeof *source_names };

dp_data_config dp_data_defaults(void)
{
    return (dp_data_config){.source = "fashion-mnist",
                            .valid_split = 0.15,
                            .synthetic_shape = {1, 28, 28},
                            .synthetic_classes = 10};
}

/* ---- the source ---- */

static bool is_directory(const char *parent, const char *name)
{
    char path[PATH_MAX];
    struct stat st;
    int n = snprintf(path, sizeof path, "%s/%s", parent, name);
    return n < (int)sizeof path && stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* What a path without a kind may have been meant for; NULL: there is no such file. */
static const char *kind_of_path(const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return NULL;
    return !S_ISDIR(st.st_mode)                                          ? "safetensors"
           : is_directory(path, "images") && is_directory(path, "masks") ? "segmentation"
                                                                         : "idx";
}

static dp_status unknown_source(const char *source, const char *kind, dp_error *err)
{
    const char *meant = kind_of_path(source);
    if (meant)
        return dp_fail(err, DP_ERROR_USAGE, "unknown data '%s': did you mean '%s:%s'?", source, meant,
                       source);
    const char *nearest = dp_nearest_name(kind, source_names, SOURCES);
    if (nearest)
        return dp_fail(err, DP_ERROR_USAGE, "unknown data '%s': did you mean '%s'?", source, nearest);
    return dp_fail(err, DP_ERROR_USAGE,
                   "unknown data '%s': use fashion-mnist, idx:DIR, safetensors:FILE, segmentation:DIR, "
                   "images:DIR or synthetic[:N]",
                   source);
}

static dp_status open_named(const dp_data_config *config, dp_source *out, dp_error *err)
{
    const char *source = config->source ? config->source : "";
    const char *colon = strchr(source, ':');
    char kind[32];
    snprintf(kind, sizeof kind, "%.*s", colon ? (int)(colon - source < 32 ? colon - source : 31) : 31,
             source);
    for (int i = 0; i < SOURCES; i++) {
        if (strcmp(kind, source_names[i]) == 0)
            return source_functions[i](config, colon ? colon + 1 : NULL, out, err);
    }
    return unknown_source(source, kind, err);
}

static dp_status normalize(dp_storage *storage, const dp_data_config *config, const dp_source *source,
                           dp_error *err)
{
    if (config->normalize_set)
        return dp_storage_normalize(storage, config->normalize_channels, config->mean, config->std, err);
    return dp_storage_normalize(storage, source->normalize_channels, source->mean, source->std, err);
}

/* Checks every label and settles the number of classes. */
static dp_status count_classes(const dp_data_config *config, dp_source *source, dp_error *err)
{
    int64_t classes = config->classes > 0 ? config->classes : source->classes, largest = -1;
    dp_storage *const parts[2] = {source->train, source->test};
    for (int i = 0; i < 2 && parts[i]; i++) {
        int64_t here;
        if (parts[i]->target != DP_TARGET_LABELS)
            return DP_OK;
        DP_TRY(dp_storage_check_labels(parts[i], classes, &here, err));
        largest = here > largest ? here : largest;
    }
    source->classes = classes > 0 ? classes : largest + 1;
    return DP_OK;
}

/* ---- the held-out share ---- */

/* Both parts keep the order of the file; the permutation only says who is held out. */
static dp_status divide(int64_t n, int64_t held, uint64_t seed, int64_t *train, int64_t *valid, dp_error *err)
{
    int64_t *order;
    unsigned char *is_held;
    DP_TRY(dp_calloc((size_t)n, sizeof *order, "the held-out share", &order, err));
    dp_status status = dp_calloc((size_t)n, 1, "the held-out share", &is_held, err);
    if (status == DP_OK) {
        dp_order_of_split(order, n, seed);
        for (int64_t i = 0; i < held; i++)
            is_held[order[i]] = 1;
        for (int64_t i = 0; i < n; i++) {
            if (is_held[i])
                *valid++ = i;
            else
                *train++ = i;
        }
    }
    dp_free(is_held);
    dp_free(order);
    return status;
}

static dp_status hold_out(const dp_data_config *config, const dp_source *source, dp_dataset **train,
                          dp_dataset **valid, dp_error *err)
{
    int64_t n = source->train->samples;
    if (n < 2)
        return dp_fail(err, DP_ERROR_USAGE,
                       "%s has a single sample: a held-out share of %g leaves nothing to train on or nothing "
                       "to validate with; use --valid-split 0",
                       config->source, config->valid_split);
    int64_t held = llround((double)n * config->valid_split);
    held = held < 1 ? 1 : held > n - 1 ? n - 1 : held;
    int64_t *kept_members, *held_members = NULL;
    DP_TRY(dp_calloc((size_t)(n - held), sizeof *kept_members, "the training share", &kept_members, err));
    dp_status status =
        dp_calloc((size_t)held, sizeof *held_members, "the held-out share", &held_members, err);
    if (status == DP_OK)
        status = divide(n, held, config->seed, kept_members, held_members, err);
    if (status != DP_OK) {
        dp_free(kept_members);
        dp_free(held_members);
        return status;
    }
    status = dp_dataset_make(source->train, kept_members, n - held, true, config->source, source->classes,
                             train, err);
    if (status != DP_OK) {
        dp_free(held_members);
        return status;
    }
    return dp_dataset_make(source->train, held_members, held, false, config->source, source->classes, valid,
                           err);
}

static dp_status make_datasets(const dp_data_config *config, dp_source *source, dp_dataset **train,
                               dp_dataset **valid, dp_error *err)
{
    DP_TRY(normalize(source->train, config, source, err));
    if (source->test)
        DP_TRY(normalize(source->test, config, source, err));
    DP_TRY(count_classes(config, source, err));
    if (!source->test && !config->no_validation && config->valid_split > 0)
        return hold_out(config, source, train, valid, err);
    DP_TRY(dp_dataset_make(source->train, NULL, source->train->samples, true, config->source, source->classes,
                           train, err));
    if (!source->test)
        return DP_OK;
    return dp_dataset_make(source->test, NULL, source->test->samples, false, config->source, source->classes,
                           valid, err);
}

dp_status dp_data_open(const dp_data_config *config, dp_dataset **train, dp_dataset **valid, dp_error *err)
{
    *train = *valid = NULL;
    if (!(config->valid_split >= 0 && config->valid_split < 1))
        return dp_fail(err, DP_ERROR_USAGE, "the held-out share must be at least 0 and below 1, not %g",
                       config->valid_split);
    dp_source source = {0};
    dp_status status = open_named(config, &source, err);
    if (status == DP_OK)
        status = make_datasets(config, &source, train, valid, err);
    dp_storage_release(source.train);
    dp_storage_release(source.test);
    if (status != DP_OK) {
        dp_dataset_free(*train);
        dp_dataset_free(*valid);
        *train = *valid = NULL;
    }
    return status;
}
