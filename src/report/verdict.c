/* Is a device overloaded, why, and what would help? Judged on the figures as they are printed, rounded: no
 * figure is called both even and too much. */
#include <math.h>
#include <stdio.h>

#include "base/text.h"
#include "dptrain/report.h"

/* The first steps warm caches up and wait for memory: of fewer than these nothing is concluded. */
enum { ENOUGH_STEPS = 10 };

typedef struct sums {
    int used, first, busiest, laziest, fullest;
    double busy, memory;
} sums;

static sums add_up(const dp_load *l)
{
    sums s = {.first = -1, .busiest = -1, .laziest = -1, .fullest = -1};
    for (int k = 0; k < l->devices; k++) {
        const dp_device_report *r = &l->device[k];
        if (r->samples == 0)
            continue;
        s.used++;
        if (s.first < 0)
            s.first = k;
        s.busy += r->busy_fraction;
        s.memory += (double)r->peak_total_bytes;
        if (s.busiest < 0 || r->busy_fraction > l->device[s.busiest].busy_fraction)
            s.busiest = k;
        if (s.laziest < 0 || r->busy_fraction < l->device[s.laziest].busy_fraction)
            s.laziest = k;
        if (s.fullest < 0 || r->peak_total_bytes > l->device[s.fullest].peak_total_bytes)
            s.fullest = k;
    }
    return s;
}

/* Tenths of the mean, as "%.1f" prints them. */
static long busy_tenths(const dp_load *l, const sums *s, int k)
{
    return lround(10 * l->device[k].busy_fraction * s->used / s->busy);
}

static long memory_tenths(const dp_load *l, const sums *s, int k)
{
    return lround(10 * (double)l->device[k].peak_total_bytes * s->used / s->memory);
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

/* "1.2 times as busy as the mean, with 1.3 times its memory". */
static void compare(const dp_load *l, const sums *s, int k, char *out, size_t size)
{
    snprintf(out, size, "%.1f times as busy as the mean, with %.1f times its memory",
             (double)busy_tenths(l, s, k) / 10, (double)memory_tenths(l, s, k) / 10);
}

static void judge(const dp_load *l, const sums *s, char text[DP_VERDICT_SIZE])
{
    char help[200], factors[100];
    if (busy_tenths(l, s, s->busiest) > 11) {
        remedy(l, s->busiest, help, sizeof help);
        compare(l, s, s->busiest, factors, sizeof factors);
        snprintf(text, DP_VERDICT_SIZE, "%s is overloaded: %s; %s", l->device[s->busiest].device, factors,
                 help);
        return;
    }
    if (busy_tenths(l, s, s->laziest) < 9) {
        compare(l, s, s->laziest, factors, sizeof factors);
        snprintf(text, DP_VERDICT_SIZE,
                 "%s has less to do than the others: %s; a larger share (--split) would use it better",
                 l->device[s->laziest].device, factors);
        return;
    }
    compare(l, s, s->first, factors, sizeof factors);
    int used =
        snprintf(text, DP_VERDICT_SIZE, "the load is even: %s was %s", l->device[s->first].device, factors);
    if (memory_tenths(l, s, s->fullest) > 12) {
        char times[32] = ""; /* the first device's was said */
        remedy(l, s->fullest, help, sizeof help);
        if (s->fullest != s->first)
            snprintf(times, sizeof times, " (%.1f times)", (double)memory_tenths(l, s, s->fullest) / 10);
        snprintf(text + used, DP_VERDICT_SIZE - (size_t)used, "; should memory run out on %s%s: %s",
                 l->device[s->fullest].device, times, help);
    }
}

void dp_verdict(const dp_load *load, char text[DP_VERDICT_SIZE])
{
    char factors[100];
    sums s = add_up(load);
    if (s.used == 0) {
        snprintf(text, DP_VERDICT_SIZE, "no device was trained on");
        return;
    }
    const dp_device_report *busiest = &load->device[s.busiest];
    long percent = lround(100 * busiest->busy_fraction);
    bool known = s.memory > 0 && s.busy > 0;
    if (s.used == 1)
        snprintf(text, DP_VERDICT_SIZE, "%s did all the work, and was busy for %ld %% of the time",
                 busiest->device, percent);
    else if (busiest->steps < ENOUGH_STEPS) {
        int used =
            snprintf(text, DP_VERDICT_SIZE, "%lld step%s %s too few to judge the load",
                     (long long)busiest->steps, dp_s(busiest->steps), busiest->steps == 1 ? "is" : "are");
        if (known) {
            compare(load, &s, s.busiest, factors, sizeof factors);
            snprintf(text + used, DP_VERDICT_SIZE - (size_t)used, ": %s was %s so far", busiest->device,
                     factors);
        }
    } else if (percent < 50)
        snprintf(text, DP_VERDICT_SIZE,
                 "every device was idle more than half of the time: one device would probably be faster");
    else if (known)
        judge(load, &s, text);
    else
        snprintf(text, DP_VERDICT_SIZE, "the devices' memory was not recorded");
}
