/* A run's log as one page of HTML. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "io/file.h"
#include "report/page.h"

enum { MOST_ROWS = 100, LONGEST_NAME = 200, LONGEST_COMMAND = 4000 };

static const dp_run_epoch *last_epoch(const dp_run *run)
{
    return run->epoch_count ? &run->epochs_done[run->epoch_count - 1] : NULL;
}

static void add_tile(dp_page *page, const char *name, const char *label, double value, const char *text)
{
    if (!isnan(value))
        dp_page_add(page, "<div><dt>%s</dt><dd data-%s=\"%.10g\">%s</dd></div>\n", label, name, value, text);
}

static void add_tiles(dp_page *page, const dp_run *run)
{
    const dp_run_epoch *e = last_epoch(run);
    char text[DP_NUMBER_SIZE];
    dp_page_add(page, "<dl class=\"tiles\">\n");
    if (e) {
        add_tile(page, "valid-accuracy", run->is_test ? "test accuracy" : "validation accuracy",
                 e->valid_accuracy, dp_show_percent(e->valid_accuracy, text));
        add_tile(page, "valid-iou", "validation IoU", e->valid_iou, dp_show_percent(e->valid_iou, text));
        add_tile(page, "valid-f1", "validation F1", e->valid_f1, dp_show_percent(e->valid_f1, text));
        add_tile(page, "valid-loss", run->is_test ? "test loss" : "validation loss", e->valid_loss,
                 dp_show_loss(e->valid_loss, text));
        add_tile(page, "train-loss", "training loss", e->train_loss, dp_show_loss(e->train_loss, text));
        add_tile(page, "rate", "samples per second", e->samples_per_second,
                 dp_show_rate(e->samples_per_second, text));
    }
    if (run->status) {
        add_tile(page, "steps", "optimizer steps", run->steps, dp_show_count(run->steps, text));
        add_tile(page, "seconds", "time", run->seconds, dp_show_seconds(run->seconds, text));
    }
    dp_page_add(page, "</dl>\n");
}

/* "2 devices (cpu:0, cpu:1), batches of 128, loss mode gather" */
static void add_subtitle(dp_page *page, const dp_run *run)
{
    char text[DP_NUMBER_SIZE];
    dp_page_add(page, "<p class=\"muted\">");
    dp_page_add_text(page, run->data, LONGEST_NAME);
    dp_page_add(page, "<br>%d device%s (", run->device_count, run->device_count == 1 ? "" : "s");
    for (int k = 0; k < run->device_count; k++) {
        dp_page_add(page, k ? ", " : "");
        dp_page_add_text(page, run->device_names[k], 24);
    }
    dp_page_add(page, "), batches of %s, loss mode ", dp_show_count(run->batch_size, text));
    dp_page_add_text(page, run->loss_mode, LONGEST_NAME);
    dp_page_add(page, ". ");
    if (run->status && strcmp(run->status, "completed") == 0)
        dp_page_add(page, "The run was completed.");
    else if (run->status && strcmp(run->status, "interrupted") == 0)
        dp_page_add(page, "The run was interrupted.");
    else
        dp_page_add(page, "The log has no end: the run was going on when this was made, or it was stopped.");
    if (run->resumed)
        dp_page_add(page, " It was continued %d time%s.", run->resumed, run->resumed == 1 ? "" : "s");
    dp_page_add(page, "</p>\n");
}

static void add_verdict(dp_page *page, const dp_run *run)
{
    char text[DP_VERDICT_SIZE];
    if (run->reported == 0)
        return;
    const dp_load load = dp_run_load(run);
    dp_verdict(&load, text);
    if (*text >= 'a' && *text <= 'z' &&
        strncmp(text, load.device[0].device, strlen(load.device[0].device)) != 0)
        *text = (char)(*text - 'a' + 'A');
    dp_page_add(page, "<p class=\"verdict\">");
    dp_page_add_text(page, text, sizeof text);
    dp_page_add(page, ".</p>\n");
}

static void add_epochs(dp_page *page, const dp_run *run)
{
    if (run->epoch_count == 0)
        return;
    bool scored = false, iou = false;
    for (size_t i = 0; i < run->epoch_count; i++) {
        scored |= !isnan(run->epochs_done[i].valid_accuracy);
        iou |= !isnan(run->epochs_done[i].valid_iou);
    }
    size_t stride = run->epoch_count / MOST_ROWS + 1;
    dp_page_begin_section(page, "epochs", "Epochs",
                          stride > 1 ? "Some of them, evenly spread, and the last." : NULL);
    dp_page_add(page,
                "<div class=\"scroll\"><table>\n<tr><th>epoch</th><th>training loss</th><th>validation "
                "loss</th>%s%s<th>time</th><th>samples/s</th></tr>\n",
                scored ? "<th>accuracy</th>" : "", iou ? "<th>IoU</th><th>F1</th>" : "");
    for (size_t i = 0; i < run->epoch_count; i++) {
        const dp_run_epoch *e = &run->epochs_done[i];
        char text[DP_NUMBER_SIZE];
        if (i % stride != 0 && i + 1 != run->epoch_count)
            continue;
        dp_page_add(page, "<tr data-epoch=\"%.10g\"><td>%.10g</td>", e->epoch, e->epoch);
        dp_page_add_cell(page, "train-loss", e->train_loss, dp_show_loss(e->train_loss, text));
        dp_page_add_cell(page, "valid-loss", e->valid_loss, dp_show_loss(e->valid_loss, text));
        if (scored)
            dp_page_add_cell(page, "valid-accuracy", e->valid_accuracy,
                             dp_show_percent(e->valid_accuracy, text));
        if (iou) {
            dp_page_add_cell(page, "valid-iou", e->valid_iou, dp_show_percent(e->valid_iou, text));
            dp_page_add_cell(page, "valid-f1", e->valid_f1, dp_show_percent(e->valid_f1, text));
        }
        dp_page_add_cell(page, "epoch-seconds", e->seconds, dp_show_seconds(e->seconds, text));
        dp_page_add_cell(page, "rate", e->samples_per_second, dp_show_rate(e->samples_per_second, text));
        dp_page_add(page, "</tr>\n");
    }
    dp_page_add(page, "</table></div>\n");
    dp_page_end_section(page);
}

static void add_fact(dp_page *page, const char *label, const char *text)
{
    dp_page_add(page, "<tr><td>%s</td><td>", label);
    dp_page_add_text(page, text, LONGEST_NAME);
    dp_page_add(page, "</td></tr>\n");
}

static void add_settings(dp_page *page, const dp_run *run)
{
    char text[DP_NUMBER_SIZE];
    dp_page_begin_section(page, "settings", "The run", NULL);
    dp_page_add(page, "<div class=\"scroll\"><table>\n");
    add_fact(page, "model", run->model);
    add_fact(page, "parameters", dp_show_count(run->parameters, text));
    add_fact(page, "data", run->data);
    add_fact(page, "batch size, of all devices together", dp_show_count(run->batch_size, text));
    add_fact(page, "batches to an optimizer step", dp_show_count(run->accumulation_steps, text));
    add_fact(page, "split", run->split);
    add_fact(page, "loss", run->loss);
    add_fact(page, "loss mode", run->loss_mode);
    add_fact(page, "output device", run->output_device);
    add_fact(page, "optimizer", run->optimizer);
    snprintf(text, sizeof text, "%g", run->lr);
    add_fact(page, "learning rate at the start", text);
    add_fact(page, "seed", dp_show_count(run->seed, text));
    dp_page_add(page, "</table></div>\n<p class=\"note\">The command line:</p>\n<code>");
    dp_page_add_text(page, run->command, LONGEST_COMMAND);
    dp_page_add(page, "</code>\n");
    dp_page_end_section(page);
}

static void add_all(dp_page *page, const dp_run *run)
{
    char title[128];
    snprintf(title, sizeof title, "%.100s: training report", run->model);
    dp_page_begin(page, title);
    dp_page_add(page, "<header>\n<h1>");
    dp_page_add_text(page, run->model, LONGEST_NAME);
    dp_page_add(page, "</h1>\n");
    add_subtitle(page, run);
    add_tiles(page, run);
    add_verdict(page, run);
    dp_page_add(page, "</header>\n");
    dp_page_add_curves(page, run);
    dp_page_add_step(page, run);
    dp_page_add_devices(page, run);
    add_epochs(page, run);
    add_settings(page, run);
    dp_page_add(page,
                "<footer>Written by dptrain " DP_VERSION
                " from the run&#39;s log%s. Times are of the machine "
                "that trained.</footer>\n",
                run->torn ? ", whose last line is torn and was left out" : "");
    dp_page_end(page);
}

static dp_status write_page(const dp_page *page, const char *path, dp_error *err)
{
    dp_atomic_file *file;
    DP_TRY(dp_atomic_remove_stale(path, err));
    DP_TRY(dp_atomic_open(path, &file, err));
    dp_status status = dp_atomic_write(file, page->text, page->used, err);
    if (status != DP_OK) {
        dp_atomic_abandon(file);
        return status;
    }
    return dp_atomic_commit(file, err);
}

dp_status dp_report_write(const char *run_path, const char *path, dp_error *err)
{
    dp_run run;
    dp_page page = {0};
    dp_status status = dp_run_read(run_path, &run, err);
    if (status == DP_OK) {
        add_all(&page, &run);
        status = page.status == DP_OK ? write_page(&page, path, err)
                                      : dp_fail(err, page.status, "%s", page.error.message);
    }
    dp_free(page.text);
    dp_run_clear(&run);
    return status;
}
