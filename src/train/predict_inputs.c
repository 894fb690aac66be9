/* Which pictures are to be predicted, and what is known of them beforehand. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "base/text.h"
#include "io/file.h"
#include "train/predict.h"

typedef struct listing {
    const dp_predict_config *config;
    int64_t classes; /* of the model; 0: it gives masks */
    dp_inputs *inputs;
    dp_bad_files *bad;
} listing;

/* ---- listing ---- */

/* The names that were added since the last call are of this class; -1: not known. */
static dp_status set_truth(dp_inputs *in, int64_t truth, dp_error *err)
{
    DP_TRY(dp_realloc(&in->truths, (size_t)in->names.count + 1, sizeof *in->truths, "a list of files", err));
    for (; in->judged < in->names.count; in->judged++)
        in->truths[in->judged] = truth;
    return DP_OK;
}

/* A folder without pictures may hold folders of them: classes, or images beside masks. */
static dp_status list_folder(const listing *l, const char *folder, dp_error *err)
{
    dp_names *names = &l->inputs->names, folders = {0};
    int64_t before = names->count;
    DP_TRY(dp_list_pictures(folder, l->bad, names, err));
    if (names->count > before)
        return DP_OK;
    dp_status status = dp_list_folders(folder, &folders, err);
    for (int64_t i = 0; i < folders.count && status == DP_OK; i++)
        if (strcmp(folders.list[i].stem, "masks") != 0)
            status = dp_list_pictures(folders.list[i].path, l->bad, names, err);
    dp_names_clear(&folders);
    if (status == DP_OK && names->count == before && l->bad->count == 0)
        status = dp_fail(err, DP_ERROR_IO, "'%s' holds no pictures (.jpg, .jpeg or .png)", folder);
    return status;
}

/* The class of a folder: by its name where the checkpoint knows the names, else by its place among all. */
static dp_status class_of(const listing *l, const char *directory, const dp_names *folders, int64_t index,
                          int64_t *out, dp_error *err)
{
    const dp_checkpoint_info *info = &l->config->info;
    *out = index;
    if (info->named_classes == 0 && folders->count != l->classes)
        return dp_fail(err, DP_ERROR_MISMATCH,
                       "'%s' has %lld class folder%s, the model %lld class%s whose names the checkpoint does "
                       "not say; --data '%s' predicts without an accuracy",
                       directory, (long long)folders->count, dp_s(folders->count), (long long)l->classes,
                       l->classes == 1 ? "" : "es", directory);
    if (info->named_classes == 0)
        return DP_OK;
    for (*out = 0; *out < info->named_classes; ++*out)
        if (strcmp(info->class_names[*out], folders->list[index].stem) == 0)
            return DP_OK;
    return dp_fail(
        err, DP_ERROR_MISMATCH,
        "'%s' is none of the model's classes ('%s', ...); --data '%s' predicts without an accuracy",
        folders->list[index].path, info->class_names[0], directory);
}

static dp_status list_classes(const listing *l, const char *directory, const dp_names *folders, dp_error *err)
{
    for (int64_t i = 0; i < folders->count; i++) {
        int64_t truth;
        DP_TRY(class_of(l, directory, folders, i, &truth, err));
        DP_TRY(dp_list_pictures(folders->list[i].path, l->bad, &l->inputs->names, err));
        DP_TRY(set_truth(l->inputs, truth, err));
    }
    return DP_OK;
}

/* images:DIR, a folder per class; or of pictures whose class nobody knows. */
static dp_status list_images(const listing *l, const char *directory, dp_error *err)
{
    dp_names folders = {0};
    int64_t before = l->inputs->names.count;
    dp_status status = dp_list_folders(directory, &folders, err);
    if (status == DP_OK && folders.count > 0 && l->classes > 0)
        status = list_classes(l, directory, &folders, err);
    dp_names_clear(&folders);
    /* What has no class folders with pictures in them is listed, or refused, as a plain folder. */
    return status == DP_OK && l->inputs->names.count == before ? list_folder(l, directory, err) : status;
}

/* segmentation:DIR, the pictures of DIR/images. */
static dp_status list_segmentation(const listing *l, const char *directory, dp_error *err)
{
    size_t size = strlen(directory) + sizeof "/images";
    char *path;
    DP_TRY(dp_calloc(size, 1, "a path", &path, err));
    snprintf(path, size, "%s/images", directory);
    dp_status status = list_folder(l, path, err);
    dp_free(path);
    return status;
}

static dp_status list_source(const listing *l, const char *source, dp_error *err)
{
    static const struct {
        const char *prefix;
        dp_status (*list)(const listing *l, const char *directory, dp_error *err);
    } kinds[] = {{"images:", list_images}, {"segmentation:", list_segmentation}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        size_t length = strlen(kinds[i].prefix);
        if (strncmp(source, kinds[i].prefix, length) != 0)
            continue;
        if (!source[length])
            return dp_fail(err, DP_ERROR_USAGE, "data '%s' needs a directory: %sDIR", source, source);
        return kinds[i].list(l, source + length, err);
    }
    struct stat st;
    bool folder = stat(source, &st) == 0 && S_ISDIR(st.st_mode);
    return folder ? list_folder(l, source, err) : dp_names_add(&l->inputs->names, source, err);
}

/* ---- looking at the files ---- */

static dp_status count_pixels(const char *path, int64_t *pixels, dp_error *err)
{
    void *bytes;
    size_t size;
    int64_t width, height;
    DP_TRY(dp_file_read(path, &bytes, &size, err));
    dp_status status = dp_image_size(bytes, size, path, &width, &height, err);
    dp_free(bytes);
    if (status == DP_OK)
        *pixels = width * height;
    return status;
}

static dp_status look_at_pictures(dp_inputs *in, dp_bad_files *bad, dp_error *err)
{
    DP_TRY(dp_calloc((size_t)in->names.count, sizeof *in->list, "names", &in->list, err));
    for (int64_t i = 0; i < in->names.count; i++) {
        dp_error reason;
        dp_input input = {.name = &in->names.list[i], .truth = in->truths[i]};
        dp_status status = count_pixels(input.name->path, &input.pixels, &reason);
        if (status == DP_OK)
            in->list[in->count++] = input;
        else if (status == DP_ERROR_IO)
            DP_TRY(dp_bad_file(bad, err, "%s", reason.message));
        else
            return dp_fail(err, status, "%s", reason.message);
    }
    return DP_OK;
}

static dp_status collect(const listing *l, dp_error *err)
{
    const dp_predict_config *c = l->config;
    for (int64_t i = 0; i < c->input_count; i++) {
        DP_TRY(list_source(l, c->inputs[i], err));
        DP_TRY(set_truth(l->inputs, -1, err));
    }
    DP_TRY(look_at_pictures(l->inputs, l->bad, err));
    return dp_bad_files_settle(l->bad, l->inputs->count, c->skip_bad, c->note, c->user, err);
}

dp_status dp_inputs_collect(const dp_predict_config *config, const dp_model *model, dp_inputs *out,
                            dp_error *err)
{
    int64_t shape[3];
    dp_bad_files bad = {0};
    bool labels = dp_model_output_shape(model, shape) == 1 && config->info.criterion == DP_LOSS_CROSS_ENTROPY;
    const listing l = {.config = config, .classes = labels ? shape[0] : 0, .inputs = out, .bad = &bad};
    *out = (dp_inputs){0};
    dp_status status = collect(&l, err);
    dp_bad_files_clear(&bad);
    return status;
}

void dp_inputs_clear(dp_inputs *inputs)
{
    dp_names_clear(&inputs->names);
    dp_free(inputs->truths);
    dp_free(inputs->list);
    *inputs = (dp_inputs){0};
}
