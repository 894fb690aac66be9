/* Is a device overloaded, why, and what would help? */
#include <stdio.h>

#include "dptrain/report.h"

typedef struct sums {
    int used, busiest, fullest;
    double busy, memory, highest;
} sums;

static sums add_up(const dp_load *l)
{
    sums s = {.busiest = -1, .fullest = -1};
    for (int k = 0; k < l->devices; k++) {
        const dp_device_report *r = &l->device[k];
        if (r->samples == 0)
            continue;
        s.used++;
        s.busy += r->busy_fraction;
        s.memory += (double)r->peak_total_bytes;
        if (s.busiest < 0 || r->busy_fraction > l->device[s.busiest].busy_fraction)
            s.busiest = k;
        if (s.fullest < 0 || r->peak_total_bytes > l->device[s.fullest].peak_total_bytes)
            s.fullest = k;
    }
    s.highest = s.used ? l->device[s.busiest].busy_fraction : 0;
    return s;
}

/* What of it is not done already: the loss out of that device, or less work for it. */
static void remedy(const dp_load *l, int device, char *out, size_t size)
{
    const char *share = device == 0 ? l->split == DP_SPLIT_SHARES ? "a still smaller first share in --split"
                                                                  : "a smaller first share (--split)"
                                    : "a smaller share for it (--split)";
    if (l->loss_mode == DP_LOSS_GATHER && l->output == device)
        snprintf(out, size, "--loss-mode global or %s would relieve it", share);
    else if (device == 0)
        snprintf(out, size, "gradients are summed and weights updated there: %s would relieve it", share);
    else
        snprintf(out, size, "%s would relieve it", share);
}

static void judge(const dp_load *l, const sums *s, char text[DP_VERDICT_SIZE])
{
    char help[200];
    int k = s->busiest;
    double busy = l->device[k].busy_fraction * s->used / s->busy;
    double memory = (double)l->device[k].peak_total_bytes * s->used / s->memory;
    double full = (double)l->device[s->fullest].peak_total_bytes * s->used / s->memory;
    if (busy > 1.1) {
        remedy(l, k, help, sizeof help);
        snprintf(text, DP_VERDICT_SIZE,
                 "%s is overloaded: %.1f times as busy as the mean, with %.1f times its memory; %s",
                 l->device[k].device, busy, memory, help);
        return;
    }
    const dp_device_report *first = &l->device[0];
    int used = snprintf(text, DP_VERDICT_SIZE,
                        "the load is even: %s was %.1f times as busy as the mean, with %.1f times its memory",
                        first->device, first->busy_fraction * s->used / s->busy,
                        (double)first->peak_total_bytes * s->used / s->memory);
    if (full > 1.25) {
        remedy(l, s->fullest, help, sizeof help);
        snprintf(text + used, DP_VERDICT_SIZE - (size_t)used, "; should memory run out on %s: %s",
                 l->device[s->fullest].device, help);
    }
}

void dp_verdict(const dp_load *load, char text[DP_VERDICT_SIZE])
{
    sums s = add_up(load);
    if (s.used == 0)
        snprintf(text, DP_VERDICT_SIZE, "no device was trained on");
    else if (s.used == 1)
        snprintf(text, DP_VERDICT_SIZE, "%s did all the work, and was busy for %.0f %% of the time",
                 load->device[s.busiest].device, 100 * s.highest);
    else if (s.highest < 0.5)
        snprintf(text, DP_VERDICT_SIZE,
                 "every device was idle more than half of the time: one device would probably be faster");
    else if (s.memory > 0)
        judge(load, &s, text);
    else
        snprintf(text, DP_VERDICT_SIZE, "the devices' memory was not recorded");
}
