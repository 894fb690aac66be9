/* Worker threads, their mailboxes, and milestones between them. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "parallel/engine.h"

/* The first failure wins: it is kept for every later call, and whoever waits for the failed worker is woken.
 * Waits that end because of this return DP_ERROR_ABORTED, which never replaces the cause. */
static void worker_failed(dp_replica *r, dp_status status)
{
    dp_engine *e = r->engine;
    r->status = status;
    atomic_store(&e->failed, true);
    if (!e->opened) /* nobody waits for anybody yet */
        return;
    for (int k = 0; k < e->device_count; k++) {
        dp_replica *other = &e->replicas[k];
        dp_signal_close(&other->output_ready.signal);
        dp_signal_close(&other->loss_ready.signal);
        for (int b = 0; b < e->arena.bucket_count; b++) {
            dp_signal_close(&other->weights_ready[b].signal);
            dp_signal_close(&other->gradients_ready[b].signal);
        }
    }
}

/* Waits for task `number`; false if there will be none. */
static bool next_task(dp_replica *r, uint64_t number)
{
    if (dp_signal_reached(&r->posted, number))
        return true;
    dp_span_push(r, dp_phase_name(DP_PHASE_WAIT));
    bool posted = dp_signal_wait(&r->posted, number);
    dp_span_pop(r);
    return posted;
}

/* The cause of a failure says where it was met: on which device and, in a step, in which phase. Backends name
 * the device themselves where they know more. */
static void say_where(dp_replica *r, const dp_task *task)
{
    char label[32];
    int length = snprintf(label, sizeof label, "%s:%d", r->device->backend->call->name, r->device->id);
    const char *named = strstr(r->error.message, label);
    bool known = named && !(named[length] >= '0' && named[length] <= '9');
    const dp_clock *c = &r->clock;
    const char *phase = c->count > 0                            ? dp_phase_name(c->marks[c->count - 1].phase)
                        : task && task->run == dp_receive_chunk ? dp_phase_name(DP_PHASE_SCATTER)
                                                                : NULL;
    if (phase && known)
        dp_error_prefix(&r->error, "%s", phase);
    else if (phase)
        dp_error_prefix(&r->error, "%s, %s", label, phase);
    else if (!known)
        dp_error_prefix(&r->error, "%s", label);
}

static void *worker_main(void *argument)
{
    dp_replica *r = argument;
    dp_status status = dp_device_enter(r->device, &r->error);
    bool entered = status == DP_OK;
    if (!entered) {
        say_where(r, NULL);
        worker_failed(r, status);
    }
    for (uint64_t number = 1; next_task(r, number); number++) {
        const dp_task task = r->tasks[number % DP_MAILBOX_SIZE];
        if (!task.run) { /* the end */
            dp_signal_post(&r->done, number);
            break;
        }
        if (task.cleanup)
            task.run(r, task.argument, NULL);
        else if (r->status == DP_OK) {
            status = task.run(r, task.argument, &r->error);
            if (status != DP_OK) {
                say_where(r, &task);
                worker_failed(r, status);
            }
        }
        dp_signal_post(&r->done, number);
    }
    if (entered) {
        dp_replica_close(r);
        dp_device_leave(r->device);
    }
    return NULL;
}

dp_status dp_workers_start(dp_engine *engine, dp_error *err)
{
    for (int k = 0; k < engine->device_count; k++) {
        dp_replica *r = &engine->replicas[k];
        char name[32];
        snprintf(name, sizeof name, "%s:%d", r->device->backend->call->name, r->device->id);
        DP_TRY(dp_thread_start(&r->thread, name, worker_main, r, err));
        r->started = true;
    }
    return DP_OK;
}

static void post(dp_replica *r, dp_task task)
{
    uint64_t number = ++r->post_count;
    /* A full mailbox (never in a step: a step posts four tasks) waits for its oldest task. */
    if (number > DP_MAILBOX_SIZE)
        dp_signal_wait(&r->done, number - DP_MAILBOX_SIZE);
    r->tasks[number % DP_MAILBOX_SIZE] = task;
    dp_signal_post(&r->posted, number);
}

void dp_worker_post(dp_replica *r, dp_status (*run)(dp_replica *, const void *, dp_error *),
                    const void *argument)
{
    post(r, (dp_task){.run = run, .argument = argument});
}

/* Waits for all work of a device; whatever fails now has been reported or concerns nobody any more. */
static dp_status drain(dp_replica *r, const void *unused, dp_error *err)
{
    (void)unused;
    dp_stream *streams[] = {&r->compute, &r->copy, &r->input};
    for (int i = 0; i < 3; i++)
        if (streams[i]->device)
            dp_stream_synchronize(streams[i], err);
    return DP_OK;
}

/* A device's queued copies may read another device's memory: all streams are idle before anybody frees any.
 */
void dp_workers_stop(dp_engine *engine)
{
    const dp_task tasks[] = {{.run = drain, .cleanup = true}, {.run = NULL}};
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < engine->device_count; k++)
            if (engine->replicas[k].started)
                post(&engine->replicas[k], tasks[i]);
        for (int k = 0; k < engine->device_count; k++)
            if (engine->replicas[k].started)
                dp_signal_wait(&engine->replicas[k].done, engine->replicas[k].post_count);
    }
    for (int k = 0; k < engine->device_count; k++)
        if (engine->replicas[k].started)
            pthread_join(engine->replicas[k].thread, NULL);
}

dp_status dp_workers_wait(dp_engine *engine, dp_error *err)
{
    dp_watch_workers(engine);
    if (!atomic_load(&engine->failed))
        return DP_OK;
    if (engine->first_error.status == DP_OK) {
        const dp_replica *cause = NULL;
        for (int k = 0; k < engine->device_count; k++) {
            const dp_replica *r = &engine->replicas[k];
            if (r->status != DP_OK && (!cause || cause->status == DP_ERROR_ABORTED))
                cause = r;
        }
        engine->first_error = cause->error;
    }
    return dp_fail(err, engine->first_error.status, "%s", engine->first_error.message);
}

dp_status dp_milestone_create(dp_replica *r, dp_milestone *milestone, dp_error *err)
{
    DP_TRY(dp_event_create(r->device, &milestone->event, err));
    dp_status status = dp_signal_init(&milestone->signal, r->engine->spin_ns, err);
    if (status != DP_OK)
        dp_event_destroy(&milestone->event);
    milestone->exists = status == DP_OK;
    return status;
}

void dp_milestone_destroy(dp_milestone *milestone)
{
    if (!milestone->exists)
        return;
    dp_event_destroy(&milestone->event);
    dp_signal_destroy(&milestone->signal);
    milestone->exists = false;
}

dp_status dp_announce(dp_milestone *milestone, dp_stream *stream, dp_error *err)
{
    DP_TRY(dp_event_record(&milestone->event, stream, err));
    dp_signal_post(&milestone->signal, atomic_load(&milestone->event.recorded));
    return DP_OK;
}

dp_status dp_await(dp_replica *r, dp_milestone *milestone, uint64_t number, dp_stream *stream, dp_phase phase,
                   const char *what, dp_error *err)
{
    /* Where kernels run behind the host, an announcement that is here says nothing about the work before it.
     */
    bool waits = stream == &r->compute || !dp_signal_reached(&milestone->signal, number);
    if (waits)
        DP_TRY(dp_mark_phase(r, phase, false, err));
    if (!dp_signal_wait(&milestone->signal, number))
        return dp_fail(err, DP_ERROR_ABORTED, "%s:%d stopped waiting for %s", r->device->backend->call->name,
                       r->device->id, what);
    DP_TRY(dp_stream_wait(stream, &milestone->event, number, what, err));
    return waits ? dp_mark_phase(r, phase, true, err) : DP_OK;
}
