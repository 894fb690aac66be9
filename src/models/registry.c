/* Models by name, and their descriptions: one line of JSON with what dp_model_build was given. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/text.h"
#include "models/models.h"
#include "nn/graph.h"

typedef struct dp_model_entry {
    dp_value (*build)(dp_model *m, dp_value x, const dp_model_config *config);
    dp_model_traits traits;
    bool images; /* takes [C, H, W] only */
} dp_model_entry;

/* Two tables in one order: the names alone are what dp_model_names hands out. */
static const char *const names[] = {"linear", "mlp", "lenet", NULL};
static const dp_model_entry entries[] = {
    {dp_build_linear, {.hidden = false}, false},
    {dp_build_mlp, {.hidden = true}, false},
    {dp_build_lenet, {.hidden = false}, true},
};
enum { MODEL_COUNT = sizeof entries / sizeof entries[0] };
_Static_assert(sizeof names / sizeof names[0] == MODEL_COUNT + 1, "a name for every model");

const char *const *dp_model_names(void)
{
    return names;
}

/* NULL after a failure. */
static const dp_model_entry *find(const char *name, dp_error *err)
{
    for (int i = 0; i < MODEL_COUNT; i++)
        if (strcmp(names[i], name) == 0)
            return &entries[i];
    const char *near = dp_nearest_name(name, names, MODEL_COUNT);
    dp_fail(err, DP_ERROR_USAGE, "unknown model '%s'; %s%s%s", name,
            near ? "did you mean '" : "see --model list", near ? near : "", near ? "'?" : "");
    return NULL;
}

dp_status dp_model_traits_of(const char *name, dp_model_traits *out, dp_error *err)
{
    const dp_model_entry *entry = find(name, err);
    if (!entry)
        return DP_ERROR_USAGE;
    *out = entry->traits;
    return DP_OK;
}

static json_t *int_array(int count, const int64_t *values)
{
    json_t *array = json_array();
    for (int i = 0; array && i < count; i++)
        if (json_array_append_new(array, json_integer(values[i])) != 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static dp_status describe(dp_model *m, const dp_model_config *c, bool hidden, dp_error *err)
{
    json_t *json = json_pack("{s:s, s:o, s:I}", "model", c->name, "input",
                             int_array(c->input_rank, c->input_shape), "outputs", (json_int_t)c->outputs);
    if (json && hidden && json_object_set_new(json, "hidden", int_array(c->hidden_count, c->hidden)) != 0) {
        json_decref(json);
        json = NULL;
    }
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (!text)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory: cannot describe model '%s'", c->name);
    dp_status status = dp_model_set_description(m, text, err);
    free(text);
    return status;
}

dp_status dp_model_build(const dp_model_config *config, dp_model **out, dp_error *err)
{
    *out = NULL;
    const dp_model_entry *entry = find(config->name, err);
    if (!entry)
        return DP_ERROR_USAGE;
    dp_model_config c = *config;
    if (entry->traits.hidden && c.hidden_count == 0) {
        c.hidden_count = 2;
        c.hidden[0] = c.hidden[1] = 512;
    }
    if (entry->images && c.input_rank != 3)
        return dp_fail(err, DP_ERROR_MISMATCH,
                       "model '%s' takes images [channels, height, width], but the data's samples are flat; "
                       "use mlp or linear",
                       c.name);
    dp_model *m;
    DP_TRY(dp_model_create(c.name, &m, err));
    dp_value x = dp_model_input(m, c.input_rank, c.input_shape);
    dp_status status = dp_model_finish(m, entry->build(m, x, &c), err);
    if (status == DP_OK)
        status = describe(m, &c, entry->traits.hidden, err);
    if (status != DP_OK) {
        dp_model_free(m);
        return status;
    }
    *out = m;
    return DP_OK;
}

/* Reads a JSON array of 1..max positive integers. */
static bool read_ints(const json_t *array, int max, int64_t *out, int *count)
{
    size_t n = json_array_size(array);
    if (n < 1 || n > (size_t)max)
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        if (!json_is_integer(v) || json_integer_value(v) < 1)
            return false;
        out[i] = json_integer_value(v);
    }
    *count = (int)n;
    return true;
}

dp_status dp_model_from_description(const char *text, dp_model **out, dp_error *err)
{
    *out = NULL;
    json_error_t where;
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &where);
    dp_model_config config = {.name = json_string_value(json_object_get(json, "model"))};
    const json_t *outputs = json_object_get(json, "outputs"), *hidden = json_object_get(json, "hidden");
    config.outputs = json_integer_value(outputs);
    bool sound = config.name && json_is_integer(outputs) && config.outputs >= 1 &&
                 read_ints(json_object_get(json, "input"), 3, config.input_shape, &config.input_rank) &&
                 config.input_rank != 2 &&
                 (!hidden || read_ints(hidden, DP_MODEL_MAX_HIDDEN, config.hidden, &config.hidden_count));
    dp_status status = sound ? dp_model_build(&config, out, err)
                             : dp_fail(err, DP_ERROR_MISMATCH, "'%.100s' does not describe a model", text);
    json_decref(json);
    return status;
}
