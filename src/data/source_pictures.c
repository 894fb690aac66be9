/* segmentation:DIR (DIR/images and DIR/masks, paired by stem) and images:DIR (a folder per class). */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "data/pictures.h"

/* Mean and deviation of ImageNet's training pictures, as torchvision's pretrained models expect them. */
static const float imagenet_mean[3] = {0.485f, 0.456f, 0.406f}, imagenet_std[3] = {0.229f, 0.224f, 0.225f};

static dp_status begin(const char *kind, const char *folder, dp_source *out, dp_error *err)
{
    if (!folder || !*folder)
        return dp_fail(err, DP_ERROR_USAGE, "data '%s' needs a directory: %s:DIR", kind, kind);
    DP_TRY(dp_storage_create(&out->train, err));
    out->normalize_channels = 3;
    memcpy(out->mean, imagenet_mean, sizeof imagenet_mean);
    memcpy(out->std, imagenet_std, sizeof imagenet_std);
    return dp_calloc(1, sizeof *out->train->pictures, "a list of pictures", &out->train->pictures, err);
}

static dp_status join(const char *folder, const char *name, char **out, dp_error *err)
{
    size_t size = strlen(folder) + strlen(name) + 2;
    DP_TRY(dp_calloc(size, 1, "a file name", out, err));
    snprintf(*out, size, "%s/%s", folder, name);
    return DP_OK;
}

/* ---- pairs ---- */

typedef struct queue {
    dp_names names;
    int64_t next;
} queue;

/* Takes the next name; those of the same stem that follow it are bad. */
static dp_status take_next(queue *q, const dp_named_picture **out, dp_bad_files *bad, dp_error *err)
{
    const dp_names *n = &q->names;
    *out = &n->list[q->next++];
    while (q->next < n->count && strcmp(n->list[q->next].stem, (*out)->stem) == 0)
        DP_TRY(
            dp_bad_file(bad, err, "'%s' has the same stem as '%s'", n->list[q->next++].path, (*out)->path));
    return DP_OK;
}

/* Both lists are sorted by stem. */
static dp_status pair(queue *images, queue *masks, dp_pictures *pictures, dp_bad_files *bad, dp_error *err)
{
    while (images->next < images->names.count || masks->next < masks->names.count) {
        int order = images->next == images->names.count ? 1
                    : masks->next == masks->names.count
                        ? -1
                        : strcmp(images->names.list[images->next].stem, masks->names.list[masks->next].stem);
        const dp_named_picture *image = NULL, *mask = NULL;
        if (order <= 0)
            DP_TRY(take_next(images, &image, bad, err));
        if (order >= 0)
            DP_TRY(take_next(masks, &mask, bad, err));
        if (image && mask)
            DP_TRY(dp_pictures_add(pictures, image->path, mask->path, 0, err));
        else
            DP_TRY(dp_bad_file(bad, err, "'%s' has no %s of its stem", image ? image->path : mask->path,
                               image ? "mask" : "image"));
    }
    return DP_OK;
}

static dp_status list_pairs(const char *folder, dp_pictures *pictures, dp_bad_files *bad, dp_error *err)
{
    static const char *const parts[2] = {"images", "masks"};
    queue found[2] = {0};
    dp_status status = DP_OK;
    for (int i = 0; i < 2 && status == DP_OK; i++) {
        char *path = NULL;
        status = join(folder, parts[i], &path, err);
        if (status == DP_OK)
            status = dp_list_pictures(path, bad, &found[i].names, err);
        dp_free(path);
    }
    if (status == DP_OK)
        status = pair(&found[0], &found[1], pictures, bad, err);
    for (int i = 0; i < 2; i++)
        dp_names_clear(&found[i].names);
    return status;
}

dp_status dp_open_segmentation(const dp_data_config *config, const char *argument, dp_source *out,
                               dp_error *err)
{
    DP_TRY(begin("segmentation", argument, out, err));
    dp_bad_files bad = {0};
    dp_storage *storage = out->train;
    dp_status status = list_pairs(argument, storage->pictures, &bad, err);
    if (status == DP_OK)
        status = dp_pictures_check(storage->pictures, config, argument, &bad, storage, err);
    dp_bad_files_clear(&bad);
    storage->target = DP_TARGET_MASK;
    storage->target_elements = storage->shape[1] * storage->shape[2];
    return status;
}

/* ---- classes ---- */

static dp_status list_class(const char *folder, int32_t label, dp_pictures *pictures, dp_bad_files *bad,
                            dp_error *err)
{
    dp_names found = {0};
    dp_status status = dp_list_pictures(folder, bad, &found, err);
    if (status == DP_OK && found.count == 0)
        status = dp_fail(err, DP_ERROR_IO,
                         "'%s' holds no pictures (.jpg, .jpeg or .png): every folder is a class", folder);
    for (int64_t i = 0; i < found.count && status == DP_OK; i++)
        status = dp_pictures_add(pictures, found.list[i].path, NULL, label, err);
    dp_names_clear(&found);
    return status;
}

/* Names are kept where all of them can be written into a checkpoint. */
static dp_status name_classes(const dp_names *folders, dp_storage *storage, dp_error *err)
{
    for (int64_t i = 0; i < folders->count; i++)
        if (!dp_is_utf8(folders->list[i].stem))
            return DP_OK;
    DP_TRY(dp_calloc((size_t)folders->count, sizeof *storage->class_names, "names of classes",
                     &storage->class_names, err));
    for (; storage->named_classes < folders->count; storage->named_classes++)
        DP_TRY(dp_strdup(folders->list[storage->named_classes].stem,
                         &storage->class_names[storage->named_classes], err));
    return DP_OK;
}

static dp_status list_classes(const char *folder, dp_storage *storage, int64_t *classes, dp_bad_files *bad,
                              dp_error *err)
{
    dp_names found = {0};
    dp_status status = dp_list_folders(folder, &found, err);
    if (status == DP_OK && found.count == 0)
        status = dp_fail(err, DP_ERROR_IO,
                         "'%s' holds no folders: images:DIR needs a folder of pictures per class", folder);
    for (int64_t i = 0; i < found.count && status == DP_OK; i++)
        status = list_class(found.list[i].path, (int32_t)i, storage->pictures, bad, err);
    if (status == DP_OK)
        status = name_classes(&found, storage, err);
    *classes = found.count;
    dp_names_clear(&found);
    return status;
}

static dp_status copy_labels(dp_storage *storage, dp_error *err)
{
    DP_TRY(dp_calloc((size_t)storage->samples, sizeof *storage->labels, "labels", &storage->labels, err));
    for (int64_t i = 0; i < storage->samples; i++)
        storage->labels[i] = storage->pictures->list[i].label;
    return DP_OK;
}

dp_status dp_open_images(const dp_data_config *config, const char *argument, dp_source *out, dp_error *err)
{
    DP_TRY(begin("images", argument, out, err));
    dp_bad_files bad = {0};
    dp_storage *storage = out->train;
    storage->target = DP_TARGET_LABELS;
    storage->target_elements = 1;
    DP_TRY(dp_strdup(argument, &storage->labels_path, err));
    dp_status status = list_classes(argument, storage, &out->classes, &bad, err);
    if (status == DP_OK)
        status = dp_pictures_check(storage->pictures, config, argument, &bad, storage, err);
    dp_bad_files_clear(&bad);
    return status == DP_OK ? copy_labels(storage, err) : status;
}
