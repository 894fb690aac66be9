/* Loss and accuracy over the epochs. Lines are drawn in a square of 1000 by 1000 that is stretched to the
 * plot; text lies outside of it and keeps its size. */
#include <float.h>
#include <math.h>
#include <stdio.h>

#include "base/memory.h"
#include "report/page.h"

enum { MOST_POINTS = 500, MARKS = 5 };

typedef struct frame {
    double left, right, low, high; /* epochs; values */
} frame;

static double across(const frame *f, double epoch)
{
    return 1000 * (epoch - f->left) / (f->right - f->left);
}

static double down(const frame *f, double value)
{
    return 1000 * (f->high - value) / (f->high - f->low);
}

static void widen(frame *f, double value)
{
    if (isnan(value))
        return;
    f->low = value < f->low ? value : f->low;
    f->high = value > f->high ? value : f->high;
}

/* Room above and below, and a height even for a curve without any. */
static void settle(frame *f)
{
    double room = f->high > f->low ? 0.05 * (f->high - f->low) : fabs(f->high) * 0.1 + 1e-6;
    f->low -= room;
    f->high += room;
}

/* Scores are between 0 and 1, and a plot of less than 1 % shows nothing. */
static void settle_scores(frame *f)
{
    settle(f);
    f->low = f->low > 0 ? f->low : 0;
    f->high = f->high < 1 ? f->high : 1;
    if (f->high < f->low + 0.01)
        f->high = f->low + 0.01;
}

static void begin_plot(dp_page *page, const frame *f, const char *label, bool percent)
{
    dp_page_add(page, "<svg class=\"plot\" role=\"img\" aria-label=\"%s\">\n", label);
    double step = dp_axis_step(f->high - f->low, MARKS);
    for (double at = ceil(f->low / step) * step; at <= f->high; at += step) {
        double y = down(f, at) / 10;
        char text[DP_NUMBER_SIZE];
        snprintf(text, sizeof text, percent ? "%.6g %%" : "%.6g",
                 (percent ? 100 : 1) * (fabs(at) < step / 2 ? 0 : at));
        dp_page_add(page,
                    "<line class=\"grid\" x1=\"0\" x2=\"100%%\" y1=\"%.2f%%\" y2=\"%.2f%%\"/>"
                    "<text x=\"-10\" y=\"%.2f%%\" dy=\"4\" text-anchor=\"end\">%s</text>\n",
                    y, y, y, text);
        if (at + step <= at) /* a step too small for the values */
            break;
    }
    dp_page_add(page, "<svg width=\"100%%\" height=\"100%%\" viewBox=\"0 0 1000 1000\" "
                      "preserveAspectRatio=\"none\" overflow=\"visible\">\n");
}

static void end_plot(dp_page *page, const frame *f)
{
    dp_page_add(page, "</svg>\n</svg>\n<svg class=\"axis\" aria-hidden=\"true\">");
    double step = dp_axis_step(f->right - f->left, 8);
    step = step < 1 ? 1 : step;
    for (double at = ceil(f->left / step) * step; at <= f->right && at + step > at; at += step) {
        double x = across(f, at) / 10;
        dp_page_add(page, "<text x=\"%.2f%%\" y=\"14\" text-anchor=\"%s\">%.0f</text>", x,
                    x < 2    ? "start"
                    : x > 98 ? "end"
                             : "middle",
                    at);
    }
    dp_page_add(page, "</svg>\n");
}

/* ---- training loss: the mean of as many batches as a point stands for, and between which values they lay
 * ---- */

typedef struct point {
    double epoch, mean, low, high;
} point;

static int thin(const dp_run *run, point points[MOST_POINTS])
{
    size_t width = run->batch_count / MOST_POINTS + 1;
    int count = 0;
    for (size_t i = 0; i < run->batch_count; i += width) {
        point p = {.low = DBL_MAX, .high = -DBL_MAX};
        double sum = 0;
        int finite = 0;
        for (size_t k = i; k < i + width && k < run->batch_count; k++) {
            double loss = run->batches[k].loss;
            p.epoch = run->batches[k].epoch;
            if (isnan(loss))
                continue;
            finite++;
            sum += loss;
            p.low = loss < p.low ? loss : p.low;
            p.high = loss > p.high ? loss : p.high;
        }
        p.mean = sum / finite;
        if (finite > 0 && isfinite(p.mean))
            points[count++] = p;
    }
    return count;
}

static void draw_training(dp_page *page, const frame *f, const point *points, int count)
{
    dp_page_add(page, "<path class=\"band train\" d=\"");
    for (int i = 0; i < count; i++)
        dp_page_add(page, "%s%.1f %.1f", i ? "L" : "M", across(f, points[i].epoch), down(f, points[i].high));
    for (int i = count - 1; i >= 0; i--)
        dp_page_add(page, "L%.1f %.1f", across(f, points[i].epoch), down(f, points[i].low));
    dp_page_add(page, "Z\"/>\n<path class=\"line train\" d=\"");
    for (int i = 0; i < count; i++)
        dp_page_add(page, "%s%.1f %.1f", i ? "L" : "M", across(f, points[i].epoch), down(f, points[i].mean));
    dp_page_add(page, "\"/>\n");
}

/* ---- what every epoch has one of ---- */

typedef double (*epoch_value)(const dp_run_epoch *e);
static double valid_loss(const dp_run_epoch *e)
{
    return e->valid_loss;
}
static double valid_accuracy(const dp_run_epoch *e)
{
    return e->valid_accuracy;
}
static double valid_iou(const dp_run_epoch *e)
{
    return e->valid_iou;
}
static double valid_f1(const dp_run_epoch *e)
{
    return e->valid_f1;
}

static bool has(const dp_run *run, epoch_value of)
{
    for (size_t i = 0; i < run->epoch_count; i++)
        if (!isnan(of(&run->epochs_done[i])))
            return true;
    return false;
}

/* At most MOST_POINTS of them; the last always. */
static size_t stride(const dp_run *run)
{
    return run->epoch_count / MOST_POINTS + 1;
}

static bool shown(const dp_run *run, size_t i)
{
    return i % stride(run) == 0 || i + 1 == run->epoch_count;
}

/* Measured at the end of an epoch, which is where the point lies. */
static void draw_epochs(dp_page *page, const frame *f, const dp_run *run, epoch_value of, const char *colour,
                        bool dashed)
{
    bool drawn = false;
    dp_page_add(page, "<path class=\"line %s%s\" d=\"", colour, dashed ? " dashed" : "");
    for (size_t i = 0; i < run->epoch_count; i++) {
        const dp_run_epoch *e = &run->epochs_done[i];
        if (!shown(run, i) || isnan(of(e)))
            continue;
        dp_page_add(page, "%s%.1f %.1f", drawn ? "L" : "M", across(f, e->epoch + 1), down(f, of(e)));
        drawn = true;
    }
    dp_page_add(page, "\"/>\n<path class=\"dots %s\" d=\"", colour);
    for (size_t i = 0; i < run->epoch_count && run->epoch_count <= 60; i++)
        if (!isnan(of(&run->epochs_done[i])))
            dp_page_add(page, "M%.1f %.1fh0", across(f, run->epochs_done[i].epoch + 1),
                        down(f, of(&run->epochs_done[i])));
    dp_page_add(page, "\"/>\n");
}

static void add_line_key(dp_page *page, const char *style, const char *text)
{
    dp_page_add(page,
                "<li><svg width=\"26\" height=\"10\" aria-hidden=\"true\"><path class=\"line %s\" d=\"M1 "
                "5H25\"/></svg>%s"
                "</li>\n",
                style, text);
}

static frame frame_of(const dp_run *run)
{
    frame f = {.left = DBL_MAX, .right = -DBL_MAX, .low = DBL_MAX, .high = -DBL_MAX};
    for (size_t i = 0; i < run->batch_count; i++) {
        double epoch = run->batches[i].epoch;
        f.left = floor(epoch) < f.left ? floor(epoch - 1e-9) : f.left;
        f.right = epoch > f.right ? epoch : f.right;
    }
    for (size_t i = 0; i < run->epoch_count; i++) {
        double epoch = run->epochs_done[i].epoch;
        f.left = epoch < f.left ? epoch : f.left;
        f.right = epoch + 1 > f.right ? epoch + 1 : f.right;
    }
    return f;
}

static void add_losses(dp_page *page, const dp_run *run)
{
    point *training;
    if (dp_calloc(MOST_POINTS, sizeof *training, "a curve", &training, &page->error) != DP_OK) {
        page->status = DP_ERROR_MEMORY;
        return;
    }
    int count = thin(run, training);
    frame f = frame_of(run);
    for (int i = 0; i < count; i++) {
        widen(&f, training[i].low);
        widen(&f, training[i].high);
    }
    for (size_t i = 0; i < run->epoch_count; i++)
        widen(&f, run->epochs_done[i].valid_loss);
    bool validated = has(run, valid_loss);
    if (count > 0 || validated) {
        settle(&f);
        begin_plot(page, &f, "Loss by epoch", false);
        if (count > 0)
            draw_training(page, &f, training, count);
        if (validated)
            draw_epochs(page, &f, run, valid_loss, "valid", true);
        end_plot(page, &f);
        dp_page_add(page, "<ul class=\"keys\">\n");
        if (count > 0)
            add_line_key(page, "train", "training, batch by batch");
        if (validated)
            add_line_key(page, "valid dashed", "validation, after each epoch");
        dp_page_add(page, "</ul>\n");
    }
    dp_free(training);
}

static void add_scores(dp_page *page, const dp_run *run)
{
    frame f = frame_of(run);
    bool accuracy = has(run, valid_accuracy);
    epoch_value first = accuracy ? valid_accuracy : valid_iou, second = accuracy ? NULL : valid_f1;
    for (size_t i = 0; i < run->epoch_count; i++) {
        widen(&f, first(&run->epochs_done[i]));
        if (second)
            widen(&f, second(&run->epochs_done[i]));
    }
    settle_scores(&f);
    dp_page_begin_section(page, "score", accuracy ? "Accuracy" : "IoU and F1",
                          "On the data held out for validation, after each epoch.");
    begin_plot(page, &f, accuracy ? "Accuracy by epoch" : "IoU and F1 by epoch", true);
    draw_epochs(page, &f, run, first, "train", false);
    if (second)
        draw_epochs(page, &f, run, second, "valid", true);
    end_plot(page, &f);
    if (second) {
        dp_page_add(page, "<ul class=\"keys\">\n");
        add_line_key(page, "train", "IoU");
        add_line_key(page, "valid dashed", "F1");
        dp_page_add(page, "</ul>\n");
    }
    dp_page_end_section(page);
}

void dp_page_add_curves(dp_page *page, const dp_run *run)
{
    if (run->batch_count + run->epoch_count == 0) {
        dp_page_begin_section(page, "loss", "Loss", "The log has no batch yet.");
        dp_page_end_section(page);
        return;
    }
    dp_page_begin_section(
        page, "loss", "Loss",
        run->batch_count >= MOST_POINTS
            ? "By epoch. A point of the line is the mean of some batches; the shade spans them."
            : "By epoch.");
    add_losses(page, run);
    dp_page_end_section(page);
    if (has(run, valid_accuracy) || has(run, valid_iou))
        add_scores(page, run);
}
