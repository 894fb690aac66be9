/* Spans of time on named tracks, from the threads that live them to whoever writes them down. */
#ifndef DP_BASE_TRACKS_H
#define DP_BASE_TRACKS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/error.h"
#include "dptrain/trace.h"

/* Names and details are static, or live until the trace is closed. Without a name it is the end of an arrow
 * alone, in the span before it. */
typedef struct dp_span {
    const char *name;
    const char *detail;           /* NULL: none */
    int64_t step;                 /* of the engine, from 1; 0: none */
    int bucket;                   /* -1: none */
    double begin, end;            /* dp_now() */
    uint64_t arrow_out, arrow_in; /* an arrow from the end of one span to the begin of another; 0: none */
} dp_span;

enum { DP_TRACK_NAME = 48, DP_TRACK_DEPTH = 8 };

/* A ring of spans: one thread adds, the coordinator takes them out, and neither waits for the other. What
 * does not fit is counted and left out. A span is in the ring before those within it. */
typedef struct dp_track {
    char group[DP_TRACK_NAME], name[DP_TRACK_NAME];
    uint64_t group_number; /* the sink's own */
    dp_span *spans;
    uint64_t capacity;           /* a power of two */
    _Atomic uint64_t head, tail; /* spans [tail, head) are there to be taken */
    _Atomic uint64_t dropped;
    /* The adding thread's own: */
    uint64_t reserved;            /* beyond head, while a span is open */
    int64_t open[DP_TRACK_DEPTH]; /* which spans are; -1: one that did not fit */
    int depth;
} dp_track;

/* Receives the spans of a track in the order of their begins, and those of a new track not before the track
 * was announced. */
typedef struct dp_track_sink {
    dp_status (*announce)(void *user, int index, const dp_track *track, dp_error *err);
    dp_status (*take)(void *user, int index, const dp_span *span, dp_error *err);
    void *user;
} dp_track_sink;

struct dp_trace {
    dp_track_sink sink;
    dp_track **tracks;
    int count;
};

/* ---- the coordinator's ---- */

/* Without a trace these two do nothing, and *out is NULL. There is room for so many spans between two
 * flushes. Tracks of a group are shown together. */
dp_status dp_track_create(dp_trace *trace, const char *group, const char *name, int spans, dp_track **out,
                          dp_error *err);
dp_status dp_trace_flush(dp_trace *trace, dp_error *err);
uint64_t dp_trace_dropped(const dp_trace *trace);
void dp_trace_clear(dp_trace *trace); /* frees its tracks */

/* ---- the adding thread's; nothing happens where track is NULL ---- */

/* Opens a span and closes the one that was opened last. */
void dp_track_push(dp_track *track, const char *name, const char *detail, int64_t step, int bucket);
void dp_track_pop(dp_track *track);
/* A span that is over. On a track that also has open ones it must lie within the innermost. */
void dp_track_add(dp_track *track, const dp_span *span);

#endif
