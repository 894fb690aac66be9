/* Training speed: all devices against one of them. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"

enum { MAX_BATCHES = 64 };

typedef struct benchmark {
    const cli_options *options;
    dp_bench_config config;
    dp_model *model;
    int ids[DP_ENGINE_MAX_DEVICES];
    double shares[DP_ENGINE_MAX_DEVICES];
    char backend[16], first[24]; /* "cpu", "cpu:0" */
    bool proves_nothing;
    int64_t batches[MAX_BATCHES];
    int count;
    dp_bench_row *rows; /* one a batch */
    cli_output json, csv;
} benchmark;

/* ---- what is asked for ---- */

static dp_status read_options(benchmark *b, int *shares, dp_error *err)
{
    static const char *const scalings[] = {"strong", "weak", NULL};
    static const char *const optimizers[] = {"sgd", "adamw", NULL};
    static const int64_t usual[] = {16, 32, 64, 128, 256};
    const cli_options *o = b->options;
    dp_engine_config *e = &b->config.engine;
    int64_t steps = b->config.steps, seed = 0;
    int scaling = 0, mode = DP_LOSS_GATHER, optimizer = 0;
    DP_TRY(cli_integers(o, OPT_BATCH_SIZES, 1, 1 << 24, MAX_BATCHES, b->batches, &b->count, err));
    if (b->count == 0) {
        memcpy(b->batches, usual, sizeof usual);
        b->count = sizeof usual / sizeof usual[0];
    }
    DP_TRY(cli_integer(o, OPT_STEPS, 1, 1 << 20, &steps, err));
    DP_TRY(cli_integer(o, OPT_SEED, 0, INT64_MAX, &seed, err));
    DP_TRY(cli_choice(o, OPT_SCALING, scalings, &scaling, err));
    DP_TRY(cli_choice(o, OPT_LOSS_MODE, dp_loss_mode_names, &mode, err));
    DP_TRY(cli_choice(o, OPT_OPTIMIZER, optimizers, &optimizer, err));
    b->config.steps = (int)steps;
    b->config.weak = scaling == 1;
    b->config.seed = e->seed = (uint64_t)seed;
    e->loss_mode = (dp_loss_mode)mode;
    e->optimizer.adamw = optimizer == 1;
    DP_TRY(cli_split(o, e, b->shares, shares, err));
    DP_TRY(cli_output_device(o, e, err));
    return cli_context_config(o, &b->config.context, err);
}

/* What would fail later must not cost a measurement before. */
static dp_status check(benchmark *b, int shares, dp_error *err)
{
    dp_context *context = NULL;
    dp_engine_config *e = &b->config.engine;
    dp_status status = cli_open_devices(b->options, &context, b->ids, e, err);
    if (status == DP_OK)
        status = cli_check_shares(b->options, e, shares, err);
    if (status == DP_OK && e->device_count < 2)
        status = dp_fail(err, DP_ERROR_USAGE,
                         "bench compares several devices with one, and there is only %s:%d to use; "
                         "--logical-devices 2 makes two of what there is",
                         dp_context_backend_name(context), b->ids[0]);
    for (int i = 0; i < b->count && status == DP_OK; i++)
        status = dp_engine_check_batch(context, b->model, e, b->batches[i], err);
    bool sound = false;
    if (status == DP_OK) {
        cli_print_devices(context, e);
        status = cli_try_used_links(context, e, e->loss_mode == DP_LOSS_GATHER, false, &sound, err);
    }
    if (status == DP_OK) {
        cli_settle_links(&b->config.context, sound);
        b->proves_nothing = cli_times_prove_nothing(context, e);
        snprintf(b->backend, sizeof b->backend, "%s", dp_context_backend_name(context));
        snprintf(b->first, sizeof b->first, "%s:%d", b->backend, b->ids[0]);
    }
    dp_context_close(context);
    return status;
}

static dp_status open_outputs(benchmark *b, dp_error *err)
{
    DP_TRY(cli_output_open(b->options, OPT_JSON_FILE, "json", &b->json, err));
    DP_TRY(cli_output_open(b->options, OPT_CSV, "csv", &b->csv, err));
    if (b->json.file && b->csv.file && cli_same_file(b->json.path, b->csv.path))
        return dp_fail(err, DP_ERROR_USAGE, "--json and --csv name the same file, '%s'", b->json.path);
    return DP_OK;
}

/* ---- for people ---- */

static int devices(const benchmark *b)
{
    return b->config.engine.device_count;
}

/* Two decimals, or as many as the columns have room for. */
static void print_ms(double ms, int columns)
{
    int digits = 2;
    while (digits > 0 && snprintf(NULL, 0, "%.*f", digits, ms) > columns)
        digits--;
    printf("%*.*f", columns, digits, ms);
}

static void print_times(const benchmark *b)
{
    cli_say("model %s, %s scaling, %d step%s each, in turns; medians (quartiles)", dp_model_name(b->model),
            b->config.weak ? "weak" : "strong", b->config.steps, dp_s(b->config.steps));
    printf("\n");
    char all[32];
    snprintf(all, sizeof all, "%d devices, ms/step", devices(b));
    printf("%6s %-20s %-20s %10s %8s %10s\n", "batch", "one device, ms/step", all, "samples/s", "speed-up",
           "efficiency");
    for (int i = 0; i < b->count; i++) {
        const dp_bench_row *r = &b->rows[i];
        const dp_bench_times *times[] = {&r->single, &r->parallel};
        printf("%6lld ", (long long)r->batch_size);
        for (int s = 0; s < 2; s++) {
            char range[32];
            int digits = times[s]->high_ms < 10 ? 2 : times[s]->high_ms < 100 ? 1 : 0;
            snprintf(range, sizeof range, "(%.*f-%.*f)", digits, times[s]->low_ms, digits, times[s]->high_ms);
            print_ms(times[s]->ms_per_step, 7);
            printf(" %-12s ", range);
        }
        char rate[32];
        printf("%10s %8.2f %8.0f %%\n", dp_format_rate(r->parallel.samples_per_second, rate, sizeof rate),
               r->speedup, 100 * r->efficiency);
    }
    for (int i = 0; i < b->count; i++)
        if (b->rows[i].used < devices(b))
            printf("a batch of %lld leaves %d of %d devices without samples\n",
                   (long long)b->rows[i].batch_size, devices(b) - b->rows[i].used, devices(b));
    if (b->config.weak)
        cli_say("the single device, %s, trains on its share of each batch; speed-up is by samples/s",
                b->first);
}

static void print_phases(const benchmark *b)
{
    printf("\nwhere a step of %d devices goes, ms (one device below it)\n%6s", devices(b), "batch");
    for (int p = 0; p < DP_PHASES; p++)
        printf(" %*s", p == DP_PHASE_WAIT || p == DP_PHASE_LOSS ? 5 : 7, dp_phase_name((dp_phase)p));
    printf("\n");
    for (int i = 0; i < b->count; i++)
        for (int s = 0; s < 2; s++) {
            const dp_bench_row *r = &b->rows[i];
            const double *ms = s ? r->single.phase_ms : r->parallel.phase_ms;
            if (s)
                printf("%6s", "");
            else
                printf("%6lld", (long long)r->batch_size);
            for (int p = 0; p < DP_PHASES; p++) {
                int width = (int)strlen(dp_phase_name((dp_phase)p));
                int least = p == DP_PHASE_WAIT || p == DP_PHASE_LOSS ? 5 : 7;
                printf(" ");
                print_ms(ms[p], width > least ? width : least);
            }
            printf("\n");
        }
}

static void print_devices(const benchmark *b)
{
    printf("\n%6s  %-8s %5s %11s  %s\n", "batch", "device", "idle", "peak memory", "most of it");
    for (int i = 0; i < b->count; i++)
        for (int k = 0; k < b->rows[i].devices; k++) {
            const dp_device_report *r = &b->rows[i].device[k];
            char total[32], most[96];
            int used = printf("%6lld  %-8s %3.0f %% %11s  ", (long long)b->rows[i].batch_size, r->device,
                              100 * (1 - r->busy_fraction),
                              dp_format_bytes(r->peak_total_bytes, total, sizeof total));
            printf("%s\n", cli_most_memory(r, CLI_COLUMNS - used, most, sizeof most));
        }
}

/* Whether the middle halves of both sides' steps overlap. */
static bool is_within_spread(const dp_bench_row *r)
{
    return r->parallel.low_ms <= r->single.high_ms && r->single.low_ms <= r->parallel.high_ms;
}

/* A batch that is no faster on all devices. */
static void print_loss(const benchmark *b, const dp_bench_row *r)
{
    double share = b->config.weak ? 1 : 1.0 / devices(b), ms;
    dp_phase phase = dp_bench_costliest_phase(r, b->config.weak, &ms);
    double all = r->parallel.ms_per_step - share * r->single.ms_per_step;
    bool level = !b->config.weak && is_within_spread(r);
    cli_say("batch %lld %s one device%s: %s eats the gain, %.2f ms a step beyond %s; %s %.2f ms",
            (long long)r->batch_size, level ? "takes about as long as on" : "loses to",
            level ? ", within the spread of the steps" : "", dp_phase_name(phase), ms,
            b->config.weak ? "the single device's" : "an even share of the single device's",
            all < ms ? "the other phases win back" : "all phases together", all < ms ? ms - all : all);
}

static void print_verdict(const benchmark *b)
{
    int64_t batch = dp_bench_break_even(b->rows, b->count);
    printf("\n");
    if (batch)
        printf("%d devices beat one from a batch of %lld on\n", devices(b), (long long)batch);
    else
        printf("%d devices do not beat one for good at any batch that was measured\n", devices(b));
    for (int i = 0; i < b->count; i++)
        if (b->rows[i].speedup <= 1)
            print_loss(b, &b->rows[i]);
    if (b->proves_nothing)
        printf("these devices share hardware or are emulated: the times prove nothing\n");
}

/* ---- for programs ---- */

static json_t *device_json(const void *from, int k)
{
    const dp_device_report *r = &((const dp_bench_row *)from)->device[k];
    return json_pack("{s:s, s:f, s:o, s:I}", "device", r->device, "busy_fraction", r->busy_fraction,
                     "peak_bytes", cli_memory_json(r), "peak_total_bytes", (json_int_t)r->peak_total_bytes);
}

static json_t *row_json(const void *from, int i)
{
    const dp_bench_row *r = &((const benchmark *)from)->rows[i];
    const dp_bench_times *one = &r->single, *all = &r->parallel;
    return json_pack(
        "{s:I, s:{s:I, s:f, s:f, s:f, s:f}, s:{s:f, s:f, s:f, s:f, s:o, s:o, s:o}, s:f, s:f, s:f, s:f}",
        "batch_size", (json_int_t)r->batch_size, "single", "batch_size", (json_int_t)one->batch_size,
        "ms_per_step", one->ms_per_step, "ms_low", one->low_ms, "ms_high", one->high_ms, "samples_per_second",
        one->samples_per_second, "parallel", "ms_per_step", all->ms_per_step, "ms_low", all->low_ms,
        "ms_high", all->high_ms, "samples_per_second", all->samples_per_second, "phase_ms",
        cli_phases_json(all->phase_ms), "overlapped_ms", cli_phases_json(all->overlapped_ms), "devices",
        cli_json_list(r->devices, device_json, r), "speedup", r->speedup, "speedup_low", r->low_speedup,
        "speedup_high", r->high_speedup, "efficiency", r->efficiency);
}

static dp_status write_json(benchmark *b, dp_error *err)
{
    int64_t batch = dp_bench_break_even(b->rows, b->count);
    if (!b->json.file)
        return DP_OK;
    DP_TRY(cli_output_begin(&b->json, err));
    DP_TRY(cli_write_json(json_pack("{s:s, s:s, s:i, s:s, s:i, s:b, s:o, s:o}", "model",
                                    dp_model_name(b->model), "device", b->backend, "devices", devices(b),
                                    "scaling", b->config.weak ? "weak" : "strong", "steps", b->config.steps,
                                    "times_prove_nothing", b->proves_nothing, "rows",
                                    cli_json_list(b->count, row_json, b), "break_even_batch_size",
                                    batch ? json_integer(batch) : json_null()),
                          b->json.file, err));
    return cli_output_close(&b->json, err);
}

static dp_status write_csv(benchmark *b, dp_error *err)
{
    FILE *f = b->csv.file;
    if (!f)
        return DP_OK;
    DP_TRY(cli_output_begin(&b->csv, err));
    fprintf(f, "batch_size,single_ms_per_step,single_samples_per_second,parallel_ms_per_step,"
               "parallel_samples_per_second,speedup,efficiency");
    for (int p = 0; p < DP_PHASES; p++)
        fprintf(f, ",%s_ms", dp_phase_name((dp_phase)p));
    for (int k = 0; k < devices(b); k++)
        fprintf(f, ",%s:%d_busy_fraction,%s:%d_peak_total_bytes", b->backend, b->ids[k], b->backend,
                b->ids[k]);
    fprintf(f, "\n");
    for (int i = 0; i < b->count; i++) {
        const dp_bench_row *r = &b->rows[i];
        fprintf(f, "%lld,%.6g,%.6g,%.6g,%.6g,%.6g,%.6g", (long long)r->batch_size, r->single.ms_per_step,
                r->single.samples_per_second, r->parallel.ms_per_step, r->parallel.samples_per_second,
                r->speedup, r->efficiency);
        for (int p = 0; p < DP_PHASES; p++)
            fprintf(f, ",%.6g", r->parallel.phase_ms[p]);
        for (int k = 0; k < r->devices; k++)
            fprintf(f, ",%.6g,%llu", r->device[k].busy_fraction,
                    (unsigned long long)r->device[k].peak_total_bytes);
        fprintf(f, "\n");
    }
    return cli_output_close(&b->csv, err);
}

/* ---- the command ---- */

static void show_progress(const benchmark *b, int i)
{
    if (!isatty(STDERR_FILENO))
        return;
    if (i < b->count)
        fprintf(stderr, "\rmeasuring batch %lld, %d of %d ... ", (long long)b->batches[i], i + 1, b->count);
    else
        fprintf(stderr, "\r%60s\r", "");
    fflush(stderr);
}

static dp_status bench(benchmark *b, int *code, dp_error *err)
{
    int shares;
    DP_TRY(read_options(b, &shares, err));
    DP_TRY(cli_synthetic_model(b->options, &b->model, &b->config.engine.criterion, err));
    b->config.model = b->model;
    b->config.stop = cli_stop_wanted;
    cli_catch_signals(); /* from here on there are files to remove */
    DP_TRY(open_outputs(b, err));
    DP_TRY(check(b, shares, err));
    DP_TRY(dp_calloc((size_t)b->count, sizeof *b->rows, "the results", &b->rows, err));
    for (int i = 0; i < b->count; i++) {
        show_progress(b, i);
        dp_status status = dp_bench_compare(&b->config, b->batches[i], &b->rows[i], err);
        if (status != DP_OK || b->rows[i].stopped) {
            show_progress(b, b->count);
            *code = cli_interrupted_code();
            return status;
        }
    }
    show_progress(b, b->count);
    print_times(b);
    print_phases(b);
    print_devices(b);
    print_verdict(b);
    DP_TRY(write_json(b, err));
    return write_csv(b, err);
}

dp_status cli_bench(int argc, char **argv, int *code, dp_error *err)
{
    cli_options options;
    DP_TRY(cli_parse(CLI_BENCH, argc - 2, argv + 2, &options, err));
    if (cli_given(&options, OPT_HELP)) {
        cli_print_help(CLI_BENCH);
        return DP_OK;
    }
    if (cli_list_models(&options))
        return DP_OK;
    benchmark b = {.options = &options, .config = dp_bench_defaults()};
    dp_status status = bench(&b, code, err);
    cli_output_abandon(&b.json);
    cli_output_abandon(&b.csv);
    dp_free(b.rows);
    dp_model_free(b.model);
    return status;
}
