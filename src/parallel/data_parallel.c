/* One step of data parallelism, as each device lives it. All workers run dp_replica_begin_step at the same
 * time, each with its own chunk; what they need of each other they wait for at milestones:
 *
 *     every device                     the output device               the primary
 *     ------------                     -----------------               -----------
 *     its chunk arrives (scatter)
 *     for each operation:
 *       its bucket of weights, from the primary (broadcast)
 *       forward
 *     outputs are ready        ----->  gathers them, runs the
 *     takes its share of the   <-----  criterion over the batch
 *     gradient
 *     for each operation, backwards:
 *       backward
 *       a bucket of gradients is full  ------------------------------> adds all replicas' in device order,
 *     fetches the bucket's new weights <------------------------------ updates its weights (reduce,
 * optimizer)
 *
 * CPU devices share the last two lines where a bucket is large: each does its part of it (see reduce.c).
 * With loss mode `replica` or `global`, and with a single device, the criterion runs where the outputs are.
 */
#include "parallel/engine.h"

static dp_status forward(dp_replica *r, const dp_step_job *job, dp_plan *plan, dp_error *err)
{
    const dp_arena *arena = &r->engine->arena;
    const float *x = r->slots[job->batch.slot].x;
    DP_TRY(dp_mark_phase(r, DP_PHASE_BROADCAST, true, err));
    if (!job->training)
        DP_TRY(dp_fetch_buffers(r, job->buffers_number, err));
    for (int step = 0, bucket = 0; step < plan->step_count; step++) {
        for (; bucket < arena->bucket_count && arena->buckets[bucket].first_step <= step; bucket++)
            DP_TRY(dp_use_bucket(
                r, bucket, arena->buckets[bucket].trainable ? job->weights_number : job->frozen_number, err));
        DP_TRY(dp_mark_phase(r, DP_PHASE_FORWARD, true, err));
        dp_span_push_op(r, step);
        DP_TRY(dp_plan_forward(plan, step, x, &r->compute, err));
        dp_span_pop_op(r);
    }
    return DP_OK;
}

/* Tells the primary about every trainable bucket whose lowest step is `step`. */
static dp_status announce_filled(dp_replica *r, const dp_step_job *job, int step, dp_error *err)
{
    const dp_arena *arena = &r->engine->arena;
    if (!job->update)
        return DP_OK;
    for (int b = 0; b < arena->bucket_count; b++)
        if (arena->buckets[b].trainable && arena->buckets[b].first_step == step)
            DP_TRY(dp_announce_gradients(r, b, err));
    return dp_reduce_buckets(r, job, err);
}

static dp_status backward(dp_replica *r, const dp_step_job *job, dp_plan *plan, dp_error *err)
{
    const float *x = r->slots[job->batch.slot].x;
    for (int step = plan->step_count - 1; step >= 0; step--) {
        DP_TRY(dp_mark_phase(r, DP_PHASE_BACKWARD, true, err));
        dp_span_push_op(r, step);
        DP_TRY(dp_plan_backward(plan, step, x, job->has_gradient[r->index], &r->compute, err));
        dp_span_pop_op(r);
        DP_TRY(announce_filled(r, job, step, err));
    }
    return DP_OK;
}

/* A device whose chunks all came in earlier micro-steps of the window has nothing to compute, but gradients
 * to give. */
static dp_status announce_all(dp_replica *r, const dp_step_job *job, dp_error *err)
{
    for (int step = r->engine->model->program_count - 1; step >= 0; step--)
        DP_TRY(announce_filled(r, job, step, err));
    return DP_OK;
}

/* The primary sums and updates what is left, and so does who has parts of it; the replicas fetch new weights
 * as soon as a bucket has them, unless they are here already. */
static dp_status finish_update(dp_replica *r, const dp_step_job *job, dp_error *err)
{
    const dp_arena *arena = &r->engine->arena;
    DP_TRY(dp_finish_reduce(r, job, err));
    if (r->nonfinite)
        DP_TRY(
            dp_copy(&r->copy, NULL, r->host_nonfinite, r->device, r->nonfinite, sizeof *r->nonfinite, err));
    if (r == r->engine->primary || !job->contributes[r->index])
        return DP_OK;
    DP_TRY(dp_mark_phase(r, DP_PHASE_BROADCAST, true, err));
    for (int b = arena->bucket_count - 1; b >= 0; b--)
        if (arena->buckets[b].trainable)
            DP_TRY(dp_use_bucket(r, b, job->weights_number + 1, err));
    return DP_OK;
}

static dp_status start_step(dp_replica *r, const dp_step_job *job, dp_error *err)
{
    r->step_number = job->batch.number;
    r->next_bucket = r->engine->arena.bucket_count - 1;
    r->random = job->random;
    r->random.first_sample = (uint32_t)job->batch.first_row[r->index];
    DP_TRY(dp_mark_phase(r, DP_PHASE_SCATTER, true, err));
    if (r->nonfinite && job->update)
        DP_TRY(dp_fill_zero(&r->copy, r->nonfinite, sizeof *r->nonfinite, err));
    dp_slot *slot = &r->slots[job->batch.slot];
    return dp_stream_wait(&r->compute, &slot->arrived, slot->received, "its chunk", err);
}

dp_status dp_replica_begin_step(dp_replica *r, const void *argument, dp_error *err)
{
    const dp_step_job *job = argument;
    int64_t n = job->batch.chunk[r->index];
    dp_plan *plan = n > 0 ? dp_replica_find_plan(r, n, job->training) : NULL;

    DP_TRY(start_step(r, job, err));
    if (plan)
        DP_TRY(forward(r, job, plan, err));
    DP_TRY(job->batch.gathered ? dp_gather_and_lose(r, job, err) : dp_lose(r, job, err));
    if (job->training) {
        if (plan)
            DP_TRY(backward(r, job, plan, err));
        else if (job->update && job->contributes[r->index])
            DP_TRY(announce_all(r, job, err));
        if (job->update)
            DP_TRY(finish_update(r, job, err));
    }
    return dp_mark_phase(r, DP_PHASE_OPTIMIZER, true, err); /* the end of the last span */
}

dp_status dp_replica_end_step(dp_replica *r, const void *argument, dp_error *err)
{
    const dp_step_job *job = argument;
    DP_TRY(dp_stream_synchronize(&r->compute, err));
    DP_TRY(dp_stream_synchronize(&r->copy, err));
    if (job->training)
        r->samples_trained += job->batch.chunk[r->index];
    return dp_clock_read(r, job, err);
}
