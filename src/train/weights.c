/* Loading weights by name, with PyTorch's habits: "module." prefixes, and lists of what does not fit. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "io/safetensors.h"
#include "train/train.h"

enum { MAX_NAME = 512, MAX_LISTED = 6 };

/* Copies name without every "module." that starts it or follows a dot. Returns whether there was one. */
static bool strip_module(const char *name, char out[MAX_NAME])
{
    static const char prefix[] = "module.";
    bool stripped = false, at_start = true;
    size_t n = 0;
    while (*name && n + 1 < MAX_NAME) {
        if (at_start && strncmp(name, prefix, sizeof prefix - 1) == 0) {
            name += sizeof prefix - 1;
            stripped = true;
            continue;
        }
        at_start = *name == '.';
        out[n++] = *name++;
    }
    out[n] = 0;
    return stripped;
}

static int find_param(const dp_model *model, const char *name)
{
    for (int p = 0; p < dp_model_param_count(model); p++)
        if (strcmp(dp_model_param(model, p)->name, name) == 0)
            return p;
    return -1;
}

/* Which parameter a tensor is for: by its own name, else by its name without "module.". */
static int match(const dp_model *model, const char *name, bool *stripped)
{
    char bare[MAX_NAME];
    int p = find_param(model, name);
    *stripped = p < 0 && strip_module(name, bare);
    return *stripped ? find_param(model, bare) : p;
}

static bool same_shape(const dp_tensor *t, const dp_param_info *p)
{
    if (t->rank != p->rank)
        return false;
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] != p->shape[i])
            return false;
    return true;
}

static bool is_float(dp_dtype dtype)
{
    return dtype == DP_F32 || dtype == DP_F64 || dtype == DP_F16 || dtype == DP_BF16;
}

/* A list of names for a message: the first few, then how many more. */
typedef struct name_list {
    char text[700];
    size_t used;
    int count;
} name_list;

static void list_name(name_list *list, const char *name, const char *extra)
{
    if (list->count++ >= MAX_LISTED)
        return;
    int n = snprintf(list->text + list->used, sizeof list->text - list->used, "%s\"%.60s\"%s",
                     list->count > 1 ? ", " : "", name, extra);
    if (n > 0 && (size_t)n < sizeof list->text - list->used)
        list->used += (size_t)n;
    else
        list->text[list->used] = 0;
}

static void end_list(name_list *list)
{
    if (list->count > MAX_LISTED)
        snprintf(list->text + list->used, sizeof list->text - list->used, " and %d more",
                 list->count - MAX_LISTED);
}

static void shape_text(int rank, const int64_t *shape, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < size)
        snprintf(out + used, size - used, "]");
}

typedef struct loader_state {
    const dp_model *model;
    const dp_safetensors *file;
    const dp_tensor **source; /* by parameter */
    name_list missing, unexpected, misshaped;
    dp_load_report report;
} loader_state;

static void note_shape(loader_state *s, const dp_tensor *t, const dp_param_info *p)
{
    char have[64], want[64], extra[160];
    shape_text(t->rank, t->shape, have, sizeof have);
    shape_text(p->rank, p->shape, want, sizeof want);
    snprintf(extra, sizeof extra, " is %s %s in the file, %s in the model", dp_dtype_name(t->dtype), have,
             want);
    list_name(&s->misshaped, p->name, extra);
}

static dp_status match_all(loader_state *s, const char *path, dp_error *err)
{
    for (int i = 0; i < dp_safetensors_count(s->file); i++) {
        const dp_tensor *t = dp_safetensors_at(s->file, i);
        bool stripped;
        int p = match(s->model, t->name, &stripped);
        if (p < 0) {
            list_name(&s->unexpected, t->name, "");
            continue;
        }
        const dp_param_info *info = dp_model_param(s->model, p);
        if (s->source[p])
            return dp_fail(err, DP_ERROR_MISMATCH,
                           "'%s' holds parameter '%s' twice, with and without \"module.\"", path, info->name);
        s->source[p] = t;
        s->report.stripped += stripped;
        if (!same_shape(t, info) || !is_float(t->dtype))
            note_shape(s, t, info);
    }
    for (int p = 0; p < dp_model_param_count(s->model); p++)
        if (!s->source[p])
            list_name(&s->missing, dp_model_param(s->model, p)->name, "");
    end_list(&s->missing);
    end_list(&s->unexpected);
    end_list(&s->misshaped);
    return DP_OK;
}

static void copy_fitting(loader_state *s, float *weights)
{
    for (int p = 0; p < dp_model_param_count(s->model); p++) {
        const dp_param_info *info = dp_model_param(s->model, p);
        const dp_tensor *t = s->source[p];
        if (!t || !same_shape(t, info) || !is_float(t->dtype)) {
            s->report.skipped++;
            continue;
        }
        for (int64_t i = 0; i < info->elements; i++)
            weights[info->offset + i] = dp_tensor_float(t, i);
        s->report.loaded++;
    }
}

static dp_status load(loader_state *s, const char *path, bool partial, float *weights, dp_error *err)
{
    DP_TRY(match_all(s, path, err));
    if (!partial && s->missing.count + s->unexpected.count + s->misshaped.count > 0)
        return dp_fail(err, DP_ERROR_MISMATCH,
                       "'%s' does not fit model '%s'%s%s%s%s%s%s (--init-partial loads what fits)", path,
                       dp_model_name(s->model), s->missing.count ? "; missing key(s): " : "", s->missing.text,
                       s->unexpected.count ? "; unexpected key(s): " : "", s->unexpected.text,
                       s->misshaped.count ? "; size mismatch: " : "", s->misshaped.text);
    copy_fitting(s, weights);
    if (s->report.loaded == 0)
        return dp_fail(err, DP_ERROR_MISMATCH, "nothing in '%s' fits model '%s'", path,
                       dp_model_name(s->model));
    return DP_OK;
}

dp_status dp_weights_load(const char *path, const dp_model *model, bool partial, float *weights,
                          dp_load_report *report, dp_error *err)
{
    dp_safetensors *file;
    DP_TRY(dp_safetensors_open(path, &file, err));
    loader_state s = {.model = model, .file = file};
    dp_status status =
        dp_calloc((size_t)dp_model_param_count(model), sizeof(dp_tensor *), "loading", &s.source, err);
    if (status == DP_OK)
        status = load(&s, path, partial, weights, err);
    *report = s.report;
    dp_free(s.source);
    dp_safetensors_close(file);
    return status;
}
