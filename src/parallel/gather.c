/* Gather and loss. In gather mode the outputs of all replicas come to the output device, where the criterion
 * runs over the whole batch, and its gradient goes back: this is what makes that device the busiest. In the
 * other modes, and with one device, the criterion runs where the outputs are. */
#include <string.h>

#include "parallel/engine.h"

static dp_criterion criterion_of(dp_loss_kind kind)
{
    switch (kind) {
    case DP_LOSS_BCE_WITH_LOGITS:
        return DP_BCE_WITH_LOGITS;
    case DP_LOSS_MSE:
        return DP_MSE;
    case DP_LOSS_L1:
        return DP_L1;
    default:
        return DP_CROSS_ENTROPY;
    }
}

/* d(loss * loss_scale) / d(term): every term counts the same in gather and global mode, and as 1 / (chunks *
 * its chunk's terms) in replica mode. */
static double gradient_scale(const dp_engine *e, const dp_step_job *job, int64_t chunk)
{
    double terms = e->config.loss_mode == DP_LOSS_REPLICA
                       ? (double)job->batch.used * (double)chunk * (double)e->terms
                       : (double)job->batch.samples * (double)e->terms;
    return job->loss_scale / terms;
}

static dp_status run_criterion(dp_replica *r, const dp_step_job *job, int64_t samples, const float *output,
                               float *gradient, dp_error *err)
{
    const dp_engine *e = r->engine;
    dp_loss_args args = {
        .criterion = criterion_of(e->config.criterion),
        .samples = samples,
        .elements = e->output_elements,
        .output = output,
        .target = r->slots[job->batch.slot].y,
        .pos_weight = (float)e->config.pos_weight,
        .scale = (float)gradient_scale(e, job, samples),
        .sample_loss = r->sample_loss,
        .correct = r->correct,
        .gradient = gradient,
    };
    DP_TRY(r->device->backend->call->loss(r->device, r->compute.handle, &args, err));
    DP_TRY(dp_copy(&r->compute, NULL, r->host_sample_loss, r->device, r->sample_loss,
                   (size_t)samples * sizeof(float), err));
    return dp_copy(&r->compute, NULL, r->host_correct, r->device, r->correct,
                   (size_t)samples * sizeof(int32_t), err);
}

dp_status dp_lose(dp_replica *r, const dp_step_job *job, dp_error *err)
{
    int64_t n = job->batch.chunk[r->index];
    if (n == 0)
        return DP_OK;
    const dp_plan *plan = dp_replica_find_plan(r, n, job->training);
    DP_TRY(dp_mark_phase(r, DP_PHASE_LOSS, true, err));
    return run_criterion(r, job, n, plan->output, job->training ? plan->output_gradient : NULL, err);
}

/* Output device: fetches the outputs in device order and runs the criterion; the gradient replaces the
 * outputs. */
static dp_status lose_on_gathered(dp_replica *r, const dp_step_job *job, dp_error *err)
{
    const dp_engine *e = r->engine;
    float *gathered = r->gathered.data;
    for (int k = 0; k < e->device_count; k++) {
        dp_replica *from = &e->replicas[k];
        int64_t n = job->batch.chunk[k];
        if (n == 0)
            continue;
        DP_TRY(dp_await(r, &from->output_ready, job->output_number[k], &r->compute, DP_PHASE_GATHER,
                        "a replica's outputs", err));
        DP_TRY(dp_copy(&r->compute, r->device, gathered + job->batch.first_row[k] * e->output_elements,
                       from->device, dp_replica_find_plan(from, n, true)->output,
                       (size_t)(n * e->output_elements) * sizeof(float), err));
    }
    DP_TRY(dp_mark_phase(r, DP_PHASE_LOSS, true, err));
    DP_TRY(run_criterion(r, job, job->batch.samples, gathered, gathered, err));
    return dp_announce(&r->loss_ready, &r->compute, err);
}

dp_status dp_gather_and_lose(dp_replica *r, const dp_step_job *job, dp_error *err)
{
    dp_engine *e = r->engine;
    int64_t n = job->batch.chunk[r->index];
    DP_TRY(dp_mark_phase(r, DP_PHASE_GATHER, true, err));
    if (n > 0)
        DP_TRY(dp_announce(&r->output_ready, &r->compute, err));
    if (r == e->output)
        DP_TRY(lose_on_gathered(r, job, err));
    if (n == 0)
        return DP_OK;
    DP_TRY(dp_await(r, &e->output->loss_ready, job->loss_number, &r->compute, DP_PHASE_LOSS,
                    "the gradient of the loss", err));
    const float *gradient = e->output->gathered.data;
    return dp_copy(&r->compute, r->device, dp_replica_find_plan(r, n, true)->output_gradient,
                   e->output->device, gradient + job->batch.first_row[r->index] * e->output_elements,
                   (size_t)(n * e->output_elements) * sizeof(float), err);
}
