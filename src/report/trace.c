/* A trace as a file: the JSON of the Trace Event Format ("Trace Event Format", Google, 2016), which Perfetto
 * and chrome://tracing read. Tracks are threads, their groups processes; complete events (X) are the spans,
 * flow events (s, f) the arrows. A span precedes those within it. */
#include "dptrain/trace.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/thread.h"
#include "base/tracks.h"
#include "io/file.h"

enum { BUFFER = 1 << 16, LONGEST_EVENT = 1024 };

typedef struct writer {
    dp_trace trace;
    dp_atomic_file *file;
    double origin; /* dp_now() that the file calls 0 */
    bool first;    /* no event yet */
    uint64_t written, left_out;
    size_t used;
    char buffer[BUFFER];
} writer;

static dp_status write_out(writer *w, dp_error *err)
{
    size_t bytes = w->used;
    w->used = 0;
    return dp_atomic_write(w->file, w->buffer, bytes, err);
}

/* Makes room for an event and begins it. */
static dp_status begin_event(writer *w, dp_error *err)
{
    if (w->used + LONGEST_EVENT > BUFFER)
        DP_TRY(write_out(w, err));
    if (!w->first)
        w->buffer[w->used++] = ',';
    w->buffer[w->used++] = '\n';
    w->first = false;
    return DP_OK;
}

/* ---- text without printf: hundreds of events a step are to cost next to nothing ---- */

static void put_text(writer *w, const char *text)
{
    size_t length = strlen(text);
    memcpy(w->buffer + w->used, text, length);
    w->used += length;
}

static void put_number(writer *w, uint64_t value)
{
    char digits[20];
    int count = 0;
    do {
        digits[count++] = (char)('0' + value % 10);
        value /= 10;
    } while (value);
    while (count)
        w->buffer[w->used++] = digits[--count];
}

/* Microseconds with three decimals. */
static void put_time(writer *w, uint64_t nanoseconds)
{
    uint64_t part = nanoseconds % 1000;
    put_number(w, nanoseconds / 1000);
    w->buffer[w->used++] = '.';
    w->buffer[w->used++] = (char)('0' + part / 100);
    w->buffer[w->used++] = (char)('0' + part / 10 % 10);
    w->buffer[w->used++] = (char)('0' + part % 10);
}

/* A name as a JSON string, cut where it is too long. */
static void put_string(writer *w, const char *text)
{
    enum { LONGEST = 200 };
    w->buffer[w->used++] = '"';
    for (int i = 0; text[i] && i < LONGEST; i++) {
        char c = text[i];
        if (c == '"' || c == '\\')
            w->buffer[w->used++] = '\\';
        w->buffer[w->used++] = (unsigned char)c < ' ' || (unsigned char)c > 126 ? '?' : c;
    }
    w->buffer[w->used++] = '"';
}

/* ---- events ---- */

/* Groups are numbered from 1 as they appear. */
static uint64_t group_of(const writer *w, int index)
{
    const dp_trace *t = &w->trace;
    uint64_t group = 0;
    for (int i = 0; i <= index; i++) {
        bool seen = false;
        for (int k = 0; k < i && !seen; k++)
            seen = strcmp(t->tracks[k]->group, t->tracks[i]->group) == 0;
        group += !seen;
        if (strcmp(t->tracks[i]->group, t->tracks[index]->group) == 0)
            return group;
    }
    return group;
}

static void put_place(writer *w, uint64_t group, int index)
{
    put_text(w, "\"pid\":");
    put_number(w, group);
    put_text(w, ",\"tid\":");
    put_number(w, (uint64_t)index + 1);
}

static dp_status put_metadata(writer *w, uint64_t group, int index, const char *kind, const char *name,
                              uint64_t order, dp_error *err)
{
    DP_TRY(begin_event(w, err));
    put_text(w, "{\"ph\":\"M\",");
    put_place(w, group, index);
    put_text(w, ",\"name\":");
    put_string(w, kind);
    put_text(w, ",\"args\":{");
    if (name) {
        put_text(w, "\"name\":");
        put_string(w, name);
    } else {
        put_text(w, "\"sort_index\":");
        put_number(w, order);
    }
    put_text(w, "}}");
    return DP_OK;
}

static dp_status announce(void *user, int index, const dp_track *track, dp_error *err)
{
    writer *w = user;
    uint64_t group = group_of(w, index);
    w->trace.tracks[index]->group_number = group;
    DP_TRY(put_metadata(w, group, index, "process_name", track->group, 0, err));
    DP_TRY(put_metadata(w, group, index, "process_sort_index", NULL, group, err));
    DP_TRY(put_metadata(w, group, index, "thread_name", track->name, 0, err));
    return put_metadata(w, group, index, "thread_sort_index", NULL, (uint64_t)index + 1, err);
}

static dp_status put_arrow(writer *w, uint64_t group, int index, const char *end, uint64_t id, uint64_t at,
                           dp_error *err)
{
    DP_TRY(begin_event(w, err));
    put_text(w, end);
    put_place(w, group, index);
    put_text(w, ",\"cat\":\"flow\",\"name\":\"data\",\"id\":");
    put_number(w, id);
    put_text(w, ",\"ts\":");
    put_time(w, at);
    put_text(w, "}");
    return DP_OK;
}

static dp_status put_span(writer *w, uint64_t group, int index, const dp_span *span, uint64_t begin,
                          uint64_t end, dp_error *err)
{
    DP_TRY(begin_event(w, err));
    put_text(w, "{\"ph\":\"X\",");
    put_place(w, group, index);
    put_text(w, ",\"name\":");
    put_string(w, span->name);
    put_text(w, ",\"ts\":");
    put_time(w, begin);
    put_text(w, ",\"dur\":");
    put_time(w, end - begin);
    put_text(w, ",\"args\":{");
    const char *comma = "";
    if (span->step > 0) {
        put_text(w, "\"step\":");
        put_number(w, (uint64_t)span->step);
        comma = ",";
    }
    if (span->bucket >= 0) {
        put_text(w, comma);
        put_text(w, "\"bucket\":");
        put_number(w, (uint64_t)span->bucket);
        comma = ",";
    }
    if (span->detail) {
        put_text(w, comma);
        put_text(w, "\"parameter\":");
        put_string(w, span->detail);
    }
    put_text(w, "}}");
    w->written++;
    return DP_OK;
}

static dp_status take(void *user, int index, const dp_span *span, dp_error *err)
{
    writer *w = user;
    uint64_t group = w->trace.tracks[index]->group_number;
    if (w->written >= DP_TRACE_MAX_SPANS) {
        w->left_out += span->name != NULL;
        return DP_OK;
    }
    /* Rounded down, both: what lay within something still does. */
    uint64_t begin = span->begin > w->origin ? (uint64_t)((span->begin - w->origin) * 1e9) : 0;
    uint64_t end = span->end > w->origin ? (uint64_t)((span->end - w->origin) * 1e9) : 0;
    if (span->name)
        DP_TRY(put_span(w, group, index, span, begin, end, err));
    if (span->arrow_out)
        DP_TRY(put_arrow(w, group, index, "{\"ph\":\"s\",", span->arrow_out, begin + (end - begin) / 2, err));
    if (span->arrow_in)
        DP_TRY(put_arrow(w, group, index, "{\"ph\":\"f\",\"bp\":\"e\",", span->arrow_in, begin, err));
    return DP_OK;
}

/* ---- the file ---- */

dp_status dp_trace_open(const char *path, dp_trace **out, dp_error *err)
{
    *out = NULL;
    writer *w;
    DP_TRY(dp_calloc(1, sizeof *w, "a trace", &w, err));
    dp_status status = dp_atomic_remove_stale(path, err);
    if (status == DP_OK)
        status = dp_atomic_open(path, &w->file, err);
    if (status != DP_OK) {
        dp_free(w);
        return status;
    }
    w->trace.sink = (dp_track_sink){announce, take, w};
    w->origin = dp_now();
    w->first = true;
    put_text(w, "{\"displayTimeUnit\":\"ms\",\"otherData\":{\"version\":\"dptrain " DP_VERSION
                "\"},\"traceEvents\":[");
    *out = &w->trace;
    return DP_OK;
}

static void forget(writer *w)
{
    dp_trace_clear(&w->trace);
    dp_free(w);
}

dp_status dp_trace_close(dp_trace *trace, uint64_t *dropped, dp_error *err)
{
    writer *w = trace->sink.user;
    dp_status status = dp_trace_flush(trace, err);
    *dropped = dp_trace_dropped(trace) + w->left_out;
    if (status == DP_OK && w->used + LONGEST_EVENT > BUFFER)
        status = write_out(w, err);
    if (status == DP_OK) {
        put_text(w, "\n]}\n");
        status = write_out(w, err);
    }
    if (status == DP_OK)
        status = dp_atomic_commit(w->file, err);
    else
        dp_atomic_abandon(w->file);
    forget(w);
    return status;
}

void dp_trace_abandon(dp_trace *trace)
{
    if (!trace)
        return;
    writer *w = trace->sink.user;
    dp_atomic_abandon(w->file);
    forget(w);
}
