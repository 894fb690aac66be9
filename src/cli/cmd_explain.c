/* Lessons: which there are, which options they take, and what they share. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/explain.h"

#define MODEL                                                                                                \
    OPT_MODEL, OPT_MODEL_TYPE, OPT_HIDDEN, OPT_WIDTH, OPT_FILTERS, OPT_DECONV, OPT_DROPOUT, OPT_NUM_CLASSES, \
        OPT_SIZE
#define DEVICES OPT_DEVICE, OPT_LOGICAL_DEVICES, OPT_THREADS, OPT_DEVICE_IDS

static const struct lesson {
    const char *name, *about;
    dp_status (*teach)(const cli_options *o, dp_error *err);
    cli_option uses[20]; /* beside --json and --help; OPT_HELP ends the list */
} lessons[] = {
    {"loss-average",
     "why a loss can depend on the number of devices",
     explain_loss_average,
     {OPT_DEVICE, OPT_THREADS, OPT_HELP}},
    {"imbalance",
     "why the first device is the busiest, and what helps",
     explain_imbalance,
     {MODEL, DEVICES, OPT_BATCH_SIZE, OPT_STEPS, OPT_OUTPUT_DEVICE, OPT_SPLIT, OPT_HELP}},
    {"batch-size",
     "below which batch a second device slows training down",
     explain_batch_size,
     {MODEL, DEVICES, OPT_BATCH_SIZES, OPT_STEPS, OPT_HELP}},
    {"split", "who gets which samples", explain_split, {OPT_BATCH_SIZE, OPT_DEVICES, OPT_SPLIT, OPT_HELP}},
    {"device-ids",
     "why device_ids=[2,3] fails in PyTorch",
     explain_device_ids,
     {OPT_DEVICE, OPT_LOGICAL_DEVICES, OPT_THREADS, OPT_HELP}},
    {"accumulation",
     "what accumulating gradients saves, and what it costs",
     explain_accumulation,
     {MODEL, DEVICES, OPT_BATCH_SIZE, OPT_STEPS, OPT_ACCUMULATION, OPT_HELP}},
    {"speedup",
     "what a link and a model allow: a cost model, and its error here",
     explain_speedup,
     {DEVICES, OPT_COMPUTE, OPT_PARAMETERS, OPT_LINK, OPT_DEVICES, OPT_HELP}},
};
enum { LESSONS = sizeof lessons / sizeof *lessons };

void cli_print_lessons(void)
{
    printf("\nLessons:\n");
    for (int i = 0; i < LESSONS; i++)
        printf("  %-14s %s\n", lessons[i].name, lessons[i].about);
}

static dp_status find_lesson(const char *name, const struct lesson **out, dp_error *err)
{
    const char *names[LESSONS];
    char all[256] = "";
    for (int i = 0; i < LESSONS; i++) {
        names[i] = lessons[i].name;
        size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", names[i]);
        if (name && strcmp(name, names[i]) == 0) {
            *out = &lessons[i];
            return DP_OK;
        }
    }
    if (!name)
        return dp_fail(err, DP_ERROR_USAGE, "explain needs a lesson: %s", all);
    const char *near = dp_nearest_name(name, names, LESSONS);
    if (near)
        return dp_fail(err, DP_ERROR_USAGE, "unknown lesson '%s'; did you mean '%s'?", name, near);
    return dp_fail(err, DP_ERROR_USAGE, "unknown lesson '%s': one of %s is needed", name, all);
}

static dp_status check_use(const struct lesson *lesson, const cli_options *o, dp_error *err)
{
    for (int i = 0; i < OPT_COUNT; i++) {
        bool used = i == OPT_JSON || i == OPT_HELP;
        for (const cli_option *u = lesson->uses; *u != OPT_HELP; u++)
            used |= (int)*u == i;
        if (cli_given(o, (cli_option)i) && !used)
            return dp_fail(err, DP_ERROR_USAGE, "explain %s has no use for --%s", lesson->name,
                           cli_option_name((cli_option)i));
    }
    return DP_OK;
}

dp_status cli_explain(int argc, char **argv, int *code, dp_error *err)
{
    (void)code;
    cli_options options;
    const struct lesson *lesson = NULL;
    bool named = argc > 2 && argv[2][0] != '-';
    if (named)
        DP_TRY(find_lesson(argv[2], &lesson, err));
    int first = named ? 3 : 2;
    DP_TRY(cli_parse(CLI_EXPLAIN, argc - first, argv + first, &options, err));
    if (cli_given(&options, OPT_HELP)) {
        cli_print_help(CLI_EXPLAIN);
        return DP_OK;
    }
    if (cli_list_models(&options))
        return DP_OK;
    if (!lesson)
        return find_lesson(NULL, &lesson, err);
    DP_TRY(check_use(lesson, &options, err));
    return lesson->teach(&options, err);
}

/* ---- what the lessons share ---- */

void explain_default(cli_options *o, cli_option option, const char *value)
{
    if (!o->value[option])
        o->value[option] = value;
}

static void note_broken(void *user, int a, int b, const char *why)
{
    (void)a, (void)b, (void)why;
    *(bool *)user = false;
}

static dp_status look(const cli_options *o, int most, explain_devices *d, dp_error *err)
{
    dp_context *context = NULL;
    dp_engine_config config = dp_engine_defaults();
    memset(d, 0, sizeof *d);
    DP_TRY(cli_context_config(o, &d->context, err));
    dp_status status = cli_open_devices(o, &context, d->ids, &config, err);
    d->count = config.device_count > most ? most : config.device_count;
    config.device_count = d->count;
    for (int k = 0; status == DP_OK && k < d->count; k++) {
        dp_device_info info;
        status = dp_context_device(context, d->ids[k], &info, err);
        if (status != DP_OK)
            break;
        memcpy(d->label[k], info.label, sizeof d->label[k]);
        if (k == 0)
            memcpy(d->name, info.name, sizeof d->name);
    }
    bool sound = true;
    if (status == DP_OK)
        status = cli_try_links_to(context, &config, config.device_ids, d->count, note_broken, &sound, err);
    cli_settle_links(&d->context, sound);
    if (status == DP_OK)
        d->proves_nothing = cli_times_prove_nothing(context, &config);
    dp_context_close(context);
    return status;
}

dp_status explain_find_devices(const cli_options *o, int most, explain_devices *out, dp_error *err)
{
    cli_options options = *o;
    DP_TRY(look(&options, most, out, err));
    if (out->count > 1)
        return DP_OK;
    if (cli_given(o, OPT_DEVICE_IDS) || cli_given(o, OPT_LOGICAL_DEVICES) ||
        getenv("DPTRAIN_LOGICAL_DEVICES"))
        return dp_fail(
            err, DP_ERROR_USAGE,
            "this lesson is about several devices, and there is only %s to use; --logical-devices 2 "
            "makes two of what there is",
            out->label[0]);
    options.value[OPT_LOGICAL_DEVICES] = "2";
    return look(&options, most, out, err);
}

char *explain_devices_text(const explain_devices *d, char *buffer, size_t size)
{
    size_t used = 0;
    if (d->count > 4)
        used = (size_t)snprintf(buffer, size, "%d devices, %s to %s", d->count, d->label[0],
                                d->label[d->count - 1]);
    for (int k = 0; d->count <= 4 && k < d->count && used < size; k++)
        used += (size_t)snprintf(buffer + used, size - used, "%s%s",
                                 k == 0              ? ""
                                 : k + 1 == d->count ? " and "
                                                     : ", ",
                                 d->label[k]);
    if (used < size)
        snprintf(buffer + used, size - used, " (%s)", d->name);
    return buffer;
}

void explain_warn(const explain_devices *d)
{
    if (d->proves_nothing)
        printf("note: these devices share hardware or are emulated: the times prove nothing\n");
}

int explain_bar(int lead, double value, double full, int width)
{
    int length = full > 0 ? (int)lround(value / full * width) : 0;
    length = length < 0 ? 0 : length > width ? width : length;
    if (length > 0)
        printf("%*s", lead, "");
    for (int i = 0; i < length; i++)
        putchar('#');
    return length;
}

dp_status explain_json(json_t *json, dp_error *err)
{
    return cli_write_json(json, stdout, err);
}
