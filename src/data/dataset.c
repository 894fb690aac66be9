#include "data/dataset.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "data/pictures.h"

struct dp_dataset {
    dp_dataset_info info;
    dp_storage *storage;
    int64_t *members; /* which samples of the storage; NULL: all */
    bool to_train;
};

/* The end of a long source says more than its beginning. */
static void shorten(const char *source, char *buffer, size_t size)
{
    size_t length = strlen(source);
    if (length < size)
        snprintf(buffer, size, "%s", source);
    else
        snprintf(buffer, size, "...%s", source + length - (size - 4));
}

static void describe(dp_dataset_info *info, const char *source)
{
    char from[64], count[32], what[80], targets[48];
    shorten(source, from, sizeof from);
    dp_format_count(info->samples, count, sizeof count);
    const char *plural = info->samples == 1 ? "" : "s";
    if (info->rank == 3)
        snprintf(what, sizeof what, "image%s %lldx%lldx%lld", plural, (long long)info->shape[0],
                 (long long)info->shape[1], (long long)info->shape[2]);
    else
        snprintf(what, sizeof what, "sample%s of %lld feature%s", plural, (long long)info->shape[0],
                 info->shape[0] == 1 ? "" : "s");
    if (info->target == DP_TARGET_LABELS)
        snprintf(targets, sizeof targets, "%lld class%s", (long long)info->classes,
                 info->classes == 1 ? "" : "es");
    else if (info->target == DP_TARGET_VALUES)
        snprintf(targets, sizeof targets, "%lld target value%s", (long long)info->target_elements,
                 info->target_elements == 1 ? "" : "s");
    else
        snprintf(targets, sizeof targets, "masks");
    char line[256];
    snprintf(line, sizeof line, "%s, %s %s, %s", from, count, what, targets);
    snprintf(info->description, sizeof info->description, "%.*s", (int)sizeof info->description - 1, line);
}

static dp_dataset_info make_info(const dp_storage *storage, int64_t samples, const char *source,
                                 int64_t classes)
{
    dp_dataset_info info = {.samples = samples,
                            .is_test = storage->is_test,
                            .rank = storage->rank,
                            .elements = storage->elements,
                            .target = storage->target,
                            .target_elements = storage->target_elements,
                            .normalize_channels = storage->normalize_channels};
    memcpy(info.shape, storage->shape, sizeof info.shape);
    memcpy(info.mean, storage->mean, sizeof info.mean);
    memcpy(info.std, storage->std, sizeof info.std);
    info.classes = storage->target == DP_TARGET_LABELS ? classes : 0;
    if (storage->target == DP_TARGET_LABELS) {
        info.named_classes = storage->named_classes;
        info.class_names = (const char *const *)storage->class_names;
    }
    info.target_bytes = sizeof(float) * (size_t)storage->target_elements; /* an int32 label is as wide */
    describe(&info, source);
    return info;
}

dp_status dp_dataset_make(dp_storage *storage, int64_t *members, int64_t samples, bool to_train,
                          const char *source, int64_t classes, dp_dataset **out, dp_error *err)
{
    dp_status status = dp_calloc(1, sizeof **out, "a data set", out, err);
    if (status != DP_OK) {
        dp_free(members);
        return status;
    }
    (*out)->info = make_info(storage, samples, source, classes);
    (*out)->storage = dp_storage_share(storage);
    (*out)->members = members;
    (*out)->to_train = to_train;
    if (to_train && storage->pictures)
        (*out)->info.augment = storage->pictures->augment;
    return DP_OK;
}

void dp_dataset_free(dp_dataset *dataset)
{
    if (!dataset)
        return;
    dp_storage_release(dataset->storage);
    dp_free(dataset->members);
    dp_free(dataset);
}

const dp_dataset_info *dp_dataset_info_of(const dp_dataset *dataset)
{
    return &dataset->info;
}

dp_status dp_dataset_read(const dp_dataset *dataset, int64_t index, int64_t epoch, float *x, void *target,
                          dp_error *err)
{
    if (index < 0 || index >= dataset->info.samples)
        return dp_fail(err, DP_ERROR_USAGE, "there is no sample %lld: the data set has %lld",
                       (long long)index, (long long)dataset->info.samples);
    const dp_storage *storage = dataset->storage;
    return storage->read(storage, dataset->members ? dataset->members[index] : index,
                         dataset->to_train ? epoch : -1, x, target, err);
}
