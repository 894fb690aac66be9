/* The training loop: its arithmetic against a reference in double precision, its files, what it tells. */
#include <check.h>
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "scratch.h"
#include "train/train.h"

static dp_error err;

#define OK(call) ck_assert_msg((call) == DP_OK, "%s", err.message)

static void assert_says(const char *part)
{
    ck_assert_msg(strstr(err.message, part) != NULL, "\"%s\" is not in: %s", part, err.message);
}

/* ---- data: y = f(x), and its model ---- */

enum { SAMPLES = 40, IN = 4, OUT = 2, WEIGHTS = OUT * IN + OUT };

static float xs[SAMPLES][IN], ys[SAMPLES][OUT];

static dp_tensor tensor_of(const char *name, dp_dtype dtype, int rank, const int64_t *shape, const void *data)
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

static const char *write_tensors(const char *name, const dp_tensor *tensors, int count)
{
    const char *path = scratch(name);
    OK(dp_safetensors_write(path, tensors, count, NULL, 0, &err));
    return path;
}

static dp_model *linear_model(int64_t in, int64_t out)
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

static void open_devices(run *r, int devices)
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

static void open_run(run *r, int devices, double valid_split)
{
    static const char *const command[] = {"dptrain", "train"};
    memset(r, 0, sizeof *r);
    for (int i = 0; i < SAMPLES; i++) {
        for (int k = 0; k < IN; k++)
            xs[i][k] = (float)((i * IN + k) * 37 % 19) / 19 - 0.5F;
        ys[i][0] = xs[i][0] - xs[i][1];
        ys[i][1] = 2 * xs[i][3] + 0.1F;
    }
    const dp_tensor tensors[] = {TENSOR("x", DP_F32, xs, SAMPLES, IN), TENSOR("y", DP_F32, ys, SAMPLES, OUT)};
    char source[2200];
    snprintf(source, sizeof source, "safetensors:%s", write_tensors("data", tensors, 2));
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

static dp_status train(run *r, const dp_train_observer *observer)
{
    return dp_train(r->context, r->model, &(dp_model_state){.weights = r->weights}, r->train, r->valid,
                    &r->config, observer, &r->summary, &err);
}

static void close_run(run *r)
{
    dp_model_free(r->model);
    dp_dataset_free(r->train);
    dp_dataset_free(r->valid);
    dp_context_close(r->context);
}

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
    /* log.jsonl, .lock, two epochs and the best */
    ck_assert_int_eq(files_in(scratch("model")), 5);
    close_run(&r);
}
END_TEST

static void touch(const char *name)
{
    scratch_write(name, "", 0);
}

START_TEST(a_directory_is_locked_and_cleared_of_checkpoints_alone)
{
    dp_model_dir first, second;
    OK(dp_model_dir_open(scratch("a/b"), false, &first, &err));
    ck_assert_int_eq(dp_model_dir_open(scratch("a/b"), true, &second, &err), DP_ERROR_IO);
    assert_says("another run is using");
    dp_model_dir_close(&second); /* as a failed open leaves it */
    touch("a/b/model_epoch_12.safetensors");
    touch("a/b/model_best.safetensors");
    touch("a/b/mine.safetensors");
    touch("a/b/model_best.safetensors.bak");
    dp_model_dir_close(&first);
    ck_assert_int_eq(dp_model_dir_open(scratch("a/b"), false, &first, &err), DP_ERROR_USAGE);
    assert_says("already holds a checkpoint");
    OK(dp_model_dir_open(scratch("a/b"), true, &first, &err)); /* the refused one holds no lock */
    ck_assert(dp_file_exists(scratch("a/b/model_best.safetensors")));
    OK(dp_model_dir_clear(&first, &err));
    dp_model_dir_close(&first);
    ck_assert(!dp_file_exists(scratch("a/b/model_epoch_12.safetensors")));
    ck_assert(!dp_file_exists(scratch("a/b/model_best.safetensors")));
    ck_assert(dp_file_exists(scratch("a/b/mine.safetensors")));
    ck_assert(dp_file_exists(scratch("a/b/model_best.safetensors.bak")));
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
    OK(dp_model_dir_open(scratch("model"), true, &dir, &err));
    dp_model_dir_close(&dir);
    close_run(&r);
}
END_TEST

/* ---- checkpoints ---- */

START_TEST(a_checkpoint_says_what_it_was_told)
{
    dp_model *model = linear_model(3, 2), *read;
    const float weights[8] = {1, -2, 3, 0.1F, 1e-38F, 6, 7, 8};
    const dp_checkpoint_info info = {.criterion = DP_LOSS_BCE_WITH_LOGITS,
                                     .pos_weight = 0.1,
                                     .normalize_channels = 3,
                                     .mean = {0.485F, 0.456F, 0.406F},
                                     .std = {0.229F, 1e-9F, 0.225F},
                                     .data_seed = UINT64_MAX,
                                     .valid_split = 1.0 / 3,
                                     .epoch = 41};
    OK(dp_checkpoint_write(scratch("w"), model, &(dp_model_state){.weights = (float *)weights}, &info, &err));
    dp_checkpoint_info got;
    OK(dp_checkpoint_open(scratch("w"), &read, &got, &err));
    ck_assert_int_eq(got.criterion, info.criterion);
    ck_assert_double_eq(got.pos_weight, info.pos_weight);
    ck_assert_int_eq(got.normalize_channels, 3);
    ck_assert_int_eq(memcmp(got.mean, info.mean, sizeof info.mean), 0);
    ck_assert_int_eq(memcmp(got.std, info.std, sizeof info.std), 0);
    ck_assert_uint_eq(got.data_seed, UINT64_MAX);
    ck_assert_double_eq(got.valid_split, info.valid_split);
    ck_assert_int_eq(got.epoch, 41);
    ck_assert_str_eq(dp_model_description(read), dp_model_description(model));
    float back[8];
    dp_load_report report;
    OK(dp_weights_load(scratch("w"), read, false, &(dp_model_state){.weights = back}, &report, &err));
    ck_assert_int_eq(memcmp(back, weights, sizeof back), 0);
    ck_assert(report.loaded == 2 && report.stripped == 0 && report.skipped == 0);
    dp_model_free(model);
    dp_model_free(read);
}
END_TEST

/* A file of one parameter whose metadata has, beside the model's description, the given pair. */
static dp_status open_with(const char *key, const char *value, dp_checkpoint_info *info)
{
    static const float bias[2];
    dp_model *model = linear_model(3, 2), *read;
    const dp_tensor tensor = TENSOR("bias", DP_F32, bias, 2);
    const dp_metadata metadata[] = {{"model", (char *)dp_model_description(model)},
                                    {"loss", strcmp(key, "loss") == 0 ? (char *)value : "mse"},
                                    {(char *)key, (char *)value}};
    OK(dp_safetensors_write(scratch("m"), &tensor, 1, metadata, strcmp(key, "loss") == 0 ? 2 : 3, &err));
    dp_status status = dp_checkpoint_open(scratch("m"), &read, info, &err);
    dp_model_free(read);
    dp_model_free(model);
    return status;
}

START_TEST(metadata_is_not_trusted)
{
    static const char *const wrong[][2] = {
        {"loss", "hinge"},
        {"loss", ""},
        {"pos_weight", "0"},
        {"pos_weight", "-1"},
        {"pos_weight", "nan"},
        {"pos_weight", "inf"},
        {"valid_split", "1"},
        {"valid_split", "-0.1"},
        {"valid_split", "nan"},
        {"valid_split", "x"},
        {"pos_weight", "1x"},
        {"epoch", "1e300"},
        {"epoch", "-1"},
        {"data_seed", "-1"},
        {"data_seed", ""},
        {"data_seed", "99999999999999999999"},
        {"normalization", "{"},
        {"normalization", "[]"},
        {"normalization", "{\"mean\":[0],\"std\":[0]}"},
        {"normalization", "{\"mean\":[0,0],\"std\":[1]}"},
        {"normalization", "{\"mean\":[\"0\"],\"std\":[1]}"},
        {"normalization", "{\"mean\":[0,0,0,0,0],\"std\":[1,1,1,1,1]}"},
        {"normalization", "{\"mean\":[1e300],\"std\":[1]}"},
        {"normalization", "{\"mean\":[0],\"std\":[1e-300]}"},
    };
    dp_checkpoint_info info;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        dp_status status = open_with(wrong[i][0], wrong[i][1], &info);
        ck_assert_msg(status == DP_ERROR_MISMATCH, "%s %s: status %d", wrong[i][0], wrong[i][1], (int)status);
    }
    OK(open_with("note", "anything", &info));
    ck_assert_int_eq(info.epoch, -1);
    ck_assert_int_eq(info.criterion, DP_LOSS_MSE);
}
END_TEST

START_TEST(files_that_are_no_checkpoint_are_refused)
{
    static const float values[2];
    const dp_tensor tensor = TENSOR("bias", DP_F32, values, 2);
    dp_model *model;
    dp_checkpoint_info info;
    ck_assert_int_eq(dp_checkpoint_open(scratch("none"), &model, &info, &err), DP_ERROR_IO);
    ck_assert_ptr_null(model);
    scratch_write("short", "12345", 5);
    ck_assert_int_eq(dp_checkpoint_open(scratch("short"), &model, &info, &err), DP_ERROR_IO);
    ck_assert_int_eq(dp_checkpoint_open(write_tensors("bare", &tensor, 1), &model, &info, &err),
                     DP_ERROR_MISMATCH);
    assert_says("does not say which model");
    ck_assert_ptr_null(model);
}
END_TEST

/* ---- weights by name ---- */

static float w23[6] = {1, 2, 3, 4, 5, 6}, b2[2] = {7, 8};

static dp_status load(const dp_tensor *tensors, int count, bool partial, float out[8], dp_load_report *report)
{
    dp_model *model = linear_model(3, 2);
    for (int i = 0; i < 8; i++)
        out[i] = -1;
    dp_status status = dp_weights_load(write_tensors("w", tensors, count), model, partial,
                                       &(dp_model_state){.weights = out}, report, &err);
    dp_model_free(model);
    return status;
}

START_TEST(module_prefixes_are_stripped)
{
    float out[8];
    dp_load_report report;
    const dp_tensor one[] = {TENSOR("module.weight", DP_F32, w23, 2, 3), TENSOR("bias", DP_F32, b2, 2)};
    OK(load(one, 2, false, out, &report));
    ck_assert(report.loaded == 2 && report.stripped == 1 && report.skipped == 0);
    for (int i = 0; i < 8; i++)
        ck_assert_float_eq(out[i], (float)(i + 1));
    const dp_tensor two[] = {TENSOR("module.module.weight", DP_F32, w23, 2, 3),
                             TENSOR("module.bias", DP_F32, b2, 2)};
    OK(load(two, 2, false, out, &report));
    ck_assert_int_eq(report.stripped, 2);
    const dp_tensor not_one[] = {TENSOR("submodule.weight", DP_F32, w23, 2, 3),
                                 TENSOR("bias", DP_F32, b2, 2)};
    ck_assert_int_eq(load(not_one, 2, false, out, &report), DP_ERROR_MISMATCH);
    assert_says("unexpected key(s): \"submodule.weight\"");
    const dp_tensor both[] = {TENSOR("module.bias", DP_F32, b2, 2), TENSOR("bias", DP_F32, b2, 2)};
    ck_assert_int_eq(load(both, 2, true, out, &report), DP_ERROR_MISMATCH);
    assert_says("'bias' twice");
}
END_TEST

/* A replica wrapped within a model: fc1.module.weight. */
START_TEST(module_is_stripped_after_a_dot_too)
{
    dp_model *model;
    const dp_model_config config = {
        .name = "mlp", .input_rank = 1, .input_shape = {3}, .outputs = 1, .hidden_count = 1, .hidden = {2}};
    OK(dp_model_build(&config, &model, &err));
    const dp_tensor tensors[] = {TENSOR("fc1.module.weight", DP_F32, w23, 2, 3),
                                 TENSOR("module.fc1.module.bias", DP_F32, b2, 2),
                                 TENSOR("fc2.weight", DP_F32, w23, 1, 2), TENSOR("fc2.bias", DP_F32, b2, 1)};
    float out[11];
    ck_assert_int_eq(dp_model_elements(model), 11);
    dp_load_report report;
    OK(dp_weights_load(write_tensors("w", tensors, 4), model, false, &(dp_model_state){.weights = out},
                       &report, &err));
    ck_assert(report.loaded == 4 && report.stripped == 2 && report.skipped == 0);
    ck_assert(out[5] == 6 && out[7] == 8);
    dp_model_free(model);
}
END_TEST

START_TEST(half_precision_is_widened_and_integers_are_refused)
{
    static const uint16_t half[2] = {0x3C00, 0xC000}, brain[6] = {0x3F80, 0xC000, 0x3F80, 0, 0, 0};
    static const int64_t whole[2] = {7, 8};
    float out[8];
    dp_load_report report;
    const dp_tensor floats[] = {TENSOR("weight", DP_BF16, brain, 2, 3), TENSOR("bias", DP_F16, half, 2)};
    OK(load(floats, 2, false, out, &report));
    ck_assert(out[0] == 1 && out[1] == -2 && out[6] == 1 && out[7] == -2);
    const dp_tensor integers[] = {TENSOR("weight", DP_F32, w23, 2, 3), TENSOR("bias", DP_I64, whole, 2)};
    ck_assert_int_eq(load(integers, 2, false, out, &report), DP_ERROR_MISMATCH);
    assert_says("\"bias\" is I64 [2] in the file, [2] in the model");
    ck_assert_float_eq(out[0], -1); /* nothing is loaded from a file that does not fit */
    OK(load(integers, 2, true, out, &report));
    ck_assert(report.loaded == 1 && report.skipped == 1);
    ck_assert(out[5] == 6 && out[6] == -1);
}
END_TEST

START_TEST(what_does_not_fit_is_listed)
{
    static char names[20][200];
    dp_tensor many[20];
    float out[8];
    dp_load_report report;
    for (int i = 0; i < 20; i++) {
        snprintf(names[i], sizeof names[i], "extra%02d.%0150d", i, 0);
        many[i] = TENSOR(names[i], DP_F32, b2, 2);
    }
    many[0] = TENSOR("weight", DP_F32, w23, 3, 2);
    ck_assert_int_eq(load(many, 20, false, out, &report), DP_ERROR_MISMATCH);
    assert_says("missing key(s): \"bias\"");
    assert_says("\"extra06.");
    assert_says(" and 13 more");
    assert_says("size mismatch: \"weight\" is F32 [3, 2] in the file, [2, 3] in the model");
    assert_says("--init-partial");
    ck_assert_int_eq(load(many, 20, true, out, &report), DP_ERROR_MISMATCH); /* nothing fits */
    many[1] = TENSOR("bias", DP_F32, b2, 2);
    OK(load(many, 20, true, out, &report));
    ck_assert(report.loaded == 1 && report.skipped == 1);
    ck_assert(out[0] == -1 && out[6] == 7);
}
END_TEST

static TCase *add_case(Suite *s, const char *name)
{
    TCase *t = tcase_create(name);
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, scratch_make, scratch_remove);
    suite_add_tcase(s, t);
    return t;
}

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
    tcase_add_test(t, a_directory_is_locked_and_cleared_of_checkpoints_alone);
    tcase_add_test(t, what_is_not_finite_is_named_and_spoils_no_checkpoint);
    t = add_case(s, "weights");
    tcase_add_test(t, a_checkpoint_says_what_it_was_told);
    tcase_add_test(t, metadata_is_not_trusted);
    tcase_add_test(t, files_that_are_no_checkpoint_are_refused);
    tcase_add_test(t, module_prefixes_are_stripped);
    tcase_add_test(t, module_is_stripped_after_a_dot_too);
    tcase_add_test(t, half_precision_is_widened_and_integers_are_refused);
    tcase_add_test(t, what_does_not_fit_is_listed);
    return run_tests(argc, argv, s);
}
