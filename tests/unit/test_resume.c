/* Continuing a run: the state and its file, and the bits that come out. */
#include <jansson.h>
#include <math.h>

#include "io/file.h"
#include "small_run.h"

/* ---- stopped anywhere, and continued ---- */

/* Stops a run after that many batches. */
typedef struct stopper {
    int left;
} stopper;

static void count_batch(void *user, const dp_train_progress *p)
{
    (void)p;
    ((stopper *)user)->left--;
}

static bool is_due(void *user)
{
    return ((stopper *)user)->left <= 0;
}

static void open_small(run *r, int devices, const char *directory)
{
    open_run(r, devices, 0.25);
    r->config.batch_size = 4; /* 30 samples: 8 batches, windows of 3, 3 and 2 */
    r->config.accumulation_steps = 3;
    r->config.epochs = 3;
    r->config.lr = 0.05;
    r->config.engine.optimizer = (dp_optimizer_config){.adamw = true, .weight_decay = 0.01};
    r->config.model_dir = scratch(directory);
}

static json_t *events_of(const char *path, const char *kind)
{
    json_t *list = json_array();
    char line[8192];
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f)) {
        json_t *event = json_loads(line, 0, NULL);
        ck_assert_msg(json_is_object(event), "%s", line);
        if (strcmp(json_string_value(json_object_get(event, "event")), kind) == 0)
            json_array_append(list, event);
        json_decref(event);
    }
    fclose(f);
    return list;
}

static void assert_same_epochs(const char *a, const char *b)
{
    static const char *const keys[] = {"epoch", "train_loss", "valid_loss"};
    json_t *x = events_of(a, "epoch"), *y = events_of(b, "epoch");
    ck_assert_uint_eq(json_array_size(x), json_array_size(y));
    for (size_t i = 0; i < json_array_size(x); i++)
        for (int k = 0; k < 3; k++)
            ck_assert(json_equal(json_object_get(json_array_get(x, i), keys[k]),
                                 json_object_get(json_array_get(y, i), keys[k])));
    json_decref(x);
    json_decref(y);
}

/* Stopped every few batches, wherever that is, until it is done. */
START_TEST(a_run_in_pieces_is_the_run_in_one)
{
    run r;
    float whole[WEIGHTS], pieces[WEIGHTS];
    int devices = 1 + _i % 3, stride = 1 + _i / 3;
    open_small(&r, devices, "whole");
    OK(train(&r, NULL));
    memcpy(whole, r.weights, sizeof whole);
    const dp_train_summary want = r.summary;
    close_run(&r);
    int64_t steps = -1;
    for (int part = 0;; part++) {
        ck_assert_int_lt(part, 30);
        open_small(&r, devices, "pieces");
        stopper s = {stride};
        const dp_train_observer observer = {.user = &s, .batch = count_batch, .stop = is_due};
        OK(train(&r, &observer));
        memcpy(pieces, r.weights, sizeof pieces);
        /* each piece gets on; the last may have no more to do than to validate */
        ck_assert(r.summary.steps > steps || !r.summary.interrupted);
        steps = r.summary.steps;
        bool interrupted = r.summary.interrupted;
        if (!interrupted) {
            int64_t had = 0, has = 0;
            for (int k = 0; k < devices; k++) {
                had += want.device[k].samples;
                has += r.summary.device[k].samples;
            }
            ck_assert_int_eq(had, has);
        }
        close_run(&r);
        if (!interrupted)
            break;
    }
    ck_assert_int_eq(memcmp(whole, pieces, sizeof whole), 0);
    assert_same_epochs(scratch("whole/log.jsonl"), scratch("pieces/log.jsonl"));
}
END_TEST

START_TEST(a_run_is_extended_by_epochs_and_steps)
{
    run r;
    float whole[WEIGHTS];
    open_small(&r, 2, "whole");
    OK(train(&r, NULL));
    memcpy(whole, r.weights, sizeof whole);
    close_run(&r);
    static const int64_t limits[] = {1, 4, 6, 7, 0};
    for (int i = 0; i < 5; i++) {
        open_small(&r, 2, "parts");
        r.config.max_steps = limits[i];
        r.config.epochs = i < 3 ? 2 : 3;
        OK(train(&r, NULL));
        ck_assert_int_eq(r.summary.steps, limits[i] ? limits[i] : 9);
        ck_assert(!r.summary.finished);
        if (i < 4)
            close_run(&r);
    }
    ck_assert_int_eq(memcmp(whole, r.weights, sizeof whole), 0);
    assert_same_epochs(scratch("whole/log.jsonl"), scratch("parts/log.jsonl"));
    /* once more: nothing is left to do, and the result is still given */
    memset(r.weights, 0, sizeof r.weights);
    r.config.save = scratch("saved");
    OK(train(&r, NULL));
    ck_assert(r.summary.finished && r.summary.has_last);
    ck_assert_int_eq(r.summary.last.epoch, 2);
    ck_assert_int_eq(memcmp(whole, r.weights, sizeof whole), 0);
    ck_assert(dp_file_exists(scratch("saved")));
    close_run(&r);
}
END_TEST

START_TEST(checkpoints_within_an_epoch_and_the_newest_few)
{
    run r;
    open_small(&r, 1, "model");
    r.config.save_every = 2;
    r.config.keep = 1;
    stopper s = {8 + 6 + 1}; /* five steps: the second epoch's third is not made */
    dp_train_observer observer = {.user = &s, .batch = count_batch, .stop = is_due};
    OK(train(&r, &observer));
    ck_assert(r.summary.interrupted);
    ck_assert_int_eq(r.summary.steps, 6); /* the window that was open is finished */
    ck_assert(dp_file_exists(scratch("model/resume_state_6.safetensors")));
    ck_assert(dp_file_exists(scratch("model/resume_state_4.safetensors"))); /* should the newest be damaged */
    ck_assert(!dp_file_exists(scratch("model/resume_state_2.safetensors"))); /* two are enough */
    ck_assert(dp_file_exists(scratch("model/model_epoch_0.safetensors")));
    OK(train(&r, NULL));
    ck_assert(!dp_file_exists(scratch("model/model_epoch_0.safetensors")));
    ck_assert(!dp_file_exists(scratch("model/model_epoch_1.safetensors")));
    ck_assert(dp_file_exists(scratch("model/model_epoch_2.safetensors")));
    ck_assert(dp_file_exists(scratch("model/model_best.safetensors")));
    close_run(&r);
}
END_TEST

/* ---- what is not finite ---- */

START_TEST(data_that_are_not_finite_are_said_to_be)
{
    run r;
    open_run(&r, 2, 0);
    close_run(&r);
    for (int target = 0; target < 2; target++) {
        float *at = target ? &ys[21][1] : &xs[21][2];
        const float kept = *at;
        *at = target ? INFINITY : NAN;
        const dp_tensor tensors[] = {TENSOR("x", DP_F32, xs, SAMPLES, IN),
                                     TENSOR("y", DP_F32, ys, SAMPLES, OUT)};
        char source[2200];
        snprintf(source, sizeof source, "safetensors:%s", write_tensors("broken", tensors, 2));
        open_run_on(&r, source, 2, 0);
        *at = kept;
        r.config.shuffle = false; /* it lies in batch 1, sample 5, on the first device */
        ck_assert_int_eq(train(&r, NULL), DP_ERROR_NONFINITE);
        assert_says("not finite in epoch 0, batch 1 (step 2): the loss on cpu:0 is");
        assert_says(target ? "is infinite" : "is NaN");
        assert_says("the gradient of 'weight' on cpu:0 is not finite either");
        assert_says(target ? "target 5 of this batch" : "input 5 of this batch");
        ck_assert_ptr_null(strstr(err.message, "--lr"));
        close_run(&r);
    }
}
END_TEST

START_TEST(validation_says_so_too)
{
    run r, broken;
    open_run(&broken, 2, 0);
    const dp_tensor tensors[] = {TENSOR("x", DP_F32, xs, SAMPLES, IN), TENSOR("y", DP_F32, ys, SAMPLES, OUT)};
    char source[2200];
    xs[21][0] = INFINITY;
    snprintf(source, sizeof source, "safetensors:%s", write_tensors("broken", tensors, 2));
    close_run(&broken);
    open_run_on(&broken, source, 2, 0);
    dp_evaluation e;
    ck_assert_int_eq(dp_evaluate(broken.context, broken.model, &(dp_model_state){.weights = broken.weights},
                                 broken.train, &broken.config.engine, 16, 1, &e, &err),
                     DP_ERROR_NONFINITE);
    assert_says("is not finite in batch 1: input 5 of this batch holds NaN or an infinity");
    open_run(&r, 2, 0);
    r.valid = broken.train;
    r.config.model_dir = scratch("model");
    ck_assert_int_eq(train(&r, NULL), DP_ERROR_NONFINITE);
    assert_says("the validation loss after epoch 0 is not finite in batch 1: input 5");
    ck_assert_ptr_null(strstr(err.message, "--lr"));
    ck_assert(!dp_file_exists(scratch("model/model_epoch_0.safetensors")));
    r.valid = NULL;
    close_run(&r);
    close_run(&broken);
}
END_TEST

/* The rate throws the weights out of range in the first step; no loss has met them yet. */
START_TEST(weights_that_are_not_finite_are_not_saved)
{
    run r;
    open_run(&r, 1, 0);
    r.config.model_dir = scratch("model");
    r.config.batch_size = SAMPLES;
    r.config.lr = 3e38;
    r.config.engine.optimizer = (dp_optimizer_config){.weight_decay = 1e30};
    ck_assert_int_eq(train(&r, NULL), DP_ERROR_NONFINITE);
    assert_says("the value of 'weight'");
    ck_assert(!dp_file_exists(scratch("model/resume.json")));
    ck_assert(!dp_file_exists(scratch("model/model_epoch_0.safetensors")));
    close_run(&r);
}
END_TEST

/* ---- the state and its file ---- */

static const dp_run_state a_state = {.epoch = 3,
                                     .batch = 2,
                                     .step = 77,
                                     .samples = 9,
                                     .loss_sum = 1.0 / 3,
                                     .epoch_seconds = 0.1,
                                     .seconds = 1e9 / 7,
                                     .device_samples = {5, 4},
                                     .has_best = true,
                                     .best = 0.1 + 0.2,
                                     .has_last = true,
                                     .last = {.epoch = 2,
                                              .train_loss = 5e-324,
                                              .validated = true,
                                              .valid_loss = 1.7e308,
                                              .has_accuracy = true,
                                              .valid_accuracy = 2.0 / 3,
                                              .best = true},
                                     .log = {1234567890123, UINT32_MAX}};

/* Weights and two moments, in the engine: value i of moment m is i * scale + m. */
static void set_engine(const run *r, dp_engine *engine, float scale)
{
    float values[WEIGHTS];
    for (int p = 0; p < dp_model_param_count(r->model); p++) {
        const dp_param_info *info = dp_model_param(r->model, p);
        for (int m = 0; m < 3; m++) {
            for (int64_t i = 0; i < info->elements; i++)
                values[i] = (float)(info->offset + i) * scale + (float)m;
            OK(dp_engine_set_param(engine, m, p, values, &err));
        }
    }
}

static void check_engine(const run *r, dp_engine *engine, float scale)
{
    float values[WEIGHTS];
    for (int p = 0; p < dp_model_param_count(r->model); p++) {
        const dp_param_info *info = dp_model_param(r->model, p);
        for (int m = 0; m < 3; m++) {
            OK(dp_engine_get_param(engine, m, p, values, &err));
            for (int64_t i = 0; i < info->elements; i++)
                ck_assert_float_eq(values[i], (float)(info->offset + i) * scale + (float)m);
        }
    }
}

START_TEST(a_state_is_read_as_it_was_written)
{
    run r;
    dp_engine *engine;
    dp_run_tensors tensors = {.moments = 2};
    open_run(&r, 1, 0);
    r.config.engine.optimizer = (dp_optimizer_config){.adamw = true};
    OK(dp_engine_create(r.context, r.model, &r.config.engine, &engine, &err));
    OK(dp_run_tensors_leave(&tensors, r.model, engine, &err));
    dp_settings settings;
    OK(dp_settings_collect(r.context, &r.config, r.model, r.train, r.valid, &settings, &err));
    set_engine(&r, engine, 1.0F / 3);
    OK(dp_run_state_write(scratch("state"), r.model, &settings, &a_state, &tensors, &err));
    dp_run_file file;
    OK(dp_run_file_open(scratch("state"), &file, &err));
    OK(dp_settings_compare(&file.settings, &settings, "here", &err));
    const dp_run_state *s = &file.state;
    ck_assert(s->epoch == 3 && s->batch == 2 && s->step == 77 && s->samples == 9 && !s->ended);
    ck_assert(s->loss_sum == a_state.loss_sum && s->epoch_seconds == a_state.epoch_seconds &&
              s->seconds == a_state.seconds && s->has_best && s->best == a_state.best);
    ck_assert(s->last.epoch == 2 && s->last.train_loss == 5e-324 && s->last.valid_loss == 1.7e308 &&
              s->last.valid_accuracy == 2.0 / 3 && s->last.best && s->last.validated && s->last.has_accuracy);
    ck_assert(s->device_samples[1] == 4 && s->log.bytes == 1234567890123 && s->log.crc == UINT32_MAX);
    set_engine(&r, engine, -1);
    OK(dp_run_file_read(&file, r.model, &tensors, &err));
    check_engine(&r, engine, 1.0F / 3);
    dp_model *other = linear_model(IN + 1, OUT);
    ck_assert_int_eq(dp_run_file_read(&file, other, &tensors, &err), DP_ERROR_MISMATCH);
    dp_model_free(other);
    dp_run_file_close(&file);
    dp_settings_clear(&settings);
    dp_run_tensors_clear(&tensors);
    dp_engine_free(engine);
    close_run(&r);
}
END_TEST

/* Batch normalisation's statistics and counters go with the weights. */
START_TEST(buffers_are_part_of_a_state)
{
    dp_model *m;
    OK(dp_model_create("normal", &m, &err));
    dp_value x = dp_model_input(m, 3, (int64_t[]){2, 4, 4});
    x = dp_batch_norm2d(m, "bn", x);
    OK(dp_model_finish(m, dp_linear(m, "fc", dp_flatten(m, x), 2), &err));
    dp_run_tensors written = {0}, read = {0};
    OK(dp_model_state_create(m, &written.model, &err));
    OK(dp_model_state_create(m, &read.model, &err));
    dp_model_state_init(m, 1, &written.model);
    written.model.buffers[1] = 0.7F;
    written.model.counters[0] = INT64_MAX;
    const dp_settings none = {0};
    OK(dp_run_state_write(scratch("state"), m, &none, &a_state, &written, &err));
    dp_run_file file;
    OK(dp_run_file_open(scratch("state"), &file, &err));
    OK(dp_run_file_read(&file, m, &read, &err));
    ck_assert_float_eq(read.model.buffers[1], 0.7F);
    ck_assert(read.model.counters[0] == INT64_MAX);
    ck_assert_int_eq(
        memcmp(read.model.weights, written.model.weights, (size_t)dp_model_elements(m) * sizeof(float)), 0);
    ck_assert_ptr_nonnull(dp_safetensors_find(file.file, "model.bn.num_batches_tracked"));
    OK(dp_run_file_check(&file, m, 0, &err));
    dp_run_file_close(&file);
    dp_model_state_free(&written.model);
    dp_model_state_free(&read.model);
    dp_model_free(m);
}
END_TEST

#define DEVICES                                                         \
    "[0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0," \
    "0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0]"
#define DESCRIPTION(position, sums, rest)                                                        \
    "{\"version\":1,\"settings\":{\"a\":\"b\"},\"position\":" position ",\"epoch_so_far\":" sums \
    ",\"seconds\":1.0,\"device_samples\":" DEVICES ",\"log\":{\"bytes\":0,\"crc\":0}," rest "}"
#define AT(e, b, s) "{\"epoch\":" e ",\"batch\":" b ",\"step\":" s "}"
#define SUMS(n)     "{\"samples\":" n ",\"loss_sum\":0.0,\"seconds\":0.0}"
#define REST        "\"best\":null,\"last\":null,\"ended\":false"

START_TEST(a_description_is_not_trusted)
{
    static const char *const wrong[] = {
        "",
        "null",
        "[]",
        "{}",
        "{\"version\":1}",
        DESCRIPTION(AT("-1", "0", "0"), SUMS("0"), REST),
        DESCRIPTION(AT("0", "-1", "0"), SUMS("0"), REST),
        DESCRIPTION(AT("0", "0", "1.5"), SUMS("0"), REST),
        DESCRIPTION(AT("0", "0", "99999999999999999999"), SUMS("0"), REST),
        DESCRIPTION(AT("0", "2", "2"), SUMS("0"), REST), /* batches without samples */
        DESCRIPTION("[]", SUMS("0"), REST),
        DESCRIPTION(AT("0", "0", "0"), "null", REST),
        DESCRIPTION(AT("0", "0", "0"), SUMS("\"1\""), REST),
        DESCRIPTION(AT("0", "0", "0"), SUMS("0"), "\"best\":\"x\",\"last\":null,\"ended\":false"),
        DESCRIPTION(AT("0", "0", "0"), SUMS("0"), "\"best\":null,\"last\":null,\"ended\":1"),
        DESCRIPTION(AT("1", "0", "4"), SUMS("0"), "\"best\":null,\"last\":null,\"ended\":true"),
        DESCRIPTION(AT("1", "0", "4"), SUMS("0"), "\"best\":null,\"last\":{},\"ended\":false"),
        DESCRIPTION(AT("0", "0", "0"), SUMS("0"), REST ",\"position\":1"),
    };
    dp_run_state s;
    dp_settings settings;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        dp_status status = dp_run_state_parse(wrong[i], &s, &settings, &err);
        ck_assert_msg(status == DP_ERROR_IO, "%s: status %d", wrong[i], (int)status);
    }
    OK(dp_run_state_parse(DESCRIPTION(AT("7", "0", "4"), SUMS("0"), REST), &s, &settings, &err));
    ck_assert(s.epoch == 7 && s.step == 4 && !s.has_last && !s.has_best);
    ck_assert_str_eq(settings.list[0].value, "b");
    dp_settings_clear(&settings);
    ck_assert_int_eq(dp_run_state_parse("{\"version\":2}", &s, &settings, &err), DP_ERROR_MISMATCH);
    assert_says("another version");
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("resume");
    TCase *t = add_case(s, "runs");
    tcase_add_loop_test(t, a_run_in_pieces_is_the_run_in_one, 0, 9);
    tcase_add_test(t, a_run_is_extended_by_epochs_and_steps);
    tcase_add_test(t, checkpoints_within_an_epoch_and_the_newest_few);
    tcase_add_test(t, data_that_are_not_finite_are_said_to_be);
    tcase_add_test(t, validation_says_so_too);
    tcase_add_test(t, weights_that_are_not_finite_are_not_saved);
    t = add_case(s, "state");
    tcase_add_test(t, a_state_is_read_as_it_was_written);
    tcase_add_test(t, buffers_are_part_of_a_state);
    tcase_add_test(t, a_description_is_not_trusted);
    return run_tests(argc, argv, s);
}
