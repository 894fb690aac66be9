/* The engine on emulated GPUs whose streams the test can hold up and whose memory it can ask for: what its
 * other tests, which know no CUDA, cannot see. */
#include <check.h>
#include <cuda_runtime_api.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cuda/cuda.h"
#include "dptrain/engine.h"
#include "parallel/context.h"
#include "parallel/engine.h"
#include "tests/cuda/overlap.h"
#include "tests/cuda_emulation/tests/kernels.h"

extern int emulation_context_count(int physical_gpu);

enum { DEVICES = 3, BATCH = 12, FEATURES = 20, CLASSES = 4 };

typedef struct run {
    dp_context context;
    dp_model *model;
    dp_engine *engine;
    float *x; /* two batches, pinned */
    int32_t *labels;
} run;

/* ---- a step that can be held up ---- */

static dp_backend_functions altered;
static const dp_backend_functions *original;
static int *_Atomic gate; /* pinned; null: no step is held up */

/* Before the criterion, on the output device, the compute stream stops until *gate. */
static dp_status held_loss(dp_device *device, void *stream, const dp_loss_args *args, dp_error *err)
{
    int *go = atomic_load(&gate);
    if (go && launch_hold(stream, go) != cudaSuccess)
        return dp_fail(err, DP_ERROR_DEVICE, "the stream cannot be held up");
    return original->loss(device, stream, args, err);
}

static void open_run(run *r)
{
    dp_error err = {0};
    void *host;
    memset(r, 0, sizeof *r);
    setenv("DPTRAIN_EMULATED_GPUS", "3", 1);
    ck_assert_msg(dp_cuda_backend_open(&(dp_cuda_config){0}, &r->context.backend, &err) == DP_OK, "%s",
                  err.message);
    original = r->context.backend->call;
    altered = *original;
    altered.loss = held_loss;
    r->context.backend->call = &altered;
    const dp_model_config mc = {.name = "mlp",
                                .input_rank = 1,
                                .input_shape = {FEATURES},
                                .outputs = CLASSES,
                                .hidden_count = 1,
                                .hidden = {16}};
    ck_assert(dp_model_build(&mc, &r->model, &err) == DP_OK);
    dp_engine_config config = dp_engine_defaults();
    config.device_ids = (int[]){0, 1, 2};
    config.device_count = DEVICES;
    ck_assert_msg(dp_engine_create(&r->context, r->model, &config, &r->engine, &err) == DP_OK, "%s",
                  err.message);
    float *weights = calloc((size_t)dp_model_elements(r->model), sizeof *weights);
    dp_model_init_weights(r->model, 1, weights);
    ck_assert(dp_engine_set_weights(r->engine, weights, &err) == DP_OK);
    free(weights);
    ck_assert(dp_context_host_alloc(&r->context, 2 * BATCH * FEATURES * sizeof *r->x, &host, &err) == DP_OK);
    r->x = host;
    ck_assert(dp_context_host_alloc(&r->context, 2 * BATCH * sizeof *r->labels, &host, &err) == DP_OK);
    r->labels = host;
    for (int i = 0; i < 2 * BATCH * FEATURES; i++)
        r->x[i] = (float)(i % 7) / 7;
    for (int i = 0; i < 2 * BATCH; i++)
        r->labels[i] = i % CLASSES;
}

static void close_run(run *r)
{
    dp_engine_free(r->engine);
    dp_context_host_free(&r->context, r->x);
    dp_context_host_free(&r->context, r->labels);
    dp_model_free(r->model);
    r->context.backend->call->close(r->context.backend);
}

static dp_step step_of(const run *r, int batch)
{
    return (dp_step){.batch = {BATCH, r->x + batch * BATCH * FEATURES, r->labels + batch * BATCH},
                     .lr = 0.1,
                     .update = true};
}

/* ---- the next chunk travels while the devices compute ---- */

START_TEST(a_staged_chunk_arrives_before_the_step_has_ended)
{
    run r;
    dp_error err = {0};
    dp_step_result result;
    void *host;
    open_run(&r);
    ck_assert(dp_context_host_alloc(&r.context, sizeof(int), &host, &err) == DP_OK);
    volatile int *go = host;
    dp_step first = step_of(&r, 0), second = step_of(&r, 1);
    ck_assert_msg(dp_engine_train(r.engine, &first, &result, &err) == DP_OK, "%s", err.message);

    *go = 0;
    atomic_store(&gate, host);
    ck_assert(dp_engine_begin(r.engine, &first, &err) == DP_OK);
    ck_assert(dp_engine_stage(r.engine, &second.batch, &err) == DP_OK);
    for (int k = 0; k < DEVICES; k++) {
        dp_replica *d = &r.engine->replicas[k];
        /* Everything is enqueued, and the chunk is here, though no device has got beyond the criterion. */
        ck_assert(dp_signal_wait(&d->done, d->post_count));
        ck_assert_int_eq(cudaEventSynchronize(d->slots[r.engine->staged.slot].arrived.handle), cudaSuccess);
        ck_assert_int_eq(cudaStreamQuery(d->compute.handle), cudaErrorNotReady);
        float got[FEATURES];
        cudaStream_t stream;
        ck_assert_int_eq(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
        ck_assert_int_eq(cudaMemcpyAsync(got, d->slots[r.engine->staged.slot].x, sizeof got,
                                         cudaMemcpyDeviceToHost, stream),
                         cudaSuccess);
        ck_assert(memcmp(got, second.batch.x + BATCH / DEVICES * k * FEATURES, sizeof got) == 0);
        ck_assert_int_eq(cudaStreamDestroy(stream), cudaSuccess);
    }
    *go = 1;
    ck_assert_msg(dp_engine_finish(r.engine, &result, &err) == DP_OK, "%s", err.message);
    ck_assert_msg(dp_engine_train(r.engine, &second, &result, &err) == DP_OK, "%s", err.message);
    ck_assert(result.finite);
    atomic_store(&gate, NULL);
    dp_context_host_free(&r.context, host);
    close_run(&r);
}
END_TEST

/* ---- the ledger knows of all memory ---- */

START_TEST(the_ledger_is_what_the_gpus_have_given)
{
    run r;
    dp_error err = {0};
    dp_step_result result;
    open_run(&r);
    dp_step step = step_of(&r, 0);
    ck_assert_msg(dp_engine_train(r.engine, &step, &result, &err) == DP_OK, "%s", err.message);
    for (int k = 0; k < DEVICES; k++) {
        const dp_ledger *ledger = &r.engine->replicas[k].device->ledger;
        size_t free_bytes, total_bytes;
        ck_assert_int_eq(cudaSetDevice(k), cudaSuccess);
        ck_assert_int_eq(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
        uint64_t used = total_bytes - free_bytes, booked = ledger->total;
        /* A GPU gives whole units of 256 bytes. */
        ck_assert_uint_ge(used, booked);
        ck_assert_uint_lt(used, booked + 256 * ledger->allocations);
    }
    close_run(&r);
}
END_TEST

/* ---- a step that a hanging link holds up for ever ---- */

enum { STALL_SEEN = 7 };

/* Nothing can be freed any more: the process ends here. */
static void on_stall(void *user, const char *where)
{
    (void)user;
    if (strstr(where, "cuda:1 is in broadcast") && strstr(where, "cuda:0 waits for others in gather"))
        _exit(STALL_SEEN);
}

START_TEST(a_hanging_copy_is_told_with_device_and_phase)
{
    run r;
    dp_error err = {0};
    dp_step_result result;
    setenv("DPTRAIN_EMULATED_PEER", "hang:0-1", 1);
    open_run(&r);
    r.engine->config.stall_seconds = 0.05;
    r.engine->config.stalled = on_stall;
    dp_step step = step_of(&r, 0);
    dp_engine_train(r.engine, &step, &result, &err);
    ck_abort_msg("the step ended: %s", err.message);
}
END_TEST

/* ---- trials that cannot be made ---- */

typedef struct complaints {
    int count;
    const char *expected;
} complaints;

static void on_broken(void *user, int a, int b, const char *why)
{
    complaints *c = user;
    ck_assert_int_eq(a, 0);
    ck_assert_int_eq(b, ++c->count);
    ck_assert_msg(strstr(why, c->expected) != NULL, "'%s'", why);
}

static const struct {
    const char *program, *why;
} programs[] = {{"/nonexistent/dptrain", "it was not tried: '/nonexistent/dptrain' cannot be run"},
                {"/bin/true", "the trial "},
                {"/bin/echo", "the trial "},
                {"/bin/yes", "the trial "},
                {"./failing.sh", "because"}};

/* A trial that fails at every first pair that it is given. */
static void write_script(void)
{
    char folder[] = "/tmp/dptrain-trial-XXXXXX";
    ck_assert(mkdtemp(folder) != NULL && chdir(folder) == 0);
    FILE *f = fopen("failing.sh", "w");
    ck_assert_ptr_nonnull(f);
    fputs("#!/bin/sh\npair=${4%%,*}\npair=\"${pair%-*} ${pair#*-}\"\n"
          "echo \"$pair begin\"\necho \"$pair failed: because\"\n",
          f);
    ck_assert(fchmod(fileno(f), 0700) == 0 && fclose(f) == 0);
}

START_TEST(links_that_cannot_be_tried_are_not_used)
{
    dp_context context = {.p2p = DP_P2P_AUTO};
    dp_error err = {0};
    complaints c = {.expected = programs[_i].why};
    const int ids[] = {0, 1, 2};
    const dp_link_trial trial = {
        .program = programs[_i].program, .seconds = 1, .broken = on_broken, .user = &c};
    setenv("DPTRAIN_EMULATED_GPUS", "3", 1);
    write_script();
    ck_assert(dp_cuda_backend_open(&(dp_cuda_config){0}, &context.backend, &err) == DP_OK);
    for (int k = 0; k < DEVICES; k++)
        context.backend->devices[k].staged = UINT64_MAX;
    ck_assert_int_eq(dp_context_try_links(&context, ids, DEVICES, (int[]){3}, 1, &trial, &err),
                     DP_ERROR_USAGE);
    ck_assert(dp_context_try_links(&context, ids, DEVICES, ids, 1, &trial, &err) == DP_OK);
    ck_assert_int_eq(c.count, 2);
    /* Not twice. */
    ck_assert(dp_context_try_links(&context, ids, DEVICES, ids, 1, &trial, &err) == DP_OK);
    ck_assert_int_eq(c.count, 2);
    for (int k = 0; k < DEVICES; k++) {
        ck_assert(context.backend->devices[k].staged == UINT64_MAX);
        ck_assert_int_eq(emulation_context_count(k), 0);
    }
    context.backend->call->close(context.backend);
    unlink("failing.sh");
    char folder[PATH_MAX];
    ck_assert(getcwd(folder, sizeof folder) != NULL && rmdir(folder) == 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine on emulated GPUs");
    TCase *t = tcase_create("engine");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, a_staged_chunk_arrives_before_the_step_has_ended);
    tcase_add_test(t, the_ledger_is_what_the_gpus_have_given);
    tcase_add_exit_test(t, a_hanging_copy_is_told_with_device_and_phase, STALL_SEEN);
    tcase_add_loop_test(t, links_that_cannot_be_tried_are_not_used, 0, sizeof programs / sizeof *programs);
    suite_add_tcase(s, t);
    suite_add_tcase(s, overlap_case());
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
