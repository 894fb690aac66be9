/* A run as its log tells it. */
#ifndef DP_REPORT_RUN_H
#define DP_REPORT_RUN_H

#include <stddef.h>

#include "base/error.h"
#include "dptrain/report.h"

typedef struct dp_run_batch {
    double epoch; /* that much of the run was done after it: 1.5 in the middle of the second */
    double loss;  /* NaN: not finite, or not recorded */
} dp_run_batch;

/* NaN where it was not recorded. */
typedef struct dp_run_epoch {
    double epoch, train_loss, valid_loss, valid_accuracy, valid_iou, valid_f1, seconds, samples_per_second;
} dp_run_epoch;

typedef struct dp_run_device {
    dp_timeline_span *spans;
    int span_count;
} dp_run_device;

typedef struct dp_run {
    /* Texts: UTF-8, "unknown" where they were not recorded. */
    char *version, *command, *model, *data, *output_device, *loss, *loss_mode, *split, *optimizer;
    bool is_test; /* validation means the data's own test part */
    double parameters, samples, batch_size, epochs, accumulation_steps, lr, seed; /* NaN: not recorded */
    int device_count, output; /* devices that the start named; index of the output device */
    char device_names[DP_ENGINE_MAX_DEVICES][24];
    int chunk_count; /* devices that a full batch uses */
    double chunk_sizes[DP_ENGINE_MAX_DEVICES];

    dp_run_batch *batches;
    size_t batch_count;
    double phase_ms[DP_PHASES]; /* mean of the batches but the first, or of that alone */
    int64_t timed;              /* batches in it */
    bool has_first_time;
    dp_run_epoch *epochs_done;
    size_t epoch_count;

    int reported; /* devices that were reported */
    dp_device_report report[DP_ENGINE_MAX_DEVICES];
    dp_run_device device[DP_ENGINE_MAX_DEVICES];

    char *status; /* of the end; NULL: the log has none */
    double steps, seconds;
    int resumed; /* how often the run was continued */
    bool torn;   /* the last line has no end */
} dp_run;

/* Both: owner is the caller, dp_run_clear, also after a failure. */
dp_status dp_run_parse(const char *bytes, size_t size, dp_run *out, dp_error *err);
dp_status dp_run_read(const char *path, dp_run *out,
                      dp_error *err); /* a log, or a directory with log.jsonl */
void dp_run_clear(dp_run *run);

/* As the verdict wants it. */
dp_load dp_run_load(const dp_run *run);

#endif
