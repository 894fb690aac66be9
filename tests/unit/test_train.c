/* The training loop: its arithmetic against a reference in double precision, its files, what it tells. */
#include <dirent.h>
#include <jansson.h>
#include <math.h>

#include "io/file.h"
#include "small_run.h"

/* ---- arithmetic ---- */

typedef struct reference {
    double w[WEIGHTS], gradient[WEIGHTS], velocity[WEIGHTS];
    bool moved;
} reference;

/* Adds the gradient of mse / windows over samples first .. end. Returns the loss. */
static double accumulate(reference *r, int first, int end, double windows)
{
    double loss = 0, terms = (double)(end - first) * OUT;
    for (int i = first; i < end; i++)
        for (int o = 0; o < OUT; o++) {
            double error = r->w[OUT * IN + o] - (double)ys[i][o];
            for (int k = 0; k < IN; k++)
                error += r->w[o * IN + k] * (double)xs[i][k];
            loss += error * error / terms;
            double slope = 2 * error / terms / windows;
            for (int k = 0; k < IN; k++)
                r->gradient[o * IN + k] += slope * (double)xs[i][k];
            r->gradient[OUT * IN + o] += slope;
        }
    return loss;
}

/* torch.optim.SGD: the first step takes the gradient as its velocity. */
static void update(reference *r, double lr, double momentum, double decay)
{
    for (int i = 0; i < WEIGHTS; i++) {
        double g = r->gradient[i] + decay * r->w[i];
        r->velocity[i] = r->moved ? momentum * r->velocity[i] + g : g;
        r->w[i] -= lr * r->velocity[i];
        r->gradient[i] = 0;
    }
    r->moved = true;
}

static void assert_weights(const float *have, const double *want)
{
    for (int i = 0; i < WEIGHTS; i++)
        ck_assert_double_eq_tol((double)have[i], want[i], 2e-6);
}

/* 40 samples in batches of 16, windows of two: 32 samples, then a window of one batch of 8 whose loss is
 * halved all the same. On any number of devices. */
START_TEST(a_run_is_what_the_formulas_say)
{
    run r;
    open_run(&r, _i, 0);
    ck_assert_int_eq(dp_model_elements(r.model), WEIGHTS);
    ck_assert_str_eq(dp_model_param(r.model, 0)->name, "weight");
    dp_train_config *c = &r.config;
    c->shuffle = false;
    c->accumulation_steps = 2;
    c->epochs = 3;
    c->lr = 0.2;
    c->lr_step = 1;
    c->lr_gamma = 0.5;
    c->engine.optimizer = (dp_optimizer_config){.momentum = 0.9, .weight_decay = 0.01};
    reference want = {0};
    for (int i = 0; i < WEIGHTS; i++)
        want.w[i] = (double)r.weights[i];
    double loss = 0;
    for (int e = 0; e < 3; e++) {
        loss = 16 * accumulate(&want, 0, 16, 2) + 16 * accumulate(&want, 16, 32, 2);
        update(&want, 0.2 * pow(0.5, e), 0.9, 0.01);
        loss += 8 * accumulate(&want, 32, 40, 2);
        update(&want, 0.2 * pow(0.5, e), 0.9, 0.01);
    }
    OK(train(&r, NULL));
    assert_weights(r.weights, want.w);
    ck_assert_double_eq_tol(r.summary.last.train_loss, loss / SAMPLES, 1e-6);
    ck_assert_int_eq(r.summary.steps, 6);
    ck_assert_int_eq(r.summary.devices, _i);
    int64_t samples = 0;
    for (int k = 0; k < r.summary.devices; k++)
        samples += r.summary.device[k].samples;
    ck_assert_int_eq(samples, 3 * SAMPLES);
    close_run(&r);
}
END_TEST

/* The limit falls into the second epoch; the micro-batch after it is never run. */
START_TEST(max_steps_ends_a_run_within_an_epoch)
{
    run r;
    open_run(&r, 2, 0);
    r.config.shuffle = false;
    r.config.engine.optimizer = (dp_optimizer_config){0};
    r.config.lr = 0.1;
    r.config.max_steps = 4;
    r.config.epochs = 9;
    reference want = {0};
    for (int i = 0; i < WEIGHTS; i++)
        want.w[i] = (double)r.weights[i];
    static const int ends[] = {0, 16, 32, 40, 0, 16};
    for (int s = 0; s < 5; s++)
        if (ends[s + 1] > ends[s]) {
            accumulate(&want, ends[s], ends[s + 1], 1);
            update(&want, 0.1, 0, 0);
        }
    OK(train(&r, NULL));
    assert_weights(r.weights, want.w);
    ck_assert_int_eq(r.summary.steps, 4);
    ck_assert_int_eq(r.summary.last.epoch, 1);
    close_run(&r);
}
END_TEST

START_TEST(the_rate_is_a_staircase)
{
    dp_train_config c = dp_train_defaults();
    ck_assert_double_eq(dp_learning_rate(&c, 29), 0.001);
    ck_assert_double_eq_tol(dp_learning_rate(&c, 30), 1e-4, 1e-18);
    ck_assert_double_eq_tol(dp_learning_rate(&c, 90), 1e-6, 1e-20);
    c.lr_step = 0;
    ck_assert_double_eq(dp_learning_rate(&c, 1000), 0.001);
    c.lr_step = 2;
    c.lr_gamma = 0;
    ck_assert_double_eq(dp_learning_rate(&c, 1), 0.001);
    ck_assert_double_eq(dp_learning_rate(&c, 2), 0);
}
END_TEST

START_TEST(counts_below_one_are_refused)
{
    run r;
    open_run(&r, 1, 0);
    int64_t *const counts[] = {&r.config.batch_size, &r.config.epochs, &r.config.accumulation_steps};
    for (int i = 0; i < 3; i++) {
        int64_t kept = *counts[i];
        *counts[i] = 0;
        ck_assert_int_eq(train(&r, NULL), DP_ERROR_USAGE);
        *counts[i] = kept;
    }
    close_run(&r);
}
END_TEST

/* The mean loss does not depend on batches and devices, and is that of the formula. */
START_TEST(evaluation_is_the_mean_over_all_samples)
{
    for (int devices = 1; devices <= 3; devices++)
        for (int64_t batch = 7; batch <= 49; batch *= 7) {
            run r;
            open_run(&r, devices, 0);
            reference want = {0};
            for (int i = 0; i < WEIGHTS; i++)
                want.w[i] = (double)r.weights[i];
            dp_evaluation e;
            OK(dp_evaluate(r.context, r.model, &(dp_model_state){.weights = r.weights}, r.train,
                           &r.config.engine, batch, 1, &e, &err));
            ck_assert_int_eq(e.samples, SAMPLES);
            ck_assert(!e.has_accuracy);
            ck_assert_double_eq_tol(e.loss, accumulate(&want, 0, SAMPLES, 1), 1e-6);
            close_run(&r);
        }
}
END_TEST

/* ---- what is told, and when ---- */

typedef struct told {
    char text[256]; /* s: start, b: a batch, E: an epoch */
    int64_t step, samples;
    double average, lr;
} told;

static void on_start(void *user, const dp_train_start *s)
{
    strcat(((told *)user)->text, "s");
    ck_assert_int_eq(s->batches, 2);
    ck_assert_int_eq(s->devices, 2);
    ck_assert(s->chunk_sizes[0] == 8 && s->chunk_sizes[1] == 8);
    ck_assert_int_eq(s->train->samples, 30);
    ck_assert_int_eq(s->valid->samples, 10);
}

static void on_batch(void *user, const dp_train_progress *p)
{
    told *t = user;
    strcat(t->text, "b");
    ck_assert_int_eq(p->batches, 2);
    ck_assert_int_eq(p->samples, p->batch == 0 ? 16 : 30);
    ck_assert_int_eq(p->step, t->step + 1);
    ck_assert_ptr_nonnull(p->engine);
    t->step = p->step;
    t->average = p->average;
}

static void on_epoch(void *user, const dp_epoch_summary *e)
{
    told *t = user;
    strcat(t->text, "E");
    ck_assert(e->validated && !e->has_accuracy && isfinite(e->valid_loss));
    ck_assert_int_eq(e->epochs, 2);
    ck_assert_double_eq(e->train_loss, t->average);
}

START_TEST(an_observer_is_told_in_order)
{
    run r;
    open_run(&r, 2, 0.25);
    told t = {.text = ""};
    const dp_train_observer observer = {.user = &t, .start = on_start, .batch = on_batch, .epoch = on_epoch};
    OK(train(&r, &observer));
    ck_assert_str_eq(t.text, "sbbEbbE");
    ck_assert_int_eq(r.summary.steps, 4);
    close_run(&r);
}
END_TEST

static json_t *read_events(const char *path)
{
    json_t *events = json_array();
    char line[8192];
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f)) {
        json_t *event = json_loads(line, 0, NULL);
        ck_assert_msg(json_is_object(event), "%s", line);
        ck_assert_ptr_nonnull(strchr(line, '\n'));
        json_array_append_new(events, event);
    }
    fclose(f);
    return events;
}

static const char *kind(const json_t *events, size_t i)
{
    return json_string_value(json_object_get(json_array_get(events, i), "event"));
}

START_TEST(the_log_has_every_event_once_and_in_order)
{
    static const char *const kinds[] = {"start", "batch", "batch",  "epoch",  "batch",
                                        "batch", "epoch", "device", "device", "end"};
    run r;
    open_run(&r, 2, 0.25);
    r.config.log = scratch("events");
    OK(train(&r, NULL));
    json_t *events = read_events(scratch("events"));
    ck_assert_uint_eq(json_array_size(events), sizeof kinds / sizeof *kinds);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        ck_assert_str_eq(kind(events, i), kinds[i]);
    json_decref(events);
    close_run(&r);
}
END_TEST

START_TEST(numbers_that_are_not_finite_are_null)
{
    dp_log *log;
    OK(dp_log_open(scratch("log"), &log, &err));
    OK(dp_log_begin(log, NULL, &err));
    const dp_train_progress p = {.step = 3, .lr = 0.5};
    const dp_step_result result = {
        .loss = NAN, .devices = 2, .chunk_sizes = {3, 2}, .device_losses = {INFINITY, 0.5}};
    OK(dp_log_batch(log, &p, &result, &err));
    const dp_epoch_summary e = {.train_loss = -INFINITY, .validated = true, .valid_loss = NAN};
    OK(dp_log_epoch(log, &e, &err));
    dp_log_close(log);
    json_t *events = read_events(scratch("log"));
    const json_t *batch = json_array_get(events, 0), *epoch = json_array_get(events, 1);
    const json_t *losses = json_object_get(batch, "device_losses");
    ck_assert(json_is_null(json_object_get(batch, "loss")));
    ck_assert(json_is_null(json_array_get(losses, 0)));
    ck_assert_double_eq(json_real_value(json_array_get(losses, 1)), 0.5);
    ck_assert_int_eq(json_integer_value(json_object_get(batch, "samples")), 5);
    ck_assert(json_is_null(json_object_get(epoch, "train_loss")));
    ck_assert(json_is_null(json_object_get(epoch, "valid_loss")));
    ck_assert_ptr_null(json_object_get(epoch, "valid_accuracy"));
    json_decref(events);
    OK(dp_log_batch(NULL, &p, &result, &err)); /* no log is no error */
    OK(dp_log_epoch(NULL, &e, &err));
    OK(dp_log_end(NULL, "completed", 0, 0, &err));
}
END_TEST

START_TEST(a_log_that_cannot_be_written_ends_the_run)
{
    run r;
    open_run(&r, 2, 0);
    r.config.log = "/dev/full";
    ck_assert_int_eq(train(&r, NULL), DP_ERROR_IO);
    assert_says("cannot write '/dev/full'");
    close_run(&r);
}
END_TEST

/* ---- the directory ---- */

static int files_in(const char *path)
{
    DIR *d = opendir(path);
    ck_assert_ptr_nonnull(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d)) != NULL;)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

START_TEST(without_directory_save_and_log_nothing_is_written)
{
    run r;
    open_run(&r, 2, 0.25);
    int before = files_in(scratch("."));
    OK(train(&r, NULL));
    ck_assert_int_eq(files_in(scratch(".")), before);
    close_run(&r);
}
END_TEST

START_TEST(the_result_is_what_was_saved)
{
    run r;
    open_run(&r, 2, 0.25);
    float saved[WEIGHTS], checkpoint[WEIGHTS];
    r.config.model_dir = scratch("model");
    r.config.save = scratch("final");
    OK(train(&r, NULL));
    dp_load_report report;
    OK(dp_weights_load(scratch("final"), r.model, false, &(dp_model_state){.weights = saved}, &report, &err));
    OK(dp_weights_load(scratch("model/model_epoch_1.safetensors"), r.model, false,
                       &(dp_model_state){.weights = checkpoint}, &report, &err));
    ck_assert_int_eq(memcmp(saved, r.weights, sizeof saved), 0);
    ck_assert_int_eq(memcmp(checkpoint, r.weights, sizeof checkpoint), 0);
    dp_model *model;
    dp_checkpoint_info info;
    OK(dp_checkpoint_open(scratch("final"), &model, &info, &err));
    dp_model_free(model);
    ck_assert_int_eq(info.epoch, -1);
    ck_assert_int_eq(info.criterion, DP_LOSS_MSE);
    ck_assert_double_eq(info.valid_split, 0.25);
    /* log.jsonl, .lock, two epochs and the best; resume.json and the two states that it names */
    ck_assert_int_eq(files_in(scratch("model")), 8);
    close_run(&r);
}
END_TEST

/* The rate of the second epoch is far too high. */
START_TEST(what_is_not_finite_is_named_and_spoils_no_checkpoint)
{
    run r;
    open_run(&r, 2, 0);
    r.config.model_dir = scratch("model");
    r.config.lr_step = 1;
    r.config.lr_gamma = 1e33;
    ck_assert_int_eq(train(&r, NULL), DP_ERROR_NONFINITE);
    assert_says("epoch 1, batch 1");
    assert_says(on("cpu:0", "cuda:0"));
    ck_assert(!dp_file_exists(scratch("model/model_epoch_1.safetensors")));
    dp_load_report report;
    OK(dp_weights_load(scratch("model/model_epoch_0.safetensors"), r.model, false,
                       &(dp_model_state){.weights = r.weights}, &report, &err));
    for (int i = 0; i < WEIGHTS; i++)
        ck_assert(isfinite(r.weights[i]));
    /* the directory is free again */
    dp_model_dir dir;
    OK(dp_model_dir_open(scratch("model"), &dir, &err));
    dp_model_dir_close(&dir);
    close_run(&r);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("train");
    TCase *t = add_case(s, "arithmetic");
    tcase_add_loop_test(t, a_run_is_what_the_formulas_say, 1, 4);
    tcase_add_test(t, max_steps_ends_a_run_within_an_epoch);
    tcase_add_test(t, the_rate_is_a_staircase);
    tcase_add_test(t, counts_below_one_are_refused);
    tcase_add_test(t, evaluation_is_the_mean_over_all_samples);
    t = add_case(s, "events");
    tcase_add_test(t, an_observer_is_told_in_order);
    tcase_add_test(t, the_log_has_every_event_once_and_in_order);
    tcase_add_test(t, numbers_that_are_not_finite_are_null);
    tcase_add_test(t, a_log_that_cannot_be_written_ends_the_run);
    t = add_case(s, "files");
    tcase_add_test(t, without_directory_save_and_log_nothing_is_written);
    tcase_add_test(t, the_result_is_what_was_saved);
    tcase_add_test(t, what_is_not_finite_is_named_and_spoils_no_checkpoint);
    return run_tests(argc, argv, s);
}
