/* Results on stdout. */
#include <stdio.h>

#include "base/text.h"
#include "cli/cli.h"

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

/* Is the first device overloaded, and would fewer devices do? Devices that never got a sample do not count.
 */
static void print_verdict(const dp_train_summary *s)
{
    const dp_device_report *first = &s->device[0];
    double busy = 0, highest = 0, memory = 0;
    int used = 0;
    for (int k = 0; k < s->devices; k++) {
        const dp_device_report *r = &s->device[k];
        if (r->samples == 0)
            continue;
        used++;
        busy += r->busy_fraction;
        memory += (double)r->peak_total_bytes;
        if (r->busy_fraction > highest)
            highest = r->busy_fraction;
    }
    if (used < 2 || busy <= 0 || memory <= 0)
        return;
    double busy_factor = first->busy_fraction * used / busy;
    double memory_factor = (double)first->peak_total_bytes * used / memory;
    if (highest < 0.5)
        printf("every device was idle more than half of the time: one device would probably be faster\n");
    else if (busy_factor > 1.1)
        printf("%s is overloaded: %.1f times as busy as the mean, with %.1f times its memory; a smaller "
               "first share (--split) or --loss-mode global would relieve it\n",
               first->device, busy_factor, memory_factor);
    else
        printf("the load is even: %s was %.1f times as busy as the mean, with %.1f times its memory\n",
               first->device, busy_factor, memory_factor);
}

void cli_print_summary(const dp_train_summary *summary)
{
    print_table(summary);
    print_verdict(summary);
}
