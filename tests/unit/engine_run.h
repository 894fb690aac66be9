/* What the tests of the engine share: a small engine. */
#ifndef ENGINE_RUN_H
#define ENGINE_RUN_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "backend.h"
#include "dptrain/engine.h"
#include "parallel/context.h"
#include "parallel/engine.h"

enum { FEATURES = 36, CLASSES = 10, MAX_BATCH = 64 };

typedef struct run {
    dp_context *context;
    dp_model *model;
    dp_engine *engine;
    dp_engine_config config;
    int ids[DP_MAX_DEVICES];
} run;

static float x[MAX_BATCH * FEATURES];
static int32_t labels[MAX_BATCH];
static float values[MAX_BATCH * CLASSES];

static inline void make_data(void)
{
    uint32_t s = 1;
    for (int i = 0; i < MAX_BATCH * FEATURES; i++)
        x[i] = (float)((s = s * 1664525u + 1013904223u) >> 8) / (float)(1 << 23) - 1;
    for (int i = 0; i < MAX_BATCH * CLASSES; i++)
        values[i] = (float)((s = s * 1664525u + 1013904223u) >> 8) / (float)(1 << 24);
    for (int i = 0; i < MAX_BATCH; i++)
        labels[i] = (int32_t)((s = s * 1664525u + 1013904223u) >> 16) % CLASSES;
}

static inline void open_devices_p2p(run *r, int devices, dp_p2p p2p)
{
    dp_error err = {0};
    memset(r, 0, sizeof *r);
    make_data();
    dp_context_config cc = dp_context_defaults();
    cc.backend = backend;
    cc.logical_devices = devices;
    cc.threads_per_device = 1;
    cc.p2p = p2p;
    ck_assert_msg(dp_context_open(&cc, &r->context, &err) == DP_OK, "%s", err.message);
    r->config = dp_engine_defaults();
    for (int k = 0; k < devices; k++)
        r->ids[k] = k;
    r->config.device_ids = r->ids;
    r->config.device_count = devices;
}

static inline void open_devices(run *r, int devices)
{
    open_devices_p2p(r, devices, DP_P2P_ON);
}

static inline void open_engine(run *r, const char *model)
{
    dp_error err = {0};
    dp_model_config mc = {.name = model, .input_rank = 3, .input_shape = {1, 6, 6}, .outputs = CLASSES};
    mc.hidden_count = 2;
    mc.hidden[0] = 32;
    mc.hidden[1] = 16;
    ck_assert_msg(dp_model_build(&mc, &r->model, &err) == DP_OK, "%s", err.message);
    ck_assert_msg(dp_engine_create(r->context, r->model, &r->config, &r->engine, &err) == DP_OK, "%s",
                  err.message);
    float *w = calloc((size_t)dp_model_elements(r->model), sizeof *w);
    dp_model_init_weights(r->model, 5, w);
    ck_assert_msg(dp_engine_set_weights(r->engine, w, &err) == DP_OK, "%s", err.message);
    free(w);
}

static inline void close_run(run *r)
{
    dp_engine_free(r->engine);
    dp_model_free(r->model);
    dp_context_close(r->context);
}

static inline dp_step make_step(const run *r, int64_t batch, bool update, double scale)
{
    const void *y =
        r->config.criterion == DP_LOSS_CROSS_ENTROPY ? (const void *)labels : (const void *)values;
    return (dp_step){
        .batch = {.samples = batch, .x = x, .y = y}, .lr = 0.05, .loss_scale = scale, .update = update};
}

static inline dp_step_result train(run *r, int64_t batch, bool update, double scale)
{
    dp_error err = {0};
    dp_step_result result;
    dp_step step = make_step(r, batch, update, scale);
    ck_assert_msg(dp_engine_train(r->engine, &step, &result, &err) == DP_OK, "%s", err.message);
    ck_assert(result.finite);
    return result;
}

static inline float *weights_of(run *r)
{
    dp_error err = {0};
    float *w = calloc((size_t)dp_model_elements(r->model), sizeof *w);
    ck_assert_msg(dp_engine_get_weights(r->engine, w, &err) == DP_OK, "%s", err.message);
    return w;
}

enum { MLP_ELEMENTS = 36 * 32 + 32 + 32 * 16 + 16 + 16 * 10 + 10 };

#endif
