/* What the devices did: the timeline of a step, memory by purpose, busy shares, the split. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "report/page.h"

/* ---- a step ---- */

enum { MOST_SPANS = 3000, MOST_CELLS = 400 };

static void add_span(dp_page *page, const dp_timeline_span *s, double length)
{
    double begin = s->begin_ms / length, end = s->end_ms / length;
    char title[96];
    if (begin < 0 || end - begin < 0.0005)
        return;
    snprintf(title, sizeof title, "%s%s: %.3f to %.3f ms", s->busy ? "" : "waits in ",
             dp_phase_name(s->phase), s->begin_ms, s->end_ms);
    dp_page_add_part(page, begin, end, s->busy ? dp_phase_fill(s->phase) : dp_wait_fill,
                     s->busy ? dp_phase_name(s->phase) : NULL, title);
}

/* What takes most of the time between two moments; false where nothing does. */
static bool sample(const dp_run_device *d, double begin, double end, dp_timeline_span *out)
{
    double share[DP_PHASES][2] = {{0}}, most = 0;
    for (int i = 0; i < d->span_count; i++) {
        const dp_timeline_span *s = &d->spans[i];
        double from = s->begin_ms > begin ? s->begin_ms : begin, to = s->end_ms < end ? s->end_ms : end;
        if (to <= from)
            continue;
        share[s->phase][s->busy] += to - from;
        if (share[s->phase][s->busy] > most) {
            most = share[s->phase][s->busy];
            *out = (dp_timeline_span){s->phase, s->busy, begin, end};
        }
    }
    return most > 0;
}

/* Where there are too many spans for a page: cells of equal length, neighbours that look alike as one. */
static void add_cells(dp_page *page, const dp_run_device *d, int cells, double length)
{
    dp_timeline_span open = {0}, next = {0};
    bool is_open = false;
    for (int i = 0; i <= cells; i++) {
        bool more = i < cells && sample(d, length * i / cells, length * (i + 1) / cells, &next);
        if (is_open && more && next.phase == open.phase && next.busy == open.busy) {
            open.end_ms = next.end_ms;
            continue;
        }
        if (is_open)
            add_span(page, &open, length);
        is_open = more;
        open = next;
    }
}

static void add_timeline(dp_page *page, const dp_run *run, int k, double length, int cells)
{
    const dp_run_device *d = &run->device[k];
    dp_page_add(page, "<div class=\"row\"><div class=\"name\">");
    dp_page_add_text(page, run->report[k].device, 24);
    dp_page_add(page, "</div><svg class=\"bar drawn\" role=\"img\" aria-label=\"Timeline of device %d\">", k);
    if (cells > 0)
        add_cells(page, d, cells, length);
    for (int i = 0; i < d->span_count && cells == 0; i++)
        add_span(page, &d->spans[i], length);
    double last = d->span_count ? d->spans[d->span_count - 1].end_ms : 0;
    char text[DP_NUMBER_SIZE];
    dp_page_add(page, "</svg><div class=\"value\" data-timeline-ms=\"%.10g\">%s</div></div>\n", last,
                dp_show_ms(last, text));
}

static void add_time_axis(dp_page *page, double length)
{
    dp_page_add(
        page, "<div class=\"row\"><div class=\"name\"></div><svg class=\"axis drawn\" aria-hidden=\"true\">");
    double step = dp_axis_step(length, 6);
    for (double at = 0; at <= length; at += step) {
        double x = 100 * at / length;
        dp_page_add(page, "<text x=\"%.2f%%\" y=\"14\" text-anchor=\"%s\">%.6g ms</text>", x,
                    x < 2    ? "start"
                    : x > 98 ? "end"
                             : "middle",
                    at);
    }
    dp_page_add(page, "</svg><div class=\"value\"></div></div>\n");
}

static void add_phase_keys(dp_page *page, const dp_run *run)
{
    bool seen[DP_PHASES] = {false}, waits = false;
    for (int k = 0; k < run->reported; k++)
        for (int i = 0; i < run->device[k].span_count; i++) {
            const dp_timeline_span *s = &run->device[k].spans[i];
            seen[s->phase] |= s->busy;
            waits |= !s->busy;
        }
    dp_page_add(page, "<ul class=\"keys\">\n");
    for (int p = 0; p < DP_PHASES; p++)
        if (seen[p])
            dp_page_add_key(page, dp_phase_fill((dp_phase)p),
                            p == DP_PHASE_REDUCE ? "reduce + optimizer" : dp_phase_name((dp_phase)p));
    if (waits)
        dp_page_add_key(page, dp_wait_fill, "waiting for another device");
    dp_page_add(page, "</ul>\n");
}

static void add_timelines(dp_page *page, const dp_run *run)
{
    double length = 0;
    int spans = 0;
    for (int k = 0; k < run->reported; k++) {
        spans += run->device[k].span_count;
        for (int i = 0; i < run->device[k].span_count; i++)
            if (run->device[k].spans[i].end_ms > length)
                length = run->device[k].spans[i].end_ms;
    }
    if (length <= 0) {
        dp_page_begin_section(page, "timeline", "One step, device by device",
                              "The log has no timeline: a run writes it when it ends.");
        dp_page_end_section(page);
        return;
    }
    dp_page_begin_section(page, "timeline", "One step, device by device",
                          "The last full step of the run, from the moment it was begun.");
    int cells = run->reported * MOST_CELLS > MOST_SPANS ? MOST_SPANS / run->reported : MOST_CELLS;
    dp_page_add(page, "<div class=\"rows\">\n");
    for (int k = 0; k < run->reported; k++)
        add_timeline(page, run, k, length, spans > MOST_SPANS ? cells : 0);
    add_time_axis(page, length);
    dp_page_add(page, "</div>\n");
    add_phase_keys(page, run);
    dp_page_end_section(page);
}

static void add_phases(dp_page *page, const dp_run *run)
{
    double sum = 0, at = 0;
    for (int p = 0; p < DP_PHASES; p++)
        sum += run->phase_ms[p];
    if (run->timed == 0 || !(sum > 0))
        return;
    char note[160], text[DP_NUMBER_SIZE];
    snprintf(note, sizeof note,
             "As the coordinator sees it, the mean of %lld batch%s: %s. What other devices do meanwhile is "
             "not counted.",
             (long long)run->timed, run->timed == 1 ? "" : "es", dp_show_ms(sum, text));
    dp_page_begin_section(page, "phases", "Where the time of a step goes", note);
    dp_page_add(
        page, "<svg class=\"bar\" style=\"margin-top:.9rem\" role=\"img\" aria-label=\"Phases of a step\">");
    for (int p = 0; p < DP_PHASES; p++) {
        double end = at + run->phase_ms[p] / sum;
        char title[96];
        snprintf(title, sizeof title, "%s: %s", dp_phase_name((dp_phase)p),
                 dp_show_ms(run->phase_ms[p], text));
        if (end - at > 0.0005)
            dp_page_add_part(page, at, end, dp_phase_fill((dp_phase)p), dp_phase_name((dp_phase)p), title);
        at = end;
    }
    dp_page_add(
        page, "</svg>\n<div class=\"scroll\"><table>\n<tr><th>phase</th><th>time</th><th>share</th></tr>\n");
    for (int p = 0; p < DP_PHASES; p++) {
        char share[DP_NUMBER_SIZE];
        dp_page_add(page, "<tr><td>%s</td>", dp_phase_name((dp_phase)p));
        dp_page_add_cell(page, "phase-ms", run->phase_ms[p], dp_show_ms(run->phase_ms[p], text));
        dp_page_add(page, "<td>%s</td></tr>\n", dp_show_percent(run->phase_ms[p] / sum, share));
    }
    dp_page_add(page, "</table></div>\n");
    dp_page_end_section(page);
}

void dp_page_add_step(dp_page *page, const dp_run *run)
{
    add_timelines(page, run);
    add_phases(page, run);
}

/* ---- memory and work ---- */

static double sum_of(const dp_device_report *r)
{
    double sum = 0;
    for (int p = 0; p < DP_PURPOSES; p++)
        sum += (double)r->peak_bytes[p];
    return sum;
}

enum { PURPOSE_SIZE = 32 };

/* "gathered outputs" */
static void name_purpose(int purpose, char name[PURPOSE_SIZE])
{
    snprintf(name, PURPOSE_SIZE, "%s", dp_memory_purpose(purpose));
    for (char *c = name; *c; c++)
        *c = *c == '_' ? ' ' : *c;
}

/* The cell of a device and a purpose. */
static void add_bytes(dp_page *page, const dp_device_report *r, int purpose)
{
    char text[DP_NUMBER_SIZE], name[64];
    snprintf(name, sizeof name, "bytes-%s", dp_memory_purpose(purpose));
    dp_page_add_cell(page, name, (double)r->peak_bytes[purpose],
                     dp_show_bytes((double)r->peak_bytes[purpose], text));
}

static void add_heading(dp_page *page, const char *text)
{
    dp_page_add(page, "<th>");
    dp_page_add_text(page, text, 24);
    dp_page_add(page, "</th>");
}

/* A line a purpose, as long as there are few devices to stand side by side. */
static void add_purpose_lines(dp_page *page, const dp_run *run, const bool used[DP_PURPOSES])
{
    char name[PURPOSE_SIZE];
    dp_page_add(page, "<tr><th>purpose</th>");
    for (int k = 0; k < run->reported; k++)
        add_heading(page, run->report[k].device);
    dp_page_add(page, "</tr>\n");
    for (int p = 0; p < DP_PURPOSES; p++) {
        if (!used[p])
            continue;
        name_purpose(p, name);
        dp_page_add(page, "<tr><td>%s</td>", name);
        for (int k = 0; k < run->reported; k++)
            add_bytes(page, &run->report[k], p);
        dp_page_add(page, "</tr>\n");
    }
}

static void add_device_lines(dp_page *page, const dp_run *run, const bool used[DP_PURPOSES])
{
    char name[PURPOSE_SIZE];
    dp_page_add(page, "<tr><th>device</th>");
    for (int p = 0; p < DP_PURPOSES; p++)
        if (used[p]) {
            name_purpose(p, name);
            add_heading(page, name);
        }
    dp_page_add(page, "</tr>\n");
    for (int k = 0; k < run->reported; k++) {
        dp_page_add(page, "<tr><td>");
        dp_page_add_text(page, run->report[k].device, 24);
        dp_page_add(page, "</td>");
        for (int p = 0; p < DP_PURPOSES; p++)
            if (used[p])
                add_bytes(page, &run->report[k], p);
        dp_page_add(page, "</tr>\n");
    }
}

static void add_memory_table(dp_page *page, const dp_run *run, const bool used[DP_PURPOSES])
{
    enum { SIDE_BY_SIDE = 6 };
    dp_page_add(page, "<div class=\"scroll\"><table>\n");
    if (run->reported <= SIDE_BY_SIDE)
        add_purpose_lines(page, run, used);
    else
        add_device_lines(page, run, used);
    dp_page_add(page, "</table></div>\n");
}

static void add_memory(dp_page *page, const dp_run *run)
{
    double most = 0;
    bool used[DP_PURPOSES] = {false};
    for (int k = 0; k < run->reported; k++) {
        most = sum_of(&run->report[k]) > most ? sum_of(&run->report[k]) : most;
        for (int p = 0; p < DP_PURPOSES; p++)
            used[p] |= run->report[k].peak_bytes[p] > 0;
    }
    if (most <= 0)
        return;
    dp_page_begin_section(page, "memory", "Memory of the devices",
                          "The peak of each purpose; on the right the peak of all together.");
    dp_page_add(page, "<div class=\"rows\">\n");
    for (int k = 0; k < run->reported; k++) {
        const dp_device_report *r = &run->report[k];
        char text[DP_NUMBER_SIZE], title[128], name[PURPOSE_SIZE];
        dp_page_add(page, "<div class=\"row\"><div class=\"name\">");
        dp_page_add_text(page, r->device, 24);
        dp_page_add(page, "</div><svg class=\"bar drawn\" role=\"img\" aria-label=\"Memory of device %d\">",
                    k);
        double at = 0;
        for (int p = 0; p < DP_PURPOSES; p++) {
            double end = at + (double)r->peak_bytes[p] / most;
            name_purpose(p, name);
            snprintf(title, sizeof title, "%s: %s", name, dp_show_bytes((double)r->peak_bytes[p], text));
            if (end - at > 0.0005)
                dp_page_add_part(page, at, end, dp_purpose_fill(p), name, title);
            at = end;
        }
        dp_page_add(page, "</svg><div class=\"value\">%s</div></div>\n",
                    dp_show_bytes((double)r->peak_total_bytes, text));
    }
    dp_page_add(page, "</div>\n<ul class=\"keys\">\n");
    for (int p = 0; p < DP_PURPOSES; p++) {
        char name[PURPOSE_SIZE];
        name_purpose(p, name);
        if (used[p])
            dp_page_add_key(page, dp_purpose_fill(p), name);
    }
    dp_page_add(page, "</ul>\n");
    add_memory_table(page, run, used);
    dp_page_end_section(page);
}

static void add_busy(dp_page *page, const dp_run *run)
{
    dp_page_begin_section(
        page, "busy", "Busy share of the devices",
        "Of the time that training steps took. The rest went to waiting for data or another device.");
    dp_page_add(page, "<div class=\"rows\">\n");
    for (int k = 0; k < run->reported; k++) {
        const dp_device_report *r = &run->report[k];
        char text[DP_NUMBER_SIZE];
        dp_page_add(page, "<div class=\"row\"><div class=\"name\">");
        dp_page_add_text(page, r->device, 24);
        dp_page_add(page,
                    "</div><svg class=\"bar drawn\" role=\"img\" aria-label=\"Busy share of device %d\">", k);
        dp_page_add_part(page, 0, r->busy_fraction, "#0072b2", NULL, dp_show_percent(r->busy_fraction, text));
        dp_page_add(page, "</svg><div class=\"value\">%s</div></div>\n",
                    dp_show_percent(r->busy_fraction, text));
    }
    dp_page_add(page, "</div>\n");
    dp_page_end_section(page);
}

/* Chunks go to the first devices, in order, except where shares leave some out: then the log's order tells.
 */
static double chunk_of(const dp_run *run, int k)
{
    return k < run->chunk_count ? run->chunk_sizes[k] : 0;
}

static void add_table(dp_page *page, const dp_run *run)
{
    dp_page_begin_section(page, "devices", "Who did how much", NULL);
    dp_page_add(page, "<div class=\"scroll\"><table>\n<tr><th>device</th><th>of a full batch</th><th>samples "
                      "trained on</th><th>busy</th><th>peak memory</th>");
    dp_page_add(page, "</tr>\n");
    for (int k = 0; k < run->reported; k++) {
        const dp_device_report *r = &run->report[k];
        char text[DP_NUMBER_SIZE];
        dp_page_add(page, "<tr data-device=\"");
        dp_page_add_text(page, r->device, 24);
        dp_page_add(page, "\"><td>");
        dp_page_add_text(page, r->device, 24);
        dp_page_add(page, "</td>");
        dp_page_add_cell(page, "chunk", chunk_of(run, k), dp_show_count(chunk_of(run, k), text));
        dp_page_add_cell(page, "samples", (double)r->samples, dp_show_count((double)r->samples, text));
        dp_page_add_cell(page, "busy-fraction", r->busy_fraction, dp_show_percent(r->busy_fraction, text));
        dp_page_add_cell(page, "peak-total-bytes", (double)r->peak_total_bytes,
                         dp_show_bytes((double)r->peak_total_bytes, text));
        dp_page_add(page, "</tr>\n");
    }
    dp_page_add(page, "</table></div>\n");
    dp_page_end_section(page);
}

void dp_page_add_devices(dp_page *page, const dp_run *run)
{
    if (run->reported == 0) {
        dp_page_begin_section(page, "devices", "The devices",
                              "The log says nothing of them yet: a run writes that when it ends.");
        dp_page_end_section(page);
        return;
    }
    add_busy(page, run);
    add_memory(page, run);
    add_table(page, run);
}
