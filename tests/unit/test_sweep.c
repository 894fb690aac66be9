/* Numbers of devices by sizes of the batch: the split, the loss and the summed gradient of a step in every
 * loss mode, against their definitions in double precision, so that no number of devices differs from one. A
 * few devices and sizes here; DPTRAIN_SWEEP=all takes 1 to 64 devices by 1 to 257 samples. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dptrain/engine.h"

enum { FEATURES = 3, CLASSES = 3, WEIGHTS = CLASSES * FEATURES + CLASSES, MAX_BATCH = 257, MAX_DEVICES = 64 };
static const double rate = 0.5;

static float x[MAX_BATCH][FEATURES], start[WEIGHTS];
static int32_t label[MAX_BATCH];
static double loss_of[MAX_BATCH], gradient_of[MAX_BATCH][WEIGHTS];

static float number(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / (float)(1 << 23) - 1;
}

/* One sample through the linear layer, softmax and the logarithm. */
static void compute(int i)
{
    double logit[CLASSES], sum = 0;
    for (int c = 0; c < CLASSES; c++) {
        logit[c] = (double)start[CLASSES * FEATURES + c];
        for (int f = 0; f < FEATURES; f++)
            logit[c] += (double)start[c * FEATURES + f] * (double)x[i][f];
        sum += exp(logit[c]);
    }
    loss_of[i] = log(sum) - logit[label[i]];
    for (int c = 0; c < CLASSES; c++) {
        double d = exp(logit[c]) / sum - (c == label[i]);
        gradient_of[i][CLASSES * FEATURES + c] = d;
        for (int f = 0; f < FEATURES; f++)
            gradient_of[i][c * FEATURES + f] = d * (double)x[i][f];
    }
}

static void prepare(void)
{
    uint32_t state = 7;
    for (int w = 0; w < WEIGHTS; w++)
        start[w] = number(&state);
    for (int i = 0; i < MAX_BATCH; i++) {
        for (int f = 0; f < FEATURES; f++)
            x[i][f] = number(&state);
        label[i] = (int32_t)(state >> 16) % CLASSES;
        compute(i);
    }
}

/* torch.chunk: ceil(B / N) each, the last takes the rest. Returns how many chunks there are. */
static int chunks(int64_t devices, int64_t batch, int64_t *size)
{
    int64_t each = (batch + devices - 1) / devices;
    int count = 0;
    for (int64_t left = batch; left > 0; left -= each)
        size[count++] = left < each ? left : each;
    return count;
}

static void check_step(dp_engine *engine, dp_loss_mode mode, int devices, int64_t batch)
{
    dp_error err = {0};
    dp_step_result r;
    const dp_step step = {.batch = {.samples = batch, .x = x[0], .y = label}, .lr = rate, .update = true};
    ck_assert_msg(dp_engine_set_weights(engine, start, &err) == DP_OK, "%s", err.message);
    ck_assert_msg(dp_engine_train(engine, &step, &r, &err) == DP_OK, "%d devices, %d samples: %s", devices,
                  (int)batch, err.message);
    int64_t size[MAX_DEVICES];
    int count = chunks(devices, batch, size);
    ck_assert_int_eq(r.devices, count);
    double loss = 0, want[WEIGHTS];
    for (int w = 0; w < WEIGHTS; w++)
        want[w] = (double)start[w];
    for (int64_t k = 0, i = 0; k < count; k++) {
        double mean = 0;
        ck_assert_int_eq(r.chunk_sizes[k], size[k]);
        ck_assert_int_eq(r.used_devices[k], k);
        for (int64_t end = i + size[k]; i < end; i++) {
            double share = mode == DP_LOSS_REPLICA ? 1.0 / ((double)size[k] * count) : 1.0 / (double)batch;
            loss += share * loss_of[i];
            mean += loss_of[i] / (double)size[k];
            for (int w = 0; w < WEIGHTS; w++)
                want[w] -= rate * share * gradient_of[i][w];
        }
        ck_assert_double_eq_tol(r.device_losses[k], mean, 2e-6);
    }
    ck_assert_msg(fabs(r.loss - loss) < 2e-6, "mode %d, %d devices, %d samples: loss %.9g, not %.9g",
                  (int)mode, devices, (int)batch, r.loss, loss);
    float got[WEIGHTS];
    ck_assert_msg(dp_engine_get_weights(engine, got, &err) == DP_OK, "%s", err.message);
    for (int w = 0; w < WEIGHTS; w++)
        ck_assert_msg(fabs((double)got[w] - want[w]) < 1e-6,
                      "mode %d, %d devices, %d samples: weight %d is %.9g, not %.9g", (int)mode, devices,
                      (int)batch, w, (double)got[w], want[w]);
}

static void sweep(int devices, dp_loss_mode mode, int64_t largest)
{
    dp_error err = {0};
    dp_context *context;
    dp_context_config cc = dp_context_defaults();
    cc.backend = DP_BACKEND_CPU;
    cc.logical_devices = devices;
    cc.threads_per_device = 1;
    ck_assert_msg(dp_context_open(&cc, &context, &err) == DP_OK, "%s", err.message);
    int ids[MAX_DEVICES];
    for (int k = 0; k < devices; k++)
        ids[k] = k;
    dp_engine_config config = dp_engine_defaults();
    config.device_ids = ids;
    config.device_count = devices;
    config.loss_mode = mode;
    config.optimizer.momentum = config.optimizer.weight_decay = 0;
    const dp_model_config mc = {
        .name = "linear", .input_rank = 1, .input_shape = {FEATURES}, .outputs = CLASSES};
    dp_model *model;
    dp_engine *engine;
    ck_assert_msg(dp_model_build(&mc, &model, &err) == DP_OK, "%s", err.message);
    ck_assert_int_eq(dp_model_elements(model), WEIGHTS);
    ck_assert_msg(dp_engine_create(context, model, &config, &engine, &err) == DP_OK, "%s", err.message);
    for (int64_t batch = 1; batch <= largest; batch++)
        check_step(engine, mode, devices, batch);
    dp_engine_free(engine);
    dp_model_free(model);
    dp_context_close(context);
}

static bool everything(void)
{
    const char *which = getenv("DPTRAIN_SWEEP");
    return which && strcmp(which, "all") == 0;
}

START_TEST(a_step_is_as_defined_for_any_devices_and_samples)
{
    prepare();
    const dp_loss_mode modes[] = {DP_LOSS_GATHER, DP_LOSS_REPLICA, DP_LOSS_GLOBAL};
    for (int m = 0; m < 3; m++)
        sweep(_i, modes[m], everything() ? MAX_BATCH : 4 * _i + 2);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sweep");
    TCase *t = tcase_create("sweep");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, a_step_is_as_defined_for_any_devices_and_samples, 1,
                        everything() ? MAX_DEVICES + 1 : 6);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
