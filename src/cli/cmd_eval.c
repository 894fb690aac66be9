#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"

typedef struct evaluation {
    const cli_options *options;
    dp_checkpoint_info info;
    dp_model *model;
    dp_context *context;
    int ids[DP_ENGINE_MAX_DEVICES];
    dp_engine_config engine;
    dp_dataset *train, *valid;
    dp_model_state state;
    int64_t batch_size, workers;
} evaluation;

/* Without --data it is Fashion-MNIST, if that is what the model takes. */
static dp_status check_default_data(const evaluation *e, dp_error *err)
{
    int64_t shape[3], classes[3];
    if (cli_given(e->options, OPT_DATA))
        return DP_OK;
    bool fits = dp_model_input_shape(e->model, shape) == 3 && shape[0] == 1 && shape[1] == 28 &&
                shape[2] == 28 && dp_model_output_shape(e->model, classes) == 1 && classes[0] >= 10 &&
                e->info.criterion == DP_LOSS_CROSS_ENTROPY;
    if (fits)
        return DP_OK;
    return dp_fail(
        err, DP_ERROR_USAGE,
        "eval takes fashion-mnist where no --data is given: 1x28x28 images of 10 classes, which do "
        "not fit the model of '%s' (%s); give --data SOURCE",
        e->options->value[OPT_INIT], dp_model_name(e->model));
}

/* The data as the checkpoint's run saw it, unless told otherwise. */
static dp_status open_data(evaluation *e, dp_error *err)
{
    const cli_options *o = e->options;
    dp_data_config config;
    DP_TRY(check_default_data(e, err));
    DP_TRY(cli_data_config(o, &config, err));
    if (!cli_given(o, OPT_SEED))
        config.seed = e->info.data_seed;
    if (!cli_given(o, OPT_VALID_SPLIT)) /* a test part is used even if training did without validation */
        config.valid_split = e->info.valid_split;
    if (!config.normalize_set) {
        config.normalize_set = true;
        config.normalize_channels = e->info.normalize_channels;
        memcpy(config.mean, e->info.mean, sizeof config.mean);
        memcpy(config.std, e->info.std, sizeof config.std);
    }
    int64_t shape[3];
    int rank = dp_model_input_shape(e->model, shape);
    if (rank == 3) {
        memcpy(config.synthetic_shape, shape, sizeof shape);
        memcpy(config.size, shape + 1, sizeof config.size);
    }
    rank = dp_model_output_shape(e->model, shape);
    config.synthetic_masks = rank == 3;
    if (e->info.criterion == DP_LOSS_CROSS_ENTROPY)
        config.classes = shape[0];
    DP_TRY(dp_data_open(&config, &e->train, &e->valid, err));
    return cli_check_split(o, e->valid, err);
}

static dp_status check_fit(const evaluation *e, const dp_dataset_info *d, dp_error *err)
{
    int64_t shape[3], outputs = 1;
    int rank = dp_model_input_shape(e->model, shape);
    bool fits = rank == d->rank;
    for (int i = 0; i < rank && fits; i++)
        fits = shape[i] == d->shape[i];
    if (!fits)
        return dp_fail(err, DP_ERROR_MISMATCH,
                       "the samples of this data (%s) do not have the shape that model '%s' takes",
                       d->description, dp_model_name(e->model));
    bool labels = e->info.criterion == DP_LOSS_CROSS_ENTROPY;
    if (labels != (d->target == DP_TARGET_LABELS))
        return dp_fail(err, DP_ERROR_MISMATCH,
                       "the checkpoint was trained with loss %s, which the targets of %s do not fit",
                       dp_loss_names[e->info.criterion], d->description);
    rank = dp_model_output_shape(e->model, shape);
    for (int i = 0; i < rank; i++)
        outputs *= shape[i];
    if (!labels && outputs != d->target_elements)
        return dp_fail(
            err, DP_ERROR_MISMATCH, "the model has %lld output%s, but the data has %lld value%s a sample",
            (long long)outputs, dp_s(outputs), (long long)d->target_elements, dp_s(d->target_elements));
    return DP_OK;
}

static dp_status print_json(const evaluation *e, const dp_dataset_info *d, const dp_evaluation *r,
                            const char *part, dp_error *err)
{
    json_t *json =
        json_pack("{s:s, s:s, s:I, s:s, s:f}", "data", d->description, "part", part, "samples",
                  (json_int_t)r->samples, "loss_name", dp_loss_names[e->info.criterion], "loss", r->loss);
    bool whole = json &&
                 (!r->has_accuracy || json_object_set_new(json, "accuracy", json_real(r->accuracy)) == 0) &&
                 (!r->has_overlap || (json_object_set_new(json, "iou", json_real(r->iou)) == 0 &&
                                      json_object_set_new(json, "f1", json_real(r->f1)) == 0));
    char *text = whole ? json_dumps(json, JSON_REAL_PRECISION(10)) : NULL;
    json_decref(json);
    if (!text)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory: cannot print the result");
    printf("%s\n", text);
    free(text);
    return DP_OK;
}

static dp_status print_result(const evaluation *e, const dp_dataset_info *d, const dp_evaluation *r,
                              dp_error *err)
{
    const char *part = !e->valid ? "all" : d->is_test ? "test" : "validation";
    if (cli_given(e->options, OPT_JSON))
        return print_json(e, d, r, part, err);
    printf("%s%s of %s\n", part, !e->valid ? "" : d->is_test ? " part" : " share", d->description);
    printf("%s %.6f\n", dp_loss_names[e->info.criterion], r->loss);
    if (r->has_accuracy)
        printf("accuracy %.2f %%\n", 100 * r->accuracy);
    if (r->has_overlap)
        printf("IoU %.4f\nF1 %.4f\n", r->iou, r->f1);
    return DP_OK;
}

static dp_status evaluate(evaluation *e, dp_error *err)
{
    const cli_options *o = e->options;
    static const char *const convs[] = {"auto", "direct", NULL};
    const char *path = o->value[OPT_INIT];
    int conv = 0;
    if (!path)
        return dp_fail(err, DP_ERROR_USAGE, "eval needs --init FILE, the checkpoint to evaluate");
    e->engine = dp_engine_defaults();
    e->batch_size = 64;
    e->workers = 2;
    DP_TRY(cli_integer(o, OPT_BATCH_SIZE, 1, 1 << 30, &e->batch_size, err));
    DP_TRY(cli_integer(o, OPT_NUM_WORKERS, 1, 256, &e->workers, err));
    DP_TRY(cli_choice(o, OPT_CONV, convs, &conv, err));
    DP_TRY(cli_open_devices(o, &e->context, e->ids, &e->engine, err));
    DP_TRY(dp_checkpoint_open(path, &e->model, &e->info, err));
    DP_TRY(dp_model_state_create(e->model, &e->state, err));
    dp_load_report report;
    DP_TRY(dp_weights_load(path, e->model, false, &e->state, &report, err));
    DP_TRY(open_data(e, err));
    const dp_dataset *set = e->valid ? e->valid : e->train;
    const dp_dataset_info *d = dp_dataset_info_of(set);
    DP_TRY(check_fit(e, d, err));
    e->engine.criterion = e->info.criterion;
    e->engine.pos_weight = e->info.pos_weight;
    e->engine.direct_convolution = conv == 1;
    cli_print_devices(e->context, &e->engine);
    cli_watch(&e->engine, false);
    DP_TRY(cli_try_used_links(e->context, &e->engine, false, false, NULL, err));
    DP_TRY(cli_warn_of_dark_masks(set, err));
    dp_evaluation result;
    DP_TRY(dp_evaluate(e->context, e->model, &e->state, set, &e->engine, e->batch_size, (int)e->workers,
                       &result, err));
    return print_result(e, d, &result, err);
}

dp_status cli_eval(int argc, char **argv, int *code, dp_error *err)
{
    (void)code;
    cli_options options;
    DP_TRY(cli_parse(CLI_EVAL, argc - 2, argv + 2, &options, err));
    if (cli_given(&options, OPT_HELP)) {
        cli_print_help(CLI_EVAL);
        return DP_OK;
    }
    evaluation e = {.options = &options};
    dp_status status = evaluate(&e, err);
    dp_model_state_free(&e.state);
    dp_dataset_free(e.train);
    dp_dataset_free(e.valid);
    dp_model_free(e.model);
    dp_context_close(e.context);
    return status;
}
