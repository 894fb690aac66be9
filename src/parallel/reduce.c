/* Reduce and update: the primary adds the replicas' gradients, bucket by bucket and in device order, and
 * updates its weights in the same pass over memory. What it has updated is what the next broadcast sends. */
#include "parallel/engine.h"

dp_status dp_announce_gradients(dp_replica *r, int bucket, dp_error *err)
{
    r->bucket_mark[bucket] = r->clock.count - 1;
    return dp_announce(&r->gradients_ready[bucket], &r->compute, err);
}

static bool all_ready(const dp_engine *e, const dp_step_job *job, int bucket)
{
    for (int k = 0; k < e->device_count; k++)
        if (job->contributes[k] &&
            !dp_signal_reached(&e->replicas[k].gradients_ready[bucket].signal, job->gradient_number[k]))
            return false;
    return true;
}

/* The addresses of a bucket's gradients in device order, as the primary can read them. Replicas do not write
 * them again before they have fetched the weights of this very update, so nothing has to tell them that they
 * were read. */
static dp_status locate_sources(dp_replica *r, const dp_step_job *job, int bucket, const float **sources,
                                int *count, dp_error *err)
{
    const dp_engine *e = r->engine;
    const dp_bucket *b = &e->arena.buckets[bucket];
    float *staging = r->reduce_staging;
    *count = 0;
    for (int k = 0; k < e->device_count; k++) {
        dp_replica *from = &e->replicas[k];
        if (!job->contributes[k])
            continue;
        DP_TRY(dp_await(r, &from->gradients_ready[bucket], job->gradient_number[k], &r->copy, DP_PHASE_REDUCE,
                        "a replica's gradients", err));
        const float *source = from->gradients + b->begin;
        if (from != r && !r->device->backend->call->peer_readable(r->device, from->device)) {
            DP_TRY(dp_copy(&r->copy, r->device, staging, from->device, source,
                           (size_t)(b->end - b->begin) * sizeof(float), err));
            source = staging;
            staging += e->arena.largest_bucket;
        }
        sources[(*count)++] = source;
    }
    return DP_OK;
}

static dp_status reduce_bucket(dp_replica *r, const dp_step_job *job, int bucket, dp_error *err)
{
    const dp_bucket *b = &r->engine->arena.buckets[bucket];
    const float *sources[DP_MAX_DEVICES];
    int count;
    DP_TRY(dp_mark_phase(r, DP_PHASE_REDUCE, true, err));
    DP_TRY(locate_sources(r, job, bucket, sources, &count, err));
    dp_update_args args = job->hyper;
    args.count = b->end - b->begin;
    args.source_count = count;
    args.sources = sources;
    args.weight = r->weights + b->begin;
    args.moment1 = r->moment1 ? r->moment1 + b->begin : NULL;
    args.moment2 = r->moment2 ? r->moment2 + b->begin : NULL;
    args.nonfinite = r->nonfinite;
    DP_TRY(dp_span_begin_copy(r, DP_PHASE_REDUCE, bucket, err));
    DP_TRY(r->device->backend->call->update(r->device, r->copy.handle, &args, err));
    DP_TRY(dp_span_end_copy(r, err));
    return dp_announce(&r->weights_ready[bucket], &r->copy, err);
}

dp_status dp_reduce_buckets(dp_replica *r, const dp_step_job *job, dp_error *err)
{
    const dp_arena *arena = &r->engine->arena;
    for (; r->next_bucket >= 0; r->next_bucket--) {
        if (!arena->buckets[r->next_bucket].trainable)
            continue;
        if (!all_ready(r->engine, job, r->next_bucket))
            return DP_OK;
        DP_TRY(reduce_bucket(r, job, r->next_bucket, err));
    }
    return DP_OK;
}

/* The sums run on the copy stream. The compute stream waits for what each of them waits for, and then for
 * itself: so the clock, which lives there, tells waiting for other devices from work. */
dp_status dp_finish_reduce(dp_replica *r, const dp_step_job *job, dp_error *err)
{
    const dp_engine *e = r->engine;
    for (int b = e->arena.bucket_count - 1; b >= 0; b--) {
        if (!e->arena.buckets[b].trainable)
            continue;
        if (b <= r->next_bucket) {
            /* Implied: only the copy stream reads them, and it waits for the same. */
            for (int k = 0; k < e->device_count; k++)
                if (job->contributes[k])
                    DP_TRY(dp_await(r, &e->replicas[k].gradients_ready[b], job->gradient_number[k],
                                    &r->compute, DP_PHASE_REDUCE, "a replica's gradients", err));
            DP_TRY(reduce_bucket(r, job, b, err));
        }
        DP_TRY(dp_mark_phase(r, DP_PHASE_REDUCE, true, err));
        /* Implied: the host synchronizes with both streams at the end of the step. */
        DP_TRY(dp_stream_wait(&r->compute, &r->weights_ready[b].event, job->weights_number + 1,
                              "its own sums", err));
    }
    r->next_bucket = -1;
    return DP_OK;
}
