/* Reading a log, whatever it holds: what is not there stays unknown, what is not JSON is an error. */
#include "report/run.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "io/file.h"

/* ---- values ---- */

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    double n = json_is_number(value) ? json_number_value(value) : NAN;
    return isfinite(n) ? n : NAN;
}

static dp_status text(const json_t *object, const char *key, char **out, dp_error *err)
{
    const char *value = json_string_value(json_object_get(object, key));
    dp_free(*out);
    *out = NULL;
    return dp_strdup(value ? value : "unknown", out, err);
}

static uint64_t bytes_of(const json_t *object, const char *key)
{
    double n = number(object, key);
    return n > 0 && n < 1e18 ? (uint64_t)n : 0;
}

/* One more element at the end of an array that doubles. */
static dp_status grow(void *array, size_t count, size_t size, const char *what, dp_error *err)
{
    bool full = (count & (count - 1)) == 0; /* a power of two, or none */
    return full ? dp_realloc(array, count ? 2 * count : 1, size, what, err) : DP_OK;
}

/* ---- events ---- */

static void forget_devices(dp_run *run)
{
    for (int k = 0; k < run->reported; k++)
        dp_free(run->device[k].spans);
    memset(run->device, 0, sizeof run->device);
    memset(run->report, 0, sizeof run->report);
    run->reported = 0;
    dp_free(run->status);
    run->status = NULL;
}

static dp_status read_command(const json_t *event, dp_run *run, dp_error *err)
{
    const json_t *words = json_object_get(event, "command"), *word;
    size_t i, size = 1, used = 0;
    json_array_foreach(words, i, word) size += json_string_length(word) + 3;
    dp_free(run->command);
    run->command = NULL;
    DP_TRY(dp_calloc(size, 1, "the command", &run->command, err));
    json_array_foreach(words, i, word)
    {
        const char *value = json_string_value(word);
        if (!value)
            continue;
        bool quoted = !*value || strpbrk(value, " \t\n'\"\\$&|;<>()*?") != NULL;
        const char *quote = quoted ? "'" : "";
        used +=
            (size_t)snprintf(run->command + used, size - used, "%s%s%s%s", i ? " " : "", quote, value, quote);
    }
    return DP_OK;
}

static void read_devices(const json_t *event, dp_run *run)
{
    const json_t *names = json_object_get(event, "devices"), *sizes = json_object_get(event, "chunk_sizes"),
                 *item;
    size_t i;
    run->device_count = run->chunk_count = run->output = 0;
    json_array_foreach(names, i, item)
    {
        if (i == DP_ENGINE_MAX_DEVICES)
            break;
        const char *name = json_string_value(item);
        snprintf(run->device_names[i], sizeof run->device_names[i], "%s", name ? name : "unknown");
        if (strcmp(run->device_names[i], run->output_device) == 0)
            run->output = (int)i;
        run->device_count++;
    }
    json_array_foreach(sizes, i, item)
    {
        if (i == DP_ENGINE_MAX_DEVICES)
            break;
        double size = json_number_value(item);
        run->chunk_sizes[run->chunk_count++] = size > 0 && size < 1e15 ? size : 0;
    }
}

/* A start that continues a run leaves what the log has of it; any other begins anew. */
static dp_status read_start(const json_t *event, dp_run *run, dp_error *err)
{
    const struct {
        const char *key;
        char **out;
    } texts[] = {{"version", &run->version}, {"model", &run->model},
                 {"data", &run->data},       {"output_device", &run->output_device},
                 {"loss", &run->loss},       {"loss_mode", &run->loss_mode},
                 {"split", &run->split},     {"optimizer", &run->optimizer}};
    const struct {
        const char *key;
        double *out;
    } numbers[] = {{"parameters", &run->parameters},
                   {"samples", &run->samples},
                   {"batch_size", &run->batch_size},
                   {"epochs", &run->epochs},
                   {"lr", &run->lr},
                   {"accumulation_steps", &run->accumulation_steps},
                   {"seed", &run->seed}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        DP_TRY(text(event, texts[i].key, texts[i].out, err));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        *numbers[i].out = number(event, numbers[i].key);
    run->is_test = json_object_get(event, "test_samples") != NULL;
    DP_TRY(read_command(event, run, err));
    read_devices(event, run);
    forget_devices(run);
    if (json_object_get(event, "resumed")) {
        run->resumed++;
        return DP_OK;
    }
    run->batch_count = run->epoch_count = 0;
    run->timed = 0;
    run->has_first_time = false;
    run->resumed = 0;
    return DP_OK;
}

/* The first batch warms caches up: it counts only while it is the only one. */
static void add_times(const json_t *event, dp_run *run)
{
    const json_t *phases = json_object_get(event, "phase_ms");
    double ms[DP_PHASES];
    if (!json_is_object(phases))
        return;
    for (int p = 0; p < DP_PHASES; p++) {
        ms[p] = number(phases, dp_phase_name((dp_phase)p));
        if (isnan(ms[p]))
            return;
    }
    bool second = run->timed == 1 && run->has_first_time;
    if (run->timed == 0)
        run->has_first_time = true;
    if (second) {
        run->has_first_time = false;
        run->timed = 0;
    }
    run->timed++;
    for (int p = 0; p < DP_PHASES; p++)
        run->phase_ms[p] =
            run->timed == 1 ? ms[p] : run->phase_ms[p] + (ms[p] - run->phase_ms[p]) / (double)run->timed;
}

static dp_status read_batch(const json_t *event, double batches, dp_run *run, dp_error *err)
{
    double epoch = number(event, "epoch"), batch = number(event, "batch");
    if (isnan(epoch) || isnan(batch))
        return DP_OK;
    DP_TRY(grow(&run->batches, run->batch_count, sizeof *run->batches, "the batches of the log", err));
    double place = batches > 0 ? (batch + 1) / batches : 1;
    run->batches[run->batch_count++] =
        (dp_run_batch){.epoch = epoch + (place < 1 ? place : 1), .loss = number(event, "loss")};
    add_times(event, run);
    return DP_OK;
}

static dp_status read_epoch(const json_t *event, dp_run *run, dp_error *err)
{
    double epoch = number(event, "epoch");
    if (isnan(epoch))
        return DP_OK;
    DP_TRY(grow(&run->epochs_done, run->epoch_count, sizeof *run->epochs_done, "the epochs of the log", err));
    run->epochs_done[run->epoch_count++] =
        (dp_run_epoch){.epoch = epoch,
                       .train_loss = number(event, "train_loss"),
                       .valid_loss = number(event, "valid_loss"),
                       .valid_accuracy = number(event, "valid_accuracy"),
                       .valid_iou = number(event, "valid_iou"),
                       .valid_f1 = number(event, "valid_f1"),
                       .seconds = number(event, "seconds"),
                       .samples_per_second = number(event, "samples_per_second")};
    return DP_OK;
}

static int phase_named(const char *name)
{
    for (int p = 0; name && p < DP_PHASES; p++)
        if (strcmp(name, dp_phase_name((dp_phase)p)) == 0)
            return p;
    return -1;
}

static dp_status read_timeline(const json_t *list, dp_run_device *d, dp_error *err)
{
    const json_t *item;
    size_t i, count = json_array_size(list);
    if (count > DP_TIMELINE_MAX)
        count = DP_TIMELINE_MAX;
    if (count == 0)
        return DP_OK;
    DP_TRY(dp_calloc(count, sizeof *d->spans, "a timeline", &d->spans, err));
    json_array_foreach(list, i, item)
    {
        if (i == count)
            break;
        int phase = phase_named(json_string_value(json_object_get(item, "phase")));
        double begin = number(item, "begin_ms"), end = number(item, "end_ms");
        if (phase >= 0 && end >= begin)
            d->spans[d->span_count++] =
                (dp_timeline_span){(dp_phase)phase, json_is_true(json_object_get(item, "busy")), begin, end};
    }
    return DP_OK;
}

static dp_status read_device(const json_t *event, dp_run *run, dp_error *err)
{
    if (run->reported == DP_ENGINE_MAX_DEVICES)
        return DP_OK;
    dp_device_report *r = &run->report[run->reported];
    const char *name = json_string_value(json_object_get(event, "device"));
    const json_t *peaks = json_object_get(event, "peak_bytes");
    double samples = number(event, "samples"), busy = number(event, "busy_fraction"),
           steps = number(event, "steps");
    snprintf(r->device, sizeof r->device, "%s", name ? name : "unknown");
    r->samples = samples > 0 && samples < 1e18 ? (int64_t)samples : 0;
    r->steps = steps >= 0 && steps < 1e18 ? (int64_t)steps : (int64_t)run->batch_count;
    r->busy_fraction = busy > 0 ? busy < 1 ? busy : 1 : 0;
    r->peak_total_bytes = bytes_of(event, "peak_total_bytes");
    for (int p = 0; p < DP_PURPOSES; p++)
        r->peak_bytes[p] = bytes_of(peaks, dp_memory_purpose(p));
    return read_timeline(json_object_get(event, "timeline"), &run->device[run->reported++], err);
}

static dp_status read_end(const json_t *event, dp_run *run, dp_error *err)
{
    run->steps = number(event, "steps");
    run->seconds = number(event, "seconds");
    return text(event, "status", &run->status, err);
}

static dp_status read_event(const json_t *event, double *batches, dp_run *run, dp_error *err)
{
    const char *kind = json_string_value(json_object_get(event, "event"));
    if (!kind)
        return dp_fail(err, DP_ERROR_MISMATCH, "it is no event of a run");
    if (strcmp(kind, "start") == 0) {
        *batches = number(event, "batches_per_epoch");
        return read_start(event, run, err);
    }
    if (!run->model)
        return dp_fail(err, DP_ERROR_MISMATCH, "an event before the start of a run");
    if (strcmp(kind, "batch") == 0)
        return read_batch(event, *batches, run, err);
    if (strcmp(kind, "epoch") == 0)
        return read_epoch(event, run, err);
    if (strcmp(kind, "device") == 0)
        return read_device(event, run, err);
    return strcmp(kind, "end") == 0 ? read_end(event, run, err) : DP_OK; /* of later versions: passed over */
}

/* ---- the file ---- */

static dp_status read_line(const char *line, size_t size, double *batches, dp_run *run, dp_error *err)
{
    json_error_t fault;
    json_t *event = json_loadb(line, size, JSON_REJECT_DUPLICATES, &fault);
    if (!event && json_error_code(&fault) == json_error_out_of_memory)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory");
    if (!event)
        return dp_fail(err, DP_ERROR_IO, "it is not JSON: %s", fault.text);
    dp_status status = read_event(event, batches, run, err);
    json_decref(event);
    return status;
}

dp_status dp_run_parse(const char *bytes, size_t size, dp_run *run, dp_error *err)
{
    *run = (dp_run){0};
    double batches = NAN;
    for (size_t at = 0, line = 1; at < size; line++) {
        const char *end = memchr(bytes + at, '\n', size - at);
        size_t length = end ? (size_t)(end - bytes) - at : size - at;
        if (!end) { /* as a machine that stops leaves it */
            run->torn = true;
            break;
        }
        dp_status status = length > 0 ? read_line(bytes + at, length, &batches, run, err) : DP_OK;
        if (status != DP_OK) {
            dp_error_prefix(err, "line %zu", line);
            return status;
        }
        at += length + 1;
    }
    return run->model ? DP_OK : dp_fail(err, DP_ERROR_MISMATCH, "it has no start of a run");
}

dp_status dp_run_read(const char *path, dp_run *out, dp_error *err)
{
    *out = (dp_run){0};
    struct stat st;
    char *name = NULL;
    void *bytes = NULL;
    size_t size, room = strlen(path) + sizeof "/log.jsonl";
    bool directory = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    DP_TRY(dp_calloc(room, 1, "a file name", &name, err));
    snprintf(name, room, "%s%s", path, directory ? "/log.jsonl" : "");
    dp_status status = dp_file_read(name, &bytes, &size, err);
    if (status == DP_OK) {
        status = dp_run_parse(bytes, size, out, err);
        if (status != DP_OK)
            dp_error_prefix(err, "cannot read the log '%s'", name);
    }
    dp_free(bytes);
    dp_free(name);
    return status;
}

void dp_run_clear(dp_run *run)
{
    forget_devices(run);
    char *texts[] = {run->version, run->command,   run->model, run->data,     run->output_device,
                     run->loss,    run->loss_mode, run->split, run->optimizer};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        dp_free(texts[i]);
    dp_free(run->batches);
    dp_free(run->epochs_done);
    *run = (dp_run){0};
}

dp_load dp_run_load(const dp_run *run)
{
    dp_load load = {.devices = run->reported, .device = run->report, .output = run->output};
    load.loss_mode = strcmp(run->loss_mode, "replica") == 0  ? DP_LOSS_REPLICA
                     : strcmp(run->loss_mode, "global") == 0 ? DP_LOSS_GLOBAL
                                                             : DP_LOSS_GATHER;
    load.split = strcmp(run->split, "shares") == 0     ? DP_SPLIT_SHARES
                 : strcmp(run->split, "balanced") == 0 ? DP_SPLIT_BALANCED
                                                       : DP_SPLIT_CHUNK;
    return load;
}
