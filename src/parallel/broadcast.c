/* Broadcast, the way round that needs no coordinator: each replica fetches what it lacks from the primary. */
#include "parallel/engine.h"

/* The primary holds the weights that all others copy. A bucket may be copied as soon as its update (or the
 * upload of new weights) is recorded, and it is not written again before all who copied it have sent
 * gradients computed with it: the next update waits for those, so it needs no event of its own to wait for
 * the copies. */
static dp_status fetch_bucket(dp_replica *r, int bucket, uint64_t number, dp_error *err)
{
    const dp_bucket *b = &r->engine->arena.buckets[bucket];
    dp_replica *primary = r->engine->primary;
    dp_milestone *ready = &primary->weights_ready[bucket];
    static const char what[] = "the primary's weights";
    /* Implied: the copy stream waits for the same, and the compute stream for the copy. But the clock, which
     * lives on the compute stream, would not see the wait. */
    DP_TRY(dp_await(r, ready, number, &r->compute, DP_PHASE_BROADCAST, what, err));
    DP_TRY(dp_await(r, ready, number, &r->copy, DP_PHASE_BROADCAST, what, err));
    DP_TRY(dp_span_begin_copy(r, DP_PHASE_BROADCAST, bucket, err));
    DP_TRY(dp_copy(&r->copy, r->device, r->weights + b->begin, primary->device, primary->weights + b->begin,
                   (size_t)(b->end - b->begin) * sizeof(float), err));
    DP_TRY(dp_span_end_copy(r, err));
    r->bucket_number[bucket] = number;
    return dp_event_record(&r->weights_here[bucket], &r->copy, err);
}

/* Evaluations start when every training step has ended: the primary's buffers are complete and stay as they
 * are until all devices are done, so there is nothing to wait for. */
dp_status dp_fetch_buffers(dp_replica *r, uint64_t number, dp_error *err)
{
    const dp_engine *e = r->engine;
    size_t bytes = (size_t)e->model->buffer_elements * sizeof(float);
    if (bytes && r != e->primary && r->buffers_number != number)
        DP_TRY(
            dp_copy(&r->compute, r->device, r->buffers, e->primary->device, e->primary->buffers, bytes, err));
    r->buffers_number = number;
    return DP_OK;
}

dp_status dp_use_bucket(dp_replica *r, int bucket, uint64_t number, dp_error *err)
{
    /* Implied: its own update runs on the copy stream, which the host synchronizes with at the end of every
     * step and after it has set weights. This checks that the weights asked for are the newest, and lets the
     * clock see how long the sums of this step take. */
    if (r == r->engine->primary)
        return dp_stream_wait(&r->compute, &r->weights_ready[bucket].event, number, "its own weights", err);
    if (r->bucket_number[bucket] != number)
        DP_TRY(fetch_bucket(r, bucket, number, err));
    return dp_stream_wait(&r->compute, &r->weights_here[bucket],
                          atomic_load(&r->weights_here[bucket].recorded), "fetched weights", err);
}
