/* train --dry-run and --max-memory: what a run would be and take, before it begins. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"

static void print_shape(int rank, const int64_t *shape)
{
    char text[80] = "";
    size_t used = 0;
    for (int i = 0; i < rank && used < sizeof text; i++)
        used +=
            (size_t)snprintf(text + used, sizeof text - used, "%s%lld", i ? "x" : "", (long long)shape[i]);
    printf("%s", text);
}

static void print_model(const dp_model *model)
{
    char count[32];
    int64_t shape[3];
    printf("model %s: %s parameter%s, input ", dp_model_name(model),
           dp_format_count(dp_model_elements(model), count, sizeof count), dp_s(dp_model_elements(model)));
    int rank = dp_model_input_shape(model, shape);
    print_shape(rank, shape);
    printf(", output ");
    rank = dp_model_output_shape(model, shape);
    print_shape(rank, shape);
    printf("\n\nplan: what runs, and the shape of one sample's result\n");
    for (int i = 0; i < dp_model_operation_count(model); i++) {
        const dp_operation_info o = dp_model_operation(model, i);
        char what[64];
        snprintf(what, sizeof what, "%s%s%s", o.kind, o.adds ? " + add" : "", o.relu ? " + relu" : "");
        printf("%5d  %-28s ", i, what);
        print_shape(o.rank, o.shape);
        printf("%s%s\n", *o.layer ? "  " : "", o.layer);
    }
}

static void print_batch(const char *what, int64_t samples, const dp_engine_config *e)
{
    int64_t sizes[DP_ENGINE_MAX_DEVICES];
    if (samples < 1)
        return;
    dp_split_batch(e->split, e->shares, e->device_count, samples, sizes);
    char text[64 + 16 * DP_ENGINE_MAX_DEVICES];
    int used = snprintf(text, sizeof text, "%s of %lld:", what, (long long)samples);
    for (int k = 0; k < e->device_count && used < (int)sizeof text; k++)
        used +=
            snprintf(text + used, sizeof text - (size_t)used, "%s %lld", k ? "," : "", (long long)sizes[k]);
    cli_say("%s", text);
}

/* Of devices side by side. */
static void print_memory(const dp_device_report *reports, int devices)
{
    char bytes[32];
    printf("\n%-18s", "memory");
    for (int k = 0; k < devices; k++)
        printf(" %11s", reports[k].device);
    for (int p = 0; p < DP_PURPOSES; p++) {
        uint64_t most = 0;
        for (int k = 0; k < devices; k++)
            most = reports[k].peak_bytes[p] > most ? reports[k].peak_bytes[p] : most;
        if (most == 0)
            continue;
        printf("\n%-18s", dp_memory_purpose(p));
        for (int k = 0; k < devices; k++)
            printf(" %11s", dp_format_bytes(reports[k].peak_bytes[p], bytes, sizeof bytes));
    }
    printf("\n%-18s", "total");
    for (int k = 0; k < devices; k++)
        printf(" %11s", dp_format_bytes(reports[k].peak_total_bytes, bytes, sizeof bytes));
    printf("\n");
}

/* Whether the weights to start from fit is known now, and not when the run begins. */
static dp_status check_init(const dp_model *model, const dp_train_config *config, dp_load_report *report,
                            dp_error *err)
{
    dp_model_state state = {0};
    DP_TRY(dp_model_state_create(model, &state, err));
    dp_status status = dp_weights_load(config->init, model, config->init_partial, &state, report, err);
    dp_model_state_free(&state);
    return status;
}

dp_status cli_dry_run(dp_context *context, const dp_model *model, const dp_dataset *train,
                      const dp_dataset *valid, const dp_train_config *config, dp_error *err)
{
    dp_device_report reports[DP_ENGINE_MAX_DEVICES];
    dp_load_report loaded;
    int devices;
    if (config->init)
        DP_TRY(check_init(model, config, &loaded, err));
    DP_TRY(dp_train_memory(context, model, train, valid, config, reports, &devices, err));
    int64_t samples = dp_dataset_info_of(train)->samples, tail = samples % config->batch_size;
    print_model(model);
    if (config->init)
        printf("\nweights to start from: %d of %d in '%s'\n", loaded.loaded, loaded.loaded + loaded.skipped,
               config->init);
    printf("\nsplit over %d device%s\n", devices, devices == 1 ? "" : "s");
    print_batch("  a batch", samples < config->batch_size ? 0 : config->batch_size, &config->engine);
    print_batch("  the last", config->drop_last ? 0 : tail, &config->engine);
    enum { ABREAST = (CLI_COLUMNS - 18) / 12 };
    for (int k = 0; k < devices; k += ABREAST)
        print_memory(&reports[k], devices - k < ABREAST ? devices - k : ABREAST);
    return DP_OK;
}

dp_status cli_check_memory(dp_context *context, const dp_model *model, const dp_dataset *train,
                           const dp_dataset *valid, const dp_train_config *config, uint64_t limit,
                           dp_error *err)
{
    dp_device_report reports[DP_ENGINE_MAX_DEVICES];
    int devices, fullest = 0;
    char wanted[32], most[32], given[32];
    int64_t batch;
    DP_TRY(dp_train_memory(context, model, train, valid, config, reports, &devices, err));
    for (int k = 1; k < devices; k++)
        if (reports[k].peak_total_bytes > reports[fullest].peak_total_bytes)
            fullest = k;
    const dp_device_report *r = &reports[fullest];
    if (r->peak_total_bytes <= limit)
        return DP_OK;
    int largest = 0;
    for (int p = 1; p < DP_PURPOSES; p++)
        largest = r->peak_bytes[p] > r->peak_bytes[largest] ? p : largest;
    DP_TRY(dp_train_largest_batch(context, model, train, valid, config, limit, &batch, err));
    dp_format_bytes(r->peak_total_bytes, wanted, sizeof wanted);
    dp_format_bytes(r->peak_bytes[largest], most, sizeof most);
    dp_format_bytes(limit, given, sizeof given);
    if (batch < 1)
        return dp_fail(err, DP_ERROR_USAGE,
                       "%s would need %s (%s for %s), more than --max-memory of %s; no batch size would fit",
                       r->device, wanted, most, dp_memory_purpose(largest), given);
    return dp_fail(
        err, DP_ERROR_USAGE,
        "%s would need %s (%s for %s), more than --max-memory of %s; the largest --batch-size that "
        "fits is %lld",
        r->device, wanted, most, dp_memory_purpose(largest), given, (long long)batch);
}

/* The least that is free on any device of the run. GPUs hand out memory in pieces and keep some for
 * themselves: the last hundredth is not counted on. */
static uint64_t usable_memory(const dp_context *context, const dp_engine_config *config)
{
    uint64_t least = UINT64_MAX;
    for (int k = 0; k < config->device_count; k++) {
        dp_device_info info;
        uint64_t bytes;
        if (dp_context_device(context, config->device_ids[k], &info, NULL) != DP_OK || info.shares_hardware)
            return 0;
        if (!dp_context_free_memory(context, info.id, &bytes))
            bytes = info.memory_bytes;
        least = bytes < least ? bytes : least;
    }
    return least / 100 * 99;
}

void cli_suggest_batch(dp_context *context, const dp_model *model, const dp_dataset *train,
                       const dp_dataset *valid, const dp_train_config *config, dp_error *err)
{
    int64_t batch = 0;
    const dp_error cause = *err;
    if (!strstr(cause.message, "cuda:"))
        return;
    uint64_t bytes = usable_memory(context, &config->engine);
    if (bytes == 0 ||
        dp_train_largest_batch(context, model, train, valid, config, bytes, &batch, NULL) != DP_OK)
        return;
    if (batch < 1)
        dp_fail(err, cause.status,
                "%s; no --batch-size would fit: a smaller model or more devices are needed", cause.message);
    else if (batch < config->batch_size)
        dp_fail(err, cause.status, "%s; the largest --batch-size that fits is %lld", cause.message,
                (long long)batch);
}
