/* The state of a run as a file: tensors (weights, the optimizer's moments) and a description in JSON. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "base/json.h"
#include "base/memory.h"
#include "io/file.h"
#include "train/train.h"

enum { STATE_VERSION = 1, EXACT_DIGITS = 17, CRC_SIZE = 16 };

static const char model_prefix[] = "model.", state_key[] = "dptrain_state", crc_key[] = "crc32";

/* ---- writing ---- */

static json_t *settings_json(const dp_settings *settings)
{
    json_t *json = json_object();
    for (int i = 0; i < settings->count; i++)
        dp_json_set(&json, settings->list[i].key, json_string(settings->list[i].value));
    return json;
}

static json_t *last_json(const dp_run_state *s)
{
    const dp_epoch_summary *e = &s->last;
    if (!s->has_last)
        return json_null();
    json_t *json =
        json_pack("{s:I, s:f, s:f, s:f, s:b}", "epoch", (json_int_t)e->epoch, "train_loss", e->train_loss,
                  "seconds", e->seconds, "samples_per_second", e->samples_per_second, "best", e->best);
    if (e->validated)
        dp_json_set(&json, "valid_loss", json_real(e->valid_loss));
    if (e->has_accuracy)
        dp_json_set(&json, "valid_accuracy", json_real(e->valid_accuracy));
    if (e->has_overlap) {
        dp_json_set(&json, "valid_iou", json_real(e->valid_iou));
        dp_json_set(&json, "valid_f1", json_real(e->valid_f1));
    }
    return json;
}

static json_t *device_json(const dp_run_state *s)
{
    json_t *json = json_array();
    for (int k = 0; k < DP_ENGINE_MAX_DEVICES; k++)
        dp_json_append(&json, json_integer((json_int_t)s->device_samples[k]));
    return json;
}

/* As text, which jansson allocated: owner is the caller, with free(). NULL: out of memory. */
static char *describe(const dp_settings *settings, const dp_run_state *s)
{
    json_t *json = json_pack(
        "{s:i, s:s, s:o, s:{s:I, s:I, s:I}, s:{s:I, s:f, s:f}, s:f, s:o, s:o, s:o, s:b, s:{s:I, s:I}}",
        "version", STATE_VERSION, "random_numbers",
        "Philox4x32-10, a function of seed, purpose and counters: no state", "settings",
        settings_json(settings), "position", "epoch", (json_int_t)s->epoch, "batch", (json_int_t)s->batch,
        "step", (json_int_t)s->step, "epoch_so_far", "samples", (json_int_t)s->samples, "loss_sum",
        s->loss_sum, "seconds", s->epoch_seconds, "seconds", s->seconds, "device_samples", device_json(s),
        "best", s->has_best ? json_real(s->best) : json_null(), "last", last_json(s), "ended", s->ended,
        "log", "bytes", (json_int_t)s->log.bytes, "crc", (json_int_t)s->log.crc);
    char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(EXACT_DIGITS)) : NULL;
    json_decref(json);
    return text;
}

/* Of the description and the tensors' bytes, in the order in which they lie in the file. */
static dp_status checksum(const char *text, const dp_run_views *views, char out[CRC_SIZE], dp_error *err)
{
    uLong crc = crc32_z(0, (const Bytef *)text, strlen(text));
    for (int i = 0; i < views->list.count; i++) {
        const void *data;
        DP_TRY(dp_run_views_contents(views, i, &data, err));
        crc = crc32_z(crc, data, views->list.tensors[i].bytes);
    }
    snprintf(out, CRC_SIZE, "%08x", (unsigned)crc);
    return DP_OK;
}

dp_status dp_run_state_write(const char *path, const dp_model *model, const dp_settings *settings,
                             const dp_run_state *state, const dp_run_tensors *tensors, dp_error *err)
{
    char *text = describe(settings, state);
    if (!text)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory: cannot write '%s'", path);
    char crc[CRC_SIZE];
    const dp_metadata metadata[] = {{(char *)state_key, text}, {(char *)crc_key, crc}};
    dp_run_views views;
    dp_status status = dp_run_views_make(model, tensors, model_prefix, true, &views, err);
    if (status == DP_OK)
        status = checksum(text, &views, crc, err);
    if (status == DP_OK)
        status = dp_safetensors_write_from(path, views.list.tensors, views.list.count, &views.source,
                                           metadata, 2, err);
    dp_views_clear(&views.list);
    free(text);
    return status;
}

/* ---- reading: nothing is trusted ---- */

static bool get_count(const json_t *object, const char *key, int64_t *out)
{
    const json_t *v = json_object_get(object, key);
    *out = json_integer_value(v);
    return json_is_integer(v) && *out >= 0;
}

static bool get_real(const json_t *object, const char *key, double *out)
{
    const json_t *v = json_object_get(object, key);
    *out = json_number_value(v);
    return json_is_number(v) && isfinite(*out);
}

static bool get_flag(const json_t *object, const char *key, bool *out)
{
    const json_t *v = json_object_get(object, key);
    *out = json_is_true(v);
    return json_is_boolean(v);
}

static bool get_last(const json_t *json, dp_run_state *s)
{
    dp_epoch_summary *e = &s->last;
    if (json_is_null(json))
        return true;
    s->has_last = true;
    e->validated = json_object_get(json, "valid_loss") != NULL;
    e->has_accuracy = json_object_get(json, "valid_accuracy") != NULL;
    e->has_overlap = json_object_get(json, "valid_iou") != NULL;
    return get_count(json, "epoch", &e->epoch) && get_real(json, "train_loss", &e->train_loss) &&
           get_real(json, "seconds", &e->seconds) &&
           get_real(json, "samples_per_second", &e->samples_per_second) && get_flag(json, "best", &e->best) &&
           (!e->validated || get_real(json, "valid_loss", &e->valid_loss)) &&
           (!e->has_accuracy || get_real(json, "valid_accuracy", &e->valid_accuracy)) &&
           (!e->has_overlap ||
            (get_real(json, "valid_iou", &e->valid_iou) && get_real(json, "valid_f1", &e->valid_f1)));
}

static bool get_devices(const json_t *json, dp_run_state *s)
{
    if (json_array_size(json) != DP_ENGINE_MAX_DEVICES)
        return false;
    for (int k = 0; k < DP_ENGINE_MAX_DEVICES; k++) {
        const json_t *v = json_array_get(json, (size_t)k);
        s->device_samples[k] = json_integer_value(v);
        if (!json_is_integer(v) || s->device_samples[k] < 0)
            return false;
    }
    return true;
}

static bool get_state(const json_t *json, dp_run_state *s)
{
    const json_t *position = json_object_get(json, "position"), *sums = json_object_get(json, "epoch_so_far"),
                 *log = json_object_get(json, "log"), *best = json_object_get(json, "best");
    int64_t crc = 0;
    s->has_best = !json_is_null(best);
    bool sound = get_count(position, "epoch", &s->epoch) && get_count(position, "batch", &s->batch) &&
                 get_count(position, "step", &s->step) && get_count(sums, "samples", &s->samples) &&
                 get_real(sums, "loss_sum", &s->loss_sum) && get_real(sums, "seconds", &s->epoch_seconds) &&
                 get_real(json, "seconds", &s->seconds) &&
                 (!s->has_best || get_real(json, "best", &s->best)) &&
                 get_devices(json_object_get(json, "device_samples"), s) &&
                 get_last(json_object_get(json, "last"), s) && get_flag(json, "ended", &s->ended) &&
                 get_count(log, "bytes", &s->log.bytes) && get_count(log, "crc", &crc) && crc <= UINT32_MAX;
    s->log.crc = (uint32_t)crc;
    /* An epoch that ended is the one before, or, cut short by a limit of steps, the one under way. */
    return sound && (s->samples > 0 || s->batch == 0) &&
           (!s->ended || (s->has_last && s->last.epoch == s->epoch - (s->batch == 0)));
}

static dp_status get_settings(const json_t *json, dp_settings *out, dp_error *err)
{
    if (!json_is_object(json))
        return dp_fail(err, DP_ERROR_IO, "there are no settings in it");
    DP_TRY(dp_calloc(json_object_size(json), sizeof *out->list, "settings", &out->list, err));
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)json, key, value)
    {
        if (!json_is_string(value))
            return dp_fail(err, DP_ERROR_IO, "setting '%.100s' is not a text", key);
        dp_metadata *m = &out->list[out->count++];
        DP_TRY(dp_strdup(key, &m->key, err));
        DP_TRY(dp_strdup(json_string_value(value), &m->value, err));
    }
    return DP_OK;
}

static dp_status parse(const json_t *json, dp_run_state *state, dp_settings *settings, dp_error *err)
{
    int64_t version;
    if (!get_count(json, "version", &version))
        return dp_fail(err, DP_ERROR_IO, "its description is not that of a run");
    if (version != STATE_VERSION)
        return dp_fail(err, DP_ERROR_MISMATCH, "it was written by another version of dptrain (format %lld)",
                       (long long)version);
    if (!get_state(json, state))
        return dp_fail(err, DP_ERROR_IO, "its description is not that of a run");
    return get_settings(json_object_get(json, "settings"), settings, err);
}

dp_status dp_run_state_parse(const char *text, dp_run_state *state, dp_settings *settings, dp_error *err)
{
    *state = (dp_run_state){0};
    *settings = (dp_settings){0};
    json_error_t problem;
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &problem);
    if (!json && json_error_code(&problem) == json_error_out_of_memory)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory for the description of a run");
    dp_status status = parse(json, state, settings, err);
    json_decref(json);
    if (status != DP_OK)
        dp_settings_clear(settings);
    return status;
}

/* Bits that a disk has changed would go on as weights that nobody computed. */
static dp_status check_bytes(const dp_safetensors *file, const char *text, dp_error *err)
{
    const char *wanted = dp_safetensors_metadata(file, crc_key);
    uint32_t crc = (uint32_t)crc32_z(0, (const Bytef *)text, strlen(text));
    char got[CRC_SIZE];
    DP_TRY(dp_safetensors_checksum(file, &crc, err));
    snprintf(got, sizeof got, "%08x", (unsigned)crc);
    return wanted && strcmp(wanted, got) == 0
               ? DP_OK
               : dp_fail(err, DP_ERROR_IO, "its bytes are not those that were written");
}

dp_status dp_run_file_open(const char *path, dp_run_file *out, dp_error *err)
{
    *out = (dp_run_file){0};
    DP_TRY(dp_safetensors_open_header(path, &out->file, err));
    dp_status status = dp_strdup(path, &out->path, err);
    if (status == DP_OK) {
        const char *text = dp_safetensors_metadata(out->file, state_key);
        if (text)
            status = check_bytes(out->file, text, err);
        if (status == DP_OK)
            status = dp_run_state_parse(text ? text : "", &out->state, &out->settings, err);
        if (status != DP_OK)
            dp_error_prefix(err, "cannot continue from '%s'", path);
    }
    if (status != DP_OK)
        dp_run_file_close(out);
    return status;
}

/* The checksum is of contents; a name or a shape in the header may be damaged for itself. */
dp_status dp_run_file_check(const dp_run_file *f, const dp_model *model, int moments, dp_error *err)
{
    dp_error reason = {0};
    dp_status status = dp_run_tensors_check(f->file, f->path, model, model_prefix, moments, &reason);
    return status == DP_OK ? DP_OK : dp_fail(err, DP_ERROR_IO, "%s: it is damaged", reason.message);
}

dp_status dp_run_file_read(const dp_run_file *f, const dp_model *model, dp_run_tensors *t, dp_error *err)
{
    return dp_run_tensors_read(f->file, f->path, model, model_prefix, t, err);
}

void dp_run_file_close(dp_run_file *file)
{
    dp_safetensors_close(file->file);
    dp_settings_clear(&file->settings);
    dp_free(file->path);
    *file = (dp_run_file){0};
}
