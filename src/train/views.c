/* A model's named tensors as a file holds them. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "train/train.h"

enum { MAX_NAME = 1024 };

static dp_status full_name(const char *prefix, const char *name, char **out, dp_error *err)
{
    size_t size = strlen(prefix) + strlen(name) + 1;
    DP_TRY(dp_calloc(size, 1, "a name", out, err));
    snprintf(*out, size, "%s%s", prefix, name);
    return DP_OK;
}

static dp_tensor tensor_of(const dp_state_entry *e)
{
    bool is_counter = e->dtype == DP_I64;
    size_t size = is_counter ? sizeof *e->counter : sizeof *e->values;
    dp_tensor t = {.dtype = e->dtype,
                   .rank = e->rank,
                   .elements = e->elements,
                   .bytes = (size_t)e->elements * size,
                   .data = is_counter ? (const void *)e->counter : e->values};
    memcpy(t.shape, e->shape, (size_t)e->rank * sizeof e->shape[0]);
    return t;
}

dp_status dp_views_add(dp_views *views, const dp_model *model, const char *prefix,
                       const dp_model_state *state, int count, dp_error *err)
{
    DP_TRY(dp_realloc(&views->tensors, (size_t)(views->count + count), sizeof *views->tensors, "a checkpoint",
                      err));
    for (int i = 0; i < count; i++) {
        const dp_state_entry e = dp_state_at(model, state, i);
        dp_tensor *t = &views->tensors[views->count];
        *t = tensor_of(&e);
        DP_TRY(full_name(prefix, e.name, &t->name, err));
        views->count++;
    }
    return DP_OK;
}

void dp_views_clear(dp_views *views)
{
    for (int i = 0; i < views->count; i++)
        dp_free(views->tensors[i].name);
    dp_free(views->tensors);
    *views = (dp_views){0};
}

static bool fits(const dp_tensor *t, const dp_tensor *want)
{
    return t->dtype == want->dtype && t->rank == want->rank &&
           memcmp(t->shape, want->shape, (size_t)t->rank * sizeof t->shape[0]) == 0;
}

dp_status dp_views_find(const dp_safetensors *file, const char *path, const dp_model *model,
                        const char *prefix, const dp_state_entry *e, const dp_tensor **out, dp_error *err)
{
    const dp_tensor want = tensor_of(e);
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%s%s", prefix, e->name);
    *out = dp_safetensors_find(file, name);
    if (!*out || !fits(*out, &want))
        return dp_fail(err, DP_ERROR_MISMATCH, "'%s' %s '%s' of model '%s'", path,
                       *out ? "holds another type or shape of" : "lacks", name, dp_model_name(model));
    return DP_OK;
}

dp_status dp_views_read(const dp_safetensors *file, const char *path, const dp_model *model,
                        const char *prefix, dp_model_state *state, int first, int end, dp_error *err)
{
    for (int i = first; i < end; i++) {
        const dp_state_entry e = dp_state_at(model, state, i);
        const dp_tensor *t;
        DP_TRY(dp_views_find(file, path, model, prefix, &e, &t, err));
        DP_TRY(
            dp_safetensors_read(file, t, 0, e.dtype == DP_I64 ? (void *)e.counter : e.values, t->bytes, err));
    }
    return DP_OK;
}

int64_t dp_first_nonfinite(const float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, values + i, sizeof bits);
        if ((bits & 0x7f800000U) == 0x7f800000U) /* an infinity or NaN: all bits of the exponent are set */
            return i;
    }
    return -1;
}
