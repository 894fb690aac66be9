/* The settings of a run, as texts that two runs can be compared by. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "train/train.h"

enum { HASHED_SAMPLES = 64 };

static dp_status add(dp_settings *s, const char *name, const char *value, dp_error *err)
{
    DP_TRY(dp_realloc(&s->list, (size_t)s->count + 1, sizeof *s->list, "settings", err));
    dp_metadata *m = &s->list[s->count++];
    *m = (dp_metadata){0};
    DP_TRY(dp_strdup(name, &m->key, err));
    return dp_strdup(value, &m->value, err);
}

static dp_status add_count(dp_settings *s, const char *name, int64_t value, dp_error *err)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return add(s, name, text, err);
}

static dp_status add_flag(dp_settings *s, const char *name, bool value, dp_error *err)
{
    return add(s, name, value ? "on" : "off", err);
}

/* The shortest text that reads back as the same number. */
static void number_text(double value, char *out, size_t size)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, size, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            return;
    }
}

static dp_status add_number(dp_settings *s, const char *name, double value, dp_error *err)
{
    char text[40];
    number_text(value, text, sizeof text);
    return add(s, name, text, err);
}

void dp_settings_clear(dp_settings *settings)
{
    for (int i = 0; i < settings->count; i++) {
        dp_free(settings->list[i].key);
        dp_free(settings->list[i].value);
    }
    dp_free(settings->list);
    *settings = (dp_settings){0};
}

/* ---- model and data ---- */

static dp_status add_model(dp_settings *s, const dp_model *model, dp_error *err)
{
    const char *description = dp_model_description(model);
    if (description)
        return add(s, "model", description, err);
    char text[256]; /* built by the caller: the state's tensors have names and shapes to compare */
    snprintf(text, sizeof text, "'%.100s' with %lld parameters", dp_model_name(model),
             (long long)dp_model_elements(model));
    return add(s, "model", text, err);
}

/* FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/ */
static uint64_t hash(uint64_t seed, const void *bytes, size_t size)
{
    const unsigned char *b = bytes;
    for (size_t i = 0; i < size; i++)
        seed = (seed ^ b[i]) * 0x100000001b3U;
    return seed;
}

/* A hash of samples throughout the data set, as the model is given them. */
static dp_status hash_data(const dp_dataset *data, uint64_t *out, dp_error *err)
{
    const dp_dataset_info *d = dp_dataset_info_of(data);
    int64_t count = d->samples < HASHED_SAMPLES ? d->samples : HASHED_SAMPLES;
    size_t x_bytes = (size_t)d->elements * sizeof(float);
    char *sample;
    DP_TRY(dp_aligned_alloc(x_bytes + d->target_bytes, "a sample", &sample, err));
    uint64_t h = 0xcbf29ce484222325U;
    dp_status status = DP_OK;
    for (int64_t i = 0; i < count && status == DP_OK; i++) {
        int64_t index = count > 1 ? i * (d->samples - 1) / (count - 1) : 0;
        status = dp_dataset_read(data, index, -1, (float *)(void *)sample, sample + x_bytes, err);
        if (status == DP_OK)
            h = hash(h, sample, x_bytes + d->target_bytes);
    }
    dp_free(sample);
    *out = h;
    return status;
}

static dp_status add_data(dp_settings *s, const char *name, const dp_dataset *data, dp_error *err)
{
    if (!data)
        return add(s, name, "none", err);
    const dp_dataset_info *d = dp_dataset_info_of(data);
    uint64_t h;
    DP_TRY(hash_data(data, &h, err));
    char text[160];
    snprintf(text, sizeof text, "%lld sample%s of %lld value%s (contents %016llx)", (long long)d->samples,
             dp_s(d->samples), (long long)d->elements, dp_s(d->elements), (unsigned long long)h);
    return add(s, name, text, err);
}

/* Of a run without it, it is no setting. */
static dp_status add_augmentation(dp_settings *s, const dp_dataset *data, dp_error *err)
{
    const unsigned augment = dp_dataset_info_of(data)->augment;
    char text[64] = "";
    for (int i = 0; dp_augment_names[i]; i++)
        if (augment & 1u << i) {
            strcat(text, *text ? "," : "");
            strcat(text, dp_augment_names[i]);
        }
    return augment ? add(s, "augmentation", text, err) : DP_OK;
}

/* Of a run that computes in float32 throughout, it is no setting. */
static dp_status add_precision(dp_settings *s, const dp_context *context, dp_error *err)
{
    return dp_context_allows_tf32(context) ? add(s, "precision", "tf32", err) : DP_OK;
}

/* ---- the list ---- */

static dp_status add_loop(dp_settings *s, const dp_train_config *c, dp_error *err)
{
    DP_TRY(add_count(s, "batch size", c->batch_size, err));
    DP_TRY(add_count(s, "accumulation steps", c->accumulation_steps, err));
    DP_TRY(add_flag(s, "shuffling", c->shuffle, err));
    DP_TRY(add_flag(s, "dropping the last batch", c->drop_last, err));
    DP_TRY(add_count(s, "seed", (int64_t)c->seed, err));
    DP_TRY(add_number(s, "learning rate", c->lr, err));
    DP_TRY(add_count(s, "lr step", c->lr_step, err));
    return add_number(s, "lr gamma", c->lr_gamma, err);
}

static dp_status add_optimizer(dp_settings *s, const dp_optimizer_config *o, dp_error *err)
{
    DP_TRY(add(s, "optimizer", o->adamw ? "adamw" : "sgd", err));
    DP_TRY(add_number(s, "weight decay", o->weight_decay, err));
    if (o->adamw)
        return DP_OK;
    DP_TRY(add_number(s, "momentum", o->momentum, err));
    return add_flag(s, "nesterov", o->nesterov, err);
}

static dp_status add_split(dp_settings *s, const dp_engine_config *e, dp_error *err)
{
    if (e->split != DP_SPLIT_SHARES)
        return add(s, "split", e->split == DP_SPLIT_CHUNK ? "chunk" : "balanced", err);
    char text[DP_ENGINE_MAX_DEVICES * 28] = "";
    size_t used = 0;
    for (int k = 0; k < e->device_count; k++) {
        char share[28];
        number_text(e->shares[k], share, sizeof share);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", k ? "," : "", share);
    }
    return add(s, "split", text, err);
}

static dp_status add_frozen(dp_settings *s, const dp_engine_config *e, dp_error *err)
{
    size_t size = 8;
    for (int i = 0; i < e->freeze_count; i++)
        size += strlen(e->freeze[i]) + 1;
    char *text;
    DP_TRY(dp_calloc(size, 1, "settings", &text, err));
    for (int i = 0; i < e->freeze_count; i++) {
        strcat(text, i ? "," : "");
        strcat(text, e->freeze[i]);
    }
    dp_status status = add(s, "frozen parameters", e->freeze_count ? text : "none", err);
    dp_free(text);
    return status;
}

static dp_status add_engine(dp_settings *s, const dp_engine_config *e, dp_error *err)
{
    DP_TRY(add(s, "loss", dp_loss_names[e->criterion], err));
    DP_TRY(add_number(s, "pos weight", e->pos_weight, err));
    DP_TRY(add(s, "loss mode", dp_loss_mode_names[e->loss_mode], err));
    DP_TRY(add_count(s, "number of devices", e->device_count, err));
    DP_TRY(add_split(s, e, err));
    DP_TRY(add(s, "convolutions", e->direct_convolution ? "direct" : "auto", err));
    DP_TRY(add_optimizer(s, &e->optimizer, err));
    return add_frozen(s, e, err);
}

static dp_status collect(const dp_context *context, const dp_train_config *config, const dp_model *model,
                         const dp_dataset *train, const dp_dataset *valid, dp_settings *out, dp_error *err)
{
    DP_TRY(add_model(out, model, err));
    DP_TRY(add_data(out, "training data", train, err));
    DP_TRY(add_data(out, "validation data", valid, err));
    DP_TRY(add_augmentation(out, train, err));
    DP_TRY(add_precision(out, context, err));
    DP_TRY(add_loop(out, config, err));
    return add_engine(out, &config->engine, err);
}

dp_status dp_settings_collect(const dp_context *context, const dp_train_config *config, const dp_model *model,
                              const dp_dataset *train, const dp_dataset *valid, dp_settings *out,
                              dp_error *err)
{
    *out = (dp_settings){0};
    dp_status status = collect(context, config, model, train, valid, out, err);
    if (status != DP_OK)
        dp_settings_clear(out);
    return status;
}

/* ---- comparing ---- */

static const char *value_of(const dp_settings *s, const char *name)
{
    for (int i = 0; i < s->count; i++)
        if (strcmp(s->list[i].key, name) == 0)
            return s->list[i].value;
    return "not set";
}

enum { NAMED_DIFFERENCES = 4, DIFFERENCE_SIZE = 512 };

typedef struct differences {
    char text[NAMED_DIFFERENCES * DIFFERENCE_SIZE];
    size_t used;
    int count; /* with those that are not named */
} differences;

static void add_difference(differences *d, const char *name, const char *of, const char *was, const char *is)
{
    if (d->count++ >= NAMED_DIFFERENCES)
        return;
    int n = snprintf(d->text + d->used, DIFFERENCE_SIZE, "%s%.60s%s: %.200s then, %.200s now",
                     d->used ? "; " : "", name, of, was, is);
    if (n > 0)
        d->used += (size_t)n;
}

enum { MEMBER_SIZE = 200 };

/* As far as there is room for it. */
static void member_text(const json_t *value, char out[MEMBER_SIZE])
{
    char *json = value && !json_is_string(value) ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    const char *text = json                    ? json
                       : json_is_string(value) ? json_string_value(value)
                       : value                 ? "?" /* no memory to write it down */
                                               : "not set";
    bool whole = strlen(text) < MEMBER_SIZE;
    snprintf(out, MEMBER_SIZE, "%.*s%s", whole ? MEMBER_SIZE : MEMBER_SIZE - 4, text, whole ? "" : "...");
    free(json);
}

/* Of two descriptions of models, the members that differ. */
static void compare_members(const json_t *then, const json_t *now, differences *d)
{
    const json_t *const both[] = {now, then};
    for (int i = 0; i < 2; i++) {
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)(uintptr_t)both[i], key, value)
        {
            char was[MEMBER_SIZE], is[MEMBER_SIZE];
            const json_t *old = json_object_get(then, key), *new = json_object_get(now, key);
            if ((i == 1 && new) || json_equal(old, new)) /* in both: looked at once */
                continue;
            member_text(old, was);
            member_text(new, is);
            add_difference(d, key, strcmp(key, "model") == 0 ? "" : " of the model", was, is);
        }
    }
}

static void compare_one(const dp_settings *then, const dp_settings *now, const char *name, differences *d)
{
    const char *was = value_of(then, name), *is = value_of(now, name);
    if (strcmp(was, is) == 0)
        return;
    int before = d->count;
    json_t *x = json_loads(was, 0, NULL), *y = json_loads(is, 0, NULL);
    if (json_is_object(x) && json_is_object(y))
        compare_members(x, y, d);
    json_decref(x);
    json_decref(y);
    if (d->count == before)
        add_difference(d, name, "", was, is);
}

dp_status dp_settings_compare(const dp_settings *then, const dp_settings *now, const char *where,
                              dp_error *err)
{
    differences d = {.text = ""};
    for (int i = 0; i < now->count; i++)
        compare_one(then, now, now->list[i].key, &d);
    for (int i = 0; i < then->count; i++) /* what only the earlier run had */
        if (strcmp(value_of(now, then->list[i].key), "not set") == 0)
            compare_one(then, now, then->list[i].key, &d);
    char more[32] = "";
    if (d.count > NAMED_DIFFERENCES)
        snprintf(more, sizeof more, "; and %d more", d.count - NAMED_DIFFERENCES);
    return d.count == 0 ? DP_OK
                        : dp_fail(err, DP_ERROR_MISMATCH,
                                  "the run in '%s' cannot continue with other settings: %s%s; give it the "
                                  "same settings, another --model-dir, or --overwrite to start afresh",
                                  where, d.text, more);
}
