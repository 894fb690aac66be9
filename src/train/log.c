#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "base/json.h"
#include "base/memory.h"
#include "io/file.h"
#include "train/train.h"

struct dp_log {
    int file;
    char *path;
    bool regular; /* a file that can be read back and cut; not a pipe or a device */
    dp_log_mark position;
};

static dp_status cannot_write(const dp_log *log, int number, dp_error *err)
{
    return dp_fail(err, DP_ERROR_IO, "cannot write '%s': %s", log->path, strerror(number));
}

/* O_NONBLOCK: a FIFO that nobody reads is an error at once, not a wait without end. */
static dp_status open_file(dp_log *log, dp_error *err)
{
    struct stat st;
    log->file = open(log->path, O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (log->file < 0 || fcntl(log->file, F_SETFL, O_WRONLY) != 0 || fstat(log->file, &st) != 0)
        return cannot_write(log, errno, err);
    log->regular = S_ISREG(st.st_mode);
    return DP_OK;
}

dp_status dp_log_open(const char *path, dp_log **out, dp_error *err)
{
    DP_TRY(dp_calloc(1, sizeof **out, "the log", out, err));
    dp_log *log = *out;
    log->file = -1;
    dp_status status = dp_strdup(path, &log->path, err);
    if (status == DP_OK)
        status = open_file(log, err);
    if (status != DP_OK) {
        dp_log_close(log);
        *out = NULL;
    }
    return status;
}

static uint32_t checksum(uint32_t crc, const void *bytes, size_t size)
{
    return (uint32_t)crc32_z(crc, bytes, size);
}

/* How much of a log stays: all up to the mark, if it is the one that was marked, else its whole lines. */
static size_t kept_bytes(const char *bytes, size_t size, const dp_log_mark *mark)
{
    if (mark->bytes >= 0 && (uint64_t)mark->bytes <= size &&
        checksum(0, bytes, (size_t)mark->bytes) == mark->crc)
        return (size_t)mark->bytes;
    while (size > 0 && bytes[size - 1] != '\n')
        size--;
    return size;
}

/* What a line says; NULL: it is no JSON. Owner: the caller. */
static dp_status read_event(const char *path, const char *line, size_t size, json_t **out, dp_error *err)
{
    json_error_t problem;
    *out = json_loadb(line, size, 0, &problem);
    if (!*out && json_error_code(&problem) == json_error_out_of_memory)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory: cannot read '%s'", path);
    return DP_OK;
}

/* Whether all whole lines are events of some run. */
static dp_status holds_events(const char *path, const char *bytes, size_t size, bool *out, dp_error *err)
{
    const char *line = bytes, *end;
    *out = false;
    for (; (end = memchr(line, '\n', size - (size_t)(line - bytes))) != NULL; line = end + 1) {
        json_t *event;
        DP_TRY(read_event(path, line, (size_t)(end - line), &event, err));
        bool sound = json_is_string(json_object_get(event, "event"));
        json_decref(event);
        if (!sound)
            return DP_OK;
    }
    *out = line > bytes;
    return DP_OK;
}

dp_status dp_log_recognize(const char *path, const dp_log_mark *mark, dp_log_kind *out, dp_error *err)
{
    void *bytes;
    size_t size;
    struct stat st;
    *out = DP_LOG_OWN;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return DP_OK; /* opening it will say what is wrong */
    DP_TRY(dp_file_read(path, &bytes, &size, err));
    bool own = size == 0 ||
               ((uint64_t)mark->bytes <= size && checksum(0, bytes, (size_t)mark->bytes) == mark->crc),
         of_a_run = true;
    dp_status status = own ? DP_OK : holds_events(path, bytes, size, &of_a_run, err);
    if (!own)
        *out = of_a_run ? DP_LOG_OTHER : DP_LOG_FOREIGN;
    dp_free(bytes);
    return status;
}

dp_status dp_log_begin(dp_log *log, const dp_log_mark *mark, dp_error *err)
{
    if (!log || !log->regular)
        return DP_OK;
    if (mark) {
        void *bytes;
        size_t size;
        DP_TRY(dp_file_read(log->path, &bytes, &size, err));
        size_t kept = kept_bytes(bytes, size, mark);
        log->position = (dp_log_mark){(int64_t)kept, checksum(0, bytes, kept)};
        dp_free(bytes);
    }
    if (ftruncate(log->file, log->position.bytes) != 0 ||
        lseek(log->file, log->position.bytes, SEEK_SET) != log->position.bytes)
        return cannot_write(log, errno, err);
    return DP_OK;
}

dp_log_mark dp_log_position(const dp_log *log)
{
    return log ? log->position : (dp_log_mark){0};
}

dp_status dp_log_sync(const dp_log *log, dp_error *err)
{
    return log && log->regular && dp_fsync(log->file) != 0 ? cannot_write(log, errno, err) : DP_OK;
}

void dp_log_close(dp_log *log)
{
    if (!log)
        return;
    if (log->file >= 0)
        close(log->file);
    dp_free(log->path);
    dp_free(log);
}

/* A number, or null where it is not finite: JSON has no other. */
static json_t *number(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* A string, with '?' for every byte beyond ASCII where it is not UTF-8 (file names need not be). */
static json_t *text(const char *value)
{
    json_t *string = json_string(value);
    char *plain;
    if (string || dp_strdup(value, &plain, NULL) != DP_OK)
        return string;
    bool replaced = false;
    for (char *c = plain; *c; c++)
        if ((unsigned char)*c > 127) {
            *c = '?';
            replaced = true;
        }
    string = replaced ? json_string(plain) : NULL; /* else it was memory that was missing */
    dp_free(plain);
    return string;
}

static json_t *texts(const char *const *values, int count)
{
    json_t *array = json_array();
    for (int i = 0; i < count; i++)
        dp_json_append(&array, text(values[i]));
    return array;
}

static json_t *integers(const int64_t *values, int count)
{
    json_t *array = json_array();
    for (int i = 0; i < count; i++)
        dp_json_append(&array, json_integer(values[i]));
    return array;
}

/* Writes the event and releases it. One write a line, so that a line is torn only if the machine stops. */
static dp_status write_event(dp_log *log, json_t *event, dp_error *err)
{
    char *line = event ? json_dumps(event, JSON_COMPACT | JSON_REAL_PRECISION(10)) : NULL;
    json_decref(event);
    if (!line)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory: cannot write an event to '%s'", log->path);
    size_t length = strlen(line), done = 0;
    line[length] = '\n'; /* in the place of the final zero */
    dp_status status = DP_OK;
    while (done <= length && status == DP_OK) {
        ssize_t n = write(log->file, line + done, length + 1 - done);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || errno != EINTR)
            status = cannot_write(log, n == 0 ? ENOSPC : errno, err);
    }
    log->position.bytes += (int64_t)done;
    log->position.crc = checksum(log->position.crc, line, done);
    free(line);
    return status;
}

static json_t *device_labels(const dp_context *context, const dp_engine_config *engine)
{
    json_t *array = json_array();
    for (int k = 0; k < engine->device_count; k++) {
        dp_device_info info;
        if (dp_context_device(context, engine->device_ids[k], &info, NULL) == DP_OK)
            dp_json_append(&array, json_string(info.label));
    }
    return array;
}

static const char *const split_names[] = {"chunk", "balanced", "shares"}; /* dp_split_kind */

dp_status dp_log_start(dp_log *log, const dp_train_start *s, const dp_context *context, dp_error *err)
{
    if (!log)
        return DP_OK;
    const dp_train_config *c = s->config;
    const dp_engine_config *e = &c->engine;
    dp_device_info output;
    DP_TRY(
        dp_context_device(context, e->output_device < 0 ? e->device_ids[0] : e->output_device, &output, err));
    const char *description = dp_model_description(s->model);
    json_t *model = description ? json_loads(description, 0, NULL) : json_null();
    json_t *event = json_pack(
        "{s:s, s:s, s:o, s:s, s:o, s:I, s:o, s:I, s:o, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:s, s:f, s:f, "
        "s:f, s:b, s:I}",
        "event", "start", "version", DP_VERSION, "command", texts(c->arguments, c->argument_count), "model",
        dp_model_name(s->model), "model_config", model, "parameters", (json_int_t)dp_model_elements(s->model),
        "data", text(s->train->description), "samples", (json_int_t)s->train->samples, "devices",
        device_labels(context, e), "output_device", output.label, "loss", dp_loss_names[e->criterion],
        "loss_mode", dp_loss_mode_names[e->loss_mode], "batch_size", (json_int_t)c->batch_size,
        "accumulation_steps", (json_int_t)c->accumulation_steps, "epochs", (json_int_t)c->epochs,
        "batches_per_epoch", (json_int_t)s->batches, "optimizer", e->optimizer.adamw ? "adamw" : "sgd", "lr",
        c->lr, "momentum", e->optimizer.momentum, "weight_decay", e->optimizer.weight_decay, "nesterov",
        e->optimizer.nesterov, "seed", (json_int_t)c->seed);
    if (s->valid)
        dp_json_set(&event, s->valid->is_test ? "test_samples" : "valid_samples",
                    json_integer((json_int_t)s->valid->samples));
    dp_json_set(&event, "split", text(split_names[e->split]));
    dp_json_set(&event, "chunk_sizes", integers(s->chunk_sizes, s->devices));
    if (s->resumed)
        dp_json_set(&event, "resumed",
                    json_pack("{s:I, s:I, s:I}", "epoch", (json_int_t)s->epoch, "batch", (json_int_t)s->batch,
                              "step", (json_int_t)s->step));
    return write_event(log, event, err);
}

dp_status dp_log_batch(dp_log *log, const dp_train_progress *p, const dp_step_result *r, dp_error *err)
{
    if (!log)
        return DP_OK;
    json_t *losses = json_array(), *phases = json_object();
    for (int k = 0; k < r->devices; k++)
        dp_json_append(&losses, number(r->device_losses[k]));
    for (int i = 0; i < DP_PHASES; i++)
        dp_json_set(&phases, dp_phase_name((dp_phase)i), number(r->phase_ms[i]));
    int64_t samples = 0;
    for (int k = 0; k < r->devices; k++)
        samples += r->chunk_sizes[k];
    json_t *event =
        json_pack("{s:s, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o}", "event", "batch", "epoch",
                  (json_int_t)p->epoch, "batch", (json_int_t)p->batch, "step", (json_int_t)p->step, "samples",
                  (json_int_t)samples, "chunk_sizes", integers(r->chunk_sizes, r->devices), "loss",
                  number(r->loss), "device_losses", losses, "lr", number(p->lr), "phase_ms", phases);
    return write_event(log, event, err);
}

dp_status dp_log_epoch(dp_log *log, const dp_epoch_summary *e, dp_error *err)
{
    if (!log)
        return DP_OK;
    json_t *event =
        json_pack("{s:s, s:I, s:o, s:f, s:f}", "event", "epoch", "epoch", (json_int_t)e->epoch, "train_loss",
                  number(e->train_loss), "seconds", e->seconds, "samples_per_second", e->samples_per_second);
    if (e->validated)
        dp_json_set(&event, "valid_loss", number(e->valid_loss));
    if (e->has_accuracy)
        dp_json_set(&event, "valid_accuracy", number(e->valid_accuracy));
    if (e->has_overlap) {
        dp_json_set(&event, "valid_iou", number(e->valid_iou));
        dp_json_set(&event, "valid_f1", number(e->valid_f1));
    }
    return write_event(log, event, err);
}

/* To a tenth of a microsecond. */
static json_t *milliseconds(double ms)
{
    return number(round(ms * 1e4) / 1e4);
}

static json_t *timeline_json(int count, const dp_timeline_span *spans)
{
    json_t *array = json_array();
    for (int i = 0; i < count; i++)
        dp_json_append(&array, json_pack("{s:s, s:o, s:o, s:b}", "phase", dp_phase_name(spans[i].phase),
                                         "begin_ms", milliseconds(spans[i].begin_ms), "end_ms",
                                         milliseconds(spans[i].end_ms), "busy", spans[i].busy));
    return array;
}

dp_status dp_log_device(dp_log *log, const dp_device_report *r, int spans, const dp_timeline_span *timeline,
                        dp_error *err)
{
    if (!log)
        return DP_OK;
    json_t *peaks = json_object();
    for (int i = 0; i < DP_PURPOSES; i++)
        dp_json_set(&peaks, dp_memory_purpose(i), json_integer((json_int_t)r->peak_bytes[i]));
    json_t *event =
        json_pack("{s:s, s:s, s:I, s:I, s:f, s:o, s:I}", "event", "device", "device", r->device, "samples",
                  (json_int_t)r->samples, "steps", (json_int_t)r->steps, "busy_fraction", r->busy_fraction,
                  "peak_bytes", peaks, "peak_total_bytes", (json_int_t)r->peak_total_bytes);
    dp_json_set(&event, "timeline", timeline_json(spans, timeline));
    return write_event(log, event, err);
}

dp_status dp_log_end(dp_log *log, const char *status, int64_t steps, double seconds, dp_error *err)
{
    if (!log)
        return DP_OK;
    return write_event(log,
                       json_pack("{s:s, s:s, s:I, s:f}", "event", "end", "status", status, "steps",
                                 (json_int_t)steps, "seconds", seconds),
                       err);
}

/* Whether the last whole line is an `end`. */
static dp_status is_complete(const char *path, const char *bytes, size_t size, bool *out, dp_error *err)
{
    const dp_log_mark none = {.bytes = -1};
    *out = false;
    if (size == 0)
        return DP_OK;
    size_t end = kept_bytes(bytes, size, &none), begin = end > 0 ? end - 1 : 0;
    while (begin > 0 && bytes[begin - 1] != '\n')
        begin--;
    json_t *event;
    DP_TRY(read_event(path, bytes + begin, end - begin, &event, err));
    const char *kind = json_string_value(json_object_get(event, "event"));
    *out = kind && strcmp(kind, "end") == 0;
    json_decref(event);
    return DP_OK;
}

dp_status dp_log_complete(const char *path, int64_t steps, double seconds, dp_error *err)
{
    const dp_log_mark none = {.bytes = -1};
    void *bytes;
    size_t size;
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode))
        return DP_OK;
    DP_TRY(dp_file_read(path, &bytes, &size, err));
    bool complete;
    dp_status status = is_complete(path, bytes, size, &complete, err);
    dp_free(bytes);
    if (status != DP_OK || complete)
        return status;
    dp_log *log;
    DP_TRY(dp_log_open(path, &log, err));
    status = dp_log_begin(log, &none, err);
    if (status == DP_OK)
        status = dp_log_end(log, "completed", steps, seconds, err);
    dp_log_close(log);
    return status;
}
