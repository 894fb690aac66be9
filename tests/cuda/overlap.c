/* What overlaps in a step, shown by holding it up: a stream that is stopped in the middle of its work tells
 * what did not wait for it, whatever the times. And what is not sent at all, counted. */
#include "tests/cuda/overlap.h"

#include <cuda_runtime_api.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/cuda.h"
#include "dptrain/engine.h"
#include "parallel/context.h"
#include "parallel/engine.h"
#include "tests/cuda_emulation/tests/kernels.h"

enum { GPUS = 3, BATCH = 6, CLASSES = 4, INPUT_ELEMENTS = 3 * 16 * 16 };

/* Three buckets of weights: fc1, small; fc2; fc3 and fc4. */
static const dp_model_config three_buckets = {.name = "mlp",
                                              .input_rank = 1,
                                              .input_shape = {20},
                                              .outputs = CLASSES,
                                              .hidden_count = 3,
                                              .hidden = {1200, 1200, 1200}};
static const dp_model_config two_buckets = {.name = "mlp",
                                            .input_rank = 1,
                                            .input_shape = {20},
                                            .outputs = CLASSES,
                                            .hidden_count = 2,
                                            .hidden = {600, 600}};
/* With running statistics. */
static const dp_model_config thin_resnet = {
    .name = "resnet18_cifar", .input_rank = 3, .input_shape = {3, 16, 16}, .outputs = CLASSES, .width = 4};
enum { BUCKETS = 3, FIRST = 0, LAST = BUCKETS - 1 };

static dp_context context;
static dp_model *model;
static dp_engine *engine;
static float input[BATCH * INPUT_ELEMENTS];
static int32_t labels[BATCH];

/* ---- a backend that is watched, and held up ---- */

static dp_backend_functions altered;
static const dp_backend_functions *original;
/* Where the streams stop until *gate. */
static enum { NOWHERE, BEFORE_THE_LAST_WEIGHTS, BEFORE_THE_FIRST_LAYERS_BACKWARD } held;
static int *gate;                                           /* pinned */
static cudaEvent_t first_forward[GPUS];                     /* recorded behind the first layer */
static _Atomic long weights_sent[GPUS], buffers_sent[GPUS]; /* bytes, to each device */

static void hold(void *stream)
{
    ck_assert_int_eq(launch_hold(stream, gate), cudaSuccess);
}

static bool lies_in(const void *address, const float *block, int64_t elements)
{
    return block && (const float *)address >= block && (const float *)address < block + elements;
}

static dp_status watched_copy(dp_device *device, void *stream, dp_device *to, void *destination,
                              dp_device *from, const void *source, size_t bytes, dp_error *err)
{
    const dp_replica *primary = engine ? engine->primary : NULL;
    if (primary && to && from == primary->device && to != from) {
        const dp_bucket *last = &engine->arena.buckets[engine->arena.bucket_count - 1];
        if (held == BEFORE_THE_LAST_WEIGHTS &&
            lies_in(source, primary->weights + last->begin, last->end - last->begin))
            hold(stream);
        if (lies_in(source, primary->weights, engine->arena.elements))
            weights_sent[to->id] += (long)bytes;
        if (lies_in(source, primary->buffers, model->buffer_elements))
            buffers_sent[to->id] += (long)bytes;
    }
    return original->copy(device, stream, to, destination, from, source, bytes, err);
}

static dp_status watched_forward(dp_device *device, dp_op *op, void *stream, const dp_op_args *args,
                                 dp_error *err)
{
    DP_TRY(original->op_forward(device, op, stream, args, err));
    const dp_replica *r = &engine->replicas[device->id];
    if (args->param[0] == r->weights + engine->arena.offset[0])
        ck_assert_int_eq(cudaEventRecord(first_forward[device->id], stream), cudaSuccess);
    return DP_OK;
}

static dp_status held_backward(dp_device *device, dp_op *op, void *stream, const dp_op_args *args,
                               dp_error *err)
{
    const dp_replica *r = &engine->replicas[device->id];
    if (held == BEFORE_THE_FIRST_LAYERS_BACKWARD &&
        args->param_gradient[0] == r->gradients + engine->arena.offset[0])
        hold(stream);
    return original->op_backward(device, op, stream, args, err);
}

/* ---- runs ---- */

static void open_run(const dp_model_config *what, int gpus, const char *freeze, dp_trace *trace)
{
    dp_error err = {0};
    void *host;
    setenv("DPTRAIN_EMULATED_GPUS", "3", 1);
    ck_assert_msg(dp_cuda_backend_open(&(dp_cuda_config){0}, &context.backend, &err) == DP_OK, "%s",
                  err.message);
    original = context.backend->call;
    altered = *original;
    altered.copy = watched_copy;
    altered.op_forward = watched_forward;
    altered.op_backward = held_backward;
    context.backend->call = &altered;
    ck_assert(dp_model_build(what, &model, &err) == DP_OK);
    dp_engine_config config = dp_engine_defaults();
    config.device_ids = (int[]){0, 1, 2};
    config.device_count = gpus;
    config.freeze = &freeze;
    config.freeze_count = freeze != NULL;
    config.trace = trace;
    ck_assert_msg(dp_engine_create(&context, model, &config, &engine, &err) == DP_OK, "%s", err.message);
    ck_assert(dp_context_host_alloc(&context, sizeof *gate, &host, &err) == DP_OK);
    gate = host;
    for (int k = 0; k < gpus; k++) {
        ck_assert_int_eq(cudaSetDevice(k), cudaSuccess);
        ck_assert_int_eq(cudaEventCreateWithFlags(&first_forward[k], cudaEventDisableTiming), cudaSuccess);
    }
    for (int i = 0; i < BATCH * INPUT_ELEMENTS; i++)
        input[i] = (float)(i % 7) / 7;
    for (int i = 0; i < BATCH; i++)
        labels[i] = i % CLASSES;
}

static void set_weights(void)
{
    dp_error err = {0};
    float *weights = calloc((size_t)dp_model_elements(model), sizeof *weights);
    dp_model_init_weights(model, 1, weights);
    ck_assert_msg(dp_engine_set_weights(engine, weights, &err) == DP_OK, "%s", err.message);
    free(weights);
}

static void close_run(void)
{
    for (int k = 0; k < engine->device_count; k++)
        cudaEventDestroy(first_forward[k]);
    dp_engine_free(engine);
    dp_context_host_free(&context, gate);
    dp_model_free(model);
    context.backend->call->close(context.backend);
}

static dp_step step_of(bool update)
{
    return (dp_step){.batch = {BATCH, input, labels}, .lr = 0.1, .update = update};
}

/* Begins a step that is held up at `where`, and waits until the host has enqueued all of it. */
static void begin_held(int where)
{
    dp_error err = {0};
    dp_step step = step_of(true);
    *(volatile int *)gate = 0;
    held = where;
    ck_assert_msg(dp_engine_begin(engine, &step, &err) == DP_OK, "%s", err.message);
    for (int k = 0; k < engine->device_count; k++)
        ck_assert(dp_signal_wait(&engine->replicas[k].done, engine->replicas[k].post_count));
}

static void let_go(void)
{
    dp_error err = {0};
    dp_step_result result;
    *(volatile int *)gate = 1;
    held = NOWHERE;
    ck_assert_msg(dp_engine_finish(engine, &result, &err) == DP_OK, "%s", err.message);
    ck_assert(result.finite);
}

/* Does the event come while the step is held up? What waits for the gate never does: twenty seconds are for
 * busy machines. */
static bool comes(cudaEvent_t event)
{
    for (int i = 0; i < 20000; i++) {
        if (cudaEventQuery(event) == cudaSuccess)
            return true;
        usleep(1000);
    }
    return false;
}

static bool is_held(const dp_stream *stream)
{
    return cudaStreamQuery(stream->handle) == cudaErrorNotReady;
}

/* ---- the trace of such a step ---- */

static char trace_path[] = "/tmp/dptrain-overlap-XXXXXX";

static dp_trace *open_trace(void)
{
    dp_trace *trace;
    dp_error err = {0};
    int file = mkstemp(trace_path);
    ck_assert(file >= 0 && close(file) == 0);
    ck_assert_msg(dp_trace_open(trace_path, &trace, &err) == DP_OK, "%s", err.message);
    return trace;
}

/* The file that the trace has become, which is removed. Owner: the caller. */
static json_t *close_trace(dp_trace *trace)
{
    dp_error err = {0};
    uint64_t dropped;
    ck_assert_msg(dp_trace_close(trace, &dropped, &err) == DP_OK, "%s", err.message);
    json_t *json = json_load_file(trace_path, 0, NULL);
    unlink(trace_path);
    ck_assert_ptr_nonnull(json);
    return json;
}

static bool is_on(const json_t *all, const json_t *event, const char *track)
{
    size_t i;
    const json_t *other;
    json_array_foreach(all, i, other)
    {
        const char *name = json_string_value(json_object_get(other, "name"));
        if (name && strcmp(name, "thread_name") == 0 &&
            json_equal(json_object_get(other, "pid"), json_object_get(event, "pid")) &&
            json_equal(json_object_get(other, "tid"), json_object_get(event, "tid")))
            return strcmp(json_string_value(json_object_get(json_object_get(other, "args"), "name")),
                          track) == 0;
    }
    return false;
}

/* Where the spans of that name begin (or end), on a device's track, in the trace's only step. */
static double time_of(const json_t *trace, const char *device, const char *stream, const char *name,
                      int bucket, bool end)
{
    const json_t *all = json_object_get(trace, "traceEvents"), *event;
    double first = 1e300, last = 0;
    char track[64];
    size_t i;
    snprintf(track, sizeof track, "%s %s", device, stream);
    json_array_foreach(all, i, event)
    {
        const json_t *number = json_object_get(json_object_get(event, "args"), "bucket");
        if (strcmp(json_string_value(json_object_get(event, "ph")), "X") != 0 ||
            strcmp(json_string_value(json_object_get(event, "name")), name) != 0 ||
            !is_on(all, event, track) || (bucket >= 0 && json_integer_value(number) != bucket))
            continue;
        double from = json_number_value(json_object_get(event, "ts"));
        double to = from + json_number_value(json_object_get(event, "dur"));
        first = from < first ? from : first;
        last = to > last ? to : last;
    }
    ck_assert_msg(last > 0, "no span '%s' on track '%s'", name, track);
    return end ? last : first;
}

/* ---- what overlaps ---- */

START_TEST(forward_begins_before_the_last_weights_are_here)
{
    dp_trace *trace = open_trace();
    open_run(&three_buckets, 2, NULL, trace);
    ck_assert_int_eq(engine->arena.bucket_count, BUCKETS);
    set_weights();
    begin_held(BEFORE_THE_LAST_WEIGHTS);
    const dp_replica *r = &engine->replicas[1];
    ck_assert_msg(comes(first_forward[1]), "the first layer waits for the last layer's weights");
    ck_assert(is_held(&r->copy));
    let_go();
    close_run();
    json_t *json = close_trace(trace);
    ck_assert_double_lt(time_of(json, "cuda:1", "compute stream", "forward", -1, false),
                        time_of(json, "cuda:1", "copy stream", "broadcast", LAST, true));
    json_decref(json);
}
END_TEST

START_TEST(sums_and_new_weights_come_before_backward_ends)
{
    dp_trace *trace = open_trace();
    open_run(&three_buckets, 2, NULL, trace);
    set_weights();
    begin_held(BEFORE_THE_FIRST_LAYERS_BACKWARD);
    const dp_replica *primary = &engine->replicas[0], *other = &engine->replicas[1];
    for (int b = LAST; b > FIRST; b--) {
        ck_assert_msg(comes(primary->weights_ready[b].event.handle), "bucket %d is not summed", b);
        ck_assert_msg(comes(other->weights_here[b].handle), "bucket %d's new weights are not here", b);
    }
    ck_assert(is_held(&primary->compute) && is_held(&other->compute));
    ck_assert(is_held(&primary->copy)); /* the first layer's gradients are still to come */
    let_go();
    close_run();
    json_t *json = close_trace(trace);
    const char *const devices[] = {"cuda:0", "cuda:1"};
    for (int k = 0; k < 2; k++)
        for (int b = LAST; b > FIRST; b--)
            ck_assert_double_lt(time_of(json, "cuda:0", "copy stream", "reduce+optimizer", b, true),
                                time_of(json, devices[k], "compute stream", "backward", -1, true));
    json_decref(json);
}
END_TEST

/* ---- what is not sent ---- */

static void expect_sent(const char *what, long weights, long buffers)
{
    for (int k = 1; k < GPUS; k++) {
        ck_assert_msg(weights_sent[k] == weights, "%s: %ld bytes of weights to GPU %d instead of %ld", what,
                      weights_sent[k], k, weights);
        ck_assert_msg(buffers_sent[k] == buffers, "%s: %ld bytes of buffers to GPU %d instead of %ld", what,
                      buffers_sent[k], k, buffers);
        weights_sent[k] = buffers_sent[k] = 0;
    }
}

static void train(bool update)
{
    dp_error err = {0};
    dp_step_result result;
    dp_step step = step_of(update);
    ck_assert_msg(dp_engine_train(engine, &step, &result, &err) == DP_OK, "%s", err.message);
}

static void evaluate(void)
{
    dp_error err = {0};
    dp_step_result result;
    const dp_host_batch batch = {BATCH, input, labels};
    ck_assert_msg(dp_engine_evaluate(engine, &batch, &result, &err) == DP_OK, "%s", err.message);
}

static const struct {
    const dp_model_config *model;
    const char *freeze;
} runs[] = {{&two_buckets, NULL}, {&two_buckets, "fc2.*"}, {&thin_resnet, NULL}, {&thin_resnet, "conv1.*"}};

START_TEST(unchanged_weights_are_not_sent)
{
    open_run(runs[_i].model, GPUS, runs[_i].freeze, NULL);
    long all = 0, trained = 0, buffers = (long)model->buffer_elements * (long)sizeof(float);
    for (int b = 0; b < engine->arena.bucket_count; b++) {
        const dp_bucket *bucket = &engine->arena.buckets[b];
        long bytes = (long)(bucket->end - bucket->begin) * (long)sizeof(float);
        all += bytes;
        trained += bucket->trainable ? bytes : 0;
    }
    ck_assert(runs[_i].freeze ? trained < all : trained == all);
    set_weights();
    train(true);
    expect_sent("the first step: what it starts with, and what it made", all + trained, 0);
    train(true);
    expect_sent("a step", trained, 0);
    evaluate();
    expect_sent("an evaluation after a step", 0, buffers);
    evaluate();
    expect_sent("an evaluation after another", 0, 0);
    train(false);
    train(false);
    expect_sent("steps of a window", 0, 0);
    train(true);
    expect_sent("the window's update", trained, 0);
    set_weights();
    evaluate();
    expect_sent("an evaluation of new weights", all, buffers);
    evaluate();
    expect_sent("another of these", 0, 0);
    close_run();
}
END_TEST

TCase *overlap_case(void)
{
    TCase *t = tcase_create("overlap");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, forward_begins_before_the_last_weights_are_here);
    tcase_add_test(t, sums_and_new_weights_come_before_backward_ends);
    tcase_add_loop_test(t, unchanged_weights_are_not_sent, 0, sizeof runs / sizeof *runs);
    return t;
}
