/* From which batch on a second device pays. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/explain.h"

enum { MAX_BATCHES = 32 };

typedef struct ladder {
    explain_devices devices;
    dp_bench_config config;
    dp_model *model;
    int64_t batches[MAX_BATCHES];
    int count;
    dp_bench_row *rows;
} ladder;

static dp_status climb(ladder *l, const cli_options *given, dp_error *err)
{
    static const int64_t usual[] = {2, 4, 8, 16, 32, 64, 128, 256, 512};
    cli_options o = *given;
    int64_t steps = dp_bench_defaults().steps;
    if (!cli_given(&o, OPT_MODEL_TYPE))
        explain_default(&o, OPT_MODEL, "mlp");
    l->config = dp_bench_defaults();
    DP_TRY(cli_integer(&o, OPT_STEPS, 1, 1 << 20, &steps, err));
    DP_TRY(cli_integers(&o, OPT_BATCH_SIZES, 1, 1 << 24, MAX_BATCHES, l->batches, &l->count, err));
    if (l->count == 0) {
        memcpy(l->batches, usual, sizeof usual);
        l->count = sizeof usual / sizeof usual[0];
    }
    DP_TRY(cli_synthetic_model(&o, &l->model, &l->config.engine.criterion, err));
    DP_TRY(explain_find_devices(&o, cli_given(&o, OPT_DEVICE_IDS) ? DP_ENGINE_MAX_DEVICES : 2, &l->devices,
                                err));
    l->config.steps = (int)steps;
    l->config.model = l->model;
    l->config.context = l->devices.context;
    l->config.engine.device_ids = l->devices.ids;
    l->config.engine.device_count = l->devices.count;
    DP_TRY(dp_calloc((size_t)l->count, sizeof *l->rows, "the results", &l->rows, err));
    for (int i = 0; i < l->count; i++)
        DP_TRY(dp_bench_compare(&l->config, l->batches[i], &l->rows[i], err));
    return DP_OK;
}

/* The row whose batch is the smallest. */
static const dp_bench_row *smallest(const ladder *l)
{
    const dp_bench_row *row = &l->rows[0];
    for (int i = 1; i < l->count; i++)
        if (l->rows[i].batch_size < row->batch_size)
            row = &l->rows[i];
    return row;
}

static void judge(const ladder *l, char *text, size_t size)
{
    int64_t batch = dp_bench_break_even(l->rows, l->count);
    const dp_bench_row *small = smallest(l);
    double ms;
    dp_phase phase = dp_bench_costliest_phase(small, false, &ms);
    int n = batch ? snprintf(text, size, "from a batch of %lld on %d devices beat one here", (long long)batch,
                             l->devices.count)
                  : snprintf(text, size, "%d devices do not beat one for good here, up to the largest batch",
                             l->devices.count);
    snprintf(text + n, size - (size_t)n,
             "; with %lld sample%s %s takes most of what keeps a step from an even share of one device's, "
             "%.2f ms",
             (long long)small->batch_size, dp_s(small->batch_size), dp_phase_name(phase), ms);
}

static void print_text(const ladder *l, const char *verdict)
{
    double most = 1;
    for (int i = 0; i < l->count; i++)
        most = l->rows[i].speedup > most ? l->rows[i].speedup : most;
    int width = 28, one = (int)(1 / most * width + 0.5);
    char devices[EXPLAIN_DEVICES_SIZE];
    printf("When does a second device slow training down?\n\n");
    cli_say("%s, %d step%s each, in turns, on %s", dp_model_name(l->model), l->config.steps,
            dp_s(l->config.steps), explain_devices_text(&l->devices, devices, sizeof devices));
    printf("\n  %6s %12s %12s %9s  up to | is one device's speed\n", "batch", "one, ms", "all, ms",
           "speed-up");
    for (int i = 0; i < l->count; i++) {
        const dp_bench_row *r = &l->rows[i];
        printf("  %6lld %12.3f %12.3f %9.2f  ", (long long)r->batch_size, r->single.ms_per_step,
               r->parallel.ms_per_step, r->speedup);
        int length = explain_bar(0, r->speedup < 1 ? r->speedup : 1, 1, one);
        printf("%*s|", one - length, "");
        explain_bar(0, r->speedup > 1 ? r->speedup - 1 : 0, most - 1, width - one);
        printf("\n");
    }
    printf("\nComputing shrinks with the chunks; moving weights, gradients and outputs and\n"
           "handing over do not. Below some batch there is too little to share.\n\n");
    cli_say("verdict: %s", verdict);
    cli_say("what to do: %s",
            "a larger batch (with its learning rate), fewer devices, or --accumulation-steps; "
            "`dptrain bench` has all phases");
    explain_warn(&l->devices);
}

static json_t *row_json(const void *from, int i)
{
    const dp_bench_row *r = &((const ladder *)from)->rows[i];
    return json_pack("{s:I, s:f, s:f, s:f, s:o}", "batch_size", (json_int_t)r->batch_size,
                     "single_ms_per_step", r->single.ms_per_step, "parallel_ms_per_step",
                     r->parallel.ms_per_step, "speedup", r->speedup, "phase_ms",
                     cli_phases_json(r->parallel.phase_ms));
}

dp_status explain_batch_size(const cli_options *o, dp_error *err)
{
    ladder l = {0};
    char verdict[512];
    dp_status status = climb(&l, o, err);
    if (status == DP_OK) {
        judge(&l, verdict, sizeof verdict);
        int64_t batch = dp_bench_break_even(l.rows, l.count);
        if (cli_given(o, OPT_JSON))
            status = explain_json(json_pack("{s:s, s:s, s:i, s:b, s:o, s:o, s:s}", "lesson", "batch-size",
                                            "model", dp_model_name(l.model), "devices", l.devices.count,
                                            "times_prove_nothing", l.devices.proves_nothing, "rows",
                                            cli_json_list(l.count, row_json, &l), "break_even_batch_size",
                                            batch ? json_integer(batch) : json_null(), "verdict", verdict),
                                  err);
        else
            print_text(&l, verdict);
    }
    dp_free(l.rows);
    dp_model_free(l.model);
    return status;
}
