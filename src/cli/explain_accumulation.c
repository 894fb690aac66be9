/* What accumulating gradients saves, and what it costs. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/explain.h"

enum { TRAINED_BATCHES = 32, HELD_OUT = 512, TURNS = 3 };

static const double learning_rate = 0.05;

/* An update every `batches` batches. */
typedef struct way {
    int batches;
    dp_bench_row row; /* its step is one update */
    int64_t updates;  /* in the little training run */
    double loss;      /* after it, on samples held out */
} way;

typedef struct accumulation {
    explain_devices devices;
    dp_bench_config config;
    dp_model *model;
    int64_t batch, window;
    dp_dataset *train, *held_out;
    float *x;
    unsigned char *y;
    way ways[2]; /* every batch; every window */
} accumulation;

static dp_status prepare(accumulation *a, const cli_options *given, dp_error *err)
{
    cli_options o = *given;
    int64_t steps = dp_bench_defaults().steps;
    a->batch = 32;
    a->window = 4;
    if (!cli_given(&o, OPT_MODEL_TYPE))
        explain_default(&o, OPT_MODEL, "mlp");
    a->config = dp_bench_defaults();
    DP_TRY(cli_integer(&o, OPT_BATCH_SIZE, 1, 1 << 20, &a->batch, err));
    DP_TRY(cli_integer(&o, OPT_ACCUMULATION, 2, TRAINED_BATCHES, &a->window, err));
    DP_TRY(cli_integer(&o, OPT_STEPS, 1, 1 << 16, &steps, err));
    DP_TRY(cli_synthetic_model(&o, &a->model, &a->config.engine.criterion, err));
    DP_TRY(explain_find_devices(&o, DP_ENGINE_MAX_DEVICES, &a->devices, err));
    a->config.steps = (int)steps;
    a->config.model = a->model;
    a->config.context = a->devices.context;
    a->config.engine.device_ids = a->devices.ids;
    a->config.engine.device_count = a->devices.count;
    a->ways[0].batches = 1;
    a->ways[1].batches = (int)a->window;
    return DP_OK;
}

/* ---- what it saves ---- */

/* In turns; the fastest of each counts: whatever else the machine does only makes a turn slower. */
static dp_status time_both(accumulation *a, dp_error *err)
{
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i < 2; i++) {
            dp_bench_row row;
            a->config.accumulation_steps = a->ways[i].batches;
            DP_TRY(dp_bench_measure(&a->config, a->batch, &row, err));
            if (turn == 0 || row.parallel.ms_per_step < a->ways[i].row.parallel.ms_per_step)
                a->ways[i].row = row;
        }
    return DP_OK;
}

/* Of as many batches as the window has. */
static double window_ms(const accumulation *a, const way *w)
{
    return w->row.parallel.ms_per_step * (double)a->window / w->batches;
}

static double moving_ms(const accumulation *a, const way *w)
{
    const double *ms = w->row.parallel.phase_ms;
    return (ms[DP_PHASE_BROADCAST] + ms[DP_PHASE_REDUCE] + ms[DP_PHASE_OPTIMIZER]) * (double)a->window /
           w->batches;
}

/* Every update sends the weights to all devices but the primary, and their gradients back. */
static double moved_bytes(const accumulation *a, const way *w)
{
    return 2.0 * (a->devices.count - 1) * (double)dp_model_elements(a->model) * (double)sizeof(float) *
           (double)a->window / w->batches;
}

/* ---- what it costs ---- */

static dp_status open_data(accumulation *a, dp_error *err)
{
    char source[64];
    int64_t in[3], out[3], samples = a->batch * TRAINED_BATCHES + HELD_OUT;
    dp_data_config d = dp_data_defaults();
    snprintf(source, sizeof source, "synthetic:%lld", (long long)samples);
    dp_model_input_shape(a->model, in);
    dp_model_output_shape(a->model, out);
    d.source = source;
    d.valid_split = (double)HELD_OUT / (double)samples;
    memcpy(d.synthetic_shape, in, sizeof d.synthetic_shape);
    d.synthetic_classes = out[0];
    d.synthetic_masks = a->config.engine.criterion != DP_LOSS_CROSS_ENTROPY;
    DP_TRY(dp_data_open(&d, &a->train, &a->held_out, err));
    const dp_dataset_info *info = dp_dataset_info_of(a->train);
    size_t room = (size_t)(a->batch > HELD_OUT ? a->batch : HELD_OUT);
    DP_TRY(dp_calloc(room * (size_t)info->elements, sizeof *a->x, "samples", &a->x, err));
    return dp_calloc(room, info->target_bytes, "targets", &a->y, err);
}

static dp_status read_batch(accumulation *a, const dp_dataset *set, int64_t first, int64_t samples,
                            dp_host_batch *out, dp_error *err)
{
    const dp_dataset_info *info = dp_dataset_info_of(set);
    for (int64_t i = 0; i < samples; i++)
        DP_TRY(dp_dataset_read(set, first + i, 0, a->x + i * info->elements,
                               a->y + (size_t)i * info->target_bytes, err));
    *out = (dp_host_batch){.samples = samples, .x = a->x, .y = a->y};
    return DP_OK;
}

static dp_status run_epoch(accumulation *a, dp_engine *engine, way *w, dp_error *err)
{
    dp_step_result result;
    for (int b = 0; b < TRAINED_BATCHES; b++) {
        bool last = b + 1 == TRAINED_BATCHES || (b + 1) % w->batches == 0;
        dp_step step = {.lr = learning_rate, .loss_scale = 1.0 / w->batches, .update = last};
        step.random_step = (uint32_t)b;
        DP_TRY(read_batch(a, a->train, b * a->batch, a->batch, &step.batch, err));
        DP_TRY(dp_engine_train(engine, &step, &result, err));
        w->updates += last;
    }
    dp_host_batch held_out;
    int64_t samples = dp_dataset_info_of(a->held_out)->samples;
    DP_TRY(read_batch(a, a->held_out, 0, samples < HELD_OUT ? samples : HELD_OUT, &held_out, err));
    DP_TRY(dp_engine_evaluate(engine, &held_out, &result, err));
    w->loss = result.loss;
    return DP_OK;
}

static dp_status train_way(accumulation *a, dp_context *context, const dp_model_state *state, way *w,
                           dp_error *err)
{
    dp_engine *engine;
    DP_TRY(dp_engine_create(context, a->model, &a->config.engine, &engine, err));
    dp_status status = dp_engine_set_state(engine, state, err);
    if (status == DP_OK)
        status = run_epoch(a, engine, w, err);
    dp_engine_free(engine);
    return status;
}

static dp_status train_both(accumulation *a, dp_error *err)
{
    dp_context *context = NULL;
    dp_model_state state = {0};
    DP_TRY(open_data(a, err));
    DP_TRY(dp_context_open(&a->config.context, &context, err));
    dp_status status = dp_model_state_create(a->model, &state, err);
    if (status == DP_OK)
        dp_model_state_init(a->model, 0, &state);
    for (int i = 0; i < 2 && status == DP_OK; i++)
        status = train_way(a, context, &state, &a->ways[i], err);
    dp_model_state_free(&state);
    dp_context_close(context);
    return status;
}

/* ---- what it says ---- */

static void judge(const accumulation *a, char *text, size_t size)
{
    const way *each = &a->ways[0], *window = &a->ways[1];
    double ratio = window_ms(a, each) / window_ms(a, window);
    snprintf(text, size,
             "an update every %lld batches saves %.0f %% of the transfers and makes the same batches %.2f "
             "times as %s here; but the same samples give %lld update%s instead of %lld, and a held-out loss "
             "of %.4f instead of %.4f",
             (long long)a->window, 100 * (1 - moved_bytes(a, window) / moved_bytes(a, each)),
             ratio >= 1 ? ratio : 1 / ratio, ratio >= 1 ? "fast" : "slow", (long long)window->updates,
             dp_s(window->updates), (long long)each->updates, window->loss, each->loss);
}

static void print_way(const accumulation *a, const way *w, double full)
{
    char label[48], bytes[32];
    if (w->batches == 1)
        snprintf(label, sizeof label, "every batch");
    else
        snprintf(label, sizeof label, "every %d batches", w->batches);
    printf("  %-17s %9.3f %10.3f %10s", label, window_ms(a, w), moving_ms(a, w),
           dp_format_bytes((uint64_t)moved_bytes(a, w), bytes, sizeof bytes));
    explain_bar(2, window_ms(a, w), full, 24);
    printf("\n");
}

static void print_text(const accumulation *a, const char *verdict)
{
    const way *each = &a->ways[0], *window = &a->ways[1];
    double full = window_ms(a, each) > window_ms(a, window) ? window_ms(a, each) : window_ms(a, window);
    char devices[EXPLAIN_DEVICES_SIZE], count[32];
    printf("What does accumulating gradients save, and what does it cost?\n\n");
    cli_say("%s, batches of %lld, on %s", dp_model_name(a->model), (long long)a->batch,
            explain_devices_text(&a->devices, devices, sizeof devices));
    printf("\nof %lld batches, measured (bytes: computed from the size of the model):\n"
           "  %-17s %9s %10s %10s\n",
           (long long)a->window, "update", "time, ms", "moving, ms", "moved");
    print_way(a, each, full);
    print_way(a, window, full);
    printf("moving: broadcast, reduce and optimizer as the first device waits for them.\n"
           "Between two updates the weights stay the same: nothing is sent, gradients are\n"
           "added where they are. (PyTorch's DataParallel sends them in every step.)\n\n"
           "the same %s samples once, lr %g: updates, then the loss on %d others:\n",
           dp_format_count(a->batch * TRAINED_BATCHES, count, sizeof count), learning_rate, HELD_OUT);
    double worst = each->loss > window->loss ? each->loss : window->loss;
    for (int i = 0; i < 2; i++) {
        printf("  %4lld update%-6s %9.4f", (long long)a->ways[i].updates, dp_s(a->ways[i].updates),
               a->ways[i].loss);
        explain_bar(2, a->ways[i].loss, worst, 40);
        printf("\n");
    }
    printf("\n");
    cli_say("verdict: %s", verdict);
    cli_say("what to do: %s",
            "accumulate where the batch that you want does not fit or transfers dominate, and raise the "
            "learning rate with the batch; else a larger --batch-size saves the same");
    explain_warn(&a->devices);
}

static json_t *way_json(const void *from, int i)
{
    const accumulation *a = from;
    const way *w = &a->ways[i];
    return json_pack("{s:i, s:f, s:f, s:I, s:I, s:f}", "accumulation_steps", w->batches, "ms_per_window",
                     window_ms(a, w), "moving_ms_per_window", moving_ms(a, w), "moved_bytes_per_window",
                     (json_int_t)moved_bytes(a, w), "updates", (json_int_t)w->updates, "held_out_loss",
                     w->loss);
}

dp_status explain_accumulation(const cli_options *o, dp_error *err)
{
    accumulation a = {0};
    char verdict[512];
    dp_status status = prepare(&a, o, err);
    if (status == DP_OK)
        status = time_both(&a, err);
    if (status == DP_OK)
        status = train_both(&a, err);
    if (status == DP_OK) {
        judge(&a, verdict, sizeof verdict);
        if (cli_given(o, OPT_JSON))
            status = explain_json(
                json_pack("{s:s, s:s, s:I, s:i, s:b, s:I, s:o, s:s}", "lesson", "accumulation", "model",
                          dp_model_name(a.model), "batch_size", (json_int_t)a.batch, "devices",
                          a.devices.count, "times_prove_nothing", a.devices.proves_nothing, "window_batches",
                          (json_int_t)a.window, "ways", cli_json_list(2, way_json, &a), "verdict", verdict),
                err);
        else
            print_text(&a, verdict);
    }
    dp_free(a.x);
    dp_free(a.y);
    dp_dataset_free(a.train);
    dp_dataset_free(a.held_out);
    dp_model_free(a.model);
    return status;
}
