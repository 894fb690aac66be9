/* What a device does and when: the timeline of a step, which every report has, and the tracks of a trace,
 * where there is one.
 *
 * All times are the host's (dp_now). A step's first mark is recorded on an idle stream, so its event and the
 * host's clock tell the same moment, to the few microseconds that an idle device takes to begin; what else
 * the device's own clock tells is counted from there, and never adds up over a run. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "parallel/engine.h"

/* Spans between two flushes, which come once a step: a span for each phase, operation or bucket. */
enum { THREAD_SPANS = 8192, STREAM_SPANS = 4096 };

static dp_status create_tracks(dp_replica *r, dp_trace *trace, dp_error *err)
{
    char group[24], name[48];
    snprintf(group, sizeof group, "%s:%d", r->device->backend->call->name, r->device->id);
    const struct {
        const char *what;
        int spans;
        dp_track **track;
    } rows[] = {{"thread", THREAD_SPANS, &r->tracks.thread},
                {"compute stream", STREAM_SPANS, &r->tracks.compute},
                {"copy stream", STREAM_SPANS, &r->tracks.copy},
                {"input stream", STREAM_SPANS, &r->tracks.input}};
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "%s %s", group, rows[i].what);
        DP_TRY(dp_track_create(trace, group, name, rows[i].spans, rows[i].track, err));
    }
    return DP_OK;
}

dp_status dp_spans_create_tracks(dp_engine *e, dp_error *err)
{
    DP_TRY(dp_track_create(e->config.trace, "host", "coordinator", STREAM_SPANS, &e->track, err));
    for (int k = 0; k < e->device_count; k++)
        DP_TRY(create_tracks(&e->replicas[k], e->config.trace, err));
    return DP_OK;
}

dp_status dp_spans_open(dp_replica *r, dp_error *err)
{
    if (!r->engine->config.trace)
        return DP_OK;
    dp_replica_tracks *t = &r->tracks;
    /* A bucket may travel before the forward pass and after the update. */
    int copies = 2 * r->engine->arena.bucket_count;
    DP_TRY(dp_calloc((size_t)copies, sizeof *t->copies, "a track", &t->copies, err));
    for (int i = 0; i < copies; i++) {
        t->room = i + 1;
        DP_TRY(dp_event_create(r->device, &t->copies[i].begin, err));
        DP_TRY(dp_event_create(r->device, &t->copies[i].end, err));
    }
    for (int s = 0; s < DP_SLOTS; s++)
        DP_TRY(dp_event_create(r->device, &r->slots[s].sent, err));
    return DP_OK;
}

void dp_spans_close(dp_replica *r)
{
    for (int i = 0; i < r->tracks.room; i++) {
        dp_event_destroy(&r->tracks.copies[i].begin);
        dp_event_destroy(&r->tracks.copies[i].end);
    }
    for (int s = 0; s < DP_SLOTS; s++)
        dp_event_destroy(&r->slots[s].sent);
    dp_free(r->tracks.copies);
}

void dp_span_push(dp_replica *r, const char *name)
{
    dp_range_push(r->device, name);
    dp_track_push(r->tracks.thread, name, NULL, r->step_number, -1);
}

void dp_span_pop(dp_replica *r)
{
    dp_range_pop(r->device);
    dp_track_pop(r->tracks.thread);
}

void dp_span_push_op(dp_replica *r, int step)
{
    if (!r->tracks.thread)
        return;
    const dp_model *model = r->engine->model;
    const dp_node *node = &model->program[step];
    dp_track_push(r->tracks.thread, dp_op_kind_name(node->kind),
                  node->params ? model->params[node->param[0]].name : NULL, r->step_number, -1);
}

void dp_span_pop_op(dp_replica *r)
{
    dp_track_pop(r->tracks.thread);
}

dp_status dp_span_begin_copy(dp_replica *r, dp_phase phase, int bucket, dp_error *err)
{
    dp_replica_tracks *t = &r->tracks;
    if (t->count == t->room)
        return DP_OK;
    t->copies[t->count].phase = phase;
    t->copies[t->count].bucket = bucket;
    return dp_event_record(&t->copies[t->count].begin, &r->copy, err);
}

dp_status dp_span_end_copy(dp_replica *r, dp_error *err)
{
    dp_replica_tracks *t = &r->tracks;
    return t->count == t->room ? DP_OK : dp_event_record(&t->copies[t->count++].end, &r->copy, err);
}

/* ---- after a step ---- */

/* Arrows are numbered by step, device and bucket; bucket -1 is the chunk. */
static uint64_t arrow(const dp_replica *r, int device, int bucket)
{
    return ((uint64_t)r->step_number * DP_MAX_DEVICES + (uint64_t)device) * 65536 + (uint64_t)(bucket + 1);
}

/* As both are one pass over memory. */
static const char *span_name(dp_phase phase)
{
    return phase == DP_PHASE_REDUCE ? "reduce+optimizer" : dp_phase_name(phase);
}

/* Where an event lies in the step, within bounds that rounding may not leave. */
static dp_status locate(dp_replica *r, dp_event *event, double low, double high, double *out, dp_error *err)
{
    double seconds;
    DP_TRY(dp_event_elapsed(&r->clock.marks[0].event, event, &seconds, err));
    *out = r->clock.began + seconds;
    *out = *out < low ? low : *out > high ? high : *out;
    return DP_OK;
}

static dp_status add_bucket(dp_replica *r, int bucket, double low, double high, double *end, dp_error *err)
{
    DP_TRY(locate(r, &r->gradients_ready[bucket].event, low, high, end, err));
    dp_track_add(r->tracks.compute, &(dp_span){.name = "bucket",
                                               .step = r->step_number,
                                               .bucket = bucket,
                                               .begin = low,
                                               .end = *end,
                                               .arrow_out = arrow(r, r->index, bucket)});
    return DP_OK;
}

/* What lies within a segment: a wait, or the work that completed buckets of gradients. */
static dp_status add_segment(dp_replica *r, int index, bool update, dp_error *err)
{
    const dp_arena *arena = &r->engine->arena;
    const dp_segment *s = &r->clock.segments[index];
    double begin = s->begin;
    if (!s->busy)
        dp_track_add(r->tracks.compute, &(dp_span){.name = dp_phase_name(DP_PHASE_WAIT),
                                                   .step = r->step_number,
                                                   .bucket = -1,
                                                   .begin = s->begin,
                                                   .end = s->end});
    for (int b = arena->bucket_count - 1; update && b >= 0; b--)
        if (arena->buckets[b].trainable && r->bucket_mark[b] == index)
            DP_TRY(add_bucket(r, b, begin, s->end, &begin, err));
    return DP_OK;
}

/* One span for each phase that lasts, and in it what its segments hold. */
static dp_status add_phases(dp_replica *r, bool update, dp_error *err)
{
    const dp_clock *c = &r->clock;
    bool forward = false;
    for (int i = 0, next; i < c->segment_count; i = next) {
        dp_phase phase = c->segments[i].phase;
        for (next = i + 1; next < c->segment_count && c->segments[next].phase == phase; next++)
            ;
        dp_span span = {.name = span_name(phase),
                        .step = r->step_number,
                        .bucket = -1,
                        .begin = c->segments[i].begin,
                        .end = c->segments[next - 1].end};
        if (phase == DP_PHASE_FORWARD && !forward) {
            span.arrow_in = arrow(r, r->index, -1);
            forward = true;
        }
        dp_track_add(r->tracks.compute, &span);
        for (int k = i; k < next; k++)
            DP_TRY(add_segment(r, k, update, err));
    }
    return DP_OK;
}

static dp_status add_copies(dp_replica *r, const dp_step_job *job, dp_error *err)
{
    dp_replica_tracks *t = &r->tracks;
    for (int i = 0; i < t->count; i++) {
        const dp_copy_span *copy = &t->copies[i];
        dp_span span = {.name = span_name(copy->phase), .step = r->step_number, .bucket = copy->bucket};
        DP_TRY(locate(r, &t->copies[i].begin, t->copied_until, 1e300, &span.begin, err));
        DP_TRY(locate(r, &t->copies[i].end, span.begin, 1e300, &span.end, err));
        t->copied_until = span.end;
        dp_track_add(t->copy, &span);
        /* An arrow from every replica whose gradients were summed: a span holds the end of one. Where all
         * have parts of a bucket the arrows lead to the primary's. */
        bool ends = copy->phase == DP_PHASE_REDUCE && r == r->engine->primary;
        for (int k = 0; ends && k < r->engine->device_count; k++)
            if (job->contributes[k])
                dp_track_add(t->copy, &(dp_span){.begin = span.begin,
                                                 .end = span.begin,
                                                 .bucket = -1,
                                                 .arrow_in = arrow(r, k, copy->bucket)});
    }
    t->count = 0;
    return DP_OK;
}

static dp_status add_chunk(dp_replica *r, const dp_step_job *job, dp_error *err)
{
    dp_slot *slot = &r->slots[job->batch.slot];
    dp_span span = {.name = dp_phase_name(DP_PHASE_SCATTER),
                    .step = r->step_number,
                    .bucket = -1,
                    .arrow_out = job->batch.chunk[r->index] > 0 ? arrow(r, r->index, -1) : 0};
    double ahead, seconds;
    /* Chunks are sent ahead: before the step's first mark, as a rule. */
    DP_TRY(dp_event_elapsed(&slot->sent, &r->clock.marks[0].event, &ahead, err));
    DP_TRY(dp_event_elapsed(&slot->sent, &slot->arrived, &seconds, err));
    span.begin = r->clock.began - ahead;
    if (span.begin < r->tracks.received_until)
        span.begin = r->tracks.received_until;
    span.end = span.begin + (seconds > 0 ? seconds : 0);
    r->tracks.received_until = span.end;
    dp_track_add(r->tracks.input, &span);
    return DP_OK;
}

dp_status dp_spans_read(dp_replica *r, const dp_step_job *job, dp_error *err)
{
    if (!r->tracks.thread || r->clock.count == 0)
        return DP_OK;
    DP_TRY(add_chunk(r, job, err));
    DP_TRY(add_phases(r, job->update, err));
    return add_copies(r, job, err);
}

/* ---- the timeline of a step ---- */

void dp_timeline_keep(dp_replica *r, const dp_step_job *job)
{
    dp_clock *c = &r->clock;
    if (!job->update || job->batch.samples < c->kept_samples)
        return;
    c->kept_samples = job->batch.samples;
    c->kept_count = c->segment_count;
    for (int i = 0; i < c->segment_count; i++) {
        c->kept[i] = c->segments[i];
        c->kept[i].begin -= r->engine->began;
        c->kept[i].end -= r->engine->began;
    }
}

int dp_engine_timeline(const dp_engine *engine, int index, int max, dp_timeline_span *out)
{
    const dp_clock *c = &engine->replicas[index].clock;
    int count = c->kept_count < max ? c->kept_count : max;
    for (int i = 0; i < count; i++)
        out[i] = (dp_timeline_span){c->kept[i].phase, c->kept[i].busy, 1e3 * c->kept[i].begin,
                                    1e3 * c->kept[i].end};
    return count;
}
