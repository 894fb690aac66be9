#include "base/tracks.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/thread.h"

dp_status dp_track_create(dp_trace *trace, const char *group, const char *name, int spans, dp_track **out,
                          dp_error *err)
{
    *out = NULL;
    if (!trace)
        return DP_OK;
    dp_track *track;
    DP_TRY(dp_realloc(&trace->tracks, (size_t)trace->count + 1, sizeof(dp_track *), "tracks", err));
    DP_TRY(dp_calloc(1, sizeof *track, "a track", &track, err));
    trace->tracks[trace->count++] = track;
    snprintf(track->group, sizeof track->group, "%s", group);
    snprintf(track->name, sizeof track->name, "%s", name);
    track->capacity = 1;
    while (track->capacity < (uint64_t)spans)
        track->capacity *= 2;
    DP_TRY(dp_calloc(track->capacity, sizeof *track->spans, "a track", &track->spans, err));
    DP_TRY(trace->sink.announce(trace->sink.user, trace->count - 1, track, err));
    *out = track;
    return DP_OK;
}

/* The next free place, not yet to be seen by the coordinator; NULL (counted) if there is none. */
static dp_span *reserve(dp_track *track)
{
    uint64_t place = atomic_load_explicit(&track->head, memory_order_relaxed) + track->reserved;
    if (place - atomic_load_explicit(&track->tail, memory_order_acquire) >= track->capacity) {
        atomic_fetch_add_explicit(&track->dropped, 1, memory_order_relaxed);
        return NULL;
    }
    track->reserved++;
    return &track->spans[place & (track->capacity - 1)];
}

/* Once no span is open, all that were reserved are complete. */
static void publish(dp_track *track)
{
    if (track->depth > 0)
        return;
    uint64_t head = atomic_load_explicit(&track->head, memory_order_relaxed);
    atomic_store_explicit(&track->head, head + track->reserved, memory_order_release);
    track->reserved = 0;
}

void dp_track_push(dp_track *track, const char *name, const char *detail, int64_t step, int bucket)
{
    if (!track)
        return;
    dp_span *span = track->depth < DP_TRACK_DEPTH ? reserve(track) : NULL;
    if (track->depth < DP_TRACK_DEPTH)
        track->open[track->depth] = span ? span - track->spans : -1;
    track->depth++;
    if (span)
        *span = (dp_span){.name = name, .detail = detail, .step = step, .bucket = bucket, .begin = dp_now()};
}

void dp_track_pop(dp_track *track)
{
    if (!track || track->depth == 0)
        return;
    track->depth--;
    if (track->depth < DP_TRACK_DEPTH && track->open[track->depth] >= 0)
        track->spans[track->open[track->depth]].end = dp_now();
    publish(track);
}

void dp_track_add(dp_track *track, const dp_span *span)
{
    dp_span *place = track ? reserve(track) : NULL;
    if (place)
        *place = *span;
    if (track)
        publish(track);
}

static dp_status flush_track(const dp_trace *t, int index, dp_error *err)
{
    dp_track *track = t->tracks[index];
    uint64_t head = atomic_load_explicit(&track->head, memory_order_acquire);
    uint64_t tail = atomic_load_explicit(&track->tail, memory_order_relaxed);
    dp_status status = DP_OK;
    for (; tail < head && status == DP_OK; tail++)
        status = t->sink.take(t->sink.user, index, &track->spans[tail & (track->capacity - 1)], err);
    atomic_store_explicit(&track->tail, tail, memory_order_release);
    return status;
}

dp_status dp_trace_flush(dp_trace *trace, dp_error *err)
{
    for (int i = 0; trace && i < trace->count; i++)
        if (trace->tracks[i]->spans)
            DP_TRY(flush_track(trace, i, err));
    return DP_OK;
}

uint64_t dp_trace_dropped(const dp_trace *trace)
{
    uint64_t sum = 0;
    for (int i = 0; i < trace->count; i++)
        sum += atomic_load(&trace->tracks[i]->dropped);
    return sum;
}

void dp_trace_clear(dp_trace *trace)
{
    for (int i = 0; i < trace->count; i++) {
        dp_free(trace->tracks[i]->spans);
        dp_free(trace->tracks[i]);
    }
    dp_free(trace->tracks);
    trace->tracks = NULL;
    trace->count = 0;
}
