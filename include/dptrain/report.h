/* What a run recorded, for people: one page of HTML, and a verdict in words. UNSTABLE.
 *
 *     dp_status example(dp_error *err)
 *     {
 *         return dp_report_write("model", "report.html", err); // of the run that model/log.jsonl tells of
 *     }
 */
#ifndef DPTRAIN_REPORT_H
#define DPTRAIN_REPORT_H

#include "dptrain/engine.h"

DP_BEGIN_DECLARATIONS

/* Reads a run's log (`run` is the file, or a directory with a log.jsonl) and writes a page without scripts or
 * outside resources, under 1 MiB, whole or not at all. A log may end anywhere: what it lacks, the page says.
 * DP_ERROR_IO for a file that is not JSON, DP_ERROR_MISMATCH for one that is no log; both name the line. */
dp_status dp_report_write(const char *run, const char *path, dp_error *err);

/* The devices of a run and how the work was dealt out; the first is the primary. */
typedef struct dp_load {
    int devices;
    const dp_device_report *device;
    int output; /* index of the output device */
    dp_loss_mode loss_mode;
    dp_split_kind split;
} dp_load;

enum { DP_VERDICT_SIZE = 400 };

/* Says in one line whether a device is overloaded, or has too little to do, and what would help that is not
 * done already, or whether one device would do. Devices that never got a sample do not count; fewer than ten
 * steps are not judged. */
void dp_verdict(const dp_load *load, char text[DP_VERDICT_SIZE]);

DP_END_DECLARATIONS

#endif
