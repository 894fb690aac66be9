#include "train/predict.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "io/file.h"

dp_predict_config dp_predict_defaults(const dp_checkpoint_info *info)
{
    return (dp_predict_config){.engine = dp_engine_defaults(), .batch_size = 8, .workers = 2, .info = *info};
}

/* ---- where masks go ---- */

static int by_stem(const void *a, const void *b)
{
    const dp_named_picture *const *x = a, *const *y = b;
    return strcmp((*x)->stem, (*y)->stem);
}

static dp_status check_stems(const dp_names *names, dp_error *err)
{
    const dp_named_picture **sorted;
    dp_status status = DP_OK;
    DP_TRY(dp_calloc((size_t)names->count, sizeof *sorted, "names", &sorted, err));
    for (int64_t i = 0; i < names->count; i++)
        sorted[i] = &names->list[i];
    qsort(sorted, (size_t)names->count, sizeof *sorted, by_stem);
    for (int64_t i = 1; i < names->count && status == DP_OK; i++)
        if (strcmp(sorted[i - 1]->stem, sorted[i]->stem) == 0)
            status = dp_fail(err, DP_ERROR_USAGE, "'%s' and '%s' would have the same mask, '%s.png'",
                             sorted[i - 1]->path, sorted[i]->path, sorted[i]->stem);
    dp_free(sorted);
    return status;
}

/* Is it one directory? parent: of a picture; leaf: "" or what stands beside it. */
static dp_status same_folder(const char *path, const char *leaf, const struct stat *out, bool *same,
                             dp_error *err)
{
    const char *slash = strrchr(path, '/');
    int length = slash ? (int)(slash - path) + (slash == path) : 1;
    size_t size = strlen(path) + strlen(leaf) + 3;
    char *folder;
    struct stat in;
    DP_TRY(dp_calloc(size, 1, "a path", &folder, err));
    snprintf(folder, size, "%.*s%s", length, slash ? path : ".", leaf);
    *same = stat(folder, &in) == 0 && in.st_dev == out->st_dev && in.st_ino == out->st_ino;
    dp_free(folder);
    return DP_OK;
}

/* A mask never takes the place of a picture, nor of a true mask that lies beside it: masks go to another
 * folder. */
static dp_status check_folder(const dp_names *names, const char *folder, dp_error *err)
{
    struct stat out;
    if (stat(folder, &out) != 0)
        return DP_OK;
    for (int64_t i = 0; i < names->count; i++) {
        const char *path = names->list[i].path;
        bool pictures, masks;
        DP_TRY(same_folder(path, "", &out, &pictures, err));
        DP_TRY(same_folder(path, "/../masks", &out, &masks, err));
        if (pictures || masks)
            return dp_fail(err, DP_ERROR_USAGE,
                           "'%s' is where %s'%s' lies: masks could be written over %s; name another folder",
                           folder, masks ? "the mask of " : "", path, masks ? "it" : "pictures");
    }
    return DP_OK;
}

/* ---- predicting ---- */

static dp_status make_sample(const dp_predictor *p, dp_image *image, float **out, dp_error *err)
{
    DP_TRY(dp_calloc((size_t)p->elements, sizeof **out, "a sample", out, err));
    if (p->channels == 1)
        dp_image_to_grey(image);
    dp_view all = dp_view_of_all(image);
    DP_TRY(dp_resize_bilinear(image, &all, p->height, p->width, (int)p->channels, *out, err));
    dp_predict_normalize(p, *out);
    return DP_OK;
}

dp_status dp_predict_prepare(const dp_predictor *p, const dp_input *input, dp_ready *out, dp_error *err)
{
    void *bytes;
    size_t size;
    *out = (dp_ready){0};
    DP_TRY(dp_file_read(input->name->path, &bytes, &size, err));
    dp_status status = dp_image_decode(bytes, size, input->name->path, &out->image, err);
    dp_free(bytes);
    if (status != DP_OK || p->masks)
        return status;
    status = make_sample(p, &out->image, &out->sample, err);
    dp_image_clear(&out->image);
    return status;
}

static dp_status predict_ready(dp_predictor *p, dp_ready *ready, const dp_input *input, dp_error *err)
{
    if (p->masks)
        return dp_predict_mask(p, input->name, &ready->image, err);
    memcpy(dp_predict_slot(p), ready->sample, (size_t)p->elements * sizeof *ready->sample);
    return dp_predict_push(p, (dp_part){.name = input->name, .truth = input->truth}, err);
}

/* A header said that the picture is well, its pixels may say otherwise: then it is bad, and the others go on.
 */
static dp_status predict_next(dp_predictor *p, dp_decoder *decoder, const dp_input *input, dp_bad_files *bad,
                              dp_error *err)
{
    dp_ready ready;
    dp_error reason;
    dp_status status = dp_decoder_next(decoder, &ready, &reason);
    if (status == DP_OK)
        status = predict_ready(p, &ready, input, err);
    else if (status == DP_ERROR_IO)
        status = dp_bad_file(bad, err, "%s", reason.message);
    else
        dp_fail(err, status, "%s", reason.message);
    dp_ready_clear(&ready);
    return status;
}

static dp_status prepare_folder(const dp_predictor *p, const dp_names *names, dp_error *err)
{
    DP_TRY(check_stems(names, err));
    DP_TRY(check_folder(names, p->config->folder, err));
    return dp_make_directories(p->config->folder, err);
}

static dp_status predict_each(dp_predictor *p, const dp_inputs *inputs, dp_bad_files *bad, dp_error *err)
{
    dp_decoder *decoder = NULL;
    if (p->masks && inputs->count > 0)
        DP_TRY(dp_mask_writer_create(p, inputs->count, &p->writer, err));
    if (inputs->count > 0) /* else all were bad, and are left out */
        DP_TRY(dp_decoder_create(p, inputs->list, inputs->count, &decoder, err));
    if (p->config->start)
        p->config->start(p->config->user);
    dp_status status = DP_OK;
    for (int64_t i = 0; i < inputs->count && status == DP_OK; i++)
        status = predict_next(p, decoder, &inputs->list[i], bad, err);
    dp_decoder_free(decoder);
    if (status == DP_OK)
        status = dp_predict_flush(p, err);
    /* What is still to be written comes before the picture that failed, and so does its failure. */
    dp_status written = p->writer ? dp_mask_writer_finish(p->writer, err) : DP_OK;
    return written != DP_OK ? written : status;
}

static dp_status predict_all(dp_predictor *p, const dp_inputs *inputs, dp_error *err)
{
    const dp_predict_config *c = p->config;
    dp_bad_files bad = {0};
    if (p->masks)
        DP_TRY(prepare_folder(p, &inputs->names, err));
    dp_status status = predict_each(p, inputs, &bad, err);
    if (status == DP_OK && c->end)
        c->end(c->user);
    if (status == DP_OK)
        status = dp_bad_files_settle(&bad, inputs->count - bad.count, c->skip_bad, c->note, c->user, err);
    dp_bad_files_clear(&bad);
    return status;
}

dp_status dp_predict(dp_context *context, const dp_model *model, const dp_model_state *state,
                     const dp_predict_config *config, dp_error *err)
{
    dp_inputs inputs = {0};
    dp_predictor predictor = {0};
    dp_status status;
    if ((status = dp_inputs_collect(config, model, &inputs, err)) == DP_OK &&
        (status = dp_predict_open(context, model, state, config, &predictor, err)) == DP_OK)
        status = predict_all(&predictor, &inputs, err);
    dp_predict_close(&predictor);
    dp_inputs_clear(&inputs);
    return status;
}
