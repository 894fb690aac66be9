/* The engine on a backend whose calls are watched, or made to misbehave: where the clock stands, what memory
 * was handed out, and how failures end. */
#include <stdio.h>
#include <unistd.h>

#include "engine_run.h"

/* ---- a backend whose calls can be made to misbehave ---- */

static dp_backend_functions altered;
static const dp_backend_functions *original;
static _Atomic int calls_left;

static dp_status failing_copy(dp_device *device, void *stream, dp_device *to, void *destination,
                              dp_device *from, const void *source, size_t bytes, dp_error *err)
{
    if (atomic_fetch_sub(&calls_left, 1) == 1)
        return dp_fail(err, DP_ERROR_DEVICE, "a copy on %d failed on purpose", device->id);
    return original->copy(device, stream, to, destination, from, source, bytes, err);
}

static dp_status failing_update(dp_device *device, void *stream, const dp_update_args *args, dp_error *err)
{
    if (atomic_fetch_sub(&calls_left, 1) == 1)
        return dp_fail(err, DP_ERROR_DEVICE, "an update on %d failed on purpose", device->id);
    return original->update(device, stream, args, err);
}

static dp_status failing_backward(dp_device *device, dp_op *op, void *stream, const dp_op_args *args,
                                  dp_error *err)
{
    if (atomic_fetch_sub(&calls_left, 1) == 1)
        return dp_fail(err, DP_ERROR_DEVICE, "a backward on %d failed on purpose", device->id);
    return original->op_backward(device, op, stream, args, err);
}

static bool never_readable(dp_device *device, dp_device *peer)
{
    return device == peer;
}

/* Before an engine opens: its threads read the table all the time. */
static void alter(run *r)
{
    original = r->context->backend->call;
    altered = *original;
    r->context->backend->call = &altered;
}

/* Ops keep the table they were created with, which is the altered one. */
START_TEST(any_failing_call_ends_the_step_with_its_cause)
{
    for (int what = 0; what < 3; what++)
        for (int n = 1; n < 200; n++) {
            run r;
            dp_error err = {0};
            dp_step_result result;
            open_devices(&r, 3);
            alter(&r);
            calls_left = 0; /* none is to fail yet */
            if (what == 0)
                altered.copy = failing_copy;
            else if (what == 1)
                altered.update = failing_update;
            else
                altered.op_backward = failing_backward;
            open_engine(&r, "mlp");
            calls_left = n;
            dp_step step = make_step(&r, 9, true, 1);
            dp_status status = dp_engine_train(r.engine, &step, &result, &err);
            bool reached = calls_left <= 0;
            if (reached) {
                ck_assert_int_eq(status, DP_ERROR_DEVICE);
                ck_assert_ptr_nonnull(strstr(err.message, "failed on purpose"));
                /* The engine is dead and says why, again and again. */
                ck_assert_int_eq(dp_engine_train(r.engine, &step, &result, &err), DP_ERROR_DEVICE);
                ck_assert_ptr_nonnull(strstr(err.message, "failed on purpose"));
            } else
                ck_assert_int_eq(status, DP_OK);
            close_run(&r);
            if (!reached) {
                ck_assert_int_gt(n, 1); /* at least one call was made to fail */
                break;
            }
        }
}
END_TEST

START_TEST(unreadable_peers_are_staged)
{
    float *result[2];
    for (int i = 0; i < 2; i++) {
        run r;
        open_devices(&r, 3);
        alter(&r);
        if (i)
            altered.peer_readable = never_readable;
        open_engine(&r, "mlp");
        train(&r, 16, true, 1);
        train(&r, 16, true, 1);
        result[i] = weights_of(&r);
        ck_assert_int_eq(r.engine->primary->device->ledger.current[DP_MEM_STAGING] > 0, i);
        close_run(&r);
    }
    ck_assert(memcmp(result[0], result[1], MLP_ELEMENTS * sizeof(float)) == 0);
    free(result[0]);
    free(result[1]);
}
END_TEST

/* ---- time and memory as the backend saw them ---- */

static const run *watched;
static _Atomic int foreign_waits, wrong_marks;

static dp_replica *replica_of(const dp_device *device)
{
    for (int k = 0; k < watched->engine->device_count; k++)
        if (watched->engine->replicas[k].device == device)
            return &watched->engine->replicas[k];
    return NULL;
}

static bool has_event(const dp_replica *r, const void *event)
{
    bool found = event == r->output_ready.event.handle || event == r->loss_ready.event.handle;
    for (int b = 0; b < r->engine->arena.bucket_count; b++)
        found |= event == r->weights_ready[b].event.handle || event == r->gradients_ready[b].event.handle;
    return found;
}

static void expect_mark(const dp_device *device, bool busy)
{
    const dp_clock *c = &replica_of(device)->clock;
    if (c->count == 0 || c->marks[c->count - 1].busy != busy)
        wrong_marks++;
}

static dp_status watched_wait(dp_device *device, void *stream, void *event, dp_error *err)
{
    const dp_replica *r = replica_of(device);
    bool one_for_all = r->compute.handle == r->copy.handle; /* CPU: a wait takes no time on a stream */
    for (int k = 0; stream == r->compute.handle && k < watched->engine->device_count; k++)
        if (k != r->index && has_event(&watched->engine->replicas[k], event)) {
            foreign_waits++;
            if (!one_for_all)
                expect_mark(device, false);
        }
    return original->stream_wait(device, stream, event, err);
}

static dp_status watched_forward(dp_device *device, dp_op *op, void *stream, const dp_op_args *args,
                                 dp_error *err)
{
    expect_mark(device, true);
    return original->op_forward(device, op, stream, args, err);
}

static dp_status watched_backward(dp_device *device, dp_op *op, void *stream, const dp_op_args *args,
                                  dp_error *err)
{
    expect_mark(device, true);
    return original->op_backward(device, op, stream, args, err);
}

static dp_status watched_loss(dp_device *device, void *stream, const dp_loss_args *args, dp_error *err)
{
    expect_mark(device, true);
    return original->loss(device, stream, args, err);
}

static dp_status watched_update(dp_device *device, void *stream, const dp_update_args *args, dp_error *err)
{
    expect_mark(device, true);
    return original->update(device, stream, args, err);
}

/* Whenever a compute stream is told to wait for another device, the clock has stopped counting it as busy,
 * and counts again when there is work. */
START_TEST(waiting_for_other_devices_is_not_busy)
{
    for (int mode = DP_LOSS_GATHER; mode <= DP_LOSS_GLOBAL; mode++) {
        run r;
        open_devices(&r, 3);
        alter(&r);
        r.config.loss_mode = (dp_loss_mode)mode;
        watched = &r;
        altered.stream_wait = watched_wait;
        altered.op_forward = watched_forward;
        altered.op_backward = watched_backward;
        altered.loss = watched_loss;
        altered.update = watched_update;
        foreign_waits = 0;
        open_engine(&r, "mlp");
        train(&r, 32, true, 1);
        train(&r, 32, true, 1);
        ck_assert_int_gt(foreign_waits, 0);
        ck_assert_int_eq(wrong_marks, 0);
        for (int k = 0; k < 3; k++) {
            dp_error err = {0};
            dp_device_report report;
            ck_assert(dp_engine_report(r.engine, k, &report, &err) == DP_OK);
            ck_assert(report.busy_fraction > 0 && report.busy_fraction <= 1);
        }
        close_run(&r);
    }
}
END_TEST

enum { MAX_BLOCKS = 256, WATCHED_DEVICES = 3 };

static struct {
    pthread_mutex_t mutex;
    struct {
        void *pointer;
        size_t bytes;
        int device;
    } blocks[MAX_BLOCKS];
    int count;
    uint64_t current[WATCHED_DEVICES], peak[WATCHED_DEVICES];
} handed = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static dp_status counting_alloc(dp_device *device, size_t bytes, void **out, dp_error *err)
{
    DP_TRY(original->memory_alloc(device, bytes, out, err));
    pthread_mutex_lock(&handed.mutex);
    if (handed.count < MAX_BLOCKS) { /* else the sums will not agree */
        handed.blocks[handed.count].pointer = *out;
        handed.blocks[handed.count].bytes = bytes;
        handed.blocks[handed.count++].device = device->id;
    }
    uint64_t *current = &handed.current[device->id], *peak = &handed.peak[device->id];
    *current += bytes;
    if (*peak < *current)
        *peak = *current;
    pthread_mutex_unlock(&handed.mutex);
    return DP_OK;
}

static void counting_free(dp_device *device, void *pointer)
{
    pthread_mutex_lock(&handed.mutex);
    for (int i = 0; i < handed.count; i++)
        if (handed.blocks[i].pointer == pointer && handed.blocks[i].device == device->id) {
            handed.current[device->id] -= handed.blocks[i].bytes;
            handed.blocks[i] = handed.blocks[--handed.count];
            break;
        }
    pthread_mutex_unlock(&handed.mutex);
    original->memory_free(device, pointer);
}

/* What the report says by purpose adds up to what the backend's allocator handed out: every block is booked
 * once, whatever takes turns in it. */
START_TEST(peaks_by_purpose_add_up)
{
    for (int mode = DP_LOSS_GATHER; mode <= DP_LOSS_GLOBAL; mode++) {
        run r;
        dp_error err = {0};
        dp_step_result result;
        open_devices(&r, WATCHED_DEVICES);
        alter(&r);
        altered.memory_alloc = counting_alloc;
        altered.memory_free = counting_free;
        altered.peer_readable = never_readable; /* memory for staging too */
        r.config.loss_mode = (dp_loss_mode)mode;
        r.config.optimizer.adamw = mode == DP_LOSS_GLOBAL;
        memset(handed.peak, 0, sizeof handed.peak);
        open_engine(&r, "lenet");
        train(&r, 7, true, 1);
        train(&r, 32, true, 1);
        const dp_host_batch batch = {61, x, labels};
        ck_assert_msg(dp_engine_evaluate(r.engine, &batch, &result, &err) == DP_OK, "%s", err.message);
        for (int k = 0; k < WATCHED_DEVICES; k++) {
            dp_device_report report;
            uint64_t sum = 0;
            ck_assert(dp_engine_report(r.engine, k, &report, &err) == DP_OK);
            for (int p = 0; p < DP_PURPOSES; p++)
                sum += report.peak_bytes[p];
            ck_assert_uint_eq(sum, handed.peak[k]);
            ck_assert_uint_eq(sum, report.peak_total_bytes);
            ck_assert_uint_eq(r.context->backend->devices[k].ledger.total, handed.current[k]);
            ck_assert_uint_gt(report.peak_bytes[DP_MEM_ACTIVATIONS], 0);
        }
        close_run(&r);
        for (int k = 0; k < WATCHED_DEVICES; k++)
            ck_assert_uint_eq(handed.current[k], 0);
        ck_assert_int_eq(handed.count, 0);
    }
}
END_TEST

/* The same figures without the memory: what --dry-run prints and --max-memory judges. */
START_TEST(a_dry_run_books_what_a_run_takes)
{
    run r;
    dp_error err = {0};
    dp_step_result result;
    dp_device_report dry[WATCHED_DEVICES], report;
    open_devices(&r, WATCHED_DEVICES);
    alter(&r);
    altered.memory_alloc = counting_alloc;
    altered.memory_free = counting_free;
    r.config.dry_run = true;
    memset(handed.peak, 0, sizeof handed.peak);
    open_engine(&r, "lenet");
    for (int training = 0; training < 2; training++)
        for (int batch = 7; batch < 64; batch += 25)
            ck_assert_msg(dp_engine_plan(r.engine, batch, training, &err) == DP_OK, "%s", err.message);
    for (int k = 0; k < WATCHED_DEVICES; k++)
        ck_assert(dp_engine_report(r.engine, k, &dry[k], &err) == DP_OK);
    ck_assert_int_eq(handed.count, 0);
    const dp_step step = make_step(&r, 7, true, 1);
    ck_assert_int_eq(dp_engine_train(r.engine, &step, &result, &err), DP_ERROR_USAGE);
    ck_assert_ptr_nonnull(strstr(err.message, "dry run"));
    dp_engine_free(r.engine);
    dp_model_free(r.model);
    r.config.dry_run = false;
    open_engine(&r, "lenet");
    for (int training = 0; training < 2; training++)
        for (int batch = 7; batch < 64; batch += 25)
            ck_assert_msg(dp_engine_plan(r.engine, batch, training, &err) == DP_OK, "%s", err.message);
    train(&r, 57, true, 1);
    for (int k = 0; k < WATCHED_DEVICES; k++) {
        ck_assert(dp_engine_report(r.engine, k, &report, &err) == DP_OK);
        for (int p = 0; p < DP_PURPOSES; p++)
            ck_assert_uint_eq(report.peak_bytes[p], dry[k].peak_bytes[p]);
        ck_assert_uint_eq(report.peak_total_bytes, dry[k].peak_total_bytes);
        ck_assert_uint_eq(report.peak_total_bytes, handed.peak[k]);
    }
    close_run(&r);
}
END_TEST

START_TEST(a_wait_before_its_record_is_reported)
{
    run r;
    dp_error err = {0};
    dp_stream stream;
    dp_event event;
    open_devices(&r, 1);
    dp_device *device = &r.context->backend->devices[0];
    ck_assert(dp_device_enter(device, &err) == DP_OK);
    ck_assert(dp_stream_create(device, "test", &stream, &err) == DP_OK);
    ck_assert(dp_event_create(device, &event, &err) == DP_OK);
    ck_assert_int_eq(dp_stream_wait(&stream, &event, 1, "the test's event", &err), DP_ERROR_INTERNAL);
    ck_assert_ptr_nonnull(strstr(err.message, "waits for the test's event, record 1"));
    ck_assert(dp_event_record(&event, &stream, &err) == DP_OK);
    ck_assert_int_eq(dp_stream_wait(&stream, &event, 1, "the test's event", &err), DP_OK);
    dp_event_destroy(&event);
    dp_stream_destroy(&stream);
    dp_device_leave(device);
    close_run(&r);
}
END_TEST

/* ---- the watchdog ---- */

static _Atomic bool held, described;
static char where_it_was[4096];

/* Device 1 stops in the middle of its backward pass until the watchdog has found it there. */
static dp_status held_backward(dp_device *device, dp_op *op, void *stream, const dp_op_args *args,
                               dp_error *err)
{
    while (device->id == 1 && atomic_load(&held))
        usleep(1000);
    return original->op_backward(device, op, stream, args, err);
}

static void on_stall(void *user, const char *where)
{
    ck_assert_ptr_eq(user, &held);
    if (!strstr(where, ":1 is in backward")) /* a slow machine: it has not come so far */
        return;
    snprintf(where_it_was, sizeof where_it_was, "%s", where);
    atomic_store(&described, true);
    atomic_store(&held, false);
}

START_TEST(a_stalled_step_is_told_with_device_and_phase)
{
    run r;
    dp_error err = {0};
    dp_step_result result;
    open_devices(&r, 3);
    alter(&r);
    altered.op_backward = held_backward;
    r.config.stall_seconds = 0.02;
    r.config.stalled = on_stall;
    r.config.stalled_user = &held;
    open_engine(&r, "mlp");
    held = true;
    described = false;
    dp_step step = make_step(&r, 9, true, 1);
    ck_assert_msg(dp_engine_train(r.engine, &step, &result, &err) == DP_OK, "%s", err.message);
    ck_assert(described);
    ck_assert_ptr_nonnull(strstr(where_it_was, ":0 "));
    ck_assert_ptr_nonnull(strstr(where_it_was, ", "));
    ck_assert_ptr_nonnull(strstr(where_it_was, ":2 "));
    close_run(&r);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("engine and backend");
    TCase *t = tcase_create("watched");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, waiting_for_other_devices_is_not_busy);
    tcase_add_test(t, peaks_by_purpose_add_up);
    tcase_add_test(t, a_dry_run_books_what_a_run_takes);
    tcase_add_test(t, a_wait_before_its_record_is_reported);
    suite_add_tcase(s, t);
    TCase *altering = tcase_create("altered");
    tcase_set_timeout(altering, 60);
    tcase_add_test(altering, a_stalled_step_is_told_with_device_and_phase);
    tcase_add_test(altering, any_failing_call_ends_the_step_with_its_cause);
    suite_add_tcase(s, altering);
    TCase *ordering = tcase_create("ordering");
    tcase_set_timeout(ordering, 60);
    tcase_add_test(ordering, unreadable_peers_are_staged);
    suite_add_tcase(s, ordering);
    return run_tests(argc, argv, s);
}
