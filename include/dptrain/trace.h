/* Where the time of a run goes, as a file that Perfetto (https://ui.perfetto.dev) opens. UNSTABLE.
 * One track per device thread and per stream, one for the coordinator, one per thread of the loader.
 *
 *     #include <dptrain/engine.h>
 *
 *     dp_status example(dp_context *context, const dp_model *model, const dp_step *step, dp_error *err)
 *     {
 *         dp_trace *trace;
 *         uint64_t dropped;
 *         dp_engine *engine = NULL;
 *         dp_step_result result;
 *         dp_status status = dp_trace_open("step.json", &trace, err);
 *         if (status != DP_OK)
 *             return status;
 *         dp_engine_config config = dp_engine_defaults();
 *         config.trace = trace;
 *         if ((status = dp_engine_create(context, model, &config, &engine, err)) == DP_OK)
 *             status = dp_engine_train(engine, step, &result, err);
 *         dp_engine_free(engine);
 *         if (status == DP_OK)
 *             return dp_trace_close(trace, &dropped, err);
 *         dp_trace_abandon(trace);
 *         return status;
 *     }
 */
#ifndef DPTRAIN_TRACE_H
#define DPTRAIN_TRACE_H

#include <stdint.h>

#include "dptrain/status.h"

DP_BEGIN_DECLARATIONS

typedef struct dp_trace dp_trace;

/* Begins a trace in the Trace Event Format. The file appears when the trace is closed. Engines and loaders
 * that are given a trace record into memory of fixed size, without locks, and write while devices compute. */
dp_status dp_trace_open(const char *path, dp_trace **out, dp_error *err);

/* Writes what is left, and the file is there, or an error. All that recorded into the trace has been freed
 * before; models must still be there. dropped: spans that found no room, or that came after the file had
 * DP_TRACE_MAX_SPANS. Ends the trace, success or not. */
dp_status dp_trace_close(dp_trace *trace, uint64_t *dropped, dp_error *err);
void dp_trace_abandon(dp_trace *trace); /* leaves no file; NULL is fine */

enum { DP_TRACE_MAX_SPANS = 1000000 }; /* some 150 MB: about as much as a browser shows with ease */

DP_END_DECLARATIONS

#endif
