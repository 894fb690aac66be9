/* The devices of this machine, and what the links between them carry. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"

/* A direct link that must not be used. */
typedef struct broken_link {
    int a, b;
    char why[320];
} broken_link;

typedef struct listing {
    dp_context *context;
    int count;
    bool cuda;
    dp_device_info info[DP_ENGINE_MAX_DEVICES];
    bool knows_free[DP_ENGINE_MAX_DEVICES];
    uint64_t free_bytes[DP_ENGINE_MAX_DEVICES];
    dp_link *links;      /* [from * count + to] */
    broken_link *broken; /* room for every pair */
    int broken_count;
} listing;

static const dp_link *link_between(const listing *l, int from, int to)
{
    return &l->links[from * l->count + to];
}

static void note_broken(void *user, int a, int b, const char *why)
{
    listing *l = user;
    broken_link *link = &l->broken[l->broken_count++];
    link->a = a;
    link->b = b;
    snprintf(link->why, sizeof link->why, "%s", why);
}

/* Devices on the same two GPUs share a link. */
static const broken_link *find_broken(const listing *l, int from, int to)
{
    const char *x = l->info[from].bus_id, *y = l->info[to].bus_id;
    for (int i = 0; i < l->broken_count; i++) {
        const char *a = l->info[l->broken[i].a].bus_id, *b = l->info[l->broken[i].b].bus_id;
        if ((strcmp(a, x) == 0 && strcmp(b, y) == 0) || (strcmp(a, y) == 0 && strcmp(b, x) == 0))
            return &l->broken[i];
    }
    return NULL;
}

/* All links, as they would be tried before a run. */
static dp_status try_links(listing *l, const dp_engine_config *config, dp_error *err)
{
    size_t count = (size_t)l->count;
    DP_TRY(dp_calloc(count * count, sizeof *l->broken, "the links", &l->broken, err));
    return cli_try_links_to(l->context, config, config->device_ids, l->count, note_broken, l, err);
}

static dp_status look(listing *l, const dp_engine_config *config, dp_error *err)
{
    size_t count = (size_t)l->count;
    for (int k = 0; k < l->count; k++) {
        DP_TRY(dp_context_device(l->context, k, &l->info[k], err));
        /* Before the links are measured: the contexts and memory that takes are not counted. */
        l->knows_free[k] = dp_context_free_memory(l->context, k, &l->free_bytes[k]);
    }
    DP_TRY(try_links(l, config, err));
    DP_TRY(dp_calloc(count * count, sizeof *l->links, "the links", &l->links, err));
    return dp_context_measure_links(l->context, l->links, err);
}

/* ---- for people ---- */

static void print_table(const listing *l)
{
    enum { WIDEST = CLI_COLUMNS - 37 }; /* --json has longer names whole */
    int width = 4;
    for (int k = 0; k < l->count; k++)
        if ((int)strlen(l->info[k].name) > width)
            width = (int)strlen(l->info[k].name);
    width = width > WIDEST ? WIDEST : width;
    printf("%-8s %-*s %7s %9s %9s\n", "device", width, "name", l->cuda ? "SMs" : "threads", "memory", "free");
    for (int k = 0; k < l->count; k++) {
        const dp_device_info *d = &l->info[k];
        char memory[32], available[32] = "unknown";
        if (l->knows_free[k])
            dp_format_bytes(l->free_bytes[k], available, sizeof available);
        printf("%-8s %-*.*s %7d %9s %9s\n", d->label, width, width, d->name, d->multiprocessors,
               dp_format_bytes(d->memory_bytes, memory, sizeof memory), available);
        if (l->cuda)
            cli_say("%8s PCI %s, UUID %s", "", d->bus_id, d->uuid);
    }
}

static void print_link(const dp_link *link, bool broken)
{
    char cell[32], rate[16] = "damaged";
    if (link->intact)
        snprintf(rate, sizeof rate, "%.1f", link->bytes_per_second / 1e9);
    snprintf(cell, sizeof cell, "%s %s", broken ? "broken" : link->peer_access ? "yes" : "no", rate);
    printf(" %11s", cell);
}

/* Columns `first` up to `end` of the table; returns whether one of them is damaged. */
static bool print_links_to(const listing *l, int first, int end)
{
    bool damaged = false;
    printf("%-8s", "");
    for (int to = first; to < end; to++)
        printf(" %11s", l->info[to].label);
    for (int from = 0; from < l->count; from++) {
        printf("\n%-8s", l->info[from].label);
        for (int to = first; to < end; to++)
            if (to == from)
                printf(" %11s", "-");
            else {
                print_link(link_between(l, from, to), find_broken(l, from, to));
                damaged |= !link_between(l, from, to)->intact;
            }
    }
    printf("\n");
    return damaged;
}

static void print_links(const listing *l)
{
    enum { ABREAST = (CLI_COLUMNS - 8) / 12 };
    bool damaged = false;
    if (l->count == 1) {
        printf("\none device: there are no links\n");
        return;
    }
    printf("\npeer access, and copies in GB/s, from the device on the left:\n");
    for (int first = 0; first < l->count; first += ABREAST)
        damaged |= print_links_to(l, first, first + ABREAST < l->count ? first + ABREAST : l->count);
    if (damaged)
        printf("damaged: what arrived is not what was sent; do not train over this link\n");
    for (int i = 0; i < l->broken_count; i++)
        cli_say("broken: %s and %s: %s; what they send each other goes through host memory",
                l->info[l->broken[i].a].label, l->info[l->broken[i].b].label, l->broken[i].why);
    if (l->broken_count)
        cli_say("  %s", cli_broken_link_hint);
}

static void print_text(const listing *l)
{
    bool shared = false;
    for (int k = 0; k < l->count; k++)
        shared |= l->info[k].shares_hardware;
    print_table(l);
    cli_print_variables(stdout);
    print_links(l);
    if (shared)
        printf("devices share hardware: the mechanics are real, the speed proves nothing\n");
}

/* ---- for programs ---- */

static json_t *text_or_null(const char *text)
{
    return text && *text ? json_string(text) : json_null();
}

static json_t *device_json(const listing *l, int k)
{
    const dp_device_info *d = &l->info[k];
    return json_pack("{s:s, s:i, s:s, s:o, s:o, s:I, s:o, s:i, s:b}", "device", d->label, "id", d->id, "name",
                     d->name, "bus_id", text_or_null(d->bus_id), "uuid", text_or_null(d->uuid),
                     "memory_bytes", (json_int_t)d->memory_bytes, "free_memory_bytes",
                     l->knows_free[k] ? json_integer((json_int_t)l->free_bytes[k]) : json_null(),
                     l->cuda ? "multiprocessors" : "threads", d->multiprocessors, "shares_hardware",
                     d->shares_hardware);
}

static json_t *link_json(const listing *l, int from, int to)
{
    const dp_link *link = link_between(l, from, to);
    const broken_link *broken = find_broken(l, from, to);
    return json_pack("{s:s, s:s, s:b, s:b, s:b, s:o, s:f}", "from", l->info[from].label, "to",
                     l->info[to].label, "same_hardware", link->same_hardware, "peer_access",
                     link->peer_access, "intact", link->intact && !broken, "broken",
                     text_or_null(broken ? broken->why : NULL), "gb_per_second",
                     link->bytes_per_second / 1e9);
}

static dp_status print_json(const listing *l, dp_error *err)
{
    json_t *devices = json_array(), *links = json_array(), *variables = json_object();
    bool good = devices && links && variables;
    for (int i = 0; i < 2 && good; i++) {
        const char *value = getenv(cli_cuda_variables[i]);
        good = json_object_set_new(variables, cli_cuda_variables[i],
                                   value ? json_string(value) : json_null()) == 0;
    }
    for (int k = 0; k < l->count && good; k++)
        good = json_array_append_new(devices, device_json(l, k)) == 0;
    for (int from = 0; from < l->count; from++)
        for (int to = 0; to < l->count && good; to++)
            good = from == to || json_array_append_new(links, link_json(l, from, to)) == 0;
    json_t *json = json_pack("{s:s, s:o, s:o, s:o}", "backend", dp_context_backend_name(l->context),
                             "environment", variables, "devices", devices, "links", links);
    good = good && json && json_dumpf(json, stdout, JSON_REAL_PRECISION(6) | JSON_INDENT(1)) == 0;
    json_decref(json);
    printf("\n");
    return good ? DP_OK : dp_fail(err, DP_ERROR_MEMORY, "cannot write the list of devices as JSON");
}

static dp_status list(listing *l, const cli_options *o, dp_error *err)
{
    int ids[DP_ENGINE_MAX_DEVICES];
    dp_engine_config config = dp_engine_defaults();
    DP_TRY(cli_open_devices(o, &l->context, ids, &config, err));
    l->count = config.device_count;
    l->cuda = strcmp(dp_context_backend_name(l->context), "cuda") == 0;
    if (dp_context_choice(l->context))
        fprintf(stderr, "%s\n", dp_context_choice(l->context));
    DP_TRY(look(l, &config, err));
    if (cli_given(o, OPT_JSON))
        return print_json(l, err);
    print_text(l);
    return DP_OK;
}

dp_status cli_devices(int argc, char **argv, int *code, dp_error *err)
{
    (void)code;
    cli_options options;
    DP_TRY(cli_parse(CLI_DEVICES, argc - 2, argv + 2, &options, err));
    if (cli_given(&options, OPT_HELP)) {
        cli_print_help(CLI_DEVICES);
        return DP_OK;
    }
    listing l = {0};
    dp_status status = list(&l, &options, err);
    dp_free(l.broken);
    dp_free(l.links);
    dp_context_close(l.context);
    return status;
}
