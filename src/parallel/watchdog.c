/* Says which device is at what when a step does not get on.
 *
 * A device's progress are the tasks that its thread has done and the marks of its clock that its compute
 * stream has passed: on a GPU the thread has long enqueued the whole step when a copy in it hangs. The
 * coordinator looks at both while it waits, so there is no thread for this, and between two steps nothing to
 * look at. */
#include <stdio.h>

#include "parallel/engine.h"

typedef struct progress {
    uint64_t done[DP_MAX_DEVICES];
    int passed[DP_MAX_DEVICES];
} progress;

/* While a task runs its marks only grow in number, and events of earlier ones stay as they are. */
static int marks_passed(const dp_replica *r)
{
    int count = r->clock.count, passed = 0;
    while (passed < count) {
        const dp_event *event = &r->clock.marks[passed].event;
        if (!event->device->backend->call->event_done(event->device, event->handle))
            break;
        passed++;
    }
    return passed;
}

/* Returns whether anything has changed. */
static bool look(const dp_engine *e, progress *p)
{
    bool changed = false;
    for (int k = 0; k < e->device_count; k++) {
        const dp_replica *r = &e->replicas[k];
        uint64_t done = atomic_load(&r->done.value);
        bool all = done >= r->post_count;
        int passed = all ? 0 : marks_passed(r);
        changed |= done != p->done[k] || passed != p->passed[k];
        p->done[k] = done;
        p->passed[k] = passed;
    }
    return changed;
}

static void describe(const dp_engine *e, const progress *p, char *out, size_t size)
{
    size_t used = 0;
    for (int k = 0; k < e->device_count && used < size; k++) {
        const dp_replica *r = &e->replicas[k];
        const char *is = "has done its part", *phase = "";
        if (p->done[k] < r->post_count && p->passed[k] == 0)
            is = "has not begun";
        else if (p->done[k] < r->post_count) {
            const dp_mark *mark = &r->clock.marks[p->passed[k] - 1];
            is = mark->busy ? "is in " : "waits for others in ";
            phase = dp_phase_name(mark->phase);
        }
        used += (size_t)snprintf(out + used, size - used, "%s%s:%d %s%s", k ? ", " : "",
                                 r->device->backend->call->name, r->device->id, is, phase);
    }
}

static bool wait_for_all(dp_engine *e, double deadline)
{
    for (int k = 0; k < e->device_count; k++)
        if (!dp_signal_wait_until(&e->replicas[k].done, e->replicas[k].post_count, deadline))
            return false;
    return true;
}

void dp_watch_workers(dp_engine *e)
{
    const dp_engine_config *c = &e->config;
    if (!c->stalled || c->stall_seconds <= 0) {
        for (int k = 0; k < e->device_count; k++)
            dp_signal_wait(&e->replicas[k].done, e->replicas[k].post_count);
        return;
    }
    progress p = {0};
    char where[4096];
    double patience = c->stall_seconds;
    look(e, &p);
    while (!wait_for_all(e, dp_now() + patience)) {
        if (look(e, &p)) {
            patience = c->stall_seconds;
            continue;
        }
        describe(e, &p, where, sizeof where);
        c->stalled(c->stalled_user, where);
        patience *= 2;
    }
}
