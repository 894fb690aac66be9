/* Where a device's time goes: a chain of timed events on its compute stream. */
#include <string.h>

#include "parallel/engine.h"

static void close_ranges(dp_replica *r, int depth)
{
    for (; r->clock.ranges > depth; r->clock.ranges--)
        dp_range_pop(r->device);
}

/* Profilers see the host thread: a range for the step, in it one for each phase, in that "wait" while the
 * thread waits for another device. */
static void show_phase(dp_replica *r, dp_phase phase, bool busy)
{
    dp_clock *c = &r->clock;
    const char *names[] = {"step", dp_phase_name(phase), dp_phase_name(DP_PHASE_WAIT)};
    int depth = busy ? 2 : 3;
    close_ranges(r, c->shown == phase ? depth : 1);
    for (; c->ranges < depth; c->ranges++)
        dp_range_push(r->device, names[c->ranges]);
    c->shown = phase;
}

dp_status dp_mark_phase(dp_replica *r, dp_phase phase, bool busy, dp_error *err)
{
    dp_clock *c = &r->clock;
    const dp_mark *last = c->count ? &c->marks[c->count - 1] : NULL;
    if (last && last->phase == phase && last->busy == busy)
        return DP_OK;
    show_phase(r, phase, busy);
    if (c->count == DP_MAX_MARKS) /* the rest of the step counts as the last phase that was marked */
        return DP_OK;
    dp_mark *mark = &c->marks[c->count];
    mark->phase = phase;
    mark->busy = busy;
    DP_TRY(dp_event_record(&mark->event, &r->compute, err));
    c->count++;
    return DP_OK;
}

dp_status dp_clock_read(dp_replica *r, bool training, dp_error *err)
{
    dp_clock *c = &r->clock;
    close_ranges(r, 0);
    memset(c->phase_seconds, 0, sizeof c->phase_seconds);
    memset(c->busy_phase_seconds, 0, sizeof c->busy_phase_seconds);
    for (int i = 0; i + 1 < c->count; i++) {
        double seconds;
        DP_TRY(dp_event_elapsed(&c->marks[i].event, &c->marks[i + 1].event, &seconds, err));
        c->phase_seconds[c->marks[i].phase] += seconds;
        if (c->marks[i].busy) {
            c->busy_phase_seconds[c->marks[i].phase] += seconds;
            if (training)
                c->busy_seconds += seconds;
        }
    }
    c->count = 0;
    return DP_OK;
}
