/* What a link and a model allow: a cost model, held against runs on this machine and against figures that
 * were published. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/explain.h"

enum { CHECK_BATCH = 256, CHECK_STEPS = 20 };

/* The tutorial that fine-tunes RoBERTa-large on two RTX 3090s for two epochs; the size is that of the paper
 * (Liu et al., "RoBERTa: A Robustly Optimized BERT Pretraining Approach", 2019), the link that of PCIe 4.0
 * with 16 lanes (16 GT/s a lane, 128 of 130 bits are data: 31.5 GB/s). */
static const struct {
    double parameters, link_gb, one_s, two_s, accumulated_s;
    int64_t steps[4]; /* the tutorial does not say how many: some that two epochs may have */
    int window;       /* nor how many batches it accumulates */
} roberta = {355e6, 16.0 * 16 / 8 * 128 / 130, 1029, 707, 580, {500, 1000, 2000, 4000}, 4};

typedef struct check_run {
    bool weak;
    double predicted_ms, measured_ms, error; /* error: predicted / measured - 1 */
    double single_ms;
} check_run;

typedef struct speedup {
    dp_cost_model model;
    int64_t devices;
    explain_devices on;
    dp_cost_model here; /* parameters and link of the check */
    check_run runs[2];
} speedup;

static dp_status read_options(speedup *s, const cli_options *o, dp_error *err)
{
    double compute = 100, parameters = 100e6, link = 16;
    s->devices = 8;
    DP_TRY(cli_number(o, OPT_COMPUTE, CLI_ABOVE_0, 1e12, &compute, err));
    DP_TRY(cli_number(o, OPT_PARAMETERS, 0, 1e15, &parameters, err));
    DP_TRY(cli_number(o, OPT_LINK, CLI_ABOVE_0, 1e9, &link, err));
    DP_TRY(cli_integer(o, OPT_DEVICES, 1, 1 << 16, &s->devices, err));
    s->model = (dp_cost_model){compute, parameters, 1e9 * link};
    return DP_OK;
}

/* ---- the check ---- */

/* The slowest link from or to the primary. */
static dp_status measure_link(speedup *s, dp_error *err)
{
    dp_context *context;
    dp_link *links = NULL;
    DP_TRY(dp_context_open(&s->on.context, &context, err));
    int count = dp_context_device_count(context), primary = s->on.ids[0];
    dp_status status = dp_calloc((size_t)count * (size_t)count, sizeof *links, "the links", &links, err);
    if (status == DP_OK)
        status = dp_context_measure_links(context, links, err);
    for (int k = 1; status == DP_OK && k < s->on.count; k++) {
        int other = s->on.ids[k];
        double rates[] = {links[primary * count + other].bytes_per_second,
                          links[other * count + primary].bytes_per_second};
        for (int i = 0; i < 2; i++)
            if (s->here.bytes_per_second == 0 || rates[i] < s->here.bytes_per_second)
                s->here.bytes_per_second = rates[i];
    }
    dp_free(links);
    dp_context_close(context);
    if (status == DP_OK && !(s->here.bytes_per_second > 0))
        return dp_fail(err, DP_ERROR_DEVICE, "the link between %s and %s could not be measured",
                       s->on.label[0], s->on.label[1]);
    return status;
}

/* A multilayer perceptron, whose weights are many for what it computes. */
static dp_status build(dp_model **out, dp_error *err)
{
    dp_model_config m = dp_model_defaults("mlp");
    m.input_rank = 3;
    memcpy(m.input_shape, (int64_t[]){1, 28, 28}, sizeof m.input_shape);
    m.outputs = 10;
    return dp_model_build(&m, out, err);
}

/* The compute time is that of the single device in the same run. */
static dp_status run_check(speedup *s, const dp_model *model, check_run *run, dp_error *err)
{
    dp_bench_config c = dp_bench_defaults();
    dp_bench_row row;
    c.context = s->on.context;
    c.engine.device_ids = s->on.ids;
    c.engine.device_count = s->on.count;
    c.model = model;
    c.steps = CHECK_STEPS;
    c.weak = run->weak;
    DP_TRY(dp_bench_compare(&c, CHECK_BATCH, &row, err));
    dp_cost_model m = s->here;
    m.compute_ms = run->single_ms = row.single.ms_per_step;
    run->predicted_ms = dp_cost_step_ms(&m, DP_TOPOLOGY_STAR, s->on.count, run->weak);
    run->measured_ms = row.parallel.ms_per_step;
    run->error = run->predicted_ms / run->measured_ms - 1;
    return DP_OK;
}

static dp_status check(speedup *s, const cli_options *o, dp_error *err)
{
    dp_model *model;
    DP_TRY(explain_find_devices(o, DP_ENGINE_MAX_DEVICES, &s->on, err));
    DP_TRY(measure_link(s, err));
    DP_TRY(build(&model, err));
    s->here.parameter_bytes = (double)dp_model_elements(model) * sizeof(float);
    dp_status status = DP_OK;
    for (int i = 0; i < 2 && status == DP_OK; i++) {
        s->runs[i].weak = i == 1;
        status = run_check(s, model, &s->runs[i], err);
    }
    dp_model_free(model);
    return status;
}

/* ---- the tutorial ---- */

static dp_cost_model roberta_model(void)
{
    return (dp_cost_model){0, roberta.parameters * sizeof(float), 1e9 * roberta.link_gb};
}

/* Seconds on two devices, with an update every `window` steps: transfers happen with the updates. */
static double roberta_seconds(int64_t steps, int window)
{
    const dp_cost_model m = roberta_model();
    double updates = ceil((double)steps / window);
    return roberta.one_s / 2 + 1e-3 * updates * dp_cost_transfer_ms(&m, DP_TOPOLOGY_STAR, 2);
}

/* ---- what it says ---- */

static void judge(const speedup *s, char *text, size_t size)
{
    const int n = (int)s->devices;
    dp_topology best = DP_TOPOLOGY_STAR;
    for (int t = 1; t < DP_TOPOLOGIES; t++)
        if (dp_cost_speedup(&s->model, (dp_topology)t, n, false) > dp_cost_speedup(&s->model, best, n, false))
            best = (dp_topology)t;
    double error = 0;
    for (int i = 0; i < 2; i++)
        error = fabs(s->runs[i].error) > error ? fabs(s->runs[i].error) : error;
    snprintf(text, size,
             "%d device%s this step %.2f times as fast in a star, as DataParallel's, and %.2f in a %s; the "
             "model was off by up to %.0f %% on this machine",
             n, n == 1 ? " makes" : "s make", dp_cost_speedup(&s->model, DP_TOPOLOGY_STAR, n, false),
             dp_cost_speedup(&s->model, best, n, false), dp_topology_name(best), 100 * error);
}

/* From row to row twice as many devices; four times, where that would be more than a screen. */
static int row_shift(const speedup *s)
{
    return s->devices > 1024 ? 2 : 1;
}

static int row_count(const speedup *s)
{
    int rows = 0;
    for (int64_t n = 1; n < s->devices; n <<= row_shift(s))
        rows++;
    return rows + 1;
}

static int row_devices(const speedup *s, int i)
{
    int64_t n = (int64_t)1 << (i * row_shift(s));
    return (int)(n < s->devices ? n : s->devices);
}

static void print_speedup(double speedup, int columns)
{
    printf("%*.*f", columns, speedup < 99.995 ? 2 : speedup < 999.95 ? 1 : 0, speedup);
}

static void print_prediction(const speedup *s)
{
    char bytes[32];
    cli_say("compute %g ms a step, %s of weights, links of %g GB/s", s->model.compute_ms,
            dp_format_bytes((uint64_t)s->model.parameter_bytes, bytes, sizeof bytes),
            s->model.bytes_per_second / 1e9);
    printf("step = compute / N (strong scaling; weak: compute) + transfers; P bytes at B:\n"
           "  star 2 (N-1) P/B    tree 2 ceil(log2 N) P/B    ring 2 (N-1)/N P/B\n\n"
           "  devices strong: star  tree  ring weak: star  tree  ring  strong, star\n");
    for (int i = 0; i < row_count(s); i++) {
        int n = row_devices(s, i);
        printf("  %7d", n);
        for (int weak = 0; weak < 2; weak++)
            for (int t = 0; t < DP_TOPOLOGIES; t++)
                print_speedup(dp_cost_speedup(&s->model, (dp_topology)t, n, weak), t ? 6 : weak ? 11 : 13);
        printf("  |");
        explain_bar(0, dp_cost_speedup(&s->model, DP_TOPOLOGY_STAR, n, false), (double)s->devices, 18);
        printf("\n");
    }
}

static void print_check(const speedup *s)
{
    char bytes[32], devices[EXPLAIN_DEVICES_SIZE];
    printf("\n");
    cli_say("checked here with mlp (%s), batch %d, link %.1f GB/s measured, on %s:",
            dp_format_bytes((uint64_t)s->here.parameter_bytes, bytes, sizeof bytes), CHECK_BATCH,
            s->here.bytes_per_second / 1e9, explain_devices_text(&s->on, devices, sizeof devices));
    for (int i = 0; i < 2; i++)
        cli_say("  %-6s  one %7.2f ms; predicted %7.2f ms, measured %7.2f ms: error %+.0f %%",
                s->runs[i].weak ? "weak" : "strong", s->runs[i].single_ms, s->runs[i].predicted_ms,
                s->runs[i].measured_ms, 100 * s->runs[i].error);
}

static void print_roberta(void)
{
    const dp_cost_model m = roberta_model();
    char one[32];
    printf("\na tutorial's RoBERTa-large, two epochs of text classification on RTX 3090s:\n"
           "  measured there: one %s s, two %.0f s, two with gradient accumulation %.0f s\n"
           "  assumed: %.0f M parameters, float32, PCIe 4 x16 (%.1f GB/s), star: %.0f ms\n"
           "  an update. Nothing is fitted; how many steps it took is not said, so for some:\n"
           "  steps                   ",
           dp_format_count((int64_t)roberta.one_s, one, sizeof one), roberta.two_s, roberta.accumulated_s,
           roberta.parameters / 1e6, roberta.link_gb, dp_cost_transfer_ms(&m, DP_TOPOLOGY_STAR, 2));
    for (int w = 0; w < 3; w++) {
        if (w == 1)
            printf("  two, predicted          ");
        else if (w == 2)
            printf("  two, update every %d     ", roberta.window);
        for (int i = 0; i < 4; i++)
            if (w == 0)
                printf("%9lld", (long long)roberta.steps[i]);
            else
                printf("%7.0f s", roberta_seconds(roberta.steps[i], w == 1 ? 1 : roberta.window));
        printf("\n");
    }
}

static void print_text(const speedup *s, const char *verdict)
{
    printf("What do a link and a model allow?\n\n");
    print_prediction(s);
    print_check(s);
    print_roberta();
    printf("\n");
    cli_say("verdict: %s", verdict);
    cli_say("what to do: %s",
            "raise compute for each transfer: larger batches, --accumulation-steps; measure with "
            "dptrain bench");
    explain_warn(&s->on);
}

static json_t *row_json(const void *from, int i)
{
    const speedup *s = from;
    json_t *row = json_pack("{s:i}", "devices", row_devices(s, i));
    for (int weak = 0; row && weak < 2; weak++) {
        json_t *scaling = json_object();
        for (int t = 0; t < DP_TOPOLOGIES; t++)
            json_object_set_new(
                scaling, dp_topology_name((dp_topology)t),
                json_pack("{s:f, s:f}", "ms_per_step",
                          dp_cost_step_ms(&s->model, (dp_topology)t, row_devices(s, i), weak), "speedup",
                          dp_cost_speedup(&s->model, (dp_topology)t, row_devices(s, i), weak)));
        json_object_set_new(row, weak ? "weak" : "strong", scaling);
    }
    return row;
}

static json_t *run_json(const void *from, int i)
{
    const check_run *r = &((const speedup *)from)->runs[i];
    return json_pack("{s:s, s:f, s:f, s:f, s:f}", "scaling", r->weak ? "weak" : "strong",
                     "single_ms_per_step", r->single_ms, "predicted_ms_per_step", r->predicted_ms,
                     "measured_ms_per_step", r->measured_ms, "relative_error", r->error);
}

static json_t *roberta_json(const void *from, int i)
{
    (void)from;
    return json_pack("{s:I, s:f, s:f}", "steps", (json_int_t)roberta.steps[i], "two_seconds",
                     roberta_seconds(roberta.steps[i], 1), "two_accumulated_seconds",
                     roberta_seconds(roberta.steps[i], roberta.window));
}

static json_t *all_json(const speedup *s, const char *verdict)
{
    return json_pack(
        "{s:s, s:{s:f, s:f, s:f, s:I}, s:o, s:{s:s, s:i, s:i, s:f, s:f, s:b, s:o}, "
        "s:{s:f, s:s, s:f, s:i, s:{s:f, s:f, s:f}, s:o}, s:s}",
        "lesson", "speedup", "inputs", "compute_ms", s->model.compute_ms, "parameter_bytes",
        s->model.parameter_bytes, "link_gb_per_second", s->model.bytes_per_second / 1e9, "devices",
        (json_int_t)s->devices, "predictions", cli_json_list(row_count(s), row_json, s), "check", "model",
        "mlp", "batch_size", CHECK_BATCH, "devices", s->on.count, "parameter_bytes", s->here.parameter_bytes,
        "link_gb_per_second", s->here.bytes_per_second / 1e9, "times_prove_nothing", s->on.proves_nothing,
        "runs", cli_json_list(2, run_json, s), "roberta_large", "parameters", roberta.parameters, "dtype",
        "float32", "link_gb_per_second", roberta.link_gb, "accumulation_steps", roberta.window,
        "measured_seconds", "one", roberta.one_s, "two", roberta.two_s, "two_accumulated",
        roberta.accumulated_s, "predictions", cli_json_list(4, roberta_json, NULL), "verdict", verdict);
}

dp_status explain_speedup(const cli_options *o, dp_error *err)
{
    speedup s = {0};
    char verdict[512];
    DP_TRY(read_options(&s, o, err));
    DP_TRY(check(&s, o, err));
    judge(&s, verdict, sizeof verdict);
    if (cli_given(o, OPT_JSON))
        return explain_json(all_json(&s, verdict), err);
    print_text(&s, verdict);
    return DP_OK;
}
