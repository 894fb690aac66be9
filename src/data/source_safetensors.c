/* A safetensors file with the tensors x and y. It stays open; samples are read out of it one by one. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "data/storage.h"

/* "[64, 1, 28, 28]" */
static const char *shape_text(const dp_tensor *tensor, char *buffer, size_t size)
{
    size_t used = (size_t)snprintf(buffer, size, "[");
    for (int d = 0; d < tensor->rank && used < size; d++)
        used += (size_t)snprintf(buffer + used, size - used, "%s%lld", d ? ", " : "",
                                 (long long)tensor->shape[d]);
    if (used < size)
        snprintf(buffer + used, size - used, "]");
    return buffer;
}

static dp_status take_x(dp_storage *storage, const char *path, dp_error *err)
{
    const dp_tensor *x = dp_safetensors_find(storage->file, "x");
    char text[200];
    if (!x)
        return dp_fail(err, DP_ERROR_MISMATCH, "'%s' has no tensor 'x' (the samples)", path);
    if (x->dtype != DP_F32 && x->dtype != DP_U8)
        return dp_fail(err, DP_ERROR_MISMATCH, "'%s': x is %s; samples are F32, or U8 for 0..255", path,
                       dp_dtype_name(x->dtype));
    if (x->rank < 2 || x->rank > 4)
        return dp_fail(err, DP_ERROR_MISMATCH,
                       "'%s': x has shape %s; it must be [N, features], [N, H, W] or [N, C, H, W]", path,
                       shape_text(x, text, sizeof text));
    if (x->shape[0] == 0)
        return dp_fail(err, DP_ERROR_MISMATCH, "'%s': x holds no samples", path);
    storage->samples = x->shape[0];
    storage->bytes = x->dtype == DP_U8;
    storage->x_tensor = x;
    const int64_t image[3] = {1, x->shape[1], x->shape[2]};
    return dp_storage_set_shape(storage, x->rank == 2 ? 1 : 3, x->rank == 3 ? image : x->shape + 1, path,
                                err);
}

enum { LABELS_AT_ONCE = 1024 };

static dp_status narrow_labels(dp_storage *storage, const int64_t *wide, int64_t first, int64_t count,
                               const char *path, dp_error *err)
{
    for (int64_t i = 0; i < count; i++) {
        if (wide[i] < INT32_MIN || wide[i] >= INT32_MAX)
            return dp_fail(err, DP_ERROR_MISMATCH,
                           "'%s': the label of sample %lld is %lld, which is no class number", path,
                           (long long)(first + i), (long long)wide[i]);
        storage->labels[first + i] = (int32_t)wide[i];
    }
    return DP_OK;
}

static dp_status take_labels(dp_storage *storage, const dp_tensor *y, const char *path, dp_error *err)
{
    storage->target = DP_TARGET_LABELS;
    storage->target_elements = 1;
    DP_TRY(dp_strdup(path, &storage->labels_path, err));
    DP_TRY(dp_calloc((size_t)storage->samples, sizeof *storage->labels, "labels", &storage->labels, err));
    for (int64_t first = 0; first < storage->samples; first += LABELS_AT_ONCE) {
        int64_t wide[LABELS_AT_ONCE], left = storage->samples - first;
        int64_t count = left < LABELS_AT_ONCE ? left : LABELS_AT_ONCE;
        DP_TRY(dp_safetensors_read(storage->file, y, (size_t)first * sizeof *wide, wide,
                                   (size_t)count * sizeof *wide, err));
        DP_TRY(narrow_labels(storage, wide, first, count, path, err));
    }
    return DP_OK;
}

/* Is it one mask a sample, as high and wide as the images? */
static bool is_mask(const dp_storage *storage, const dp_tensor *y)
{
    return y->rank == 4 && storage->rank == 3 && y->shape[1] == 1 && y->shape[2] == storage->shape[1] &&
           y->shape[3] == storage->shape[2];
}

static dp_status take_y(dp_storage *storage, const char *path, dp_error *err)
{
    const dp_tensor *y = dp_safetensors_find(storage->file, "y");
    char text[200];
    if (!y)
        return dp_fail(err, DP_ERROR_MISMATCH, "'%s' has no tensor 'y' (the targets)", path);
    if (y->rank < 1 || y->shape[0] != storage->samples)
        return dp_fail(err, DP_ERROR_MISMATCH, "'%s': y has shape %s, but x holds %lld sample%s", path,
                       shape_text(y, text, sizeof text), (long long)storage->samples, dp_s(storage->samples));
    if (y->dtype == DP_I64 && y->rank == 1)
        return take_labels(storage, y, path, err);
    bool mask = is_mask(storage, y);
    if (y->dtype != DP_F32 || (y->rank > 2 && !mask) || y->elements == 0)
        return dp_fail(err, DP_ERROR_MISMATCH,
                       "'%s': y is %s of shape %s; targets are I64 labels [N], F32 values [N] or [N, K], or "
                       "F32 masks [N, 1, H, W] of the images' size",
                       path, dp_dtype_name(y->dtype), shape_text(y, text, sizeof text));
    storage->target = mask ? DP_TARGET_MASK : DP_TARGET_VALUES;
    storage->target_elements = y->elements / storage->samples;
    storage->y_tensor = y;
    return DP_OK;
}

dp_status dp_open_safetensors(const dp_data_config *config, const char *argument, dp_source *out,
                              dp_error *err)
{
    (void)config;
    if (!argument || !*argument)
        return dp_fail(err, DP_ERROR_USAGE, "data 'safetensors' needs a file: safetensors:FILE");
    DP_TRY(dp_storage_create(&out->train, err));
    DP_TRY(dp_safetensors_open_header(argument, &out->train->file, err));
    DP_TRY(take_x(out->train, argument, err));
    return take_y(out->train, argument, err);
}
