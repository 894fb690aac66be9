/* MNIST-named IDX files: a directory of the user's, or Debian's Fashion-MNIST. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "data/storage.h"
#include "io/file.h"

static dp_status join(const char *directory, const char *name, const char *suffix, char **out, dp_error *err)
{
    size_t room = strlen(directory) + strlen(name) + strlen(suffix) + 2;
    DP_TRY(dp_calloc(room, 1, "a file name", out, err));
    snprintf(*out, room, "%s/%s%s", directory, name, suffix);
    return DP_OK;
}

/* The path of NAME or NAME.gz in the directory, NULL if there is neither. Owner: the caller. */
static dp_status locate(const char *directory, const char *name, char **out, dp_error *err)
{
    static const char *const suffixes[] = {"", ".gz"};
    for (int i = 0; i < 2; i++) {
        DP_TRY(join(directory, name, suffixes[i], out, err));
        if (dp_file_exists(*out))
            return DP_OK;
        dp_free(*out);
        *out = NULL;
    }
    return DP_OK;
}

static dp_status take_images(dp_storage *storage, const char *path, dp_error *err)
{
    DP_TRY(dp_idx_read(path, &storage->images, err));
    const dp_idx *images = &storage->images;
    int64_t shape[3] = {1, 0, 0};
    if (images->rank == 3)
        memcpy(shape + 1, images->shape + 1, 2 * sizeof *shape);
    else if (images->rank == 4)
        memcpy(shape, images->shape + 1, 3 * sizeof *shape);
    else
        return dp_fail(err, DP_ERROR_MISMATCH, "'%s' has %d dimension%s; images have 3 or 4", path,
                       images->rank, images->rank == 1 ? "" : "s");
    storage->samples = images->shape[0];
    storage->bytes = true;
    storage->x = images->data;
    if (storage->samples == 0)
        return dp_fail(err, DP_ERROR_MISMATCH, "'%s' holds no images", path);
    return dp_storage_set_shape(storage, 3, shape, path, err);
}

static dp_status copy_labels(dp_storage *storage, const dp_idx *labels, const char *images_path,
                             const char *path, dp_error *err)
{
    if (labels->rank != 1)
        return dp_fail(err, DP_ERROR_MISMATCH, "'%s' has %d dimensions; labels have 1", path, labels->rank);
    if (labels->shape[0] != storage->samples)
        return dp_fail(err, DP_ERROR_MISMATCH, "'%s' holds %lld label%s, but '%s' holds %lld image%s", path,
                       (long long)labels->shape[0], dp_s(labels->shape[0]), images_path,
                       (long long)storage->samples, dp_s(storage->samples));
    DP_TRY(dp_calloc((size_t)storage->samples, sizeof *storage->labels, "labels", &storage->labels, err));
    for (int64_t i = 0; i < storage->samples; i++)
        storage->labels[i] = labels->data[i];
    storage->target = DP_TARGET_LABELS;
    storage->target_elements = 1;
    return DP_OK;
}

static dp_status take_labels(dp_storage *storage, const char *images_path, const char *path, dp_error *err)
{
    dp_idx labels;
    DP_TRY(dp_strdup(path, &storage->labels_path, err));
    DP_TRY(dp_idx_read(path, &labels, err));
    dp_status status = copy_labels(storage, &labels, images_path, path, err);
    dp_idx_clear(&labels);
    return status;
}

/* One part, "train" or "t10k". An optional part that is not there at all leaves *out NULL. */
static dp_status open_part(const char *directory, const char *part, bool optional, dp_storage **out,
                           dp_error *err)
{
    char name[2][40], *path[2] = {NULL, NULL};
    snprintf(name[0], sizeof name[0], "%s-images-idx3-ubyte", part);
    snprintf(name[1], sizeof name[1], "%s-labels-idx1-ubyte", part);
    dp_status status = locate(directory, name[0], &path[0], err);
    if (status == DP_OK)
        status = locate(directory, name[1], &path[1], err);
    if (status == DP_OK && optional && !path[0] && !path[1])
        return DP_OK;
    for (int i = 0; status == DP_OK && i < 2; i++) {
        if (!path[i])
            status =
                dp_fail(err, DP_ERROR_IO, "'%s' holds neither %s nor %s.gz", directory, name[i], name[i]);
    }
    if (status == DP_OK)
        status = dp_storage_create(out, err);
    if (status == DP_OK)
        status = take_images(*out, path[0], err);
    if (status == DP_OK)
        status = take_labels(*out, path[0], path[1], err);
    dp_free(path[0]);
    dp_free(path[1]);
    return status;
}

static dp_status open_directory(const char *directory, const dp_data_config *config, dp_source *out,
                                dp_error *err)
{
    if (!dp_file_exists(directory))
        return dp_fail(err, DP_ERROR_IO, "cannot read '%s': there is no such directory", directory);
    DP_TRY(open_part(directory, "train", false, &out->train, err));
    if (config->no_validation)
        return DP_OK;
    DP_TRY(open_part(directory, "t10k", true, &out->test, err));
    dp_storage *train = out->train, *test = out->test;
    if (!test)
        return DP_OK;
    test->is_test = true;
    if (memcmp(train->shape, test->shape, sizeof train->shape) != 0)
        return dp_fail(err, DP_ERROR_MISMATCH,
                       "'%s': training images are %lldx%lldx%lld, test images %lldx%lldx%lld", directory,
                       (long long)train->shape[0], (long long)train->shape[1], (long long)train->shape[2],
                       (long long)test->shape[0], (long long)test->shape[1], (long long)test->shape[2]);
    return DP_OK;
}

dp_status dp_open_idx(const dp_data_config *config, const char *argument, dp_source *out, dp_error *err)
{
    if (!argument || !*argument)
        return dp_fail(err, DP_ERROR_USAGE, "data 'idx' needs a directory: idx:DIR");
    return open_directory(argument, config, out, err);
}

dp_status dp_open_fashion_mnist_in(const char *const *directories, const dp_data_config *config,
                                   dp_source *out, dp_error *err)
{
    out->classes = 10;
    out->normalize_channels = 1; /* mean and deviation of the training images' pixels */
    out->mean[0] = 0.2860f;
    out->std[0] = 0.3530f;
    for (; *directories; directories++) {
        if (dp_file_exists(*directories))
            return open_directory(*directories, config, out, err);
    }
    return dp_fail(
        err, DP_ERROR_IO,
        "fashion-mnist is not installed: run 'apt-get install dataset-fashion-mnist' or use --data "
        "idx:DIR");
}

dp_status dp_open_fashion_mnist(const dp_data_config *config, const char *argument, dp_source *out,
                                dp_error *err)
{
    static const char *const directories[] = {"/usr/share/datasets/fashion-mnist",
                                              "/usr/share/dataset-fashion-mnist", NULL};
    if (argument)
        return dp_fail(err, DP_ERROR_USAGE,
                       "data 'fashion-mnist' takes nothing after it; for files of your "
                       "own use idx:DIR");
    return dp_open_fashion_mnist_in(directories, config, out, err);
}
