/* Gather and loss. In gather mode the outputs of all replicas come to the output device, where the criterion
 * runs over the whole batch, and its gradient goes back: this is what makes that device the busiest. In the
 * other modes, and with one device, the criterion runs where the outputs are. At the end, gather for
 * anybody's tensors. */
#include <stdio.h>
#include <string.h>

#include "parallel/engine.h"
#include "parallel/tensor.h"

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
        .counts = r->counts,
        .gradient = gradient,
    };
    DP_TRY(r->device->backend->call->loss(r->device, r->compute.handle, &args, err));
    DP_TRY(dp_copy(&r->compute, NULL, r->host_sample_loss, r->device, r->sample_loss,
                   (size_t)samples * sizeof(float), err));
    return dp_copy(&r->compute, NULL, r->host_counts, r->device, r->counts,
                   (size_t)samples * sizeof *r->counts, err);
}

dp_status dp_lose(dp_replica *r, const dp_step_job *job, dp_error *err)
{
    int64_t n = job->batch.chunk[r->index];
    if (n == 0)
        return DP_OK;
    const dp_plan *plan = dp_replica_find_plan(r, n, job->training);
    if (job->outputs) {
        DP_TRY(dp_mark_phase(r, DP_PHASE_GATHER, true, err));
        return dp_copy(&r->compute, NULL,
                       job->outputs + job->batch.first_row[r->index] * r->engine->output_elements, r->device,
                       plan->output, (size_t)(n * r->engine->output_elements) * sizeof(float), err);
    }
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

/* A scalar is gathered as a vector of one. */
static dp_host_tensor unsqueezed(const dp_host_tensor *t)
{
    dp_host_tensor v = *t;
    if (v.rank == 0)
        v.shape[v.rank++] = 1;
    return v;
}

/* Chunks may differ along dim alone. The words are PyTorch's. */
static dp_status check_chunk(const dp_host_tensor *first, const dp_host_tensor *chunk, int index, int dim,
                             dp_error *err)
{
    char name[32], shape[128], wanted[128];
    snprintf(name, sizeof name, "the tensor at index %d", index);
    DP_TRY(dp_host_tensor_check(chunk, name, err));
    if (chunk->rank != first->rank)
        return dp_fail(
            err, DP_ERROR_USAGE,
            "Expected all input tensors to have the same number of dimensions, but the tensor at index "
            "%d has %d dimensions, and the first has %d",
            index, chunk->rank, first->rank);
    if (chunk->element_bytes != first->element_bytes)
        return dp_fail(err, DP_ERROR_USAGE,
                       "Input tensor at index %d has elements of %zu bytes, but expected %zu", index,
                       chunk->element_bytes, first->element_bytes);
    dp_host_tensor expected = *first;
    if (dim < first->rank)
        expected.shape[dim] = chunk->shape[dim];
    if (memcmp(expected.shape, chunk->shape, (size_t)chunk->rank * sizeof *chunk->shape) == 0)
        return DP_OK;
    return dp_fail(err, DP_ERROR_USAGE, "Input tensor at index %d has invalid shape %s, but expected %s",
                   index, dp_host_tensor_format_shape(chunk, shape, sizeof shape),
                   dp_host_tensor_format_shape(&expected, wanted, sizeof wanted));
}

dp_status dp_gather(const dp_host_tensor *chunks, int count, int dim, dp_host_tensor *whole, dp_error *err)
{
    if (count < 1)
        return dp_fail(err, DP_ERROR_USAGE, "Expected at least one tensor to gather from"); /* PyTorch's */
    DP_TRY(check_chunk(&chunks[0], &chunks[0], 0, 0, err));
    dp_host_tensor all = unsqueezed(&chunks[0]);
    if (chunks[0].rank == 0 && dim != 0)
        return dp_fail(err, DP_ERROR_USAGE, "Dimension specified as %d but tensor has no dimensions", dim);
    DP_TRY(dp_host_tensor_dim(&all, dim, &dim, err));
    for (int k = 1; k < count; k++) {
        DP_TRY(check_chunk(&chunks[0], &chunks[k], k, dim, err));
        if (__builtin_add_overflow(all.shape[dim], unsqueezed(&chunks[k]).shape[dim], &all.shape[dim]))
            return dp_fail(err, DP_ERROR_USAGE, "the chunks are too large to be gathered");
    }
    DP_TRY(dp_host_tensor_check(&all, "the gathered tensor", err));
    all.data = whole->data;
    *whole = all;
    for (int64_t k = 0, first = 0; whole->data && k < count; k++) {
        const dp_host_tensor chunk = unsqueezed(&chunks[k]);
        dp_host_tensor_copy_chunk(whole, &chunk, dim, first, true);
        first += chunk.shape[dim];
    }
    return DP_OK;
}
