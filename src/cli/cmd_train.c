#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"

enum { MAX_FREEZE = 64 };

typedef struct training {
    const cli_options *options;
    dp_train_config config;
    dp_data_config data;
    dp_model_config model_config;
    dp_model_traits traits;
    dp_context *context;
    dp_dataset *train, *valid;
    dp_model *model;
    int ids[DP_ENGINE_MAX_DEVICES];
    double shares[DP_ENGINE_MAX_DEVICES];
    int share_count;
    char *freeze_text;
    const char *freeze[MAX_FREEZE];
    int loss;                   /* -1: from the data */
    bool scale_lr, weigh_masks; /* --pos-weight auto */
    int64_t per_device, print_freq;
    uint64_t max_memory; /* of each device; 0: no limit */
} training;

/* ---- options that need neither devices nor data ---- */

static dp_status read_optimizer(training *t, dp_error *err)
{
    const cli_options *o = t->options;
    static const char *const optimizers[] = {"sgd", "adamw", NULL}, *const scales[] = {"none", "linear",
                                                                                       NULL};
    dp_train_config *c = &t->config;
    dp_optimizer_config *opt = &c->engine.optimizer;
    int optimizer = 0, scale = 0;
    DP_TRY(cli_choice(o, OPT_OPTIMIZER, optimizers, &optimizer, err));
    DP_TRY(cli_choice(o, OPT_LR_SCALE, scales, &scale, err));
    DP_TRY(cli_number(o, OPT_LR, CLI_ABOVE_0, FLT_MAX, &c->lr, err));
    DP_TRY(cli_number(o, OPT_MOMENTUM, 0, CLI_BELOW_1, &opt->momentum, err));
    DP_TRY(cli_number(o, OPT_WEIGHT_DECAY, 0, FLT_MAX, &opt->weight_decay, err));
    DP_TRY(cli_integer(o, OPT_LR_STEP, 0, INT64_MAX, &c->lr_step, err));
    DP_TRY(cli_number(o, OPT_LR_GAMMA, 0, FLT_MAX, &c->lr_gamma, err));
    opt->adamw = optimizer == 1;
    opt->nesterov = cli_given(o, OPT_NESTEROV);
    t->scale_lr = scale == 1;
    if (opt->adamw && cli_given(o, OPT_MOMENTUM) && opt->momentum != 0 && opt->momentum != 0.9)
        return dp_fail(err, DP_ERROR_USAGE, "--momentum is for sgd: adamw has betas of its own");
    if (opt->adamw && opt->nesterov)
        return dp_fail(err, DP_ERROR_USAGE, "--nesterov is for sgd");
    if (opt->nesterov && opt->momentum == 0)
        return dp_fail(err, DP_ERROR_USAGE, "--nesterov needs a --momentum above 0");
    return DP_OK;
}

/* --overwrite asks for a fresh start, unless --resume says otherwise. */
static dp_status read_files(training *t, dp_error *err)
{
    const cli_options *o = t->options;
    dp_train_config *c = &t->config;
    const char *resume = o->value[OPT_RESUME];
    DP_TRY(cli_integer(o, OPT_SAVE_EVERY, 0, INT64_MAX, &c->save_every, err));
    DP_TRY(cli_integer(o, OPT_KEEP, 1, INT32_MAX, &c->keep, err));
    c->overwrite = cli_given(o, OPT_OVERWRITE);
    c->model_dir = cli_given(o, OPT_MODEL_DIR) ? o->value[OPT_MODEL_DIR] : "model";
    if (!resume)
        c->resume = c->overwrite ? DP_RESUME_NEVER : DP_RESUME_AUTO;
    else if (strcmp(resume, "never") == 0)
        c->resume = DP_RESUME_NEVER;
    else if (strcmp(resume, "auto") != 0) {
        if (!*resume)
            return dp_fail(err, DP_ERROR_USAGE, "--resume needs auto, never or the name of a directory");
        c->resume = DP_RESUME_FROM;
        c->resume_from = resume;
    }
    c->save = o->value[OPT_SAVE];
    c->log = o->value[OPT_LOG];
    c->trace = o->value[OPT_TRACE];
    c->report = o->value[OPT_REPORT];
    c->init = o->value[OPT_INIT];
    c->init_partial = cli_given(o, OPT_INIT_PARTIAL);
    return DP_OK;
}

static dp_status read_loop(training *t, dp_error *err)
{
    const cli_options *o = t->options;
    dp_train_config *c = &t->config;
    int64_t seed = 0, workers = c->workers;
    if (cli_given(o, OPT_BATCH_SIZE) && cli_given(o, OPT_BATCH_PER_DEVICE))
        return dp_fail(err, DP_ERROR_USAGE, "--batch-size and --batch-per-device exclude each other");
    DP_TRY(cli_integer(o, OPT_BATCH_SIZE, 1, 1 << 30, &c->batch_size, err));
    DP_TRY(cli_integer(o, OPT_BATCH_PER_DEVICE, 1, 1 << 24, &t->per_device, err));
    DP_TRY(cli_integer(o, OPT_N_EPOCH, 1, INT32_MAX, &c->epochs, err));
    DP_TRY(cli_integer(o, OPT_MAX_STEPS, 1, INT64_MAX, &c->max_steps, err));
    DP_TRY(cli_integer(o, OPT_ACCUMULATION, 0, 1 << 30, &c->accumulation_steps, err));
    DP_TRY(cli_integer(o, OPT_SEED, 0, INT64_MAX, &seed, err));
    DP_TRY(cli_integer(o, OPT_NUM_WORKERS, 1, 256, &workers, err));
    DP_TRY(cli_integer(o, OPT_PRINT_FREQ, 1, INT64_MAX, &t->print_freq, err));
    DP_TRY(cli_bytes(o, OPT_MAX_MEMORY, &t->max_memory, err));
    if (c->accumulation_steps == 0)
        c->accumulation_steps = 1;
    c->seed = c->engine.seed = (uint64_t)seed;
    c->workers = (int)workers;
    c->shuffle = !cli_given(o, OPT_NO_SHUFFLE);
    c->drop_last = cli_given(o, OPT_DROP_LAST);
    return read_files(t, err);
}

static dp_status read_loss(training *t, dp_error *err)
{
    const cli_options *o = t->options;
    dp_engine_config *e = &t->config.engine;
    int mode = DP_LOSS_GATHER;
    t->loss = -1;
    DP_TRY(cli_choice(o, OPT_LOSS, dp_loss_names, &t->loss, err));
    DP_TRY(cli_choice(o, OPT_LOSS_MODE, dp_loss_mode_names, &mode, err));
    t->weigh_masks = cli_given(o, OPT_POS_WEIGHT) && strcmp(o->value[OPT_POS_WEIGHT], "auto") == 0;
    if (!t->weigh_masks)
        DP_TRY(cli_number(o, OPT_POS_WEIGHT, CLI_ABOVE_0, FLT_MAX, &e->pos_weight, err));
    e->loss_mode = (dp_loss_mode)mode;
    return DP_OK;
}

static dp_status read_freeze(training *t, dp_error *err)
{
    const char *text = t->options->value[OPT_FREEZE];
    dp_engine_config *e = &t->config.engine;
    if (!text)
        return DP_OK;
    DP_TRY(dp_strdup(text, &t->freeze_text, err));
    char *rest = t->freeze_text, *pattern;
    while ((pattern = strsep(&rest, ",")) != NULL) {
        if (!*pattern || e->freeze_count == MAX_FREEZE)
            return dp_fail(err, DP_ERROR_USAGE,
                           "--freeze '%s': a comma-separated list of up to %d patterns is needed", text,
                           MAX_FREEZE);
        t->freeze[e->freeze_count++] = pattern;
    }
    e->freeze = t->freeze;
    return DP_OK;
}

static dp_status read_model(training *t, dp_error *err)
{
    DP_TRY(cli_model_config(t->options, &t->model_config, &t->traits, err));
    if (cli_given(t->options, OPT_INIT_PARTIAL) && !cli_given(t->options, OPT_INIT))
        return dp_fail(err, DP_ERROR_USAGE, "--init-partial needs --init FILE");
    return DP_OK;
}

/* Synthetic data comes in the model's usual shape, or in that of --size and --num-classes; pictures are
 * brought to --size. */
static dp_status shape_data(training *t, dp_error *err)
{
    dp_data_config *d = &t->data;
    bool synthetic = strncmp(d->source, "synthetic", strlen("synthetic")) == 0;
    if (cli_is_pictures(d->source))
        return cli_size(t->options, OPT_SIZE, d->size, err);
    if (cli_given(t->options, OPT_SIZE) && !synthetic)
        return dp_fail(err, DP_ERROR_USAGE, "--size is for synthetic data and pictures, not for '%s'",
                       d->source);
    memcpy(d->synthetic_shape, t->traits.usual_shape, sizeof d->synthetic_shape);
    d->synthetic_classes = t->traits.usual_classes;
    d->synthetic_masks = t->traits.dense;
    return cli_size(t->options, OPT_SIZE, &d->synthetic_shape[1], err);
}

static dp_status read_options(training *t, dp_error *err)
{
    DP_TRY(read_model(t, err));
    DP_TRY(read_optimizer(t, err));
    DP_TRY(read_loop(t, err));
    DP_TRY(read_loss(t, err));
    DP_TRY(cli_split(t->options, &t->config.engine, t->shares, &t->share_count, err));
    DP_TRY(read_freeze(t, err));
    DP_TRY(cli_data_config(t->options, &t->data, err));
    DP_TRY(shape_data(t, err));
    return cli_check_files(t->options, t->config.model_dir, t->data.source, err);
}

/* ---- devices, data, model ---- */

static dp_status apply_devices(training *t, dp_error *err)
{
    const cli_options *o = t->options;
    dp_train_config *c = &t->config;
    dp_engine_config *e = &c->engine;
    DP_TRY(cli_output_device(o, e, err));
    DP_TRY(cli_open_devices(o, &t->context, t->ids, e, err));
    DP_TRY(cli_check_shares(o, e, t->share_count, err));
    if (t->per_device > 0)
        c->batch_size = t->per_device * e->device_count;
    if (t->scale_lr)
        c->lr *= e->device_count;
    return DP_OK;
}

/* The loss that the targets are for, or the one that was asked for if it fits them. */
static dp_status choose_loss(training *t, const dp_dataset_info *d, dp_error *err)
{
    dp_engine_config *e = &t->config.engine;
    const dp_loss_kind natural[] = {DP_LOSS_CROSS_ENTROPY, DP_LOSS_MSE, DP_LOSS_BCE_WITH_LOGITS};
    e->criterion = t->loss < 0 ? natural[d->target] : (dp_loss_kind)t->loss;
    if ((e->criterion == DP_LOSS_CROSS_ENTROPY) != (d->target == DP_TARGET_LABELS))
        return dp_fail(err, DP_ERROR_USAGE, "--loss %s does not fit the data, whose targets are %s",
                       dp_loss_names[e->criterion], d->target == DP_TARGET_LABELS ? "labels" : "values");
    if (e->criterion != DP_LOSS_BCE_WITH_LOGITS && (e->pos_weight != 1 || t->weigh_masks))
        return dp_fail(err, DP_ERROR_USAGE, "--pos-weight is for --loss bce_with_logits, not %s",
                       dp_loss_names[e->criterion]);
    return DP_OK;
}

/* How many outputs the data asks for: classes, values, or channels of a mask. */
static dp_status count_outputs(training *t, const dp_dataset_info *d, dp_error *err)
{
    dp_model_config *m = &t->model_config;
    bool labels = d->target == DP_TARGET_LABELS;
    if (t->traits.dense && labels)
        return dp_fail(err, DP_ERROR_MISMATCH,
                       "model '%s' makes masks, but the targets of the data are labels", m->name);
    int64_t wanted = labels ? d->classes : d->target_elements;
    if (t->traits.dense && d->rank == 3) {
        int64_t area = d->shape[1] * d->shape[2];
        if (wanted % area != 0)
            return dp_fail(
                err, DP_ERROR_MISMATCH,
                "model '%s' makes masks of %lldx%lld, but the data has %lld target values a sample", m->name,
                (long long)d->shape[1], (long long)d->shape[2], (long long)wanted);
        wanted /= area;
    }
    if (labels && !m->outputs && wanted > CLI_MAX_CLASSES)
        return dp_fail(err, DP_ERROR_MISMATCH, "the largest label is %lld: that makes more than %d classes",
                       (long long)wanted - 1, CLI_MAX_CLASSES);
    if (!labels && m->outputs && m->outputs != wanted)
        return dp_fail(err, DP_ERROR_MISMATCH, "--num-classes %lld: the data has %lld target %s a sample",
                       (long long)m->outputs, (long long)wanted, t->traits.dense ? "channels" : "values");
    m->outputs = m->outputs ? m->outputs : wanted;
    return DP_OK;
}

/* --pos-weight auto. */
static dp_status weigh_masks(training *t, dp_error *err)
{
    double share;
    if (!t->weigh_masks)
        return DP_OK;
    DP_TRY(dp_dataset_positive_share(t->train, t->config.workers, &share, err));
    if (share <= 0 || share >= 1)
        return dp_fail(err, DP_ERROR_MISMATCH,
                       "--pos-weight auto: %s pixel of the training masks is marked (above half of white)",
                       share <= 0 ? "no" : "every");
    t->config.engine.pos_weight = (1 - share) / share;
    return DP_OK;
}

static dp_status make_model(training *t, dp_error *err)
{
    const dp_dataset_info *d = dp_dataset_info_of(t->train);
    dp_model_config *m = &t->model_config;
    m->input_rank = d->rank;
    memcpy(m->input_shape, d->shape, sizeof m->input_shape);
    DP_TRY(count_outputs(t, d, err));
    DP_TRY(choose_loss(t, d, err));
    DP_TRY(weigh_masks(t, err));
    return dp_model_build(m, &t->model, err);
}

static void print_final(const training *t, const dp_train_summary *s)
{
    if (!s->finished)
        cli_print_summary(s, &t->config.engine);
    if (!s->has_last || s->interrupted)
        return;
    if (!s->last.validated) {
        printf("training loss %.6f\n", s->last.train_loss);
        return;
    }
    const char *part = dp_dataset_info_of(t->valid)->is_test ? "test" : "validation";
    if (s->last.has_accuracy)
        printf("%s accuracy %.1f %%\n", part, 100 * s->last.valid_accuracy);
    else if (s->last.has_overlap)
        printf("%s IoU %.3f, F1 %.3f\n", part, s->last.valid_iou, s->last.valid_f1);
    else
        printf("%s loss %.6f\n", part, s->last.valid_loss);
}

/* The files that the user named and that are there now: a run that had nothing left to do has no trace. */
static void print_written(const dp_train_config *c, bool finished)
{
    const struct {
        const char *what, *path;
    } files[] = {{"weights", c->save}, {"report", c->report}, {"trace", finished ? NULL : c->trace}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i].path)
            fprintf(stderr, "%s written to %s\n", files[i].what, files[i].path);
}

/* LeNet, which nobody asked for, learns masks of one fixed size, by a last layer with as many outputs. */
static void warn_of_default_model(const training *t)
{
    const cli_options *o = t->options;
    bool masks = dp_dataset_info_of(t->train)->target == DP_TARGET_MASK;
    if (masks && !t->traits.dense && !cli_given(o, OPT_MODEL) && !cli_given(o, OPT_MODEL_TYPE))
        fprintf(stderr, "warning: the model is lenet, as no other is named; masks are what U-Nets are for: "
                        "--model-type vgg16\n");
}

static dp_status train(training *t, int *code, dp_error *err)
{
    cli_catch_signals();
    bool quiet = cli_given(t->options, OPT_QUIET);
    DP_TRY(read_options(t, err));
    DP_TRY(apply_devices(t, err));
    t->data.classes = t->model_config.outputs;
    DP_TRY(dp_data_open(&t->data, &t->train, &t->valid, err));
    DP_TRY(cli_check_split(t->options, t->valid, err));
    DP_TRY(make_model(t, err));
    if (!quiet)
        cli_print_devices(t->context, &t->config.engine);
    cli_watch(&t->config.engine, quiet);
    DP_TRY(cli_try_used_links(t->context, &t->config.engine, t->config.engine.loss_mode == DP_LOSS_GATHER,
                              quiet, NULL, err));
    if (!quiet && t->scale_lr)
        fprintf(stderr, "  lr is %g times %d device%s\n", t->config.lr / t->config.engine.device_count,
                t->config.engine.device_count, dp_s(t->config.engine.device_count));
    t->config.valid_split = t->data.valid_split;
    t->config.data_seed = t->data.seed;
    if (t->max_memory > 0)
        DP_TRY(cli_check_memory(t->context, t->model, t->train, t->valid, &t->config, t->max_memory, err));
    warn_of_default_model(t);
    if (cli_given(t->options, OPT_DRY_RUN))
        return cli_dry_run(t->context, t->model, t->train, t->valid, &t->config, err);
    DP_TRY(cli_warn_of_dark_masks(t->train, err));
    cli_progress progress;
    cli_progress_init(&progress, quiet, t->print_freq);
    dp_train_observer observer = cli_observer(&progress);
    observer.stop = cli_stop_wanted;
    dp_train_summary summary;
    dp_status status =
        dp_train(t->context, t->model, NULL, t->train, t->valid, &t->config, &observer, &summary, err);
    cli_progress_break(&progress);
    if (status == DP_ERROR_MEMORY)
        cli_suggest_batch(t->context, t->model, t->train, t->valid, &t->config, err);
    if (status != DP_OK)
        return status;
    print_final(t, &summary);
    if (!quiet && !summary.interrupted)
        print_written(&t->config, summary.finished);
    if (summary.interrupted)
        *code = cli_interrupted_code();
    if (summary.interrupted && !quiet)
        fprintf(stderr, "interrupted after %lld step%s; the same command continues from there\n",
                (long long)summary.steps, dp_s(summary.steps));
    return DP_OK;
}

static void close_training(training *t)
{
    dp_free(t->freeze_text);
    dp_model_free(t->model);
    dp_dataset_free(t->train);
    dp_dataset_free(t->valid);
    dp_context_close(t->context);
}

dp_status cli_train(int argc, char **argv, int *code, dp_error *err)
{
    cli_options options;
    DP_TRY(cli_parse(CLI_TRAIN, argc - 2, argv + 2, &options, err));
    if (cli_given(&options, OPT_HELP)) {
        cli_print_help(CLI_TRAIN);
        return DP_OK;
    }
    if (cli_list_models(&options))
        return DP_OK;
    training t = {.options = &options, .config = dp_train_defaults(), .print_freq = 20};
    t.config.argument_count = argc;
    t.config.arguments = (const char *const *)argv;
    dp_status status = train(&t, code, err);
    close_training(&t);
    return status;
}
