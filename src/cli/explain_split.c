/* Who gets which samples; and which number a device has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/explain.h"

/* ---- split ---- */

static const char *const split_names[] = {"chunk", "balanced", "shares"};

typedef struct splitting {
    int64_t batch, devices;
    dp_engine_config config;
    double shares[DP_ENGINE_MAX_DEVICES];
    int64_t chunk[3][DP_ENGINE_MAX_DEVICES]; /* the split that was asked for; torch.chunk's; balanced */
    int used[3];
} splitting;

static dp_status split_batch(const cli_options *o, splitting *s, dp_error *err)
{
    int shares;
    s->batch = 10;
    s->devices = 4;
    s->config = dp_engine_defaults();
    DP_TRY(cli_integer(o, OPT_BATCH_SIZE, 1, 1 << 30, &s->batch, err));
    DP_TRY(cli_integer(o, OPT_DEVICES, 1, DP_ENGINE_MAX_DEVICES, &s->devices, err));
    DP_TRY(cli_split(o, &s->config, s->shares, &shares, err));
    s->config.device_count = (int)s->devices;
    DP_TRY(cli_check_shares(o, &s->config, shares, err));
    double sum = 0;
    for (int k = 0; k < shares; k++)
        sum += s->shares[k];
    if (s->config.split == DP_SPLIT_SHARES && !(sum > 0))
        return dp_fail(err, DP_ERROR_USAGE, "a split needs at least one share above 0");
    const dp_split_kind kinds[] = {s->config.split, DP_SPLIT_CHUNK, DP_SPLIT_BALANCED};
    for (int i = 0; i < 3; i++)
        s->used[i] = dp_split_batch(kinds[i], s->shares, (int)s->devices, s->batch, s->chunk[i]);
    return DP_OK;
}

static void judge_split(const splitting *s, char *text, size_t size)
{
    int64_t most = 0;
    int idle = (int)s->devices - s->used[0];
    for (int k = 0; k < s->devices; k++)
        most = s->chunk[0][k] > most ? s->chunk[0][k] : most;
    int n = snprintf(text, size,
                     "the largest chunk has %lld sample%s, and the others wait for it: at best %.2f times as "
                     "fast as one device",
                     (long long)most, dp_s(most), (double)s->batch / (double)most);
    if (idle > 0)
        snprintf(text + n, size - (size_t)n, "; %d of %d devices get%s nothing", idle, (int)s->devices,
                 idle == 1 ? "s" : "");
}

/* What could be better about the split that was asked for. */
static const char *advice(const splitting *s)
{
    int64_t least = s->chunk[0][0], most = least;
    for (int k = 1; k < s->devices; k++) {
        least = s->chunk[0][k] < least ? s->chunk[0][k] : least;
        most = s->chunk[0][k] > most ? s->chunk[0][k] : most;
    }
    if (s->devices == 1)
        return "nothing: one device takes all; --devices N shows how several would share";
    if (s->config.split == DP_SPLIT_SHARES)
        return "shares are for a device that has more to do than others, or is slower: compare busy times "
               "with `dptrain explain imbalance --split`";
    if (least == most)
        return "nothing: the chunks are even; a smaller first share (--split 1,2,2 on three devices) "
               "relieves a first device that has more to do";
    return "choose a batch that the number of devices divides, or --split balanced; a smaller first share "
           "(--split 1,2,2 on three devices) relieves a first device that has more to do";
}

/* "  chunk    3, 3, 3, 1" */
static void print_sizes(const char *label, int devices, const int64_t *chunk)
{
    char text[512];
    int used = snprintf(text, sizeof text, "  %-9s", label);
    for (int k = 0; k < devices; k++)
        used +=
            snprintf(text + used, sizeof text - (size_t)used, "%s%lld", k ? ", " : "", (long long)chunk[k]);
    cli_say("%s", text);
}

static void print_device(int k, int64_t samples, int64_t first, int64_t most)
{
    char which[48] = "none";
    if (samples > 0)
        snprintf(which, sizeof which, "%lld to %lld", (long long)first, (long long)(first + samples - 1));
    int used = printf("  device %-3d %8lld  %s", k, (long long)samples, which);
    explain_bar(used < 42 ? 43 - used : 1, (double)samples, (double)most, 30);
    printf("\n");
}

/* Of many devices the first and the last ones. */
enum { SHOWN = 16, LAST_SHOWN = 4 };

static void print_split(const splitting *s, const char *verdict)
{
    int64_t first = 0, most = 1;
    int devices = (int)s->devices, left_out = devices > SHOWN ? devices - SHOWN + 1 : 0;
    for (int k = 0; k < devices; k++)
        most = s->chunk[0][k] > most ? s->chunk[0][k] : most;
    printf("Who gets which samples?\n\nA batch of %lld on %d device%s, by --split %s:\n\n",
           (long long)s->batch, devices, dp_s(devices), split_names[s->config.split]);
    printf("  %-10s %8s  %s\n", "device", "samples", "which");
    for (int k = 0; k < devices; k++) {
        int from_end = devices - k;
        if (from_end <= LAST_SHOWN || from_end > LAST_SHOWN + left_out)
            print_device(k, s->chunk[0][k], first, most);
        else if (from_end == LAST_SHOWN + left_out)
            printf("  ... %d more devices\n", left_out);
        first += s->chunk[0][k];
    }
    if (devices <= SHOWN) {
        printf("\nby the rules that take no shares:\n");
        print_sizes("chunk", devices, s->chunk[1]);
        print_sizes("balanced", devices, s->chunk[2]);
    }
    printf("\nchunk is torch.chunk, as in DataParallel: every device takes\n"
           "ceil(batch / devices) samples until there are none left. In balanced, sizes\n"
           "differ by one at most.\n\n");
    cli_say("verdict: %s", verdict);
    cli_say("what to do: %s", advice(s));
}

static json_t *chunk_json(const void *from, int k)
{
    const splitting *s = from;
    int64_t first = 0;
    for (int i = 0; i < k; i++)
        first += s->chunk[0][i];
    return json_pack("{s:i, s:I, s:o}", "device", k, "samples", (json_int_t)s->chunk[0][k], "first_sample",
                     s->chunk[0][k] > 0 ? json_integer(first) : json_null());
}

dp_status explain_split(const cli_options *o, dp_error *err)
{
    splitting s;
    char verdict[256];
    DP_TRY(split_batch(o, &s, err));
    judge_split(&s, verdict, sizeof verdict);
    if (cli_given(o, OPT_JSON))
        return explain_json(json_pack("{s:s, s:I, s:I, s:s, s:i, s:o, s:s}", "lesson", "split", "batch_size",
                                      (json_int_t)s.batch, "devices", (json_int_t)s.devices, "split",
                                      split_names[s.config.split], "used_devices", s.used[0], "chunks",
                                      cli_json_list((int)s.devices, chunk_json, &s), "verdict", verdict),
                            err);
    print_split(&s, verdict);
    return DP_OK;
}

/* ---- device-ids ---- */

/* A DataParallel object, asked of the engine with so many devices visible. */
typedef struct attempt {
    int visible, module_on; /* module_on: the device of the model's weights; -1: left to dptrain */
    int ids[2];
    const char *what;
    bool works;
    char message[256];
} attempt;

enum { ATTEMPTS = 5 };

static dp_status try_engine(dp_context *context, const dp_model *model, attempt *a, dp_error *err)
{
    dp_engine_config config = dp_engine_defaults();
    dp_engine *engine = NULL;
    dp_error why = {0};
    config.device_ids = a->ids;
    config.device_count = 2;
    dp_status status = dp_engine_create(context, model, &config, &engine, &why);
    dp_engine_free(engine);
    a->works = status == DP_OK;
    snprintf(a->message, sizeof a->message, "%.250s", a->works ? "works" : why.message);
    return a->works || status == DP_ERROR_USAGE ? DP_OK : dp_fail(err, status, "%s", why.message);
}

static dp_status make_attempt(const dp_context_config *base, attempt *a, dp_error *err)
{
    dp_context_config c = *base;
    dp_context *context = NULL;
    dp_model_config m = dp_model_defaults("linear");
    dp_model *model = NULL;
    m.input_rank = m.outputs = 1;
    m.input_shape[0] = 1;
    c.logical_devices = a->visible;
    DP_TRY(dp_context_open(&c, &context, err));
    dp_status status = dp_model_build(&m, &model, err);
    if (status == DP_OK && a->module_on >= 0)
        dp_model_to(model, a->module_on);
    if (status == DP_OK)
        status = try_engine(context, model, a, err);
    dp_model_free(model);
    dp_context_close(context);
    return status;
}

static json_t *attempt_json(const void *from, int i)
{
    const attempt *a = &((const attempt *)from)[i];
    return json_pack("{s:i, s:o, s:[i,i], s:b, s:s}", "visible_devices", a->visible, "module_on",
                     a->module_on < 0 ? json_null() : json_integer(a->module_on), "device_ids", a->ids[0],
                     a->ids[1], "works", a->works, "message", a->message);
}

static json_t *visible_json(const void *from, int k)
{
    dp_device_info d = {0};
    if (dp_context_device(from, k, &d, NULL) != DP_OK)
        return NULL;
    return json_pack("{s:s, s:s, s:o}", "device", d.label, "name", d.name, "uuid",
                     d.uuid[0] ? json_string(d.uuid) : json_null());
}

static void print_visible(const dp_context *context)
{
    int count = dp_context_device_count(context);
    printf("Visible here, now:\n");
    for (int k = 0; k < count && k < 8; k++) {
        dp_device_info d;
        if (dp_context_device(context, k, &d, NULL) == DP_OK)
            cli_say("  %-7s %s%s%s", d.label, d.name, d.uuid[0] ? ", " : "", d.uuid);
    }
    if (count > 8)
        printf("  and %d more\n", count - 8);
    cli_print_variables(stdout);
}

static void print_ids(const dp_context *context, const attempt *attempts, const char *verdict)
{
    printf("Why does device_ids=[2,3] fail in PyTorch?\n\n");
    print_visible(context);
    printf("\nTried with the engine, just now (logical devices stand in for GPUs):\n");
    for (int i = 0; i < ATTEMPTS; i++) {
        char ids[32];
        snprintf(ids, sizeof ids, "device_ids=[%d,%d]", attempts[i].ids[0], attempts[i].ids[1]);
        printf("  %-44s %-16s %s\n", attempts[i].what, ids, attempts[i].works ? "works" : "fails:");
        if (!attempts[i].works)
            cli_say("     it says: %s", attempts[i].message);
    }
    printf("\nCUDA_VISIBLE_DEVICES=2,3 leaves two GPUs and numbers them anew:\n"
           "  GPU in the machine   0   1   2   3\n"
           "  number inside        -   -   0   1\n\n");
    cli_say("verdict: %s", verdict);
    cli_say("what to do: %s",
            "in PyTorch, model.to('cuda:2') before DataParallel(model, device_ids=[2,3]); or "
            "CUDA_VISIBLE_DEVICES=2,3 and ids 0,1. In dptrain, --device-ids 2,3 is enough. "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID numbers GPUs as nvidia-smi does");
}

dp_status explain_device_ids(const cli_options *o, dp_error *err)
{
    static const char verdict[] =
        "the module's weights must lie on device_ids[0], and .cuda() puts them on device 0; "
        "and ids count the devices that CUDA_VISIBLE_DEVICES leaves, from 0";
    attempt attempts[ATTEMPTS] = {
        {.visible = 4, .module_on = 0, .ids = {2, 3}, .what = "4 visible, module on device 0 (.cuda())"},
        {.visible = 4, .module_on = 2, .ids = {2, 3}, .what = "4 visible, module on device 2"},
        {.visible = 4, .module_on = -1, .ids = {2, 3}, .what = "4 visible, placed by dptrain"},
        {.visible = 2, .module_on = 0, .ids = {2, 3}, .what = "CUDA_VISIBLE_DEVICES=2,3, module on device 0"},
        {.visible = 2, .module_on = 0, .ids = {0, 1}, .what = "CUDA_VISIBLE_DEVICES=2,3, module on device 0"},
    };
    dp_context_config c;
    dp_context *context = NULL;
    DP_TRY(cli_context_config(o, &c, err));
    for (int i = 0; i < ATTEMPTS; i++)
        DP_TRY(make_attempt(&c, &attempts[i], err));
    DP_TRY(dp_context_open(&c, &context, err));
    dp_status status = DP_OK;
    if (cli_given(o, OPT_JSON)) {
        json_t *variables = json_object();
        for (int i = 0; i < 2; i++) {
            const char *value = getenv(cli_cuda_variables[i]);
            json_object_set_new(variables, cli_cuda_variables[i], value ? json_string(value) : json_null());
        }
        status = explain_json(
            json_pack("{s:s, s:o, s:o, s:o, s:s}", "lesson", "device-ids", "environment", variables,
                      "visible", cli_json_list(dp_context_device_count(context), visible_json, context),
                      "attempts", cli_json_list(ATTEMPTS, attempt_json, attempts), "verdict", verdict),
            err);
    } else
        print_ids(context, attempts, verdict);
    dp_context_close(context);
    return status;
}
