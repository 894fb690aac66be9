/* dp_train and dp_evaluate with data that the model, the criterion or the engine does not take, and with the
 * devices left out; the weights left to the devices. */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dptrain/train.h"

typedef struct run {
    dp_context *context;
    dp_model *model;
    dp_dataset *train, *valid;
    dp_train_config config;
    dp_model_state state;
} run;

static dp_error err;

#define OK(call) ck_assert_msg((call) == DP_OK, "%s", err.message)

/* 24 synthetic images [1, 4, 4] with 10 labels, for a model that takes [1, height, 4] and has `outputs`. */
static void open_run(run *r, int64_t height, int64_t outputs)
{
    memset(r, 0, sizeof *r);
    dp_data_config data = dp_data_defaults();
    data.source = "synthetic:24";
    memcpy(data.synthetic_shape, (int64_t[]){1, 4, 4}, sizeof data.synthetic_shape);
    data.synthetic_classes = 10;
    OK(dp_data_open(&data, &r->train, &r->valid, &err));
    const dp_model_config model = {
        .name = "linear", .input_rank = 3, .input_shape = {1, height, 4}, .outputs = outputs};
    OK(dp_model_build(&model, &r->model, &err));
    OK(dp_model_state_create(r->model, &r->state, &err));
    dp_context_config context = dp_context_defaults();
    context.backend = DP_BACKEND_CPU;
    context.logical_devices = 2;
    context.threads_per_device = 1;
    OK(dp_context_open(&context, &r->context, &err));
    r->config = dp_train_defaults();
    r->config.epochs = 1;
    r->config.batch_size = 5;
}

static void close_run(run *r)
{
    dp_model_state_free(&r->state);
    dp_model_free(r->model);
    dp_dataset_free(r->train);
    dp_dataset_free(r->valid);
    dp_context_close(r->context);
}

static void expect_refused(run *r, dp_status status, const char *text)
{
    dp_train_summary summary;
    dp_evaluation evaluation;
    err = (dp_error){0};
    ck_assert_int_eq(
        dp_train(r->context, r->model, &r->state, r->train, r->valid, &r->config, NULL, &summary, &err),
        status);
    ck_assert_msg(strstr(err.message, text) != NULL, "'%s' is not in '%s'", text, err.message);
    err = (dp_error){0};
    ck_assert_int_eq(
        dp_evaluate(r->context, r->model, &r->state, r->train, &r->config.engine, 5, 1, &evaluation, &err),
        status);
    ck_assert_msg(strstr(err.message, text) != NULL, "'%s' is not in '%s'", text, err.message);
    close_run(r);
}

START_TEST(samples_of_another_shape)
{
    run r;
    open_run(&r, 5, 10);
    expect_refused(&r, DP_ERROR_MISMATCH, "do not have the shape that model 'linear' takes");
}
END_TEST

START_TEST(fewer_outputs_than_classes)
{
    run r;
    open_run(&r, 4, 9);
    expect_refused(&r, DP_ERROR_MISMATCH, "model 'linear' has 9 outputs");
}
END_TEST

START_TEST(labels_where_values_are_wanted)
{
    run r;
    open_run(&r, 4, 1);
    r.config.engine.criterion = DP_LOSS_MSE;
    expect_refused(&r, DP_ERROR_MISMATCH, "the criterion mse does not take the targets");
}
END_TEST

START_TEST(samples_along_another_dimension)
{
    run r;
    open_run(&r, 4, 10);
    r.config.engine.dim = 1;
    expect_refused(&r, DP_ERROR_USAGE, "dim 1");
}
END_TEST

START_TEST(all_devices_train_without_ids)
{
    run r;
    dp_train_summary summary;
    dp_evaluation evaluation;
    open_run(&r, 4, 10);
    OK(dp_train(r.context, r.model, &r.state, r.train, r.valid, &r.config, NULL, &summary, &err));
    ck_assert_int_eq(summary.devices, 2);
    ck_assert_int_gt(summary.device[1].samples, 0);
    OK(dp_evaluate(r.context, r.model, &r.state, r.train, &r.config.engine, 5, 1, &evaluation, &err));
    ck_assert_int_gt(evaluation.samples, 0);
    close_run(&r);
}
END_TEST

/* Without a state the same initial weights give the same file. */
START_TEST(no_state_is_the_seed_s)
{
    static float got[10 * 17], wanted[10 * 17];
    char path[] = "/tmp/dptrain_fit_XXXXXX";
    int file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    close(file);
    run r;
    dp_train_summary summary;
    dp_load_report report;
    open_run(&r, 4, 10);
    r.config.seed = 7;
    r.config.save = path;
    ck_assert_int_eq(dp_model_elements(r.model), 10 * 17);
    dp_model_state_init(r.model, 7, &r.state);
    OK(dp_train(r.context, r.model, &r.state, r.train, r.valid, &r.config, NULL, &summary, &err));
    memcpy(wanted, r.state.weights, sizeof wanted);
    OK(dp_train(r.context, r.model, NULL, r.train, r.valid, &r.config, NULL, &summary, &err));
    memset(r.state.weights, 0, sizeof wanted);
    OK(dp_weights_load(path, r.model, false, &r.state, &report, &err));
    memcpy(got, r.state.weights, sizeof got);
    ck_assert_int_eq(memcmp(got, wanted, sizeof got), 0);
    unlink(path);
    close_run(&r);
}
END_TEST

START_TEST(one_parameter_at_a_time)
{
    float weights[10 * 17], velocity[10 * 17], part[10 * 16];
    run r;
    dp_engine *engine;
    open_run(&r, 4, 10);
    const char *freeze[] = {"*bias"};
    r.config.engine.freeze = freeze;
    r.config.engine.freeze_count = 1;
    OK(dp_engine_create(r.context, r.model, &r.config.engine, &engine, &err));
    for (int i = 0; i < 10 * 17; i++) {
        weights[i] = (float)i;
        velocity[i] = 1000 + (float)i;
    }
    const dp_optimizer_state optimizer = {.updates = 1, .moment = {velocity}};
    OK(dp_engine_set_weights(engine, weights, &err));
    OK(dp_engine_set_optimizer(engine, &optimizer, &err));
    for (int p = 0; p < 2; p++) {
        const dp_param_info *info = dp_model_param(r.model, p);
        bool frozen = strstr(info->name, "bias") != NULL;
        OK(dp_engine_get_param(engine, 0, p, part, &err));
        for (int64_t i = 0; i < info->elements; i++)
            ck_assert_float_eq(part[i], weights[info->offset + i]);
        OK(dp_engine_get_param(engine, 1, p, part, &err));
        for (int64_t i = 0; i < info->elements; i++)
            ck_assert_float_eq(part[i], frozen ? 0 : velocity[info->offset + i]);
    }
    /* and set: that one alone changes */
    for (int i = 0; i < 10 * 16; i++)
        part[i] = -(float)i;
    int bias = strstr(dp_model_param(r.model, 0)->name, "bias") ? 0 : 1;
    OK(dp_engine_set_param(engine, 0, bias, part, &err));
    OK(dp_engine_set_param(engine, 1, 1 - bias, part, &err));
    OK(dp_engine_set_param(engine, 1, bias, part, &err)); /* frozen: there is none */
    float now[10 * 17], moved[10 * 17];
    OK(dp_engine_get_weights(engine, now, &err));
    OK(dp_engine_get_optimizer(engine, &(dp_optimizer_state){.moment = {moved}}, &err));
    const dp_param_info *b = dp_model_param(r.model, bias), *w = dp_model_param(r.model, 1 - bias);
    for (int64_t i = 0; i < 10 * 17; i++) {
        bool in_bias = i >= b->offset && i < b->offset + b->elements;
        ck_assert_float_eq(now[i], in_bias ? part[i - b->offset] : weights[i]);
        ck_assert_float_eq(moved[i], in_bias ? 0 : part[i - w->offset]);
    }
    ck_assert_int_eq(dp_engine_set_param(engine, 2, 0, part, &err), DP_ERROR_USAGE);
    ck_assert_int_eq(dp_engine_get_param(engine, 2, 0, part, &err), DP_ERROR_USAGE);
    ck_assert_int_eq(dp_engine_get_param(engine, 0, 2, part, &err), DP_ERROR_USAGE);
    ck_assert_int_eq(dp_engine_get_param(engine, 0, -1, part, &err), DP_ERROR_USAGE);
    dp_engine_free(engine);
    close_run(&r);
}
END_TEST

/* On every device, those that are frozen too, which a step does not send again. */
START_TEST(all_devices_compute_with_what_was_set)
{
    enum { BATCH = 4 };
    static const float zeros[10 * 16], pixels[BATCH * 16];
    const char *freeze[] = {"*bias", "*weight"};
    float biases[10], outputs[BATCH * 10];
    const dp_host_batch batch = {.samples = BATCH, .x = pixels};
    run r;
    dp_engine *engine;
    open_run(&r, 4, 10);
    r.config.engine.device_ids = (int[]){0, 1};
    r.config.engine.device_count = 2;
    r.config.engine.freeze = &freeze[_i];
    r.config.engine.freeze_count = 1;
    OK(dp_engine_create(r.context, r.model, &r.config.engine, &engine, &err));
    int bias = strstr(dp_model_param(r.model, 0)->name, "bias") ? 0 : 1;
    OK(dp_engine_set_param(engine, 0, 1 - bias, zeros, &err));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 10; i++)
            biases[i] = (float)(10 * round + i);
        OK(dp_engine_set_param(engine, 0, bias, biases, &err));
        OK(dp_engine_forward(engine, &batch, outputs, &err));
        for (int i = 0; i < BATCH * 10; i++)
            ck_assert_float_eq(outputs[i], biases[i % 10]);
    }
    dp_engine_free(engine);
    close_run(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("fit");
    TCase *t = tcase_create("fit");
    tcase_add_test(t, samples_of_another_shape);
    tcase_add_test(t, fewer_outputs_than_classes);
    tcase_add_test(t, labels_where_values_are_wanted);
    tcase_add_test(t, samples_along_another_dimension);
    tcase_add_test(t, all_devices_train_without_ids);
    tcase_add_test(t, no_state_is_the_seed_s);
    tcase_add_test(t, one_parameter_at_a_time);
    tcase_add_loop_test(t, all_devices_compute_with_what_was_set, 0, 2);
    tcase_set_timeout(t, 30);
    suite_add_tcase(suite, t);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
