/* A small run for tests of src/train: 40 samples of y = f(x), a linear model, one to eight devices. For
 * one test program each. */
#ifndef DP_TESTS_SMALL_RUN_H
#define DP_TESTS_SMALL_RUN_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "io/safetensors.h"
#include "scratch.h"
#include "train/train.h"

static dp_error err;

#define OK(call) ck_assert_msg((call) == DP_OK, "%s", err.message)

static inline void assert_says(const char *part)
{
    ck_assert_msg(strstr(err.message, part) != NULL, "\"%s\" is not in: %s", part, err.message);
}

/* ---- data: y = f(x), and its model ---- */

enum { SAMPLES = 40, IN = 4, OUT = 2, WEIGHTS = OUT * IN + OUT };

static float xs[SAMPLES][IN], ys[SAMPLES][OUT];

static inline dp_tensor tensor_of(const char *name, dp_dtype dtype, int rank, const int64_t *shape,
                                  const void *data)
{
    dp_tensor t = {.name = (char *)name, .dtype = dtype, .rank = rank, .elements = 1, .data = data};
    for (int i = 0; i < rank; i++) {
        t.shape[i] = shape[i];
        t.elements *= shape[i];
    }
    t.bytes = (size_t)t.elements * dp_dtype_size(dtype);
    return t;
}

#define TENSOR(name, dtype, data, ...) \
    tensor_of(name, dtype, sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), (int64_t[]){__VA_ARGS__}, data)

static inline const char *write_tensors(const char *name, const dp_tensor *tensors, int count)
{
    const char *path = scratch(name);
    OK(dp_safetensors_write(path, tensors, count, NULL, 0, &err));
    return path;
}

static inline dp_model *linear_model(int64_t in, int64_t out)
{
    dp_model *model;
    const dp_model_config config = {.name = "linear", .input_rank = 1, .input_shape = {in}, .outputs = out};
    OK(dp_model_build(&config, &model, &err));
    return model;
}

typedef struct run {
    dp_context *context;
    dp_model *model;
    dp_dataset *train, *valid;
    dp_train_config config;
    dp_train_summary summary;
    int ids[8];
    float weights[WEIGHTS];
} run;

static inline void open_devices(run *r, int devices)
{
    dp_context_config c = dp_context_defaults();
    c.backend = backend;
    c.logical_devices = devices;
    c.threads_per_device = 1;
    OK(dp_context_open(&c, &r->context, &err));
    r->config = dp_train_defaults();
    r->config.engine.criterion = DP_LOSS_MSE;
    r->config.engine.device_ids = r->ids;
    r->config.engine.device_count = devices;
    for (int k = 0; k < devices; k++)
        r->ids[k] = k;
}

static inline void open_run_on(run *r, const char *source, int devices, double valid_split)
{
    static const char *const command[] = {"dptrain", "train"};
    memset(r, 0, sizeof *r);
    dp_data_config data = dp_data_defaults();
    data.source = source;
    data.valid_split = valid_split;
    data.no_validation = valid_split == 0;
    OK(dp_data_open(&data, &r->train, &r->valid, &err));
    open_devices(r, devices);
    r->config.valid_split = valid_split;
    r->config.batch_size = 16;
    r->config.epochs = 2;
    r->config.argument_count = 2;
    r->config.arguments = command;
    r->model = linear_model(IN, OUT);
    dp_model_init_weights(r->model, 3, r->weights);
}

static inline void open_run(run *r, int devices, double valid_split)
{
    for (int i = 0; i < SAMPLES; i++) {
        for (int k = 0; k < IN; k++)
            xs[i][k] = (float)((i * IN + k) * 37 % 19) / 19 - 0.5F;
        ys[i][0] = xs[i][0] - xs[i][1];
        ys[i][1] = 2 * xs[i][3] + 0.1F;
    }
    const dp_tensor tensors[] = {TENSOR("x", DP_F32, xs, SAMPLES, IN), TENSOR("y", DP_F32, ys, SAMPLES, OUT)};
    char source[2200];
    snprintf(source, sizeof source, "safetensors:%s", write_tensors("data", tensors, 2));
    open_run_on(r, source, devices, valid_split);
}

static inline dp_status train(run *r, const dp_train_observer *observer)
{
    return dp_train(r->context, r->model, &(dp_model_state){.weights = r->weights}, r->train, r->valid,
                    &r->config, observer, &r->summary, &err);
}

static inline void close_run(run *r)
{
    dp_model_free(r->model);
    dp_dataset_free(r->train);
    dp_dataset_free(r->valid);
    dp_context_close(r->context);
}

static inline TCase *add_case(Suite *s, const char *name)
{
    TCase *t = tcase_create(name);
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, scratch_make, scratch_remove);
    suite_add_tcase(s, t);
    return t;
}

#endif
