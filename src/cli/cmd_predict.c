#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "cli/cli.h"

enum { PICTURES_PER_DEVICE = 4 };

typedef struct prediction {
    const cli_options *options;
    dp_checkpoint_info info;
    dp_class_names classes;
    dp_model *model;
    dp_context *context;
    int ids[DP_ENGINE_MAX_DEVICES];
    dp_model_state state;
    dp_predict_config config;
    const char **inputs;
    cli_output csv;
    FILE *labels;
    bool ended;              /* what could be predicted has been */
    int64_t judged, correct; /* labels of pictures whose class is known */
} prediction;

static dp_status take_inputs(prediction *p, dp_error *err)
{
    const cli_options *o = p->options;
    int given = cli_given(o, OPT_PICTURES), count = given + o->file_count;
    if (count == 0)
        return dp_fail(err, DP_ERROR_USAGE, "predict needs --data PATH: a picture, or a folder of them");
    DP_TRY(dp_calloc((size_t)count, sizeof *p->inputs, "a list of files", &p->inputs, err));
    if (given)
        p->inputs[0] = o->value[OPT_PICTURES];
    for (int i = 0; i < o->file_count; i++)
        p->inputs[given + i] = o->files[i];
    p->config.inputs = p->inputs;
    p->config.input_count = count;
    return DP_OK;
}

/* A name with a comma, a quote or a line's end stands in quotes (RFC 4180). */
static void print_field(FILE *out, const char *text)
{
    if (!strpbrk(text, ",\"\r\n")) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', out);
        fputc(*text, out);
    }
    fputc('"', out);
}

static void on_done(void *user, const dp_prediction *r)
{
    prediction *p = user;
    if (r->mask) {
        printf("%s: %.2f %% marked, %s\n", r->picture, 100 * r->marked, r->mask);
        return;
    }
    p->judged += r->truth >= 0;
    p->correct += r->truth == r->label;
    print_field(p->labels, r->picture);
    fprintf(p->labels, ",%lld,%.6f", (long long)r->label, r->probability);
    if (p->classes.count) {
        fputc(',', p->labels);
        print_field(p->labels, r->class_name ? r->class_name : "");
    }
    fputc('\n', p->labels);
}

/* Only now: a run that ends with an error says that alone. */
static void on_start(void *user)
{
    const prediction *p = user;
    if (!cli_given(p->options, OPT_QUIET))
        cli_print_devices(p->context, &p->config.engine);
    if (p->info.criterion == DP_LOSS_CROSS_ENTROPY)
        fprintf(p->labels, "file,label,probability%s\n", p->classes.count ? ",class" : "");
}

static void on_end(void *user)
{
    ((prediction *)user)->ended = true;
}

static void on_note(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "note: %s\n", text);
}

static dp_status load_model(prediction *p, dp_error *err)
{
    const char *path = p->options->value[OPT_INIT];
    dp_load_report report;
    DP_TRY(dp_checkpoint_open(path, &p->model, &p->info, err));
    DP_TRY(dp_model_state_create(p->model, &p->state, err));
    DP_TRY(dp_checkpoint_class_names(path, &p->classes, err));
    p->info.named_classes = p->classes.count;
    p->info.class_names = (const char *const *)p->classes.list;
    return dp_weights_load(path, p->model, false, &p->state, &report, err);
}

static dp_status set_outputs(prediction *p, dp_error *err)
{
    const cli_options *o = p->options;
    const char *path = o->value[OPT_OUTPUT];
    bool labels = p->info.criterion == DP_LOSS_CROSS_ENTROPY;
    if (path && !*path)
        return dp_fail(err, DP_ERROR_USAGE, "--output needs the name of a %s", labels ? "file" : "folder");
    if (!labels && !path)
        return dp_fail(err, DP_ERROR_USAGE, "--output FOLDER is needed: this model makes masks");
    p->config.folder = path;
    p->config.overlay = cli_given(o, OPT_OVERLAY);
    p->config.resize = cli_given(o, OPT_RESIZE);
    p->labels = stdout;
    if (!labels)
        return DP_OK;
    if (path && (cli_same_file(path, o->value[OPT_INIT]) || cli_is_picture(path)))
        return dp_fail(err, DP_ERROR_USAGE, "--output '%s' would be written over %s", path,
                       cli_is_picture(path) ? "a picture" : "the file of --init");
    DP_TRY(cli_output_open(o, OPT_OUTPUT, "output", &p->csv, err));
    if (p->csv.file) {
        DP_TRY(cli_output_begin(&p->csv, err));
        p->labels = p->csv.file;
    }
    return DP_OK;
}

static void print_accuracy(const prediction *p, FILE *out)
{
    if (p->judged > 0 && (out == stdout || !cli_given(p->options, OPT_QUIET)))
        fprintf(out, "accuracy %.2f %%\n", 100 * (double)p->correct / (double)p->judged);
}

/* Pictures that turned out to be damaged do not cost the labels of the others. */
static dp_status predict_and_close(prediction *p, dp_error *err)
{
    bool to_file = p->csv.file;
    dp_error one = {0}, other = {0};
    dp_status status = dp_predict(p->context, p->model, &p->state, &p->config, &one), closed = DP_OK;
    if (p->ended && to_file)
        closed = cli_output_close(&p->csv, &other);
    if (status != DP_OK)
        return dp_fail(err, status, "%s%s%s", one.message, closed == DP_OK ? "" : "; ", other.message);
    if (closed != DP_OK)
        return dp_fail(err, closed, "%s", other.message);
    print_accuracy(p, to_file ? stdout : stderr); /* a CSV on stdout stays one */
    return DP_OK;
}

static dp_status predict(prediction *p, dp_error *err)
{
    static const char *const convs[] = {"auto", "direct", NULL};
    const cli_options *o = p->options;
    dp_engine_config engine = dp_engine_defaults();
    int64_t batch = 0, workers = 2;
    int conv = 0;
    if (!cli_given(o, OPT_INIT))
        return dp_fail(err, DP_ERROR_USAGE, "predict needs --init FILE, the checkpoint whose model predicts");
    DP_TRY(take_inputs(p, err));
    DP_TRY(cli_integer(o, OPT_BATCH_SIZE, 1, 1 << 24, &batch, err));
    DP_TRY(cli_integer(o, OPT_NUM_WORKERS, 1, 256, &workers, err));
    DP_TRY(cli_choice(o, OPT_CONV, convs, &conv, err));
    DP_TRY(cli_open_devices(o, &p->context, p->ids, &engine, err));
    engine.direct_convolution = conv == 1;
    DP_TRY(load_model(p, err));
    const dp_predict_config inputs = p->config;
    p->config = dp_predict_defaults(&p->info);
    p->config.inputs = inputs.inputs;
    p->config.input_count = inputs.input_count;
    p->config.engine = engine;
    p->config.batch_size = batch ? batch : (int64_t)PICTURES_PER_DEVICE * engine.device_count;
    p->config.workers = (int)workers;
    p->config.skip_bad = cli_given(o, OPT_SKIP_BAD);
    p->config.note = cli_given(o, OPT_QUIET) ? NULL : on_note;
    p->config.start = on_start;
    p->config.done = on_done;
    p->config.end = on_end;
    p->config.user = p;
    DP_TRY(set_outputs(p, err));
    cli_watch(&p->config.engine, cli_given(o, OPT_QUIET));
    DP_TRY(cli_try_used_links(p->context, &engine, false, cli_given(o, OPT_QUIET), NULL, err));
    return predict_and_close(p, err);
}

dp_status cli_predict(int argc, char **argv, int *code, dp_error *err)
{
    (void)code;
    cli_options options;
    DP_TRY(cli_parse(CLI_PREDICT, argc - 2, argv + 2, &options, err));
    if (cli_given(&options, OPT_HELP)) {
        cli_print_help(CLI_PREDICT);
        return DP_OK;
    }
    prediction p = {.options = &options};
    dp_status status = predict(&p, err);
    cli_output_abandon(&p.csv);
    dp_model_state_free(&p.state);
    dp_class_names_clear(&p.classes);
    dp_free(p.inputs);
    dp_model_free(p.model);
    dp_context_close(p.context);
    return status;
}
