/* Reduce and update: the replicas' gradients are added, bucket by bucket and in device order, and the
 * primary's weights are updated in the same pass over memory. What was updated is what the next broadcast
 * sends.
 *
 * This is the primary's work. But where all devices have one memory (CPU devices), a large bucket is
 * everybody's: each device takes an even part of it and writes the new weights to the primary and to all
 * replicas at once. The sums are the same to the last bit, as every element is added in device order, whoever
 * adds it. */
#include "parallel/engine.h"

enum { LINE = 16 }; /* floats; slices begin at multiples of it, as buckets do */

bool dp_is_shared(const dp_engine *e, int bucket)
{
    const dp_bucket *b = &e->arena.buckets[bucket];
    return e->shares_sums && b->trainable && b->end - b->begin >= e->least_shared;
}

static bool has_part(const dp_replica *r, int bucket)
{
    const dp_engine *e = r->engine;
    return e->arena.buckets[bucket].trainable && (r == e->primary || dp_is_shared(e, bucket));
}

/* The slice of a bucket that this device updates; where devices outnumber the lines some have none. */
static void find_part(const dp_replica *r, int bucket, int64_t *begin, int64_t *end)
{
    const dp_engine *e = r->engine;
    const dp_bucket *b = &e->arena.buckets[bucket];
    bool shared = dp_is_shared(e, bucket);
    int64_t n = shared ? e->device_count : 1, k = shared ? r->index : 0;
    int64_t lines = (b->end - b->begin + LINE - 1) / LINE;
    *begin = b->begin + lines * k / n * LINE;
    *end = k + 1 == n ? b->end : b->begin + lines * (k + 1) / n * LINE;
}

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

/* The addresses of a part's gradients in device order, as the device can read them. Replicas write
 * them again in the next step, which begins when all devices have ended this one, so nothing has to tell them
 * that they were read. */
static dp_status locate_sources(dp_replica *r, const dp_step_job *job, int bucket, int64_t begin, int64_t end,
                                const float **sources, int *count, dp_error *err)
{
    const dp_engine *e = r->engine;
    float *staging = r->reduce_staging;
    *count = 0;
    for (int k = 0; k < e->device_count; k++) {
        dp_replica *from = &e->replicas[k];
        if (!job->contributes[k])
            continue;
        DP_TRY(dp_await(r, &from->gradients_ready[bucket], job->gradient_number[k], &r->copy, DP_PHASE_REDUCE,
                        "a replica's gradients", err));
        const float *source = from->gradients + begin;
        if (from != r && !r->device->backend->call->peer_readable(r->device, from->device)) {
            DP_TRY(dp_copy(&r->copy, r->device, staging, from->device, source,
                           (size_t)(end - begin) * sizeof(float), err));
            source = staging;
            staging += e->arena.largest_bucket;
        }
        sources[(*count)++] = source;
    }
    return DP_OK;
}

/* The replicas' places for the weights of a shared bucket. None of them reads its own any more: it has sent
 * the gradients computed with them, or computes nothing in this step. */
static int locate_copies(const dp_engine *e, int64_t begin, float **copies)
{
    int count = 0;
    for (int k = 0; k < e->device_count; k++)
        if (&e->replicas[k] != e->primary)
            copies[count++] = e->replicas[k].weights + begin;
    return count;
}

static dp_status update_part(dp_replica *r, const dp_step_job *job, int bucket, int64_t begin, int64_t end,
                             dp_error *err)
{
    const dp_engine *e = r->engine;
    const dp_replica *primary = e->primary;
    const float *sources[DP_MAX_DEVICES];
    float *copies[DP_MAX_DEVICES];
    dp_update_args args = job->hyper;
    DP_TRY(locate_sources(r, job, bucket, begin, end, sources, &args.source_count, err));
    args.count = end - begin;
    args.sources = sources;
    args.weight = primary->weights + begin;
    args.moment1 = primary->moment1 ? primary->moment1 + begin : NULL;
    args.moment2 = primary->moment2 ? primary->moment2 + begin : NULL;
    args.nonfinite = r->nonfinite;
    args.copies = copies;
    args.copy_count = dp_is_shared(e, bucket) ? locate_copies(e, begin, copies) : 0;
    DP_TRY(dp_span_begin_copy(r, DP_PHASE_REDUCE, bucket, err));
    DP_TRY(r->device->backend->call->update(r->device, r->copy.handle, &args, err));
    return dp_span_end_copy(r, err);
}

/* The other parts of a shared bucket need not be waited for: like the gradients, its weights are used again
 * in the next step. */
static dp_status reduce_part(dp_replica *r, const dp_step_job *job, int bucket, dp_error *err)
{
    int64_t begin, end;
    find_part(r, bucket, &begin, &end);
    DP_TRY(dp_mark_phase(r, DP_PHASE_REDUCE, true, err));
    if (begin < end)
        DP_TRY(update_part(r, job, bucket, begin, end, err));
    if (r == r->engine->primary)
        return dp_announce(&r->weights_ready[bucket], &r->copy, err);
    r->bucket_number[bucket] = job->weights_number + 1;
    return dp_event_record(&r->weights_here[bucket], &r->copy, err);
}

dp_status dp_reduce_buckets(dp_replica *r, const dp_step_job *job, dp_error *err)
{
    for (; r->next_bucket >= 0; r->next_bucket--) {
        if (!has_part(r, r->next_bucket))
            continue;
        if (!all_ready(r->engine, job, r->next_bucket))
            return DP_OK;
        DP_TRY(reduce_part(r, job, r->next_bucket, err));
    }
    return DP_OK;
}

/* The sums run on the copy stream. The compute stream waits for what each of them waits for, and then for
 * itself: so the clock, which lives there, tells waiting for other devices from work. */
dp_status dp_finish_reduce(dp_replica *r, const dp_step_job *job, dp_error *err)
{
    const dp_engine *e = r->engine;
    for (int b = e->arena.bucket_count - 1; b >= 0; b--) {
        if (!has_part(r, b))
            continue;
        if (b <= r->next_bucket) {
            /* Implied: only the copy stream reads them, and it waits for the same. */
            for (int k = 0; k < e->device_count; k++)
                if (job->contributes[k])
                    DP_TRY(dp_await(r, &e->replicas[k].gradients_ready[b], job->gradient_number[k],
                                    &r->compute, DP_PHASE_REDUCE, "a replica's gradients", err));
            DP_TRY(reduce_part(r, job, b, err));
        }
        DP_TRY(dp_mark_phase(r, DP_PHASE_REDUCE, true, err));
        DP_TRY(dp_use_bucket(r, b, job->weights_number + 1, err));
    }
    r->next_bucket = -1;
    return DP_OK;
}
