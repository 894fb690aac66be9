/* Why the loss of the same samples can depend on the number of devices. */
#include <stdio.h>
#include <string.h>

#include "cli/explain.h"

enum { SAMPLES = 3, MODES = 3 };

static const float losses[SAMPLES] = {0.3f, 0.2f, 0.8f};

/* What the engine says, by mode and number of devices less one. */
typedef struct averages {
    dp_context *context;
    dp_model *model;
    dp_step_result result[MODES][SAMPLES];
} averages;

/* One weight of 1 and no bias under |output - 0|: a sample's loss is the sample. */
static dp_status build(dp_model **out, dp_error *err)
{
    dp_model_config m = dp_model_defaults("linear");
    m.input_rank = m.outputs = 1;
    m.input_shape[0] = 1;
    return dp_model_build(&m, out, err);
}

static dp_status ask(averages *a, dp_loss_mode mode, int devices, dp_step_result *result, dp_error *err)
{
    static const float weights[] = {1, 0}, targets[SAMPLES] = {0};
    static const int ids[] = {0, 1, 2};
    dp_engine_config config = dp_engine_defaults();
    config.device_ids = ids;
    config.device_count = devices;
    config.criterion = DP_LOSS_L1;
    config.loss_mode = mode;
    const dp_step step = {.batch = {.samples = SAMPLES, .x = losses, .y = targets}};
    dp_engine *engine;
    DP_TRY(dp_engine_create(a->context, a->model, &config, &engine, err));
    dp_status status = dp_engine_set_weights(engine, weights, err);
    if (status == DP_OK)
        status = dp_engine_train(engine, &step, result, err);
    dp_engine_free(engine);
    return status;
}

static dp_status compute(averages *a, const cli_options *o, dp_error *err)
{
    dp_context_config context;
    DP_TRY(cli_context_config(o, &context, err));
    context.logical_devices = SAMPLES;
    DP_TRY(dp_context_open(&context, &a->context, err));
    DP_TRY(build(&a->model, err));
    for (int m = 0; m < MODES; m++)
        for (int n = 1; n <= SAMPLES; n++)
            DP_TRY(ask(a, (dp_loss_mode)m, n, &a->result[m][n - 1], err));
    return DP_OK;
}

static void judge(const averages *a, char *verdict, size_t size)
{
    snprintf(verdict, size,
             "on two devices replica reports %.4f, not %.4f: a mean of means is the mean of all only where "
             "the chunks are of one size, and here the third sample counts twice",
             a->result[DP_LOSS_REPLICA][1].loss, a->result[DP_LOSS_GATHER][1].loss);
}

static void line(const char *label, const char *samples, double loss)
{
    printf("  %-6s %-20s %.4f", label, samples, loss);
    explain_bar(1, loss, losses[2], 40);
    printf("\n");
}

static void print_text(const averages *a, const char *verdict)
{
    const dp_step_result *two = &a->result[DP_LOSS_REPLICA][1];
    printf("Why did my loss change with the number of devices?\n\n"
           "Three samples have the losses 0.3, 0.2 and 0.8. The engine that trains reports\n"
           "for this batch, by --loss-mode:\n\n"
           "  %-8s %10s %12s %14s\n",
           "mode", "one device", "two devices", "three devices");
    for (int m = 0; m < MODES; m++)
        printf("  %-8s %10.4f %12.4f %14.4f\n", dp_loss_mode_names[m], a->result[m][0].loss,
               a->result[m][1].loss, a->result[m][2].loss);
    printf("\nTwo devices get chunks of %lld and %lld, and replica averages the averages:\n\n",
           (long long)two->chunk_sizes[0], (long long)two->chunk_sizes[1]);
    line("first", "mean of 0.3 and 0.2", two->device_losses[0]);
    line("second", "0.8 alone", two->device_losses[1]);
    line("", "mean of these two", two->loss);
    line("", "mean of all three", a->result[DP_LOSS_GLOBAL][1].loss);
    printf("\n");
    cli_say("verdict: %s", verdict);
    cli_say("what to do: %s",
            "--loss-mode gather (PyTorch's usual way), or global, which moves less to the output "
            "device; or batches that the number of devices divides: then all modes agree");
}

static json_t *row_json(const void *from, int i)
{
    const dp_step_result *r = &((const averages *)from)->result[i / SAMPLES][i % SAMPLES];
    json_t *chunks = json_array(), *means = json_array();
    for (int k = 0; k < r->devices; k++) {
        json_array_append_new(chunks, json_integer(r->chunk_sizes[k]));
        json_array_append_new(means, json_real(r->device_losses[k]));
    }
    return json_pack("{s:s, s:i, s:f, s:o, s:o}", "loss_mode", dp_loss_mode_names[i / SAMPLES], "devices",
                     i % SAMPLES + 1, "loss", r->loss, "chunk_sizes", chunks, "device_losses", means);
}

dp_status explain_loss_average(const cli_options *o, dp_error *err)
{
    averages a = {0};
    char verdict[256];
    dp_status status = compute(&a, o, err);
    judge(&a, verdict, sizeof verdict);
    if (status == DP_OK && cli_given(o, OPT_JSON))
        status = explain_json(json_pack("{s:s, s:[f,f,f], s:o, s:s}", "lesson", "loss-average", "losses", 0.3,
                                        0.2, 0.8, "rows", cli_json_list(MODES * SAMPLES, row_json, &a),
                                        "verdict", verdict),
                              err);
    else if (status == DP_OK)
        print_text(&a, verdict);
    dp_model_free(a.model);
    dp_context_close(a.context);
    return status;
}
