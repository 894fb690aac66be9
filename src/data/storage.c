#include "data/storage.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"

dp_status dp_storage_create(dp_storage **out, dp_error *err)
{
    DP_TRY(dp_calloc(1, sizeof **out, "a data set", out, err));
    atomic_init(&(*out)->references, 1);
    return DP_OK;
}

dp_storage *dp_storage_share(dp_storage *storage)
{
    atomic_fetch_add(&storage->references, 1);
    return storage;
}

void dp_storage_release(dp_storage *storage)
{
    if (!storage || atomic_fetch_sub(&storage->references, 1) > 1)
        return;
    dp_free(storage->labels);
    dp_free(storage->labels_path);
    for (int64_t i = 0; i < storage->named_classes; i++)
        dp_free(storage->class_names[i]);
    dp_free(storage->class_names);
    dp_free(storage->table);
    dp_free(storage->made);
    dp_free(storage->made_values);
    dp_idx_clear(&storage->images);
    dp_safetensors_close(storage->file);
    dp_pictures_free(storage->pictures);
    dp_free(storage);
}

dp_status dp_storage_set_shape(dp_storage *storage, int rank, const int64_t *shape, const char *path,
                               dp_error *err)
{
    int64_t elements = 1;
    storage->rank = rank;
    for (int d = 0; d < rank; d++) {
        storage->shape[d] = shape[d];
        if (shape[d] < 1 || __builtin_mul_overflow(elements, shape[d], &elements))
            return dp_fail(err, DP_ERROR_MISMATCH, "'%s': dimension %d of a sample cannot be %lld", path, d,
                           (long long)shape[d]);
    }
    storage->elements = elements;
    return DP_OK;
}

/* ---- reading ---- */

static dp_status read_target(const dp_storage *storage, int64_t index, void *target, dp_error *err)
{
    if (storage->target == DP_TARGET_LABELS) {
        memcpy(target, &storage->labels[index], sizeof *storage->labels);
        return DP_OK;
    }
    size_t bytes = (size_t)storage->target_elements * sizeof(float);
    if (!storage->file) {
        memcpy(target, storage->made_values + index * storage->target_elements, bytes);
        return DP_OK;
    }
    return dp_safetensors_read(storage->file, storage->y_tensor, (size_t)index * bytes, target, bytes, err);
}

/* The bytes become floats from front to back. Where they come from a file they are first put at the end of
 * the floats' own memory: float e then ends at byte 4e + 3, at or before the bytes that are still to be read
 * (from 3n + e). */
static dp_status read_byte_values(const dp_storage *storage, int64_t index, float *x, dp_error *err)
{
    size_t n = (size_t)storage->elements;
    const unsigned char *from;
    if (storage->file) {
        unsigned char *tail = (unsigned char *)x + (sizeof *x - 1) * n;
        DP_TRY(dp_safetensors_read(storage->file, storage->x_tensor, (size_t)index * n, tail, n, err));
        from = tail;
    } else {
        from = storage->x + (size_t)index * n;
    }
    int64_t rows = storage->normalize_channels > 1 ? storage->normalize_channels : 1;
    int64_t row_elements = storage->elements / rows;
    for (int64_t r = 0; r < rows; r++) {
        const float *table = storage->table[r];
        for (int64_t e = 0; e < row_elements; e++)
            x[e] = table[from[e]];
        x += row_elements;
        from += row_elements;
    }
    return DP_OK;
}

static dp_status read_bytes(const dp_storage *storage, int64_t index, int64_t epoch, float *x, void *target,
                            dp_error *err)
{
    (void)epoch;
    if (x)
        DP_TRY(read_byte_values(storage, index, x, err));
    return target ? read_target(storage, index, target, err) : DP_OK;
}

void dp_storage_normalize_floats(const dp_storage *storage, float *x)
{
    int64_t rows = storage->normalize_channels;
    int64_t row_elements = rows ? storage->elements / rows : 0;
    for (int64_t r = 0; r < rows; r++, x += row_elements) {
        const float mean = storage->mean[r], std = storage->std[r];
        for (int64_t e = 0; e < row_elements; e++)
            x[e] = (x[e] - mean) / std;
    }
}

static dp_status read_float_values(const dp_storage *storage, int64_t index, float *x, dp_error *err)
{
    size_t bytes = (size_t)storage->elements * sizeof *x;
    if (storage->file)
        DP_TRY(dp_safetensors_read(storage->file, storage->x_tensor, (size_t)index * bytes, x, bytes, err));
    else
        memcpy(x, storage->x + (size_t)index * bytes, bytes);
    dp_storage_normalize_floats(storage, x);
    return DP_OK;
}

static dp_status read_floats(const dp_storage *storage, int64_t index, int64_t epoch, float *x, void *target,
                             dp_error *err)
{
    (void)epoch;
    if (x)
        DP_TRY(read_float_values(storage, index, x, err));
    return target ? read_target(storage, index, target, err) : DP_OK;
}

/* ---- normalisation ---- */

static dp_status check_normalization(const dp_storage *storage, int channels, const float *mean,
                                     const float *std, dp_error *err)
{
    int64_t have = storage->rank == 3 ? storage->shape[0] : 1;
    if (channels != 1 && (channels < 1 || channels > 4 || channels != have))
        return dp_fail(
            err, DP_ERROR_MISMATCH,
            "mean and std have %d value%s; the data has %lld channel%s: give one value, or one each",
            channels, dp_s(channels), (long long)have, dp_s(have));
    for (int c = 0; c < channels; c++) {
        if (!isfinite(mean[c]) || !isfinite(std[c]) || std[c] <= 0)
            return dp_fail(err, DP_ERROR_USAGE,
                           "cannot normalise with mean %g and std %g: std must be above 0", mean[c], std[c]);
    }
    return DP_OK;
}

/* Byte values have 256 floats only: a table spares the arithmetic, and does it in PyTorch's order (scale,
 * then subtract, then divide). */
static dp_status fill_table(dp_storage *storage, dp_error *err)
{
    int rows = storage->normalize_channels ? storage->normalize_channels : 1;
    DP_TRY(dp_calloc((size_t)rows, sizeof *storage->table, "a table of byte values", &storage->table, err));
    for (int c = 0; c < rows; c++) {
        for (int v = 0; v < DP_BYTE_VALUES; v++) {
            float value = (float)v / 255.0f;
            if (storage->normalize_channels)
                value = (value - storage->mean[c]) / storage->std[c];
            storage->table[c][v] = value;
        }
    }
    return DP_OK;
}

dp_status dp_storage_normalize(dp_storage *storage, int channels, const float *mean, const float *std,
                               dp_error *err)
{
    if (channels != 0) {
        DP_TRY(check_normalization(storage, channels, mean, std, err));
        memcpy(storage->mean, mean, (size_t)channels * sizeof *mean);
        memcpy(storage->std, std, (size_t)channels * sizeof *std);
    }
    storage->normalize_channels = channels;
    if (!storage->read)
        storage->read = storage->bytes ? read_bytes : read_floats;
    return storage->bytes ? fill_table(storage, err) : DP_OK;
}

/* ---- labels ---- */

dp_status dp_storage_check_labels(const dp_storage *storage, int64_t classes, int64_t *largest, dp_error *err)
{
    *largest = -1;
    for (int64_t i = 0; i < storage->samples; i++) {
        int32_t label = storage->labels[i];
        if (label < 0)
            return dp_fail(err, DP_ERROR_MISMATCH, "'%s': the label of sample %lld is %d, below 0",
                           storage->labels_path, (long long)i, label);
        if (classes > 0 && label >= classes)
            return dp_fail(err, DP_ERROR_MISMATCH,
                           "'%s': the label of sample %lld is %d, but there %s %lld class%s (0 to %lld)",
                           storage->labels_path, (long long)i, label, classes == 1 ? "is" : "are",
                           (long long)classes, classes == 1 ? "" : "es", (long long)classes - 1);
        if (label > *largest)
            *largest = label;
    }
    return DP_OK;
}
