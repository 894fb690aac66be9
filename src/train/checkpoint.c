/* Checkpoints: weights as safetensors, with what is needed to use them in the metadata. */
#include <errno.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/safetensors.h"
#include "io/weights_file.h"
#include "train/train.h"

const char *const dp_loss_names[] = {"cross_entropy", "bce_with_logits", "mse", "l1", NULL};
const char *const dp_loss_mode_names[] = {"gather", "replica", "global", NULL};

/* NULL when out of memory. */
static json_t *reals(const float *values, int count)
{
    json_t *array = json_array();
    for (int i = 0; array && i < count; i++)
        if (json_array_append_new(array, json_real((double)values[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static char *normalization_text(const dp_checkpoint_info *info)
{
    json_t *json = json_pack("{s:o, s:o}", "mean", reals(info->mean, info->normalize_channels), "std",
                             reals(info->std, info->normalize_channels));
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(json);
    return text;
}

/* *out stays NULL where classes have no names. */
static dp_status class_names_text(const dp_checkpoint_info *info, char **out, dp_error *err)
{
    *out = NULL;
    if (info->named_classes == 0)
        return DP_OK;
    json_t *array = json_array();
    bool whole = array != NULL;
    for (int64_t i = 0; i < info->named_classes && whole; i++)
        whole = json_array_append_new(array, json_string(info->class_names[i])) == 0;
    *out = whole ? json_dumps(array, JSON_COMPACT) : NULL;
    json_decref(array);
    return *out ? DP_OK : dp_fail(err, DP_ERROR_MEMORY, "out of memory: cannot write the names of classes");
}

enum { MAX_ENTRIES = 9 };

typedef struct entries {
    dp_metadata list[MAX_ENTRIES];
    char text[MAX_ENTRIES][40];
    int count;
} entries;

static void add_text(entries *e, char *key, char *value)
{
    e->list[e->count++] = (dp_metadata){key, value};
}

static void add_number(entries *e, char *key, double value)
{
    snprintf(e->text[e->count], sizeof e->text[0], "%.17g", value);
    add_text(e, key, e->text[e->count]);
}

static dp_status write_file(const char *path, const dp_model *model, const dp_run_tensors *tensors,
                            const entries *e, dp_error *err)
{
    dp_run_views views;
    dp_status status = dp_run_views_make(model, tensors, "", false, &views, err);
    if (status == DP_OK)
        status = dp_safetensors_write_from(path, views.list.tensors, views.list.count, &views.source, e->list,
                                           e->count, err);
    dp_views_clear(&views.list);
    return status;
}

dp_status dp_checkpoint_write(const char *path, const dp_model *model, const dp_model_state *state,
                              const dp_checkpoint_info *info, dp_error *err)
{
    const dp_run_tensors tensors = {.model = *state};
    return dp_checkpoint_write_run(path, model, &tensors, info, err);
}

dp_status dp_checkpoint_write_run(const char *path, const dp_model *model, const dp_run_tensors *tensors,
                                  const dp_checkpoint_info *info, dp_error *err)
{
    char *normalization = normalization_text(info);
    if (!normalization)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory: cannot write '%s'", path);
    char *class_names;
    dp_status status = class_names_text(info, &class_names, err);
    if (status != DP_OK) {
        free(normalization);
        return status;
    }
    entries e = {0};
    char seed[24], epoch[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)info->data_seed);
    snprintf(epoch, sizeof epoch, "%lld", (long long)info->epoch);
    add_text(&e, "format", "pt");
    if (dp_model_description(model))
        add_text(&e, "model", (char *)dp_model_description(model));
    add_text(&e, "loss", (char *)dp_loss_names[info->criterion]);
    add_number(&e, "pos_weight", info->pos_weight);
    add_text(&e, "normalization", normalization);
    add_text(&e, "data_seed", seed);
    add_number(&e, "valid_split", info->valid_split);
    if (info->epoch >= 0)
        add_text(&e, "epoch", epoch);
    if (class_names)
        add_text(&e, "class_names", class_names);
    status = write_file(path, model, tensors, &e, err);
    free(class_names);
    free(normalization);
    return status;
}

/* ---- reading ---- */

/* A number that fills its whole text; *out keeps its default where there is none. */
static bool read_real(const dp_weights_file *file, const char *key, double *out)
{
    const char *text = dp_weights_file_metadata(file, key);
    if (!text)
        return true;
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && isfinite(*out);
}

static bool read_count(const dp_weights_file *file, const char *key, uint64_t *out)
{
    const char *text = dp_weights_file_metadata(file, key);
    if (!text)
        return true;
    char *end;
    errno = 0;
    *out = strtoull(text, &end, 10);
    return *text >= '0' && *text <= '9' && !*end && errno == 0;
}

static bool read_floats(const json_t *array, int count, float *out)
{
    for (int i = 0; i < count; i++) {
        const json_t *v = json_array_get(array, (size_t)i);
        if (!json_is_number(v) || !(fabs(json_number_value(v)) <= (double)FLT_MAX))
            return false;
        out[i] = (float)json_number_value(v);
    }
    return true;
}

static bool read_normalization(const char *text, dp_checkpoint_info *info)
{
    if (!text)
        return true;
    json_t *json = json_loads(text, 0, NULL);
    const json_t *mean = json_object_get(json, "mean"), *std = json_object_get(json, "std");
    size_t n = json_array_size(mean);
    bool sound = json_is_array(mean) && n <= DP_NORMALIZE_MAX && json_array_size(std) == n;
    if (sound) {
        info->normalize_channels = (int)n;
        sound = read_floats(mean, (int)n, info->mean) && read_floats(std, (int)n, info->std);
        for (size_t i = 0; i < n; i++)
            sound = sound && info->std[i] > 0;
    }
    json_decref(json);
    return sound;
}

static dp_status read_info(const dp_weights_file *file, const char *path, dp_checkpoint_info *info,
                           dp_error *err)
{
    *info = (dp_checkpoint_info){.pos_weight = 1, .valid_split = 0.15, .epoch = -1};
    uint64_t epoch = INT64_MAX; /* none */
    const char *loss = dp_weights_file_metadata(file, "loss");
    int kind = 0;
    while (loss && dp_loss_names[kind] && strcmp(dp_loss_names[kind], loss) != 0)
        kind++;
    bool sound = dp_loss_names[kind] &&
                 read_normalization(dp_weights_file_metadata(file, "normalization"), info) &&
                 read_real(file, "pos_weight", &info->pos_weight) &&
                 read_real(file, "valid_split", &info->valid_split) && read_count(file, "epoch", &epoch) &&
                 read_count(file, "data_seed", &info->data_seed) && info->pos_weight > 0 &&
                 info->valid_split >= 0 && info->valid_split < 1;
    if (!sound)
        return dp_fail(err, DP_ERROR_MISMATCH, "'%s': its metadata is not that of a dptrain checkpoint",
                       path);
    info->epoch = epoch < INT64_MAX ? (int64_t)epoch : -1;
    info->criterion = (dp_loss_kind)kind;
    return DP_OK;
}

dp_status dp_checkpoint_open(const char *path, dp_model **model, dp_checkpoint_info *info, dp_error *err)
{
    *model = NULL;
    dp_weights_file *file;
    DP_TRY(dp_weights_file_open(path, &file, err));
    const char *description = dp_weights_file_metadata(file, "model");
    dp_status status = DP_OK;
    if (dp_weights_file_is_torch(file))
        status =
            dp_fail(err, DP_ERROR_MISMATCH,
                    "'%s' does not say which model it is for: files of PyTorch's hold weights alone; train "
                    "with --init '%s' and a --model, or evaluate a checkpoint of dptrain's",
                    path, path);
    else if (!description)
        status = dp_fail(err, DP_ERROR_MISMATCH,
                         "'%s' does not say which model it is for: it was not written by dptrain", path);
    else
        status = read_info(file, path, info, err);
    if (status == DP_OK)
        status = dp_model_from_description(description, model, err);
    dp_weights_file_close(file);
    return status;
}

/* ---- names of classes ---- */

static dp_status copy_names(const json_t *array, const char *path, dp_class_names *out, dp_error *err)
{
    size_t count = json_array_size(array);
    DP_TRY(dp_calloc(count, sizeof *out->list, "names of classes", &out->list, err));
    for (; (size_t)out->count < count; out->count++) {
        const char *name = json_string_value(json_array_get(array, (size_t)out->count));
        if (!name)
            return dp_fail(err, DP_ERROR_MISMATCH, "'%s': its names of classes are no names", path);
        DP_TRY(dp_strdup(name, &out->list[out->count], err));
    }
    return DP_OK;
}

dp_status dp_checkpoint_class_names(const char *path, dp_class_names *out, dp_error *err)
{
    *out = (dp_class_names){0};
    dp_weights_file *file;
    DP_TRY(dp_weights_file_open(path, &file, err));
    const char *text = dp_weights_file_metadata(file, "class_names");
    dp_status status = DP_OK;
    if (text) {
        json_t *array = json_loads(text, 0, NULL);
        status = json_is_array(array)
                     ? copy_names(array, path, out, err)
                     : dp_fail(err, DP_ERROR_MISMATCH, "'%s': its names of classes are no list", path);
        json_decref(array);
    }
    dp_weights_file_close(file);
    return status;
}

void dp_class_names_clear(dp_class_names *names)
{
    for (int64_t i = 0; i < names->count; i++)
        dp_free(names->list[i]);
    dp_free(names->list);
    *names = (dp_class_names){0};
}
