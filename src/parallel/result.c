/* From what the workers left behind to what the caller reads. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "parallel/engine.h"

static const char *const phase_names[DP_PHASES] = {"wait", "scatter",  "broadcast", "forward",  "gather",
                                                   "loss", "backward", "reduce",    "optimizer"};

const char *dp_phase_name(dp_phase phase)
{
    return phase_names[phase];
}

/* Per-sample losses lie with whoever ran the criterion: the output device has all, else each replica has its
 * own. */
static void read_losses(const dp_engine *e, const dp_chunk_job *batch, int k, double *sum,
                        dp_step_result *result)
{
    const dp_replica *r = batch->gathered ? e->output : &e->replicas[k];
    int64_t first = batch->gathered ? batch->first_row[k] : 0;
    *sum = 0;
    for (int64_t i = first; i < first + batch->chunk[k]; i++) {
        *sum += r->host_sample_loss[i];
        result->correct += r->host_counts[i].correct;
        result->predicted += r->host_counts[i].predicted;
        result->actual += r->host_counts[i].actual;
    }
}

static void collect_losses(const dp_engine *e, const dp_step_job *job, dp_step_result *result)
{
    const dp_chunk_job *batch = &job->batch;
    double total = 0, means = 0;
    for (int k = 0; k < e->device_count; k++) {
        if (batch->chunk[k] == 0)
            continue;
        double sum, mean;
        read_losses(e, batch, k, &sum, result);
        mean = sum / (double)(batch->chunk[k] * e->terms);
        total += sum;
        means += mean;
        result->used_devices[result->devices] = k;
        result->chunk_sizes[result->devices] = batch->chunk[k];
        result->device_losses[result->devices++] = mean;
        if (!isfinite(mean) && result->finite) {
            result->finite = false;
            snprintf(result->nonfinite_what, sizeof result->nonfinite_what, "the loss on %s:%d is %s",
                     e->replicas[k].device->backend->call->name, e->replicas[k].device->id,
                     isnan(mean) ? "NaN" : "infinite");
        }
    }
    bool mean_of_means = job->training && e->config.loss_mode == DP_LOSS_REPLICA;
    result->loss = mean_of_means ? means / result->devices : total / (double)(batch->samples * e->terms);
}

/* The step as the coordinator saw it is the primary's chain of phases; what is left at its ends is the
 * hand-over: to the workers (booked as scatter) and back, which waits for the last device to fetch new
 * weights (broadcast). */
static void collect_phases(const dp_engine *e, double seconds, dp_step_result *result)
{
    double sum = 0;
    for (int p = 0; p < DP_PHASES; p++) {
        result->phase_ms[p] = 1e3 * e->primary->clock.phase_seconds[p];
        sum += result->phase_ms[p];
        double longest = 0;
        for (int k = 0; k < e->device_count; k++)
            if (&e->replicas[k] != e->primary && e->replicas[k].clock.busy_phase_seconds[p] > longest)
                longest = e->replicas[k].clock.busy_phase_seconds[p];
        double hidden = 1e3 * longest - result->phase_ms[p];
        result->overlapped_ms[p] = hidden > 0 ? hidden : 0;
    }
    double rest = 1e3 * seconds - sum, wait = 1e3 * e->waited_during;
    if (rest < 0)
        rest = 0;
    if (wait > rest)
        wait = rest;
    result->phase_ms[DP_PHASE_WAIT] += wait + 1e3 * e->waited_before;
    result->phase_ms[e->device_count > 1 ? DP_PHASE_BROADCAST : DP_PHASE_SCATTER] += rest - wait;
}

void dp_collect_result(const dp_engine *engine, double seconds, dp_step_result *result)
{
    memset(result, 0, sizeof *result);
    result->finite = true;
    collect_losses(engine, &engine->step, result);
    collect_phases(engine, seconds, result);
    for (int k = 0; k < engine->device_count; k++)
        if (engine->step.update && engine->replicas[k].host_nonfinite)
            result->finite &= *engine->replicas[k].host_nonfinite == 0;
}

/* ---- which gradient was not finite: only looked for when one was ---- */

typedef struct dp_search {
    float *host; /* of the trainable arena */
    int param;   /* result: the first such parameter, -1 for none */
} dp_search;

static dp_status search_gradients(dp_replica *r, const void *argument, dp_error *err)
{
    dp_search *search = *(dp_search *const *)argument;
    const dp_arena *arena = &r->engine->arena;
    DP_TRY(dp_copy(&r->copy, NULL, search->host, r->device, r->gradients,
                   (size_t)arena->trainable_elements * sizeof(float), err));
    /* Implied: a copy to pageable host memory is done when it returns (CUDA Runtime API, "API synchronization
     * behavior"). Other memory would need this. */
    DP_TRY(dp_stream_synchronize(&r->copy, err));
    for (int p = 0; p < arena->param_count && search->param < 0; p++)
        for (int64_t i = 0; arena->trainable[p] && i < r->engine->model->params[p].info.elements; i++)
            if (!isfinite(search->host[arena->offset[p] + i])) {
                search->param = p;
                break;
            }
    return DP_OK;
}

/* The first parameter on the first device whose gradient is not finite, put after what is known already. */
dp_status dp_find_nonfinite(dp_engine *e, dp_step_result *result, dp_error *err)
{
    char *what = result->nonfinite_what;
    size_t used = strlen(what), size = sizeof result->nonfinite_what;
    float *host;
    DP_TRY(dp_calloc((size_t)e->arena.trainable_elements, sizeof *host, "gradients", &host, err));
    if (used == 0)
        snprintf(what, size, "the sum of the replicas' gradients overflows");
    dp_status status = DP_OK;
    for (int k = 0; k < e->device_count && status == DP_OK; k++) {
        if (!e->step.contributes[k])
            continue;
        dp_search search = {.host = host, .param = -1}, *pointer = &search;
        dp_worker_post(&e->replicas[k], search_gradients, &pointer);
        status = dp_workers_wait(e, err);
        if (status == DP_OK && search.param >= 0) {
            snprintf(what + used, size - used, "%s '%.100s' on %s:%d%s",
                     used ? ", the gradient of" : "the gradient of", e->model->params[search.param].name,
                     e->replicas[k].device->backend->call->name, e->replicas[k].device->id,
                     used ? " is not finite either" : "");
            break;
        }
    }
    dp_free(host);
    return status;
}
