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
} dp_model_entry;

enum { IMAGENET = 224, CIFAR = 32, CRACKS = 128 };
#define FLAT .usual_shape = {1, 28, 28}, .usual_classes = 10, .multiple = 1, .least = 1
#define RESNET(side, number)                                                                          \
    {                                                                                                 \
        dp_build_resnet,                                                                              \
        {                                                                                             \
            .width = true, .images = true, .multiple = 1, .least = 1, .usual_shape = {3, side, side}, \
            .usual_classes = number                                                                   \
        }                                                                                             \
    }
#define UNET .width = true, .decoder = true, .images = true, .dense = true, .usual_shape = {3, CRACKS, CRACKS}

/* Two tables in one order: the names alone are what dp_model_names hands out. */
static const char *const names[] = {"linear",          "mlp",
                                    "lenet",           "resnet18",
                                    "resnet34",        "resnet50",
                                    "resnet101",       "resnet18_cifar",
                                    "resnet34_cifar",  "resnet50_cifar",
                                    "resnet101_cifar", "vgg16",
                                    "unet16",          "unet_resnet34",
                                    "unet_resnet101",  NULL};
static const dp_model_entry entries[] = {
    {dp_build_linear, {FLAT}},
    {dp_build_mlp, {FLAT, .hidden = true}},
    {dp_build_lenet, {FLAT, .images = true}},
    RESNET(IMAGENET, 1000),
    RESNET(IMAGENET, 1000),
    RESNET(IMAGENET, 1000),
    RESNET(IMAGENET, 1000),
    RESNET(CIFAR, 10),
    RESNET(CIFAR, 10),
    RESNET(CIFAR, 10),
    RESNET(CIFAR, 10),
    {dp_build_vgg16,
     {.width = true,
      .dropout = true,
      .images = true,
      .multiple = 1,
      .least = 32, /* halved five times */
      .usual_shape = {3, IMAGENET, IMAGENET},
      .usual_classes = 1000}},
    {dp_build_unet16, {UNET, .multiple = 32, .least = 32}},
    {dp_build_unet_resnet, {UNET, .dropout = true, .multiple = 64, .least = 64}},
    {dp_build_unet_resnet, {UNET, .dropout = true, .multiple = 64, .least = 64}},
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

/* What is not a default of the model's is said. Returns NULL when memory runs out. */
static json_t *description(const dp_model_config *c, const dp_model_traits *traits)
{
    json_t *json = json_pack("{s:s, s:o, s:I}", "model", c->name, "input",
                             int_array(c->input_rank, c->input_shape), "outputs", (json_int_t)c->outputs);
    bool bad = !json || (traits->hidden &&
                         json_object_set_new(json, "hidden", int_array(c->hidden_count, c->hidden)) != 0);
    bad = bad || (traits->width && json_object_set_new(json, "width", json_integer(c->width)) != 0);
    bad = bad || (traits->decoder && (json_object_set_new(json, "filters", json_integer(c->filters)) != 0 ||
                                      json_object_set_new(json, "deconv", json_boolean(c->deconv)) != 0));
    bad = bad || (traits->dropout && c->dropout >= 0 &&
                  json_object_set_new(json, "dropout", json_real(c->dropout)) != 0);
    if (!bad)
        return json;
    json_decref(json);
    return NULL;
}

static dp_status describe(dp_model *m, const dp_model_config *c, const dp_model_traits *traits, dp_error *err)
{
    json_t *json = description(c, traits);
    char *text = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    if (!text)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory: cannot describe model '%s'", c->name);
    dp_status status = dp_model_set_description(m, text, err);
    free(text);
    return status;
}

dp_model_config dp_model_defaults(const char *name)
{
    return (dp_model_config){.name = name, .dropout = -1};
}

/* Images whose sizes the model's halvings and doublings can bring together again. */
static dp_status check_size(const dp_model_config *c, const dp_model_traits *t, dp_error *err)
{
    if (!t->images)
        return DP_OK;
    if (c->input_rank != 3)
        return dp_fail(err, DP_ERROR_MISMATCH,
                       "model '%s' takes images [channels, height, width], but the data's samples are flat; "
                       "use mlp or linear",
                       c->name);
    int64_t below[2], above[2], h = c->input_shape[1], w = c->input_shape[2];
    for (int i = 0; i < 2; i++) {
        int64_t size = c->input_shape[1 + i];
        below[i] = size / t->multiple * t->multiple;
        below[i] = below[i] < t->least ? t->least : below[i];
        above[i] = (size + t->multiple - 1) / t->multiple * t->multiple;
        above[i] = above[i] < t->least ? t->least : above[i];
    }
    if (below[0] == h && below[1] == w)
        return DP_OK;
    if (below[0] == above[0] && below[1] == above[1])
        return dp_fail(err, DP_ERROR_MISMATCH,
                       "model '%s' cannot take images of %lldx%lld; the nearest size is "
                       "%lldx%lld",
                       c->name, (long long)h, (long long)w, (long long)below[0], (long long)below[1]);
    return dp_fail(
        err, DP_ERROR_MISMATCH,
        "model '%s' cannot take images of %lldx%lld: height and width must be multiples of %d; the "
        "nearest sizes are %lldx%lld and %lldx%lld",
        c->name, (long long)h, (long long)w, t->multiple, (long long)below[0], (long long)below[1],
        (long long)above[0], (long long)above[1]);
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
    c.width = c.width ? c.width : 64;
    c.filters = c.filters ? c.filters : 32;
    DP_TRY(check_size(&c, &entry->traits, err));
    dp_model *m;
    DP_TRY(dp_model_create(c.name, &m, err));
    dp_value x = dp_model_input(m, c.input_rank, c.input_shape);
    dp_status status = dp_model_finish(m, entry->build(m, x, &c), err);
    if (status == DP_OK)
        status = describe(m, &c, &entry->traits, err);
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

/* A positive integer below 2^24, or 0 where there is none. */
static bool read_size(const json_t *json, int64_t *out)
{
    *out = json_integer_value(json);
    return !json || (json_is_integer(json) && *out >= 1 && *out < 1 << 24);
}

static bool read_config(const json_t *json, dp_model_config *c)
{
    const json_t *outputs = json_object_get(json, "outputs"), *hidden = json_object_get(json, "hidden"),
                 *deconv = json_object_get(json, "deconv"), *dropout = json_object_get(json, "dropout");
    *c = dp_model_defaults(json_string_value(json_object_get(json, "model")));
    c->outputs = json_integer_value(outputs);
    c->deconv = json_is_true(deconv);
    if (dropout)
        c->dropout = json_number_value(dropout);
    return c->name && json_is_integer(outputs) && c->outputs >= 1 &&
           read_ints(json_object_get(json, "input"), 3, c->input_shape, &c->input_rank) &&
           c->input_rank != 2 &&
           (!hidden || read_ints(hidden, DP_MODEL_MAX_HIDDEN, c->hidden, &c->hidden_count)) &&
           read_size(json_object_get(json, "width"), &c->width) &&
           read_size(json_object_get(json, "filters"), &c->filters) && (!deconv || json_is_boolean(deconv)) &&
           (!dropout || (json_is_number(dropout) && c->dropout >= 0 && c->dropout < 1));
}

dp_status dp_model_from_description(const char *text, dp_model **out, dp_error *err)
{
    *out = NULL;
    json_error_t where;
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &where);
    dp_model_config config;
    dp_status status = read_config(json, &config)
                           ? dp_model_build(&config, out, err)
                           : dp_fail(err, DP_ERROR_MISMATCH, "'%.100s' does not describe a model", text);
    json_decref(json);
    return status;
}
