/* Training steps of four kinds of models, in which the devices hand over all that they ever do: weights and
 * gradients in several buckets, windows of several batches, idle devices, staged batches, evaluations
 * between, the state read, spoilt and set, the watchdog looking on, transfers through the host, steps and
 * links that fail. Staging, setting back and watching change no bit; and under ThreadSanitizer, on emulated
 * GPUs above all, whose streams only events order, nothing is touched before it is ready.
 *
 * tests/tools/waits.py runs this with one wait left out at a time. For it the hash of each run's results goes
 * to the file that DPTRAIN_TEST_BITS names. */
#include <math.h>
#include <stdio.h>

#include "engine_run.h"

/* SAMPLES: on three devices 3, 3 and 2. FEWER: the third device is idle. */
enum { SAMPLES = 8, FEWER = 4, BATCHES = 2 };

static const struct kind {
    const char *name;
    int64_t shape[3], outputs;
    bool mask;
    size_t bucket_bytes; /* of three buckets and more */
} kinds[] = {
    {"mlp", {1, 6, 6}, CLASSES, false, 1 << 10},
    {"lenet", {1, 6, 6}, CLASSES, false, 16 << 10},
    {"resnet18_cifar", {1, 8, 8}, CLASSES, false, 8 << 10},
    {"unet16", {1, 32, 32}, 1, true, 8 << 10},
};

enum { KINDS = sizeof kinds / sizeof *kinds, MODES = DP_LOSS_GLOBAL + 1 };

/* Host memory that streams read and write themselves: whoever does not wait for them is seen. */
typedef struct memory {
    float *inputs[BATCHES], *outputs;
    void *targets[BATCHES];
    dp_model_state state;
    dp_optimizer_state optimizer;
} memory;

static void *pinned(run *r, size_t bytes)
{
    dp_error err = {0};
    void *out;
    ck_assert_msg(dp_context_host_alloc(r->context, bytes + 1, &out, &err) == DP_OK, "%s", err.message);
    memset(out, 0, bytes);
    return out;
}

static void open_memory(run *r, const struct kind *kind, memory *m)
{
    size_t floats = (size_t)dp_model_elements(r->model) * sizeof(float);
    size_t pixels = (size_t)(kind->shape[0] * kind->shape[1] * kind->shape[2]);
    size_t terms = kind->mask ? pixels : CLASSES;
    for (int b = 0; b < BATCHES; b++) {
        m->inputs[b] = pinned(r, SAMPLES * pixels * sizeof(float));
        m->targets[b] = pinned(r, SAMPLES * terms * sizeof(float));
    }
    m->outputs = pinned(r, SAMPLES * terms * sizeof(float));
    m->state.weights = pinned(r, floats);
    m->state.buffers = pinned(r, (size_t)dp_model_buffer_elements(r->model) * sizeof(float));
    m->state.counters = calloc((size_t)dp_model_counters(r->model) + 1, sizeof *m->state.counters);
    m->optimizer.moment[0] = pinned(r, floats);
    m->optimizer.moment[1] = NULL;
}

static void close_memory(run *r, memory *m)
{
    for (int b = 0; b < BATCHES; b++) {
        dp_context_host_free(r->context, m->inputs[b]);
        dp_context_host_free(r->context, m->targets[b]);
    }
    dp_context_host_free(r->context, m->outputs);
    dp_context_host_free(r->context, m->state.weights);
    dp_context_host_free(r->context, m->state.buffers);
    dp_context_host_free(r->context, m->optimizer.moment[0]);
    free(m->state.counters);
}

/* As a loader does, into memory that an earlier step has read. */
static dp_host_batch fill(const struct kind *kind, memory *m, int number, int64_t samples)
{
    int64_t pixels = kind->shape[0] * kind->shape[1] * kind->shape[2];
    uint32_t s = (uint32_t)number + 1;
    float *inputs = m->inputs[number % BATCHES], *values = m->targets[number % BATCHES];
    int32_t *classes = m->targets[number % BATCHES];
    for (int64_t i = 0; i < samples * pixels; i++)
        inputs[i] = (float)((s = s * 1664525u + 1013904223u) >> 8) / (float)(1 << 23) - 1;
    for (int64_t i = 0; i < samples * (kind->mask ? pixels : 1); i++) {
        s = s * 1664525u + 1013904223u;
        if (kind->mask)
            values[i] = (float)(s >> 31);
        else
            classes[i] = (int32_t)((s >> 16) % CLASSES);
    }
    return (dp_host_batch){samples, inputs, m->targets[number % BATCHES]};
}

/* ---- the watchdog ---- */

/* The last device is held up before its step until the watchdog has told of it. */
typedef struct watch {
    int devices;
    bool holds;
    dp_signal told;
} watch;

static dp_status hold(dp_replica *r, const void *signal, dp_error *err)
{
    (void)r, (void)err;
    dp_signal_wait(*(dp_signal *const *)signal, 1);
    return DP_OK;
}

static void on_stall(void *user, const char *where)
{
    watch *w = user;
    char device[32];
    for (int k = 0; k < w->devices; k++) {
        bool held = w->holds && k == w->devices - 1;
        snprintf(device, sizeof device, "%s:%d %s", on("cpu", "cuda"), k, held ? "has not begun" : "");
        ck_assert_msg(strstr(where, device) != NULL, "'%s' is not in: %s", device, where);
    }
    if (w->holds)
        dp_signal_post(&w->told, 1);
    w->holds = false;
}

/* ---- a run ---- */

#define OK(call) ck_assert_msg((call) == DP_OK, "%s", err.message)

static uint64_t hash(uint64_t h, const void *data, size_t bytes)
{
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ at[i]) * 1099511628211u; /* FNV-1a */
    return h;
}

static void *copy_of(const void *data, size_t bytes)
{
    void *out = malloc(bytes + 1);
    memcpy(out, data, bytes);
    return out;
}

static size_t weight_bytes(const run *r)
{
    return (size_t)dp_model_elements(r->model) * sizeof(float);
}

static size_t buffer_bytes(const run *r)
{
    return (size_t)dp_model_buffer_elements(r->model) * sizeof(float);
}

/* Overwrites the host's memory as soon as each call returns. */
static void set_all(run *r, memory *m)
{
    dp_error err = {0};
    OK(dp_engine_set_weights(r->engine, m->state.weights, &err));
    memset(m->state.weights, 0, weight_bytes(r));
    OK(dp_engine_set_buffers(r->engine, m->state.buffers, m->state.counters, &err));
    memset(m->state.buffers, 0, buffer_bytes(r));
    OK(dp_engine_set_optimizer(r->engine, &m->optimizer, &err));
    memset(m->optimizer.moment[0], 0, weight_bytes(r));
}

/* The same, as a run that resumes does it: weights and moments a parameter at a time. */
static void set_all_in_parts(run *r, memory *m)
{
    dp_error err = {0};
    for (int p = 0; p < dp_model_param_count(r->model); p++) {
        const dp_param_info *info = dp_model_param(r->model, p);
        float *parts[] = {m->state.weights + info->offset, m->optimizer.moment[0] + info->offset};
        for (int moment = 0; moment < 2; moment++) {
            OK(dp_engine_set_param(r->engine, moment, p, parts[moment], &err));
            memset(parts[moment], 0, (size_t)info->elements * sizeof(float));
        }
    }
    OK(dp_engine_set_buffers(r->engine, m->state.buffers, m->state.counters, &err));
    memset(m->state.buffers, 0, buffer_bytes(r));
    const dp_optimizer_state updates = {.updates = m->optimizer.updates};
    OK(dp_engine_set_optimizer(r->engine, &updates, &err));
}

/* Reads what came as soon as each call returns. As hash_all of the same. */
static uint64_t get_all(run *r, memory *m)
{
    dp_error err = {0};
    OK(dp_engine_get_weights(r->engine, m->state.weights, &err));
    uint64_t h = hash(0, m->state.weights, weight_bytes(r));
    OK(dp_engine_get_buffers(r->engine, m->state.buffers, m->state.counters, &err));
    h = hash(h, m->state.buffers, buffer_bytes(r));
    OK(dp_engine_get_optimizer(r->engine, &m->optimizer, &err));
    return hash(h, m->optimizer.moment[0], weight_bytes(r));
}

/* The three arrays of a state: to `scale` times what they hold, plus `more`. */
static void alter_all(const run *r, memory *m, float scale, float more)
{
    int64_t weights = dp_model_elements(r->model), buffers = dp_model_buffer_elements(r->model);
    for (int64_t i = 0; i < weights; i++) {
        m->state.weights[i] = m->state.weights[i] * scale + more;
        m->optimizer.moment[0][i] = m->optimizer.moment[0][i] * scale + more;
    }
    for (int64_t i = 0; i < buffers; i++)
        m->state.buffers[i] = m->state.buffers[i] * scale + more;
}

static uint64_t hash_all(const run *r, const memory *m)
{
    uint64_t h = hash(0, m->state.weights, weight_bytes(r));
    h = hash(h, m->state.buffers, buffer_bytes(r));
    return hash(h, m->optimizer.moment[0], weight_bytes(r));
}

/* Everything that a checkpoint holds is read, other values are set, and the first ones again, as in a run
 * that resumes: each time all devices compute with what was set, and that is what is read. */
static void spoil_and_restore(run *r, memory *m, const dp_host_batch *batch)
{
    dp_error err = {0};
    size_t bytes = (size_t)batch->samples * (size_t)r->engine->output_elements * sizeof(float);
    OK(dp_engine_forward(r->engine, batch, m->outputs, &err));
    float *before = copy_of(m->outputs, bytes);
    uint64_t first = get_all(r, m);
    int64_t updates = m->optimizer.updates;
    ck_assert_int_gt(updates, 0);
    float *saved[] = {copy_of(m->state.weights, weight_bytes(r)), copy_of(m->state.buffers, buffer_bytes(r)),
                      copy_of(m->optimizer.moment[0], weight_bytes(r))};
    alter_all(r, m, 0.5F, 0.01F); /* variances stay above 0 */
    m->optimizer.updates = updates + 1;
    uint64_t second = hash_all(r, m);
    set_all(r, m);
    OK(dp_engine_forward(r->engine, batch, m->outputs, &err));
    ck_assert_msg(memcmp(before, m->outputs, bytes) != 0, "other weights, and the same outputs");
    ck_assert_uint_eq(get_all(r, m), second);
    ck_assert_int_eq(m->optimizer.updates, updates + 1);
    memcpy(m->state.weights, saved[0], weight_bytes(r));
    memcpy(m->state.buffers, saved[1], buffer_bytes(r));
    memcpy(m->optimizer.moment[0], saved[2], weight_bytes(r));
    m->optimizer.updates = updates;
    set_all_in_parts(r, m);
    OK(dp_engine_forward(r->engine, batch, m->outputs, &err));
    ck_assert_msg(memcmp(before, m->outputs, bytes) == 0, "the same weights, and other outputs");
    ck_assert_uint_eq(get_all(r, m), first);
    for (int i = 0; i < 3; i++)
        free(saved[i]);
    free(before);
}

/* Two windows; the second ends without the last device. With a watch, batches are staged, the first step is
 * held up, and between the windows the state is spoilt and restored. Returns a hash of losses and outputs. */
static uint64_t steps(run *r, const struct kind *kind, memory *m, watch *w)
{
    static const struct {
        int64_t samples;
        bool update;
    } plan[] = {{SAMPLES, false}, {SAMPLES, true}, {SAMPLES, false}, {FEWER, true}};
    enum { COUNT = sizeof plan / sizeof *plan };
    dp_error err = {0};
    dp_step_result result;
    uint64_t h = 0;
    OK(dp_engine_plan(r->engine, SAMPLES, true, &err));
    OK(dp_engine_plan(r->engine, FEWER, true, &err));
    dp_host_batch batch = fill(kind, m, 0, SAMPLES);
    dp_signal *told = w ? &w->told : NULL;
    if (w) {
        w->holds = true;
        dp_worker_post(&r->engine->replicas[w->devices - 1], hold, &told);
    }
    for (int i = 0; i < COUNT; i++) {
        const dp_step step = {.batch = batch, .lr = 0.01, .loss_scale = 0.5, .update = plan[i].update};
        OK(dp_engine_begin(r->engine, &step, &err));
        bool last = i == COUNT - 1, evaluates = i % 2 == 1;
        if (!last)
            batch = fill(kind, m, i + 1, plan[i + 1].samples);
        if (!last && !evaluates && w)
            OK(dp_engine_stage(r->engine, &batch, &err));
        OK(dp_engine_finish(r->engine, &result, &err));
        ck_assert_msg(result.finite, "%s", result.nonfinite_what);
        h = hash(h, &result.loss, sizeof result.loss);
        if (!evaluates) /* what was to come next is only looked at first */
            continue;
        OK(dp_engine_evaluate(r->engine, &batch, &result, &err));
        h = hash(h, &result.loss, sizeof result.loss);
        OK(dp_engine_forward(r->engine, &batch, m->outputs, &err));
        h = hash(h, m->outputs, (size_t)batch.samples * (size_t)r->engine->output_elements * sizeof(float));
        if (w && !last)
            spoil_and_restore(r, m, &batch);
    }
    ck_assert(!w || dp_signal_reached(&w->told, 1));
    return h;
}

/* Some of the runs transfer through the host's memory. */
static void open_kind(run *r, const struct kind *kind, dp_loss_mode mode, int devices)
{
    dp_error err = {0};
    open_devices_p2p(r, devices, ((int)mode + devices) % 2 ? DP_P2P_OFF : DP_P2P_ON);
    r->config.loss_mode = mode;
    r->config.criterion = kind->mask ? DP_LOSS_BCE_WITH_LOGITS : DP_LOSS_CROSS_ENTROPY;
    r->config.output_device = devices - 1;
    r->config.bucket_bytes = kind->bucket_bytes;
    dp_model_config mc = {.name = kind->name,
                          .input_rank = 3,
                          .outputs = kind->outputs,
                          .hidden_count = 2,
                          .hidden = {32, 16},
                          .width = 2,
                          .filters = 2};
    memcpy(mc.input_shape, kind->shape, sizeof kind->shape);
    OK(dp_model_build(&mc, &r->model, &err));
}

/* A hash of all that the run came to. */
static uint64_t bits_after(const struct kind *kind, dp_loss_mode mode, int devices, bool watched)
{
    run r;
    memory m;
    watch w = {.devices = devices};
    dp_error err = {0};
    open_kind(&r, kind, mode, devices);
    if (watched) {
        OK(dp_signal_init(&w.told, 0, &err));
        r.config.stall_seconds = 1e-3;
        r.config.stalled = on_stall;
        r.config.stalled_user = &w;
    }
    OK(dp_engine_create(r.context, r.model, &r.config, &r.engine, &err));
    ck_assert_int_ge(r.engine->arena.bucket_count, 3);
    open_memory(&r, kind, &m);
    dp_model_init_weights(r.model, 5, m.state.weights);
    OK(dp_engine_set_weights(r.engine, m.state.weights, &err));
    memset(m.state.weights, 0, (size_t)dp_model_elements(r.model) * sizeof(float));
    uint64_t h = steps(&r, kind, &m, watched ? &w : NULL);
    h ^= get_all(&r, &m);
    close_memory(&r, &m);
    close_run(&r);
    if (watched)
        dp_signal_destroy(&w.told);
    return h;
}

static void write_bits(const char *name, int number, uint64_t bits)
{
    const char *path = getenv("DPTRAIN_TEST_BITS");
    FILE *file = path ? fopen(path, "a") : NULL;
    ck_assert(!path || file);
    if (file) {
        fprintf(file, "%s %d %016llx\n", name, number, (unsigned long long)bits);
        ck_assert_int_eq(fclose(file), 0);
    }
}

/* By kind, then by mode, then on two devices and on three. */
START_TEST(neither_staging_nor_restoring_nor_watching_changes_a_bit)
{
    const struct kind *kind = &kinds[_i / (2 * MODES)];
    dp_loss_mode mode = (dp_loss_mode)(_i / 2 % MODES);
    int devices = 2 + _i % 2;
    uint64_t bits = bits_after(kind, mode, devices, true);
    write_bits(kind->name, _i, bits);
    /* Emulated GPUs are slow, and what ThreadSanitizer looks for there is in the first run. */
    if (backend == DP_BACKEND_CPU)
        ck_assert_uint_eq(bits_after(kind, mode, devices, false), bits);
}
END_TEST

/* ---- what training steps do not do ---- */

START_TEST(a_nan_is_found_in_the_gradients)
{
    const struct kind *kind = &kinds[0];
    run r;
    memory m;
    dp_error err = {0};
    dp_step_result result;
    open_kind(&r, kind, DP_LOSS_GLOBAL, 2);
    OK(dp_engine_create(r.context, r.model, &r.config, &r.engine, &err));
    open_memory(&r, kind, &m);
    dp_model_init_weights(r.model, 5, m.state.weights);
    OK(dp_engine_set_weights(r.engine, m.state.weights, &err));
    const dp_step step = {.batch = fill(kind, &m, 0, SAMPLES), .lr = 0.01, .update = true};
    m.inputs[0][(SAMPLES - 1) * FEATURES] = NAN; /* the last device's */
    OK(dp_engine_train(r.engine, &step, &result, &err));
    ck_assert(!result.finite);
    const char *where = on("the gradient of 'fc1.weight' on cpu:1", "the gradient of 'fc1.weight' on cuda:1");
    ck_assert_msg(strstr(result.nonfinite_what, where) != NULL, "%s", result.nonfinite_what);
    close_memory(&r, &m);
    close_run(&r);
}
END_TEST

/* Of the models that take part in every check, none has running statistics. */
START_TEST(running_statistics_are_set_and_read)
{
    const struct kind *kind = &kinds[2];
    run r;
    memory m;
    dp_error err = {0};
    open_kind(&r, kind, DP_LOSS_GLOBAL, 2);
    OK(dp_engine_create(r.context, r.model, &r.config, &r.engine, &err));
    open_memory(&r, kind, &m);
    alter_all(&r, &m, 0, 0.25F);
    m.state.counters[0] = 3;
    uint64_t h = hash_all(&r, &m);
    set_all(&r, &m);
    m.state.counters[0] = 0;
    ck_assert_uint_eq(get_all(&r, &m), h);
    ck_assert_int_eq(m.state.counters[0], 3);
    close_memory(&r, &m);
    close_run(&r);
}
END_TEST

START_TEST(a_link_carries_what_was_sent)
{
    run r;
    dp_error err = {0};
    bool intact = false;
    open_devices(&r, 2);
    OK(dp_context_try_link(r.context, 0, 1, &intact, &err));
    ck_assert(intact);
    dp_context_close(r.context);
}
END_TEST

/* ---- failures on emulated GPUs, so slow that much is queued when they happen ---- */

static void slow_gpus(const char *fault)
{
    setenv("DPTRAIN_EMULATED_DELAY_US", "20000", 1);
    setenv("DPTRAIN_EMULATED_FAULT", fault, 1);
}

/* The other device's copies of the primary's weights are queued when the primary gives its memory back. */
START_TEST(a_failed_step_leaves_nothing_queued)
{
    const struct kind *kind = &kinds[0];
    run r;
    memory m;
    dp_error err = {0};
    dp_step_result result;
    slow_gpus("cudaLaunchKernelExC:1:999");
    open_kind(&r, kind, DP_LOSS_GATHER, 2);
    OK(dp_engine_create(r.context, r.model, &r.config, &r.engine, &err));
    open_memory(&r, kind, &m);
    dp_model_init_weights(r.model, 5, m.state.weights);
    OK(dp_engine_set_weights(r.engine, m.state.weights, &err));
    const dp_step step = {.batch = fill(kind, &m, 0, SAMPLES), .lr = 0.01, .update = true};
    ck_assert_int_eq(dp_engine_train(r.engine, &step, &result, &err), DP_ERROR_DEVICE);
    dp_engine_free(r.engine);
    r.engine = NULL;
    close_memory(&r, &m);
    close_run(&r);
}
END_TEST

START_TEST(a_failed_trial_of_a_link_leaves_nothing_queued)
{
    run r;
    dp_error err = {0};
    bool intact = true;
    slow_gpus("cudaEventRecord:1:999");
    open_devices(&r, 2);
    ck_assert_int_eq(dp_context_try_link(r.context, 0, 1, &intact, &err), DP_ERROR_DEVICE);
    ck_assert(!intact);
    dp_context_close(r.context);
}
END_TEST

START_TEST(memory_is_freed_after_the_work_that_uses_it)
{
    enum { BYTES = 4096 };
    run r;
    dp_error err = {0};
    dp_stream stream;
    void *memory;
    slow_gpus("");
    open_devices(&r, 1);
    dp_device *device = &r.context->backend->devices[0];
    OK(dp_device_enter(device, &err));
    OK(dp_stream_create(device, "test", &stream, &err));
    OK(dp_memory_alloc(device, DP_MEM_STAGING, BYTES, &memory, &err));
    for (int i = 0; i < 10; i++)
        OK(dp_fill_zero(&stream, memory, BYTES, &err));
    dp_memory_free(device, DP_MEM_STAGING, BYTES, memory);
    dp_stream_destroy(&stream);
    dp_device_leave(device);
    dp_context_close(r.context);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("hand-overs");
    for (int k = 0; k < KINDS; k++) {
        TCase *t = tcase_create(kinds[k].name);
        tcase_set_timeout(t, 60);
        tcase_add_loop_test(t, neither_staging_nor_restoring_nor_watching_changes_a_bit, 2 * MODES * k,
                            2 * MODES * (k + 1));
        suite_add_tcase(s, t);
    }
    TCase *t = tcase_create("rare");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_nan_is_found_in_the_gradients);
    tcase_add_test(t, running_statistics_are_set_and_read);
    tcase_add_test(t, a_link_carries_what_was_sent);
    if (argc > 1 && getenv("DPTRAIN_EMULATED_GPUS")) {
        tcase_add_test(t, a_failed_step_leaves_nothing_queued);
        tcase_add_test(t, a_failed_trial_of_a_link_leaves_nothing_queued);
        tcase_add_test(t, memory_is_freed_after_the_work_that_uses_it);
    }
    suite_add_tcase(s, t);
    return run_tests(argc, argv, s);
}
