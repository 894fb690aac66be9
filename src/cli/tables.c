/* Results on stdout. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

char *cli_most_memory(const dp_device_report *r, int columns, char *buffer, size_t size)
{
    char bytes[32];
    int most[2];
    largest_purposes(r, most);
    int used = snprintf(buffer, size, "%s %s", dp_memory_purpose(most[0]),
                        dp_format_bytes(r->peak_bytes[most[0]], bytes, sizeof bytes));
    int both = used + snprintf(buffer + used, size - (size_t)used, ", %s %s", dp_memory_purpose(most[1]),
                               dp_format_bytes(r->peak_bytes[most[1]], bytes, sizeof bytes));
    if (both > columns)
        buffer[used] = 0;
    return buffer;
}

void cli_say(const char *format, ...)
{
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    int indent = (int)strspn(text, " "), column = 0;
    for (const char *at = text; *at;) {
        int blanks = (int)strspn(at, " "), length = (int)strcspn(at + blanks, " ");
        if (length > 0 && column > indent + 2 && column + blanks + length > CLI_COLUMNS) {
            printf("\n");
            column = 0;
            column += printf("%*s%.*s", indent + 2, "", length, at + blanks);
        } else if (length > 0)
            column += printf("%.*s", blanks + length, at);
        at += blanks + length;
    }
    printf("\n");
}

static void print_table(const dp_train_summary *s)
{
    printf("%-8s %11s %5s %11s  %s\n", "device", "samples", "busy", "peak memory", "most of it");
    for (int k = 0; k < s->devices; k++) {
        const dp_device_report *r = &s->device[k];
        char samples[32], total[32], most[96];
        int used = printf("%-8s %11s %3.0f %% %11s  ", r->device,
                          dp_format_count(r->samples, samples, sizeof samples), 100 * r->busy_fraction,
                          dp_format_bytes(r->peak_total_bytes, total, sizeof total));
        printf("%s\n", cli_most_memory(r, CLI_COLUMNS - used, most, sizeof most));
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
