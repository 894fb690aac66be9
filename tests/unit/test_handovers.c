/* Training steps of four kinds of models, in which the devices hand over all that they ever do: windows of
 * several batches, idle devices, staged batches, evaluations between, the state read and set, the watchdog
 * looking on. What this proves is that neither staging nor watching changes a bit; under ThreadSanitizer, and
 * on emulated GPUs above all, whose streams only events order, that nothing is touched before it is ready. */
#include "engine_run.h"

/* SAMPLES: on three devices 3, 3 and 2. FEWER: the third device is idle. */
enum { SAMPLES = 8, FEWER = 4, BATCHES = 2 };

static const struct kind {
    const char *name;
    int64_t shape[3], outputs;
    bool mask;
} kinds[] = {
    {"mlp", {1, 6, 6}, CLASSES, false},
    {"lenet", {1, 6, 6}, CLASSES, false},
    {"resnet18_cifar", {1, 8, 8}, CLASSES, false},
    {"unet16", {1, 32, 32}, 1, true},
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

static void on_stall(void *user, const char *where)
{
    (void)user;
    ck_assert_ptr_nonnull(strstr(where, ":0 "));
}

#define OK(call) ck_assert_msg((call) == DP_OK, "%s", err.message)

/* Two windows; the second ends without the last device. */
static void steps(run *r, const struct kind *kind, memory *m, bool staging)
{
    static const struct {
        int64_t samples;
        bool update;
    } plan[] = {{SAMPLES, false}, {SAMPLES, true}, {SAMPLES, false}, {FEWER, true}};
    enum { COUNT = sizeof plan / sizeof *plan };
    dp_error err = {0};
    dp_step_result result;
    OK(dp_engine_plan(r->engine, SAMPLES, true, &err));
    OK(dp_engine_plan(r->engine, FEWER, true, &err));
    dp_host_batch batch = fill(kind, m, 0, SAMPLES);
    for (int i = 0; i < COUNT; i++) {
        const dp_step step = {.batch = batch, .lr = 0.01, .loss_scale = 0.5, .update = plan[i].update};
        OK(dp_engine_begin(r->engine, &step, &err));
        bool last = i == COUNT - 1, evaluates = i % 2 == 1;
        if (!last)
            batch = fill(kind, m, i + 1, plan[i + 1].samples);
        if (!last && !evaluates && staging)
            OK(dp_engine_stage(r->engine, &batch, &err));
        OK(dp_engine_finish(r->engine, &result, &err));
        ck_assert_msg(result.finite, "%s", result.nonfinite_what);
        if (evaluates) { /* what was to come next is only looked at first */
            OK(dp_engine_evaluate(r->engine, &batch, &result, &err));
            OK(dp_engine_forward(r->engine, &batch, m->outputs, &err));
        }
    }
}

/* Everything that a checkpoint holds is read, spoilt and set again, as in a run that resumes. */
static void restore(run *r, memory *m)
{
    dp_error err = {0};
    size_t floats = (size_t)dp_model_elements(r->model) * sizeof(float);
    for (int i = 0; i < 2; i++) {
        OK(dp_engine_get_state(r->engine, &m->state, &err));
        OK(dp_engine_get_optimizer(r->engine, &m->optimizer, &err));
        if (i == 0) {
            OK(dp_engine_set_state(r->engine, &m->state, &err));
            OK(dp_engine_set_optimizer(r->engine, &m->optimizer, &err));
            memset(m->state.weights, 0, floats);
            memset(m->state.buffers, 0, (size_t)dp_model_buffer_elements(r->model) * sizeof(float));
            memset(m->optimizer.moment[0], 0, floats);
        }
    }
}

/* Weights after the steps (to be freed), and their number. */
static int64_t weights_after(const struct kind *kind, dp_loss_mode mode, int devices, bool staging,
                             float **weights)
{
    run r;
    memory m;
    dp_error err = {0};
    open_devices(&r, devices);
    r.config.loss_mode = mode;
    r.config.criterion = kind->mask ? DP_LOSS_BCE_WITH_LOGITS : DP_LOSS_CROSS_ENTROPY;
    r.config.output_device = devices - 1;
    if (staging) {
        r.config.stall_seconds = 1e-3;
        r.config.stalled = on_stall;
    }
    dp_model_config mc = {.name = kind->name,
                          .input_rank = 3,
                          .outputs = kind->outputs,
                          .hidden_count = 2,
                          .hidden = {32, 16},
                          .width = 4,
                          .filters = 4};
    memcpy(mc.input_shape, kind->shape, sizeof kind->shape);
    OK(dp_model_build(&mc, &r.model, &err));
    OK(dp_engine_create(r.context, r.model, &r.config, &r.engine, &err));
    open_memory(&r, kind, &m);
    dp_model_init_weights(r.model, 5, m.state.weights);
    OK(dp_engine_set_weights(r.engine, m.state.weights, &err));
    memset(m.state.weights, 0, (size_t)dp_model_elements(r.model) * sizeof(float));
    steps(&r, kind, &m, staging);
    restore(&r, &m);
    OK(dp_engine_get_weights(r.engine, m.state.weights, &err));
    int64_t elements = dp_model_elements(r.model);
    *weights = malloc((size_t)elements * sizeof **weights);
    memcpy(*weights, m.state.weights, (size_t)elements * sizeof **weights);
    close_memory(&r, &m);
    close_run(&r);
    return elements;
}

/* By kind, then by mode, then on two devices and on three. */
START_TEST(neither_staging_nor_watching_changes_a_bit)
{
    const struct kind *kind = &kinds[_i / (2 * MODES)];
    dp_loss_mode mode = (dp_loss_mode)(_i / 2 % MODES);
    int devices = 2 + _i % 2;
    float *plain, *staged;
    int64_t elements = weights_after(kind, mode, devices, true, &staged);
    /* Emulated GPUs are slow, and what ThreadSanitizer looks for there is in the first run. */
    if (backend == DP_BACKEND_CPU) {
        weights_after(kind, mode, devices, false, &plain);
        ck_assert_msg(memcmp(plain, staged, (size_t)elements * sizeof *plain) == 0, "%s, %d devices",
                      kind->name, devices);
        free(plain);
    }
    free(staged);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("hand-overs");
    for (int k = 0; k < KINDS; k++) {
        TCase *t = tcase_create(kinds[k].name);
        tcase_set_timeout(t, 60);
        tcase_add_loop_test(t, neither_staging_nor_watching_changes_a_bit, 2 * MODES * k,
                            2 * MODES * (k + 1));
        suite_add_tcase(s, t);
    }
    return run_tests(argc, argv, s);
}
