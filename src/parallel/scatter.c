/* Scatter: who gets which rows, and how they travel. At the end, the same for anybody's tensors. */
#include <string.h>

#include "parallel/engine.h"
#include "parallel/tensor.h"

/* torch.chunk: c = ceil(B / N) rows each, the last device that gets any takes the rest. */
static void split_chunk(int devices, int64_t batch, int64_t *sizes)
{
    int64_t chunk = (batch + devices - 1) / devices;
    for (int k = 0; k < devices; k++) {
        int64_t left = batch - k * chunk;
        sizes[k] = left <= 0 ? 0 : left < chunk ? left : chunk;
    }
}

/* Largest remainder: every device gets the whole part of its quota; the rows left over go one each to the
 * largest fractions, ties to the earlier device. */
static void split_shares(const double *shares, int devices, int64_t batch, int64_t *sizes)
{
    double sum = 0, fraction[DP_MAX_DEVICES];
    int64_t given = 0;
    for (int k = 0; k < devices; k++)
        sum += shares[k];
    for (int k = 0; k < devices; k++) {
        double quota = (double)batch * shares[k] / sum;
        sizes[k] = (int64_t)quota;
        fraction[k] = quota - (double)sizes[k];
        given += sizes[k];
    }
    for (; given < batch; given++) {
        int best = 0;
        for (int k = 1; k < devices; k++)
            if (fraction[k] > fraction[best] + 1e-9) /* equal up to rounding: the earlier one */
                best = k;
        sizes[best]++;
        fraction[best] = -1;
    }
}

int dp_split_batch(dp_split_kind kind, const double *shares, int devices, int64_t batch, int64_t *chunk_sizes)
{
    if (kind == DP_SPLIT_CHUNK)
        split_chunk(devices, batch, chunk_sizes);
    else if (kind == DP_SPLIT_SHARES)
        split_shares(shares, devices, batch, chunk_sizes);
    else
        for (int k = 0; k < devices; k++)
            chunk_sizes[k] = batch / devices + (k < batch % devices);
    int used = 0;
    for (int k = 0; k < devices; k++)
        used += chunk_sizes[k] > 0;
    return used;
}

/* Runs on a device's thread; for a staged batch as soon as the step in flight is enqueued. The chunk goes
 * straight from the batch's host memory into the input slot that this step does not use, on a stream of its
 * own: the other two have the step's work before them.
 */
dp_status dp_receive_chunk(dp_replica *r, const void *argument, dp_error *err)
{
    const dp_chunk_job *job = argument;
    const dp_engine *e = r->engine;
    int64_t n = job->chunk[r->index], first = job->first_row[r->index];
    size_t x_row = (size_t)e->input_elements * sizeof(float);
    dp_slot *slot = &r->slots[job->slot];
    dp_span_push(r, dp_phase_name(DP_PHASE_SCATTER));
    if (r->tracks.input)
        DP_TRY(dp_event_record(&slot->sent, &r->input, err));
    if (n > 0)
        DP_TRY(dp_copy(&r->input, r->device, slot->x, NULL, (const char *)job->x + (size_t)first * x_row,
                       (size_t)n * x_row, err));
    /* Targets go where the criterion runs: to the output device all of them, else with the samples. */
    if (job->gathered) {
        n = r == e->output ? job->samples : 0;
        first = 0;
    }
    if (n > 0 && job->y)
        DP_TRY(dp_copy(&r->input, r->device, slot->y, NULL,
                       (const char *)job->y + (size_t)first * e->target_bytes, (size_t)n * e->target_bytes,
                       err));
    slot->received++;
    dp_span_pop(r); /* after a failure it stays open: the thread does no more work */
    return dp_event_record(&slot->arrived, &r->input, err);
}

dp_status dp_scatter(const dp_host_tensor *whole, int dim, int count, const int64_t *sizes,
                     dp_host_tensor *chunks, dp_error *err)
{
    DP_TRY(dp_host_tensor_check(whole, "the tensor to scatter", err));
    if (whole->rank == 0)
        return dp_fail(err, DP_ERROR_USAGE, "chunk expects at least a 1-dimensional tensor"); /* PyTorch's */
    if (count < 1)
        return dp_fail(err, DP_ERROR_USAGE, "Expected at least one device to scatter to"); /* PyTorch's */
    DP_TRY(dp_host_tensor_dim(whole, dim, &dim, err));
    int64_t left = whole->shape[dim];
    for (int k = 0; k < count; k++) {
        if (sizes[k] < 0 || sizes[k] > left)
            return dp_fail(err, DP_ERROR_USAGE,
                           "chunk %d of %lld does not fit: %lld of %lld are left along dim %d", k,
                           (long long)sizes[k], (long long)left, (long long)whole->shape[dim], dim);
        left -= sizes[k];
    }
    if (left > 0)
        return dp_fail(err, DP_ERROR_USAGE, "the chunk sizes leave %lld of %lld along dim %d to nobody",
                       (long long)left, (long long)whole->shape[dim], dim);
    for (int64_t k = 0, first = 0; k < count; first += sizes[k++]) {
        dp_host_tensor *chunk = &chunks[k];
        void *data = chunk->data;
        *chunk = *whole;
        chunk->shape[dim] = sizes[k];
        chunk->data = data;
        if (data)
            dp_host_tensor_copy_chunk(whole, chunk, dim, first, false);
    }
    return DP_OK;
}
