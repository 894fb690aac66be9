/* Properties of the engine: what must not depend on the number of devices, what must repeat bit for bit, what
 * must not happen inside a step. */
#include "engine_run.h"

#include <math.h>

/* Weights after `steps` steps of batch sizes that split unevenly and leave devices out. */
static float *weights_after(int devices, dp_loss_mode mode, dp_loss_kind criterion, const char *model,
                            double *loss)
{
    const int64_t batches[] = {17, 9, 3, 1, 64, 5};
    run r;
    open_devices(&r, devices);
    r.config.loss_mode = mode;
    r.config.criterion = criterion;
    open_engine(&r, model);
    for (int i = 0; i < 6; i++)
        *loss = train(&r, batches[i], true, 0).loss;
    float *w = weights_of(&r);
    close_run(&r);
    return w;
}

static void expect_close(const float *a, const float *b, int64_t n, float tolerance)
{
    for (int64_t i = 0; i < n; i++)
        ck_assert_msg(fabsf(a[i] - b[i]) <= tolerance, "element %ld: %g and %g", (long)i, a[i], b[i]);
}

START_TEST(gather_and_global_do_not_depend_on_the_devices)
{
    const dp_loss_kind criteria[] = {DP_LOSS_CROSS_ENTROPY, DP_LOSS_MSE, DP_LOSS_BCE_WITH_LOGITS};
    for (int c = 0; c < 3; c++) {
        double loss1, loss;
        float *one = weights_after(1, DP_LOSS_GATHER, criteria[c], "mlp", &loss1);
        for (int n = 2; n <= 8; n += n == 4 ? 4 : 1)
            for (int mode = 0; mode < 2; mode++) {
                float *many =
                    weights_after(n, mode ? DP_LOSS_GLOBAL : DP_LOSS_GATHER, criteria[c], "mlp", &loss);
                expect_close(one, many, MLP_ELEMENTS, 2e-6f);
                ck_assert_double_eq_tol(loss1, loss, 1e-5);
                free(many);
            }
        free(one);
    }
}
END_TEST

START_TEST(repeats_are_bit_equal)
{
    for (int mode = DP_LOSS_GATHER; mode <= DP_LOSS_GLOBAL; mode++) {
        double loss_a, loss_b;
        float *a = weights_after(3, (dp_loss_mode)mode, DP_LOSS_CROSS_ENTROPY, "mlp", &loss_a);
        float *b = weights_after(3, (dp_loss_mode)mode, DP_LOSS_CROSS_ENTROPY, "mlp", &loss_b);
        ck_assert(memcmp(a, b, MLP_ELEMENTS * sizeof *a) == 0);
        ck_assert(memcmp(&loss_a, &loss_b, sizeof loss_a) == 0);
        free(a);
        free(b);
    }
}
END_TEST

/* The documented example: per-sample losses 0.3, 0.2, 0.8. */
START_TEST(three_losses)
{
    const double expected[3][3] = {
        {0.43333, 0.43333, 0.43333}, {0.43333, 0.525, 0.43333}, {0.43333, 0.43333, 0.43333}};
    for (int mode = DP_LOSS_GATHER; mode <= DP_LOSS_GLOBAL; mode++)
        for (int n = 1; n <= 3; n++) {
            run r;
            dp_error err = {0};
            open_devices(&r, n);
            r.config.loss_mode = (dp_loss_mode)mode;
            r.config.criterion = DP_LOSS_L1;
            dp_model_config mc = {.name = "linear", .input_rank = 1, .input_shape = {1}, .outputs = 1};
            ck_assert(dp_model_build(&mc, &r.model, &err) == DP_OK);
            ck_assert(dp_engine_create(r.context, r.model, &r.config, &r.engine, &err) == DP_OK);
            ck_assert(dp_engine_set_weights(r.engine, (float[]){1, 0}, &err) == DP_OK);
            const float xs[] = {0.3f, 0.2f, 0.8f}, ys[] = {0, 0, 0};
            dp_step step = {.batch = {3, xs, ys}, .lr = 0.1, .update = true};
            dp_step_result result;
            ck_assert(dp_engine_train(r.engine, &step, &result, &err) == DP_OK);
            ck_assert_double_eq_tol(result.loss, expected[mode][n - 1], 1e-4);
            close_run(&r);
        }
}
END_TEST

/* Accumulating micro-batches of which the last leaves devices without samples: they still owe their
 * gradients. */
START_TEST(a_window_keeps_the_gradients_of_idle_devices)
{
    float *result[2];
    for (int i = 0; i < 2; i++) {
        run r;
        open_devices(&r, i ? 4 : 1);
        r.config.loss_mode = DP_LOSS_GLOBAL;
        open_engine(&r, "mlp");
        for (int window = 0; window < 3; window++) {
            train(&r, 16, false, 0.5);
            train(&r, 1, true, 0.5);
        }
        result[i] = weights_of(&r);
        close_run(&r);
    }
    expect_close(result[0], result[1], MLP_ELEMENTS, 2e-6f);
    free(result[0]);
    free(result[1]);
}
END_TEST

START_TEST(dropped_gradients_are_forgotten)
{
    float *result[2];
    for (int i = 0; i < 2; i++) {
        run r;
        open_devices(&r, 2);
        open_engine(&r, "mlp");
        if (i) {
            train(&r, 8, false, 1);
            dp_engine_drop_gradients(r.engine);
        }
        train(&r, 8, true, 1);
        result[i] = weights_of(&r);
        close_run(&r);
    }
    ck_assert(memcmp(result[0], result[1], MLP_ELEMENTS * sizeof(float)) == 0);
    free(result[0]);
    free(result[1]);
}
END_TEST

START_TEST(a_step_allocates_nothing)
{
    for (int mode = DP_LOSS_GATHER; mode <= DP_LOSS_GLOBAL; mode++) {
        run r;
        dp_error err = {0};
        uint64_t before[3];
        open_devices(&r, 3);
        r.config.loss_mode = (dp_loss_mode)mode;
        open_engine(&r, "lenet");
        ck_assert(dp_engine_plan(r.engine, 32, true, &err) == DP_OK);
        ck_assert(dp_engine_plan(r.engine, 7, true, &err) == DP_OK);
        for (int k = 0; k < 3; k++)
            before[k] = r.engine->replicas[k].device->ledger.allocations;
        for (int i = 0; i < 3; i++) {
            train(&r, 32, false, 0.5);
            train(&r, 7, true, 0.5);
        }
        for (int k = 0; k < 3; k++)
            ck_assert_uint_eq(before[k], r.engine->replicas[k].device->ledger.allocations);
        close_run(&r);
    }
}
END_TEST

START_TEST(all_memory_goes_back)
{
    run r;
    open_devices(&r, 2);
    open_engine(&r, "lenet");
    train(&r, 32, true, 1);
    dp_engine_free(r.engine);
    for (int k = 0; k < 2; k++) {
        const dp_ledger *l = &r.context->backend->devices[k].ledger;
        ck_assert_uint_eq(l->total, 0);
        ck_assert_uint_gt(l->peak_total, 0);
        for (int p = 0; p < DP_MEM_PURPOSES; p++)
            ck_assert_uint_eq(l->current[p], 0);
    }
    r.engine = NULL;
    close_run(&r);
}
END_TEST

START_TEST(the_output_device_and_the_order_of_ids_change_nothing)
{
    float *result[3];
    for (int i = 0; i < 3; i++) {
        run r;
        open_devices(&r, 4);
        r.config.device_count = 3;
        if (i) {
            memcpy(r.ids, (int[]){3, 1, 2}, 3 * sizeof(int));
            r.config.output_device = i == 1 ? 3 : 2;
        }
        open_engine(&r, "mlp");
        train(&r, 16, true, 1);
        train(&r, 2, true, 1); /* the output device gets no samples of its own */
        result[i] = weights_of(&r);
        close_run(&r);
    }
    ck_assert(memcmp(result[0], result[1], MLP_ELEMENTS * sizeof(float)) == 0);
    ck_assert(memcmp(result[0], result[2], MLP_ELEMENTS * sizeof(float)) == 0);
    for (int i = 0; i < 3; i++)
        free(result[i]);
}
END_TEST

START_TEST(a_primary_without_samples_still_updates)
{
    float *result[2];
    for (int i = 0; i < 2; i++) {
        run r;
        const double shares[] = {0, 1};
        open_devices(&r, i ? 2 : 1);
        r.config.split = i ? DP_SPLIT_SHARES : DP_SPLIT_CHUNK;
        r.config.shares = shares;
        open_engine(&r, "mlp");
        train(&r, 8, true, 1);
        train(&r, 8, true, 1);
        result[i] = weights_of(&r);
        close_run(&r);
    }
    expect_close(result[0], result[1], MLP_ELEMENTS, 1e-6f);
    free(result[0]);
    free(result[1]);
}
END_TEST

START_TEST(frozen_parameters_stay)
{
    const char *freeze[] = {"fc2.*"};
    run r;
    open_devices(&r, 2);
    r.config.freeze = freeze;
    r.config.freeze_count = 1;
    open_engine(&r, "mlp");
    float *before = weights_of(&r);
    train(&r, 16, true, 1);
    train(&r, 16, true, 1);
    float *after = weights_of(&r);
    for (int p = 0; p < dp_model_param_count(r.model); p++) {
        const dp_param_info *info = dp_model_param(r.model, p);
        bool same =
            memcmp(before + info->offset, after + info->offset, (size_t)info->elements * sizeof(float)) == 0;
        ck_assert_msg(same == (strncmp(info->name, "fc2", 3) == 0), "%s", info->name);
    }
    free(before);
    free(after);
    close_run(&r);
}
END_TEST

/* Stage, begin and finish give the same bits as whole steps. */
START_TEST(staged_batches_arrive)
{
    float *result[2];
    for (int i = 0; i < 2; i++) {
        run r;
        dp_error err = {0};
        dp_step_result out;
        open_devices(&r, 2);
        open_engine(&r, "mlp");
        for (int s = 0; s < 4; s++) {
            dp_step step = make_step(&r, 16, true, 1);
            step.batch.x = x + s * 16 * FEATURES;
            step.batch.y = labels + s * 16;
            dp_host_batch next = {16, x + (s + 1) % 4 * 16 * FEATURES, labels + (s + 1) % 4 * 16};
            ck_assert(dp_engine_begin(r.engine, &step, &err) == DP_OK);
            if (i && s < 3)
                ck_assert_msg(dp_engine_stage(r.engine, &next, &err) == DP_OK, "%s", err.message);
            ck_assert(dp_engine_finish(r.engine, &out, &err) == DP_OK);
        }
        result[i] = weights_of(&r);
        close_run(&r);
    }
    ck_assert(memcmp(result[0], result[1], MLP_ELEMENTS * sizeof(float)) == 0);
    free(result[0]);
    free(result[1]);
}
END_TEST

static void expect_refusal(dp_status status, const dp_error *err, const char *text)
{
    ck_assert_int_eq(status, DP_ERROR_USAGE);
    ck_assert_msg(strstr(err->message, text) != NULL, "'%s' does not say '%s'", err->message, text);
}

/* Calls out of their order are refused, and what has begun goes on as if they had not been made. */
START_TEST(calls_out_of_order_are_refused)
{
    run r;
    dp_error err = {0};
    dp_step_result out;
    dp_device_report report;
    open_devices(&r, 2);
    open_engine(&r, "mlp");
    dp_step step = make_step(&r, 16, true, 1);
    const dp_host_batch next = {16, x + 16 * FEATURES, labels + 16};
    expect_refusal(dp_engine_finish(r.engine, &out, &err), &err, "no training step has begun");
    ck_assert(dp_engine_begin(r.engine, &step, &err) == DP_OK);
    expect_refusal(dp_engine_begin(r.engine, &step, &err), &err, "has begun and was not finished");
    ck_assert(dp_engine_stage(r.engine, &next, &err) == DP_OK);
    expect_refusal(dp_engine_stage(r.engine, &next, &err), &err, "a batch is staged already");
    ck_assert(dp_engine_finish(r.engine, &out, &err) == DP_OK);
    expect_refusal(dp_engine_begin(r.engine, &step, &err), &err, "another batch is staged");
    step.batch = next;
    ck_assert(dp_engine_begin(r.engine, &step, &err) == DP_OK);
    ck_assert(dp_engine_finish(r.engine, &out, &err) == DP_OK);
    ck_assert_double_gt(out.loss, 0);
    expect_refusal(dp_engine_report(r.engine, 2, &report, &err), &err,
                   "there is no device 2 in this engine of 2");
    expect_refusal(dp_engine_plan(r.engine, 0, true, &err), &err, "a batch of 0 samples cannot be planned");
    close_run(&r);
}
END_TEST

START_TEST(phases_add_up)
{
    run r;
    open_devices(&r, 2);
    open_engine(&r, "mlp");
    train(&r, 32, true, 1);
    double began = dp_now();
    dp_step_result result = train(&r, 32, true, 1);
    double ms = 1e3 * (dp_now() - began), sum = 0;
    for (int p = 0; p < DP_PHASES; p++) {
        ck_assert_double_ge(result.phase_ms[p], 0);
        ck_assert_double_ge(result.overlapped_ms[p], 0);
        sum += result.phase_ms[p];
    }
    ck_assert_double_le(sum, ms + 1e-3);
    ck_assert_double_gt(result.phase_ms[DP_PHASE_FORWARD], 0);
    ck_assert_double_gt(result.phase_ms[DP_PHASE_BACKWARD], 0);
    ck_assert_double_gt(result.phase_ms[DP_PHASE_REDUCE], 0);
    close_run(&r);
}
END_TEST

START_TEST(evaluation_counts_and_averages)
{
    run r;
    dp_error err = {0};
    dp_step_result one, many;
    for (int n = 1; n <= 4; n += 3) {
        open_devices(&r, n);
        r.config.loss_mode = DP_LOSS_REPLICA; /* evaluation is a true mean all the same */
        open_engine(&r, "mlp");
        for (int i = 0; i < 20; i++)
            train(&r, 64, true, 1);
        dp_host_batch batch = {61, x, labels};
        ck_assert_msg(dp_engine_evaluate(r.engine, &batch, n == 1 ? &one : &many, &err) == DP_OK, "%s",
                      err.message);
        close_run(&r);
    }
    ck_assert_double_eq_tol(one.loss, many.loss, 1e-4);
    ck_assert_int_eq(one.correct, many.correct);
    ck_assert_int_gt(one.correct, 0);
    ck_assert_int_le(one.correct, 61);
}
END_TEST

START_TEST(an_engine_for_evaluation_has_no_gradients)
{
    dp_error err = {0};
    dp_step_result result[2];
    const dp_host_batch batch = {61, x, labels};
    for (int i = 0; i < 2; i++) {
        run r;
        dp_device_report report;
        open_devices(&r, 3);
        r.config.evaluation_only = i;
        open_engine(&r, "mlp");
        ck_assert_msg(dp_engine_evaluate(r.engine, &batch, &result[i], &err) == DP_OK, "%s", err.message);
        for (int k = 0; k < 3; k++) {
            ck_assert(dp_engine_report(r.engine, k, &report, &err) == DP_OK);
            ck_assert_int_eq(report.peak_bytes[DP_MEM_GRADIENTS] > 0, i == 0);
            ck_assert_int_eq(report.peak_bytes[DP_MEM_OPTIMIZER] > 0, i == 0 && k == 0);
            ck_assert_uint_gt(report.peak_bytes[DP_MEM_PARAMETERS], 0);
        }
        if (i) {
            dp_step step = make_step(&r, 8, true, 1);
            ck_assert_int_eq(dp_engine_train(r.engine, &step, &result[0], &err), DP_ERROR_USAGE);
            ck_assert_ptr_nonnull(strstr(err.message, "evaluation only"));
            ck_assert(dp_engine_evaluate(r.engine, &batch, &result[0], &err) == DP_OK);
        }
        close_run(&r);
    }
    ck_assert(memcmp(&result[0].loss, &result[1].loss, sizeof result[0].loss) == 0);
    ck_assert_int_eq(result[0].correct, result[1].correct);
}
END_TEST

/* Neither a NaN on one backend nor a read past a row on the other. The engine goes on working. */
START_TEST(labels_that_are_no_class_are_named)
{
    const int32_t wrong[] = {CLASSES, -1, INT32_MAX, INT32_MIN};
    run r;
    dp_error err = {0};
    dp_step_result result;
    open_devices(&r, 2);
    open_engine(&r, "mlp");
    dp_step step = make_step(&r, 16, true, 1);
    const dp_host_batch next = {16, x + 16 * FEATURES, labels + 16};
    for (int i = 0; i < 4; i++) {
        labels[13] = wrong[i];
        ck_assert_int_eq(dp_engine_train(r.engine, &step, &result, &err), DP_ERROR_USAGE);
        ck_assert_msg(strstr(err.message, "sample 13 of the batch has label") != NULL, "%s", err.message);
        ck_assert_ptr_nonnull(strstr(err.message, "classes 0 to 9"));
        ck_assert_int_eq(dp_engine_evaluate(r.engine, &step.batch, &result, &err), DP_ERROR_USAGE);
        labels[13] = 0;
        labels[16 + 2] = wrong[i];
        ck_assert(dp_engine_begin(r.engine, &step, &err) == DP_OK);
        ck_assert_int_eq(dp_engine_stage(r.engine, &next, &err), DP_ERROR_USAGE);
        ck_assert_ptr_nonnull(strstr(err.message, "sample 2 of the batch"));
        ck_assert(dp_engine_finish(r.engine, &result, &err) == DP_OK);
        labels[16 + 2] = CLASSES - 1;
        train(&r, 32, true, 1);
    }
    close_run(&r);
}
END_TEST

START_TEST(nonfinite_gradients_are_named)
{
    run r;
    dp_error err = {0};
    dp_step_result result;
    open_devices(&r, 2);
    open_engine(&r, "mlp");
    x[40 * FEATURES] = INFINITY; /* of the second device's chunk */
    dp_step step = make_step(&r, 64, true, 1);
    ck_assert(dp_engine_train(r.engine, &step, &result, &err) == DP_OK);
    ck_assert(!result.finite);
    ck_assert_ptr_nonnull(strstr(result.nonfinite_what, on("cpu:1", "cuda:1")));
    close_run(&r);
}
END_TEST

static void expect_config_error(run *r, const char *text)
{
    dp_error err = {0};
    dp_engine *engine;
    dp_model_config mc = {.name = "linear", .input_rank = 1, .input_shape = {4}, .outputs = 2};
    dp_model *m;
    ck_assert(dp_model_build(&mc, &m, &err) == DP_OK);
    expect_refusal(dp_engine_create(r->context, m, &r->config, &engine, &err), &err, text);
    ck_assert_ptr_null(engine);
    dp_model_free(m);
}

START_TEST(wrong_devices_are_refused)
{
    run r;
    open_devices(&r, 2);
    r.ids[1] = 5;
    expect_config_error(&r, on("device id 5 does not exist: 2 devices are visible (cpu:0 to cpu:1)",
                               "device id 5 does not exist: 2 devices are visible (cuda:0 to cuda:1)"));
    r.ids[1] = 0;
    expect_config_error(&r, "device id 0 is listed twice");
    r.ids[1] = 1;
    r.config.output_device = 7;
    expect_config_error(&r, "output device 7 is not one of the device ids");
    r.config.output_device = -1;
    r.config.split = DP_SPLIT_SHARES;
    const double shares[] = {0, 0};
    r.config.shares = shares;
    expect_config_error(&r, "at least one share above 0");
    close_run(&r);
}
END_TEST

START_TEST(sixty_four_devices)
{
    double loss1, loss;
    float *one = weights_after(1, DP_LOSS_GLOBAL, DP_LOSS_CROSS_ENTROPY, "mlp", &loss1);
    float *many = weights_after(64, DP_LOSS_GLOBAL, DP_LOSS_CROSS_ENTROPY, "mlp", &loss);
    expect_close(one, many, MLP_ELEMENTS, 2e-6f);
    free(one);
    free(many);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("engine");
    TCase *t = tcase_create("engine");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, repeats_are_bit_equal);
    tcase_add_test(t, three_losses);
    tcase_add_test(t, dropped_gradients_are_forgotten);
    tcase_add_test(t, a_step_allocates_nothing);
    tcase_add_test(t, all_memory_goes_back);
    tcase_add_test(t, frozen_parameters_stay);
    tcase_add_test(t, calls_out_of_order_are_refused);
    tcase_add_test(t, phases_add_up);
    tcase_add_test(t, evaluation_counts_and_averages);
    tcase_add_test(t, an_engine_for_evaluation_has_no_gradients);
    tcase_add_test(t, labels_that_are_no_class_are_named);
    tcase_add_test(t, nonfinite_gradients_are_named);
    tcase_add_test(t, wrong_devices_are_refused);
    suite_add_tcase(s, t);
    /* Few engines that hand over everything: what ThreadSanitizer is given on emulated GPUs. */
    TCase *ordering = tcase_create("ordering");
    tcase_set_timeout(ordering, 60);
    tcase_add_test(ordering, a_window_keeps_the_gradients_of_idle_devices);
    tcase_add_test(ordering, the_output_device_and_the_order_of_ids_change_nothing);
    tcase_add_test(ordering, a_primary_without_samples_still_updates);
    tcase_add_test(ordering, staged_batches_arrive);
    suite_add_tcase(s, ordering);
    TCase *many = tcase_create("many engines");
    tcase_set_timeout(many, 60);
    tcase_add_test(many, gather_and_global_do_not_depend_on_the_devices);
    tcase_add_test(many, sixty_four_devices);
    suite_add_tcase(s, many);
    return run_tests(argc, argv, s);
}
