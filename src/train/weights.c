/* Loading weights by name, with PyTorch's habits: "module." prefixes, and lists of what does not fit. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "io/weights_file.h"
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

/* A list of names for a message: the first few, then how many more. */
typedef struct name_list {
    char text[700];
    size_t used;
    int count;
} name_list;

typedef struct loader_state {
    const dp_model *model;
    const dp_weights_file *file;
    dp_model_state *state;
    int count;                /* of the state's entries */
    const dp_tensor **source; /* by entry */
    bool *renamed;            /* by entry: it was found under another program's name */
    name_list missing, unexpected, misshaped;
    dp_load_report report;
} loader_state;

static dp_state_entry entry_at(const loader_state *s, int i)
{
    return dp_state_at(s->model, s->state, i);
}

static int find_entry(const loader_state *s, const char *name)
{
    for (int i = 0; i < s->count; i++)
        if (strcmp(entry_at(s, i).name, name) == 0)
            return i;
    return -1;
}

/* Which entry a tensor is for, -1 for none: by its own name, by its name without "module.", or by that which
 * the model has for it. */
static int match(const loader_state *s, const char *name, bool *stripped, bool *renamed)
{
    char bare[MAX_NAME], other[MAX_NAME];
    int i = find_entry(s, name);
    *renamed = false;
    *stripped = i < 0 && strip_module(name, bare);
    if (*stripped)
        i = find_entry(s, name = bare);
    if (i < 0 && dp_model_other_name(s->model, name, other, sizeof other)) {
        i = find_entry(s, other);
        *renamed = i >= 0;
    }
    return i;
}

static bool fits(const dp_tensor *t, const dp_state_entry *e)
{
    bool is_float = t->dtype == DP_F32 || t->dtype == DP_F64 || t->dtype == DP_F16 || t->dtype == DP_BF16;
    if (t->rank != e->rank || (e->dtype == DP_I64 ? t->dtype != DP_I64 : !is_float))
        return false;
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] != e->shape[i])
            return false;
    return true;
}

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

static void note_shape(loader_state *s, const dp_tensor *t, const dp_state_entry *e)
{
    char have[64], want[64], extra[160];
    shape_text(t->rank, t->shape, have, sizeof have);
    shape_text(e->rank, e->shape, want, sizeof want);
    snprintf(extra, sizeof extra, " is %s %s in the file, %s in the model", dp_dtype_name(t->dtype), have,
             want);
    list_name(&s->misshaped, e->name, extra);
}

static dp_status match_all(loader_state *s, const char *path, dp_error *err)
{
    for (int k = 0; k < dp_weights_file_count(s->file); k++) {
        const dp_tensor *t = dp_weights_file_at(s->file, k);
        bool stripped, renamed;
        int i = match(s, t->name, &stripped, &renamed);
        if (i < 0) {
            list_name(&s->unexpected, t->name, "");
            continue;
        }
        const dp_state_entry e = entry_at(s, i);
        if (s->source[i] && renamed)
            continue; /* the same tensor under its second name */
        if (s->source[i] && !s->renamed[i])
            return dp_fail(err, DP_ERROR_MISMATCH,
                           "'%s' holds parameter '%s' twice, with and without \"module.\"", path, e.name);
        s->source[i] = t;
        s->renamed[i] = renamed;
        s->report.stripped += stripped;
        if (!fits(t, &e))
            note_shape(s, t, &e);
    }
    for (int i = 0; i < s->count; i++) {
        const dp_state_entry e = entry_at(s, i);
        if (!s->source[i] && e.dtype != DP_I64) /* files of before PyTorch 0.4.1 have no counters */
            list_name(&s->missing, e.name, "");
    }
    end_list(&s->missing);
    end_list(&s->unexpected);
    end_list(&s->misshaped);
    return DP_OK;
}

static void copy_fitting(loader_state *s)
{
    for (int i = 0; i < s->count; i++) {
        const dp_state_entry e = entry_at(s, i);
        const dp_tensor *t = s->source[i];
        if (!t || !fits(t, &e)) {
            s->report.skipped += e.dtype != DP_I64 || t;
            continue;
        }
        if (e.dtype == DP_I64)
            memcpy(e.counter, t->data, sizeof *e.counter);
        else
            for (int64_t k = 0; k < e.elements; k++)
                e.values[k] = dp_tensor_float(t, k);
        s->report.loaded++;
    }
}

static dp_status load(loader_state *s, const char *path, bool partial, dp_error *err)
{
    DP_TRY(match_all(s, path, err));
    if (!partial && s->missing.count + s->unexpected.count + s->misshaped.count > 0)
        return dp_fail(err, DP_ERROR_MISMATCH,
                       "'%s' does not fit model '%s'%s%s%s%s%s%s (--init-partial loads what fits)", path,
                       dp_model_name(s->model), s->missing.count ? "; missing key(s): " : "", s->missing.text,
                       s->unexpected.count ? "; unexpected key(s): " : "", s->unexpected.text,
                       s->misshaped.count ? "; size mismatch: " : "", s->misshaped.text);
    copy_fitting(s);
    if (s->report.loaded == 0)
        return dp_fail(err, DP_ERROR_MISMATCH, "nothing in '%s' fits model '%s'", path,
                       dp_model_name(s->model));
    return DP_OK;
}

dp_status dp_weights_load(const char *path, const dp_model *model, bool partial, dp_model_state *state,
                          dp_load_report *report, dp_error *err)
{
    dp_weights_file *file;
    DP_TRY(dp_weights_file_open(path, &file, err));
    loader_state s = {.model = model, .file = file, .state = state, .count = dp_state_count(model)};
    dp_status status = dp_calloc((size_t)s.count, sizeof(dp_tensor *), "loading", &s.source, err);
    if (status == DP_OK)
        status = dp_calloc((size_t)s.count, sizeof *s.renamed, "loading", &s.renamed, err);
    if (status == DP_OK)
        status = load(&s, path, partial, err);
    *report = s.report;
    dp_free(s.source);
    dp_free(s.renamed);
    dp_weights_file_close(file);
    return status;
}
