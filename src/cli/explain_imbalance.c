/* Why the first device is the fullest and the busiest, and what helps. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/explain.h"

enum { SETTINGS = 5 };

/* A way to train, and what its devices had to do. */
typedef struct setting {
    dp_loss_mode mode;
    int output; /* index into the devices */
    bool uneven;
    dp_bench_row row;
    int64_t chunk[DP_ENGINE_MAX_DEVICES];
    double memory_factor, busy_factor;
} setting;

typedef struct imbalance {
    explain_devices devices;
    dp_bench_config config;
    dp_model *model;
    int64_t batch;
    char split_text[256]; /* of the uneven setting */
    dp_split_kind split;
    double shares[DP_ENGINE_MAX_DEVICES];
    setting *settings; /* SETTINGS of them */
} imbalance;

/* Half a share for the first device, unless another split was asked for. */
static dp_status read_split(const cli_options *o, imbalance *m, dp_error *err)
{
    dp_engine_config e = dp_engine_defaults();
    int shares;
    DP_TRY(cli_split(o, &e, m->shares, &shares, err));
    e.device_count = m->devices.count;
    DP_TRY(cli_check_shares(o, &e, shares, err));
    m->split = e.split;
    if (cli_given(o, OPT_SPLIT)) {
        snprintf(m->split_text, sizeof m->split_text, "%s", o->value[OPT_SPLIT]);
        return DP_OK;
    }
    m->split = DP_SPLIT_SHARES;
    size_t used = 0;
    for (int k = 0; k < m->devices.count; k++) {
        m->shares[k] = k == 0 ? 1 : 2;
        used += (size_t)snprintf(m->split_text + used, sizeof m->split_text - used, "%s%d", k ? "," : "",
                                 k == 0 ? 1 : 2);
    }
    return DP_OK;
}

static dp_status read_output(const cli_options *o, imbalance *m, int *index, dp_error *err)
{
    dp_engine_config e = dp_engine_defaults();
    DP_TRY(cli_output_device(o, &e, err));
    *index = m->devices.count - 1;
    if (e.output_device < 0)
        return DP_OK;
    for (int k = 0; k < m->devices.count; k++)
        if (m->devices.ids[k] == e.output_device) {
            *index = k;
            return DP_OK;
        }
    return dp_fail(err, DP_ERROR_USAGE, "output device %d is not one of the device ids", e.output_device);
}

static void find_factors(setting *s, int devices)
{
    double memory = 0, busy = 0, most_memory = 0, most_busy = 0;
    for (int k = 0; k < devices; k++) {
        double bytes = (double)s->row.device[k].peak_total_bytes, share = s->row.device[k].busy_fraction;
        memory += bytes / devices;
        busy += share / devices;
        most_memory = bytes > most_memory ? bytes : most_memory;
        most_busy = share > most_busy ? share : most_busy;
    }
    s->memory_factor = memory > 0 ? most_memory / memory : 0;
    s->busy_factor = busy > 0 ? most_busy / busy : 0;
}

static dp_status measure(imbalance *m, setting *s, dp_error *err)
{
    dp_engine_config *e = &m->config.engine;
    e->loss_mode = s->mode;
    e->output_device = m->devices.ids[s->output];
    e->split = s->uneven ? m->split : DP_SPLIT_CHUNK;
    e->shares = m->shares;
    dp_split_batch(e->split, e->shares, m->devices.count, m->batch, s->chunk);
    DP_TRY(dp_bench_measure(&m->config, m->batch, &s->row, err));
    find_factors(s, m->devices.count);
    return DP_OK;
}

/* What is shown: the model that was asked for, or without one the two below. */
typedef enum subject { SUBJECT_ASKED_FOR, SUBJECT_MANY_OUTPUTS, SUBJECT_UNET } subject;

/* The U-Net is thin and its pictures are small, so that the lesson takes seconds. */
static void set_defaults(cli_options *o, subject of, int64_t *batch, int64_t *steps)
{
    *batch = 32;
    if (of == SUBJECT_MANY_OUTPUTS) {
        explain_default(o, OPT_MODEL, "mlp");
        explain_default(o, OPT_HIDDEN, "64");
        explain_default(o, OPT_NUM_CLASSES, "10000");
        *batch = 256;
    } else if (of == SUBJECT_UNET) {
        explain_default(o, OPT_MODEL, "unet16");
        explain_default(o, OPT_WIDTH, "4");
        explain_default(o, OPT_FILTERS, "4");
        explain_default(o, OPT_SIZE, "64x64");
        *batch = 8;
        *steps = 5;
    }
}

static dp_status prepare(imbalance *m, const cli_options *given, subject of, dp_error *err)
{
    cli_options o = *given;
    int output;
    int64_t steps = dp_bench_defaults().steps;
    set_defaults(&o, of, &m->batch, &steps);
    m->config = dp_bench_defaults();
    DP_TRY(cli_integer(&o, OPT_BATCH_SIZE, 1, 1 << 24, &m->batch, err));
    DP_TRY(cli_integer(&o, OPT_STEPS, 1, 1 << 20, &steps, err));
    DP_TRY(cli_synthetic_model(&o, &m->model, &m->config.engine.criterion, err));
    DP_TRY(explain_find_devices(&o, DP_ENGINE_MAX_DEVICES, &m->devices, err));
    DP_TRY(read_split(&o, m, err));
    DP_TRY(read_output(&o, m, &output, err));
    m->config.steps = (int)steps;
    m->config.model = m->model;
    m->config.context = m->devices.context;
    m->config.engine.device_ids = m->devices.ids;
    m->config.engine.device_count = m->devices.count;
    DP_TRY(dp_calloc(SETTINGS, sizeof *m->settings, "the settings", &m->settings, err));
    for (int i = 0; i < SETTINGS; i++)
        m->settings[i].mode = i == 1 ? DP_LOSS_REPLICA : i == 2 ? DP_LOSS_GLOBAL : DP_LOSS_GATHER;
    m->settings[3].output = output;
    m->settings[4].uneven = true;
    for (int i = 0; i < SETTINGS; i++)
        DP_TRY(measure(m, &m->settings[i], err));
    return DP_OK;
}

/* ---- what it says ---- */

static void name_setting(const imbalance *m, const setting *s, char *text, size_t size)
{
    bool long_split = strlen(m->split_text) > 30; /* of many devices */
    if (s->uneven)
        snprintf(text, size, "--loss-mode gather --split %.*s%s", long_split ? 20 : 30, m->split_text,
                 long_split ? "..." : "");
    else if (s == &m->settings[3])
        snprintf(text, size, "--loss-mode gather --output-device %d", m->devices.ids[s->output]);
    else
        snprintf(text, size, "--loss-mode %s", dp_loss_mode_names[s->mode]);
}

/* The purpose of which the first device has most beyond the mean of the others. */
static int heaviest_purpose(const imbalance *m, const setting *s, double *bytes)
{
    int worst = 0;
    *bytes = 0;
    for (int p = 0; p < DP_PURPOSES; p++) {
        double others = 0;
        for (int k = 1; k < m->devices.count; k++)
            others += (double)s->row.device[k].peak_bytes[p] / (m->devices.count - 1);
        double more = (double)s->row.device[0].peak_bytes[p] - others;
        if (more > *bytes) {
            *bytes = more;
            worst = p;
        }
    }
    return worst;
}

static void judge(const imbalance *m, char *text, size_t size)
{
    const setting *gather = &m->settings[0], *best = gather;
    char name[320], bytes[32];
    double more, memory = 0, busy = 0;
    for (int k = 0; k < m->devices.count; k++) {
        memory += (double)gather->row.device[k].peak_total_bytes / m->devices.count;
        busy += gather->row.device[k].busy_fraction / m->devices.count;
    }
    int purpose = heaviest_purpose(m, gather, &more);
    static const int others[] = {2, 1, 3, 4}; /* global first: it keeps the loss as it is */
    for (int i = 0; i < SETTINGS - 1; i++)
        if (m->settings[others[i]].memory_factor < best->memory_factor)
            best = &m->settings[others[i]];
    name_setting(m, best, name, sizeof name);
    int n = snprintf(text, size,
                     "in gather mode %s is %.2f times as busy as the mean and takes %.2f times its memory",
                     m->devices.label[0], busy > 0 ? gather->row.device[0].busy_fraction / busy : 0,
                     (double)gather->row.device[0].peak_total_bytes / memory);
    if (more > 0)
        n += snprintf(text + n, size - (size_t)n, ", most of the excess for %s (%s)",
                      dp_memory_purpose(purpose), dp_format_bytes((uint64_t)more, bytes, sizeof bytes));
    snprintf(text + n, size - (size_t)n,
             best == gather ? "; no other setting is more even in memory"
                            : "; the most even in memory is %s, %.2f times",
             name, best->memory_factor);
}

/* By purpose: one letter each, dp_memory_purpose's order. */
static const char letters[DP_PURPOSES + 1] = "PGOBAIoLSW";

static void print_memory(const dp_device_report *r, uint64_t full, int width)
{
    int printed = 0;
    uint64_t sum = 0;
    for (int p = 0; p < DP_PURPOSES; p++) {
        sum += r->peak_bytes[p];
        for (; printed < width && (double)printed + 0.5 < (double)sum * width / (double)full; printed++)
            printf("%s%c", printed == 0 ? "  " : "", letters[p]);
    }
    printf("\n");
}

/* So that five settings fit on a screen, of more than four devices the first, the last and the one with the
 * outputs. */
static bool is_shown(const imbalance *m, const setting *s, int k)
{
    int count = m->devices.count;
    return count <= 4 || k == 0 || k == count - 1 || k == s->output;
}

static void print_setting(const imbalance *m, const setting *s, uint64_t full)
{
    char name[320], total[32];
    double low = 1, high = 0;
    uint64_t most = 0;
    int others = 0;
    name_setting(m, s, name, sizeof name);
    cli_say("%s: fullest %.2f, busiest %.2f times the mean", name, s->memory_factor, s->busy_factor);
    for (int k = 0; k < m->devices.count; k++) {
        const dp_device_report *r = &s->row.device[k];
        if (is_shown(m, s, k)) {
            printf("  %-8s %7lld %3.0f %% %9s", m->devices.label[k], (long long)s->chunk[k],
                   100 * r->busy_fraction, dp_format_bytes(r->peak_total_bytes, total, sizeof total));
            print_memory(r, full, 42);
            continue;
        }
        others++;
        low = r->busy_fraction < low ? r->busy_fraction : low;
        high = r->busy_fraction > high ? r->busy_fraction : high;
        most = r->peak_total_bytes > most ? r->peak_total_bytes : most;
    }
    if (others > 0)
        printf("  %d more, busy %.0f to %.0f %%, at most %s\n", others, 100 * low, 100 * high,
               dp_format_bytes(most, total, sizeof total));
}

static void print_text(const imbalance *m, const char *verdict)
{
    uint64_t full = 1;
    for (int i = 0; i < SETTINGS; i++)
        for (int k = 0; k < m->devices.count; k++) {
            uint64_t sum = 0;
            for (int p = 0; p < DP_PURPOSES; p++)
                sum += m->settings[i].row.device[k].peak_bytes[p];
            full = sum > full ? sum : full;
        }
    int64_t shape[3], outputs = 1;
    for (int i = dp_model_output_shape(m->model, shape); i > 0; i--)
        outputs *= shape[i - 1];
    char count[32], devices[EXPLAIN_DEVICES_SIZE];
    cli_say("%s with %s output%s a sample, batch %lld, on %s", dp_model_name(m->model),
            dp_format_count(outputs, count, sizeof count), dp_s(outputs), (long long)m->batch,
            explain_devices_text(&m->devices, devices, sizeof devices));
    printf("\n  %-8s %7s %5s %9s  memory by purpose\n", "device", "samples", "busy", "memory");
    for (int i = 0; i < SETTINGS; i++)
        print_setting(m, &m->settings[i], full);
    printf("Parameters Gradients Optimizer Buffers Activations Inputs outputs gathered: o\n"
           "Loss Staging Workspace\n\n");
    cli_say("verdict: %s", verdict);
    bool even = m->settings[0].memory_factor < 1.1 && m->settings[0].busy_factor < 1.1;
    cli_say("what to do: %s", even
                                  ? "nothing: with this model the load is even enough"
                                  : "the criterion in the replicas (--loss-mode global keeps the loss of one "
                                    "device), another --output-device, or a smaller first share by --split");
    explain_warn(&m->devices);
}

/* ---- for programs ---- */

typedef struct position {
    const imbalance *m;
    const setting *s;
} position;

static json_t *device_json(const void *from, int k)
{
    const position *at = from;
    const dp_device_report *r = &at->s->row.device[k];
    return json_pack("{s:s, s:I, s:f, s:o, s:I}", "device", r->device, "samples", (json_int_t)at->s->chunk[k],
                     "busy_fraction", r->busy_fraction, "peak_bytes", cli_memory_json(r), "peak_total_bytes",
                     (json_int_t)r->peak_total_bytes);
}

static json_t *setting_json(const void *from, int i)
{
    const imbalance *m = from;
    const position at = {m, &m->settings[i]};
    return json_pack("{s:s, s:s, s:s, s:o, s:f, s:f}", "loss_mode", dp_loss_mode_names[at.s->mode],
                     "output_device", m->devices.label[at.s->output], "split",
                     at.s->uneven ? m->split_text : "chunk", "devices",
                     cli_json_list(m->devices.count, device_json, &at), "memory_factor", at.s->memory_factor,
                     "busy_factor", at.s->busy_factor);
}

static json_t *lesson_json(const imbalance *m, const char *verdict)
{
    return json_pack("{s:s, s:s, s:I, s:o, s:s}", "lesson", "imbalance", "model", dp_model_name(m->model),
                     "batch_size", (json_int_t)m->batch, "settings", cli_json_list(SETTINGS, setting_json, m),
                     "verdict", verdict);
}

/* One model's lesson: printed under its question, or *json gets it. */
static dp_status teach(const cli_options *o, subject of, const char *question, json_t **json, dp_error *err)
{
    imbalance m = {0};
    char verdict[512];
    dp_status status = prepare(&m, o, of, err);
    if (status == DP_OK) {
        judge(&m, verdict, sizeof verdict);
        if (cli_given(o, OPT_JSON)) {
            *json = lesson_json(&m, verdict);
        } else {
            printf("%s\n\n", question);
            print_text(&m, verdict);
        }
    }
    dp_free(m.settings);
    dp_model_free(m.model);
    return status;
}

/* JSON: of the first model, the second one's under "also". */
dp_status explain_imbalance(const cli_options *o, dp_error *err)
{
    static const cli_option of_models[] = {OPT_MODEL,   OPT_MODEL_TYPE,  OPT_HIDDEN,
                                           OPT_WIDTH,   OPT_FILTERS,     OPT_DECONV,
                                           OPT_DROPOUT, OPT_NUM_CLASSES, OPT_SIZE};
    bool print = !cli_given(o, OPT_JSON), named = cli_given(o, OPT_MODEL) || cli_given(o, OPT_MODEL_TYPE);
    bool shaped = false; /* by an option that need not suit both */
    json_t *first = NULL, *second = NULL;
    for (size_t i = 0; i < sizeof of_models / sizeof *of_models; i++)
        shaped |= cli_given(o, of_models[i]);
    DP_TRY(teach(o, named ? SUBJECT_ASKED_FOR : SUBJECT_MANY_OUTPUTS, "Why is the first device the busiest?",
                 &first, err));
    dp_status status = DP_OK;
    if (!shaped)
        status = teach(o, SUBJECT_UNET, "\nAnd where a network's outputs are as small as its inputs?",
                       &second, err);
    if (print || status != DP_OK) {
        json_decref(first);
        json_decref(second);
        return status;
    }
    if (second && json_object_set_new(first, "also", second) != 0) {
        json_decref(first);
        first = NULL; /* explain_json says that there is no memory */
    }
    return explain_json(first, err);
}
