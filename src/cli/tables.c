/* Results on stdout. */
#include <stdio.h>

#include "base/text.h"
#include "cli/cli.h"
#include "dptrain/report.h"

/* The two purposes that take most of a device's memory. */
static void largest_purposes(const dp_device_report *r, int out[2])
{
    out[0] = out[1] = 0;
    for (int p = 1; p < DP_PURPOSES; p++)
        if (r->peak_bytes[p] > r->peak_bytes[out[0]])
            out[0] = p;
    out[1] = out[0] == 0 ? 1 : 0;
    for (int p = 0; p < DP_PURPOSES; p++)
        if (p != out[0] && r->peak_bytes[p] > r->peak_bytes[out[1]])
            out[1] = p;
}

char *cli_most_memory(const dp_device_report *r, char *buffer, size_t size)
{
    char first[32], second[32];
    int most[2];
    largest_purposes(r, most);
    snprintf(buffer, size, "%s %s, %s %s", dp_memory_purpose(most[0]),
             dp_format_bytes(r->peak_bytes[most[0]], first, sizeof first), dp_memory_purpose(most[1]),
             dp_format_bytes(r->peak_bytes[most[1]], second, sizeof second));
    return buffer;
}

static void print_table(const dp_train_summary *s)
{
    printf("%-8s %12s %7s %11s  %s\n", "device", "samples", "busy", "peak memory", "most of it");
    for (int k = 0; k < s->devices; k++) {
        const dp_device_report *r = &s->device[k];
        char samples[32], total[32], most[96];
        printf("%-8s %12s %5.0f %% %11s  %s\n", r->device,
               dp_format_count(r->samples, samples, sizeof samples), 100 * r->busy_fraction,
               dp_format_bytes(r->peak_total_bytes, total, sizeof total),
               cli_most_memory(r, most, sizeof most));
    }
}

static void print_verdict(const dp_train_summary *s, const dp_engine_config *e)
{
    char text[DP_VERDICT_SIZE];
    dp_load load = {.devices = s->devices, .device = s->device, .loss_mode = e->loss_mode, .split = e->split};
    for (int k = 0; k < e->device_count; k++)
        if (e->device_ids[k] == e->output_device)
            load.output = k;
    dp_verdict(&load, text);
    printf("%s\n", text);
}

void cli_print_summary(const dp_train_summary *summary, const dp_engine_config *config)
{
    print_table(summary);
    print_verdict(summary, config);
}
