/* Devices and data, as the commands are told about them. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"

static dp_status logical_devices(const cli_options *o, int *out, dp_error *err)
{
    int64_t n = 0;
    const char *text = getenv("DPTRAIN_LOGICAL_DEVICES");
    if (!cli_given(o, OPT_LOGICAL_DEVICES) && text && *text)
        DP_TRY(cli_check_integer("DPTRAIN_LOGICAL_DEVICES", text, 1, DP_ENGINE_MAX_DEVICES, &n, err));
    DP_TRY(cli_integer(o, OPT_LOGICAL_DEVICES, 1, DP_ENGINE_MAX_DEVICES, &n, err));
    *out = (int)n;
    return DP_OK;
}

dp_status cli_context_config(const cli_options *o, dp_context_config *out, dp_error *err)
{
    static const char *const kinds[] = {"auto", "cpu", "cuda", NULL}; /* as dp_backend_kind */
    static const char *const precisions[] = {"fp32", "tf32", NULL};
    static const char *const p2ps[] = {"auto", "on", "off", NULL}; /* as dp_p2p */
    int kind = DP_BACKEND_AUTO, precision = 0, p2p = DP_P2P_AUTO;
    int64_t threads = 0;
    *out = dp_context_defaults();
    DP_TRY(cli_choice(o, OPT_DEVICE, kinds, &kind, err));
    DP_TRY(cli_integer(o, OPT_THREADS, 1, 4096, &threads, err));
    DP_TRY(cli_choice(o, OPT_PRECISION, precisions, &precision, err));
    DP_TRY(logical_devices(o, &out->logical_devices, err));
    DP_TRY(cli_choice(o, OPT_P2P, p2ps, &p2p, err));
    out->backend = (dp_backend_kind)kind;
    out->threads_per_device = (int)threads;
    out->allow_tf32 = precision == 1;
    out->p2p = (dp_p2p)p2p;
    return DP_OK;
}

dp_status cli_open_devices(const cli_options *o, dp_context **context, int ids[DP_ENGINE_MAX_DEVICES],
                           dp_engine_config *config, dp_error *err)
{
    dp_context_config c;
    int given;
    int64_t list[DP_ENGINE_MAX_DEVICES];
    DP_TRY(cli_context_config(o, &c, err));
    DP_TRY(cli_integers(o, OPT_DEVICE_IDS, 0, 1 << 20, DP_ENGINE_MAX_DEVICES, list, &given, err));
    DP_TRY(dp_context_open(&c, context, err));
    if (c.allow_tf32 && strcmp(dp_context_backend_name(*context), "cuda") != 0)
        return dp_fail(err, DP_ERROR_USAGE, "--precision tf32 is for CUDA devices");
    if (c.p2p == DP_P2P_ON && strcmp(dp_context_backend_name(*context), "cuda") != 0)
        return dp_fail(err, DP_ERROR_USAGE, "--p2p on is for CUDA devices");
    config->device_count = given ? given : dp_context_device_count(*context);
    for (int k = 0; k < config->device_count; k++)
        ids[k] = given ? (int)list[k] : k;
    config->device_ids = ids;
    return dp_engine_check(*context, config, err);
}

/* ---- links ---- */

/* Access control services send what should pass between two GPUs below one switch up to the root, where an
 * IOMMU may refuse it: NVIDIA Collective Communication Library's troubleshooting guide, "PCI Access Control
 * Services (ACS)". */
const char cli_broken_link_hint[] = "this is often PCI access control (ACS) or an IOMMU that intercepts "
                                    "transfers: switch ACS off in the firmware, or "
                                    "boot with iommu=pt; --p2p off skips the trial";

dp_status cli_try_links_to(dp_context *context, const dp_engine_config *config, const int *hubs,
                           int hub_count, void (*broken)(void *user, int a, int b, const char *why),
                           void *user, dp_error *err)
{
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    program[length > 0 ? length : 0] = 0;
    const dp_link_trial trial = {.program = program, .broken = broken, .user = user};
    return dp_context_try_links(context, config->device_ids, config->device_count, hubs, hub_count, &trial,
                                err);
}

typedef struct broken_links {
    bool quiet;
    int count;
} broken_links;

static void warn_of_link(void *user, int a, int b, const char *why)
{
    broken_links *links = user;
    links->count++;
    if (!links->quiet)
        fprintf(stderr,
                "warning: direct transfers between cuda:%d and cuda:%d are not used (%s): they go through "
                "host memory, which is slower\n",
                a, b, why);
}

dp_status cli_try_used_links(dp_context *context, const dp_engine_config *config, bool gathers, bool quiet,
                             bool *sound, dp_error *err)
{
    broken_links links = {.quiet = quiet};
    const int hubs[] = {config->device_ids[0], config->output_device};
    int hub_count = gathers && config->output_device >= 0 && hubs[0] != hubs[1] ? 2 : 1;
    DP_TRY(cli_try_links_to(context, config, hubs, hub_count, warn_of_link, &links, err));
    if (sound)
        *sound = links.count == 0;
    if (links.count && !quiet)
        fprintf(stderr, "  %s\n", cli_broken_link_hint);
    return DP_OK;
}

void cli_settle_links(dp_context_config *config, bool sound)
{
    if (config->p2p == DP_P2P_AUTO)
        config->p2p = sound ? DP_P2P_ON : DP_P2P_OFF;
}

/* ---- watchdog ---- */

static void warn_of_stall(void *user, const char *where)
{
    (void)user;
    fprintf(
        stderr,
        "\nwarning: no device gets on: %s; if that lasts, a second Ctrl-C ends the program, and --p2p off or "
        "another --device-ids may help\n",
        where);
}

/* Long enough for the longest phase of a step on a CPU; quiet programs have nobody to tell. */
void cli_watch(dp_engine_config *config, bool quiet)
{
    config->stall_seconds = quiet ? 0 : 120;
    config->stalled = warn_of_stall;
}

/* --mean and --std come together, one number or one a channel. */
static dp_status normalization(const cli_options *o, dp_data_config *out, dp_error *err)
{
    double mean[4], std[4];
    int means, stds;
    DP_TRY(cli_numbers(o, OPT_MEAN, -FLT_MAX, FLT_MAX, 4, mean, &means, err));
    DP_TRY(cli_numbers(o, OPT_STD, CLI_ABOVE_0, FLT_MAX, 4, std, &stds, err));
    if (means != stds)
        return dp_fail(err, DP_ERROR_USAGE, "--mean and --std go together, with as many numbers each");
    out->normalize_set = means > 0;
    out->normalize_channels = means;
    for (int i = 0; i < means; i++) {
        out->mean[i] = (float)mean[i];
        out->std[i] = (float)std[i];
    }
    return DP_OK;
}

bool cli_is_pictures(const char *source)
{
    return strncmp(source, "segmentation:", strlen("segmentation:")) == 0 ||
           strncmp(source, "images:", strlen("images:")) == 0;
}

static void print_note(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "note: %s\n", text);
}

static dp_status augmentation(const cli_options *o, dp_data_config *out, dp_error *err)
{
    const char *const *names = dp_augment_names;
    const char *text = o->value[OPT_AUGMENT];
    if (!text || strcmp(text, "none") == 0)
        return DP_OK;
    for (const char *at = text;; at++) {
        size_t n = strcspn(at, ",");
        int i = 0;
        while (names[i] && !(strlen(names[i]) == n && strncmp(names[i], at, n) == 0))
            i++;
        if (!names[i])
            return dp_fail(err, DP_ERROR_USAGE,
                           "--augment '%s': a comma-separated list of hflip, vflip and crop is needed", text);
        out->augment |= 1u << i;
        at += n;
        if (!*at)
            return DP_OK;
    }
}

static dp_status pictures(const cli_options *o, dp_data_config *out, dp_error *err)
{
    DP_TRY(augmentation(o, out, err));
    out->skip_bad = cli_given(o, OPT_SKIP_BAD);
    if (!cli_given(o, OPT_QUIET))
        out->note = print_note;
    if ((out->augment || out->skip_bad) && !cli_is_pictures(out->source))
        return dp_fail(err, DP_ERROR_USAGE, "--%s is for pictures from files, not for '%s'",
                       out->augment ? "augment" : "skip-bad", out->source);
    return DP_OK;
}

dp_status cli_data_config(const cli_options *o, dp_data_config *out, dp_error *err)
{
    *out = dp_data_defaults();
    int64_t seed = 0;
    if (cli_given(o, OPT_DATA))
        out->source = o->value[OPT_DATA];
    DP_TRY(cli_number(o, OPT_VALID_SPLIT, 0, CLI_BELOW_1, &out->valid_split, err));
    DP_TRY(cli_integer(o, OPT_SEED, 0, INT64_MAX, &seed, err));
    out->no_validation = out->valid_split == 0;
    out->seed = (uint64_t)seed;
    DP_TRY(pictures(o, out, err));
    return normalization(o, out, err);
}

dp_status cli_check_split(const cli_options *o, const dp_dataset *valid, dp_error *err)
{
    double split = dp_data_defaults().valid_split, neutral = split;
    DP_TRY(cli_number(o, OPT_VALID_SPLIT, 0, CLI_BELOW_1, &split, err));
    if (split != neutral && valid && dp_dataset_info_of(valid)->is_test)
        return dp_fail(err, DP_ERROR_USAGE,
                       "--valid-split %s: this data has a test part of its own, which nothing else is held "
                       "out for; leave the option out, or 0 for no validation",
                       o->value[OPT_VALID_SPLIT]);
    return DP_OK;
}

/* Of the first masks' pixels. */
static dp_status brightest_of_masks(const dp_dataset *dataset, int64_t masks, float *out, dp_error *err)
{
    const dp_dataset_info *d = dp_dataset_info_of(dataset);
    float *mask;
    *out = 0;
    DP_TRY(dp_aligned_alloc(d->target_bytes, "a mask", &mask, err));
    dp_status status = DP_OK;
    for (int64_t i = 0; i < masks && status == DP_OK; i++) {
        status = dp_dataset_read(dataset, i, -1, NULL, mask, err);
        for (int64_t e = 0; e < d->target_elements && status == DP_OK; e++)
            *out = mask[e] > *out ? mask[e] : *out;
    }
    dp_free(mask);
    return status;
}

dp_status cli_warn_of_dark_masks(const dp_dataset *dataset, dp_error *err)
{
    enum { LOOKED_AT = 16 };
    const dp_dataset_info *d = dp_dataset_info_of(dataset);
    int64_t masks = d->samples < LOOKED_AT ? d->samples : LOOKED_AT;
    float brightest;
    if (d->target != DP_TARGET_MASK)
        return DP_OK;
    DP_TRY(brightest_of_masks(dataset, masks, &brightest, err));
    if (brightest > 0 && brightest <= 0.5f)
        fprintf(
            stderr,
            "warning: nothing is marked in the first %lld mask%s: the brightest pixel is %.3g of 255, and "
            "above half of that counts; masks of 0 and 1 are to be scaled to 0 and 255\n",
            (long long)masks, dp_s(masks), 255 * (double)brightest);
    return DP_OK;
}

/* ---- the start-up table ---- */

const char *const cli_cuda_variables[2] = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"};

void cli_print_variables(FILE *out)
{
    const char *ids = getenv(cli_cuda_variables[0]);
    bool apart = ids && strlen(ids) > 20; /* UUIDs: the other variable gets a line of its own */
    for (int i = 0; i < 2; i++) {
        const char *value = getenv(cli_cuda_variables[i]);
        fprintf(out, "%s%s%s %s",
                i == 0  ? "  "
                : apart ? "\n  "
                        : ", ",
                cli_cuda_variables[i], value ? " is" : "", value ? value : "is not set");
    }
    fprintf(out, "\n");
}

static void print_gpu(const dp_context *context, const dp_device_info *d)
{
    char text[32];
    uint64_t bytes;
    if (dp_context_free_memory(context, d->id, &bytes))
        fprintf(stderr, " (%s free)", dp_format_bytes(bytes, text, sizeof text));
    fprintf(stderr, ", %s, %s", d->bus_id, d->uuid);
}

/* In PyTorch's words (torch/nn/parallel/data_parallel.py). */
static void warn_of_imbalance(const dp_context *context, const dp_engine_config *config)
{
    int weak, strong;
    if (!dp_context_imbalance(context, config->device_ids, config->device_count, &weak, &strong))
        return;
    fprintf(stderr,
            "warning: There is an imbalance between your GPUs. You may want to exclude GPU %d which has less "
            "than 75%% of the memory or cores of GPU %d. You can do so by setting the device_ids argument to "
            "DataParallel, or by setting the CUDA_VISIBLE_DEVICES environment variable. (Here: --device-ids "
            "without %d, or a smaller share for it by --split.)\n",
            weak, strong, weak);
}

bool cli_times_prove_nothing(const dp_context *context, const dp_engine_config *config)
{
    bool nothing = false;
    for (int k = 0; k < config->device_count; k++) {
        dp_device_info d;
        if (dp_context_device(context, config->device_ids[k], &d, NULL) == DP_OK)
            nothing |= d.shares_hardware || strstr(d.name, "times prove nothing");
    }
    return nothing;
}

void cli_print_devices(const dp_context *context, const dp_engine_config *config)
{
    bool cuda = strcmp(dp_context_backend_name(context), "cuda") == 0, shared = false;
    if (dp_context_choice(context))
        fprintf(stderr, "%s\n", dp_context_choice(context));
    for (int k = 0; k < config->device_count; k++) {
        dp_device_info d;
        char memory[32];
        if (dp_context_device(context, config->device_ids[k], &d, NULL) != DP_OK)
            continue;
        shared |= d.shares_hardware;
        fprintf(stderr, "  %-8s %s, %d %s%s, %s of memory", d.label, d.name, d.multiprocessors,
                cuda ? "SM" : "thread", d.multiprocessors == 1 ? "" : "s",
                dp_format_bytes(d.memory_bytes, memory, sizeof memory));
        if (cuda)
            print_gpu(context, &d);
        fprintf(stderr, "%s\n", k == 0 ? ", primary" : "");
    }
    if (shared)
        fprintf(stderr, "  these devices share hardware: the mechanics are real, the speed proves nothing\n");
    if (cuda)
        cli_print_variables(stderr);
    warn_of_imbalance(context, config);
}
