/* Where a device's time goes: a chain of timed events on its compute stream. */
#include <string.h>

#include "parallel/engine.h"

static void close_ranges(dp_replica *r, int depth)
{
    for (; r->clock.ranges > depth; r->clock.ranges--)
        dp_span_pop(r);
}

/* Profilers and the trace see the host thread: a range for the step, in it one for each phase, in that "wait"
 * while the thread waits for another device. */
static void show_phase(dp_replica *r, dp_phase phase, bool busy)
{
    dp_clock *c = &r->clock;
    const char *names[] = {"step", dp_phase_name(phase), dp_phase_name(DP_PHASE_WAIT)};
    int depth = busy ? 2 : 3;
    close_ranges(r, c->shown == phase ? depth : 1);
    for (; c->ranges < depth; c->ranges++)
        dp_span_push(r, names[c->ranges]);
    c->shown = phase;
}

dp_status dp_mark_phase(dp_replica *r, dp_phase phase, bool busy, dp_error *err)
{
    dp_clock *c = &r->clock;
    int count = c->count;
    const dp_mark *last = count ? &c->marks[count - 1] : NULL;
    if (last && last->phase == phase && last->busy == busy)
        return DP_OK;
    show_phase(r, phase, busy);
    if (count == DP_MAX_MARKS) /* the rest of the step counts as the last phase that was marked */
        return DP_OK;
    if (count == 0)
        c->began = dp_now();
    dp_mark *mark = &c->marks[count];
    mark->phase = phase;
    mark->busy = busy;
    dp_status status = dp_event_record(&mark->event, &r->compute, err);
    if (status == DP_OK)
        c->count = count + 1;
    else if (count == 0) /* later ones are said to be in the phase that was marked last */
        dp_error_prefix(err, "%s", dp_phase_name(phase));
    return status;
}

dp_status dp_clock_read(dp_replica *r, const dp_step_job *job, dp_error *err)
{
    dp_clock *c = &r->clock;
    close_ranges(r, 0);
    memset(c->phase_seconds, 0, sizeof c->phase_seconds);
    memset(c->busy_phase_seconds, 0, sizeof c->busy_phase_seconds);
    double at = c->began;
    for (int i = 0; i + 1 < c->count; i++) {
        double seconds;
        DP_TRY(dp_event_elapsed(&c->marks[i].event, &c->marks[i + 1].event, &seconds, err));
        c->segments[i] = (dp_segment){c->marks[i].phase, c->marks[i].busy, at, at + seconds};
        at += seconds;
        c->phase_seconds[c->marks[i].phase] += seconds;
        if (c->marks[i].busy) {
            c->busy_phase_seconds[c->marks[i].phase] += seconds;
            if (job->training)
                c->busy_seconds += seconds;
        }
    }
    c->segment_count = c->count > 0 ? c->count - 1 : 0;
    dp_timeline_keep(r, job);
    DP_TRY(dp_spans_read(r, job, err));
    c->count = 0;
    return DP_OK;
}
