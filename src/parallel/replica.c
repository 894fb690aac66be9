/* What a device holds: arenas, plans, and memory that grows to the largest plan. Everything here runs on the
 * device's own thread. */
#include <string.h>

#include "base/memory.h"
#include "parallel/engine.h"

static dp_status zeroed(dp_replica *r, dp_purpose purpose, int64_t elements, float **out, dp_error *err)
{
    size_t bytes = (size_t)elements * sizeof(float);
    DP_TRY(dp_memory_alloc(r->device, purpose, bytes, out, err));
    return dp_fill_zero(&r->compute, *out, bytes, err);
}

static dp_status open_nonfinite(dp_replica *r, dp_error *err)
{
    DP_TRY(dp_memory_alloc(r->device, DP_MEM_LOSS, sizeof *r->nonfinite, &r->nonfinite, err));
    void *host;
    DP_TRY(dp_context_host_alloc(r->engine->context, sizeof *r->host_nonfinite, &host, err));
    r->host_nonfinite = host;
    return DP_OK;
}

static dp_status open_arenas(dp_replica *r, dp_error *err)
{
    const dp_engine *e = r->engine;
    const dp_arena *a = &e->arena;
    bool primary = r == e->primary;
    DP_TRY(zeroed(r, DP_MEM_PARAMETERS, primary ? a->elements : a->used_elements, &r->weights, err));
    if (e->model->buffer_elements)
        DP_TRY(zeroed(r, DP_MEM_BUFFERS, e->model->buffer_elements, &r->buffers, err));
    if (e->config.evaluation_only)
        return DP_OK;
    DP_TRY(zeroed(r, DP_MEM_GRADIENTS, a->trainable_elements, &r->gradients, err));
    if (primary || e->shares_sums)
        DP_TRY(open_nonfinite(r, err));
    if (!primary)
        return DP_OK;
    const dp_optimizer_config *o = &e->config.optimizer;
    if (o->adamw || o->momentum != 0)
        DP_TRY(zeroed(r, DP_MEM_OPTIMIZER, a->trainable_elements, &r->moment1, err));
    if (o->adamw)
        DP_TRY(zeroed(r, DP_MEM_OPTIMIZER, a->trainable_elements, &r->moment2, err));
    return DP_OK;
}

/* Room on the primary for the buckets of peers whose memory it cannot read. */
static size_t reduce_staging_bytes(const dp_replica *r)
{
    const dp_engine *e = r->engine;
    int unreadable = 0;
    for (int k = 0; k < e->device_count && r == e->primary && !e->config.evaluation_only; k++)
        unreadable += &e->replicas[k] != r &&
                      !r->device->backend->call->peer_readable(r->device, e->replicas[k].device);
    return (size_t)unreadable * (size_t)e->arena.largest_bucket * sizeof(float);
}

/* Opens the direct ways that the step uses, and no others: the primary sums what all others have, all others
 * fetch its weights, and in gather mode the output device stands in the middle in the same way. Copies run on
 * the receiver's stream. */
static void open_links(dp_replica *r)
{
    const dp_engine *e = r->engine;
    bool gathers = !e->config.evaluation_only && e->config.loss_mode == DP_LOSS_GATHER;
    for (int k = 0; k < e->device_count && !e->config.dry_run; k++) {
        const dp_replica *from = &e->replicas[k];
        bool used = from == e->primary || (r == e->primary && !e->config.evaluation_only) ||
                    (gathers && (from == e->output || r == e->output));
        if (used && from != r)
            r->device->backend->call->peer_readable(r->device, from->device);
    }
}

static dp_status open_milestones(dp_replica *r, dp_error *err)
{
    int buckets = r->engine->arena.bucket_count;
    DP_TRY(dp_calloc((size_t)buckets, sizeof *r->weights_ready, "events", &r->weights_ready, err));
    DP_TRY(dp_calloc((size_t)buckets, sizeof *r->gradients_ready, "events", &r->gradients_ready, err));
    DP_TRY(dp_calloc((size_t)buckets, sizeof *r->weights_here, "events", &r->weights_here, err));
    DP_TRY(dp_calloc((size_t)buckets, sizeof *r->bucket_number, "events", &r->bucket_number, err));
    for (int b = 0; b < buckets; b++) {
        DP_TRY(dp_milestone_create(r, &r->weights_ready[b], err));
        DP_TRY(dp_milestone_create(r, &r->gradients_ready[b], err));
        DP_TRY(dp_event_create(r->device, &r->weights_here[b], err));
    }
    DP_TRY(dp_milestone_create(r, &r->output_ready, err));
    DP_TRY(dp_milestone_create(r, &r->loss_ready, err));
    for (int s = 0; s < DP_SLOTS; s++)
        DP_TRY(dp_event_create(r->device, &r->slots[s].arrived, err));
    DP_TRY(dp_calloc((size_t)buckets, sizeof *r->bucket_mark, "the clock", &r->bucket_mark, err));
    DP_TRY(dp_calloc(DP_MAX_MARKS, sizeof *r->clock.segments, "the clock", &r->clock.segments, err));
    DP_TRY(dp_calloc(DP_MAX_MARKS, sizeof *r->clock.kept, "the clock", &r->clock.kept, err));
    DP_TRY(dp_calloc(DP_MAX_MARKS, sizeof *r->clock.marks, "the clock", &r->clock.marks, err));
    for (int i = 0; i < DP_MAX_MARKS; i++)
        DP_TRY(dp_event_create(r->device, &r->clock.marks[i].event, err));
    return dp_spans_open(r, err);
}

dp_status dp_replica_open(dp_replica *r, const void *unused, dp_error *err)
{
    (void)unused;
    DP_TRY(dp_stream_create(r->device, "compute", &r->compute, err));
    DP_TRY(dp_stream_create(r->device, "copy", &r->copy, err));
    DP_TRY(dp_stream_create(r->device, "input", &r->input, err));
    open_links(r);
    DP_TRY(open_milestones(r, err));
    DP_TRY(open_arenas(r, err));
    size_t staging = reduce_staging_bytes(r);
    if (staging)
        DP_TRY(dp_memory_alloc(r->device, DP_MEM_STAGING, staging, &r->reduce_staging, err));
    const dp_purpose purposes[] = {DP_MEM_ACTIVATIONS, DP_MEM_WORKSPACE, DP_MEM_GATHERED_OUTPUTS,
                                   DP_MEM_LOSS};
    dp_buffer *buffers[] = {&r->activations, &r->workspace, &r->gathered, &r->loss_buffer};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        buffers[i]->purpose = purposes[i];
    for (int s = 0; s < DP_SLOTS; s++)
        r->input_buffer[s].purpose = r->target_buffer[s].purpose = DP_MEM_INPUTS;
    return dp_stream_synchronize(&r->compute, err);
}

static void free_buffer(dp_replica *r, dp_buffer *b)
{
    dp_memory_free(r->device, b->purpose, b->bytes, b->data);
    *b = (dp_buffer){.purpose = b->purpose};
}

static dp_status grow(dp_replica *r, dp_buffer *b, size_t bytes, dp_error *err)
{
    if (bytes <= b->bytes)
        return DP_OK;
    free_buffer(r, b);
    DP_TRY(dp_memory_alloc(r->device, b->purpose, bytes, &b->data, err));
    b->bytes = bytes;
    return DP_OK;
}

static void close_milestones(dp_replica *r)
{
    for (int b = 0; b < r->engine->arena.bucket_count; b++) {
        if (r->weights_ready)
            dp_milestone_destroy(&r->weights_ready[b]);
        if (r->gradients_ready)
            dp_milestone_destroy(&r->gradients_ready[b]);
        if (r->weights_here)
            dp_event_destroy(&r->weights_here[b]);
    }
    dp_milestone_destroy(&r->output_ready);
    dp_milestone_destroy(&r->loss_ready);
    for (int s = 0; s < DP_SLOTS; s++)
        dp_event_destroy(&r->slots[s].arrived);
    for (int i = 0; r->clock.marks && i < DP_MAX_MARKS; i++)
        dp_event_destroy(&r->clock.marks[i].event);
    dp_spans_close(r);
    dp_free(r->clock.marks);
    dp_free(r->clock.segments);
    dp_free(r->clock.kept);
    dp_free(r->bucket_mark);
    dp_free(r->weights_ready);
    dp_free(r->gradients_ready);
    dp_free(r->weights_here);
    dp_free(r->bucket_number);
}

void dp_replica_close(dp_replica *r)
{
    const dp_engine *e = r->engine;
    const dp_arena *a = &e->arena;
    for (int i = 0; i < r->plan_count; i++)
        dp_plan_free(r->plans[i]);
    dp_free(r->plans);
    dp_buffer *buffers[] = {&r->activations,      &r->workspace,       &r->gathered,
                            &r->loss_buffer,      &r->input_buffer[0], &r->input_buffer[1],
                            &r->target_buffer[0], &r->target_buffer[1]};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        free_buffer(r, buffers[i]);
    int64_t weights = r == e->primary ? a->elements : a->used_elements;
    dp_memory_free(r->device, DP_MEM_PARAMETERS, (size_t)weights * sizeof(float), r->weights);
    dp_memory_free(r->device, DP_MEM_GRADIENTS, (size_t)a->trainable_elements * sizeof(float), r->gradients);
    dp_memory_free(r->device, DP_MEM_BUFFERS, (size_t)e->model->buffer_elements * sizeof(float), r->buffers);
    dp_memory_free(r->device, DP_MEM_OPTIMIZER, (size_t)a->trainable_elements * sizeof(float), r->moment1);
    dp_memory_free(r->device, DP_MEM_OPTIMIZER, (size_t)a->trainable_elements * sizeof(float), r->moment2);
    dp_memory_free(r->device, DP_MEM_LOSS, sizeof *r->nonfinite, r->nonfinite);
    dp_memory_free(r->device, DP_MEM_STAGING, reduce_staging_bytes(r), r->reduce_staging);
    dp_context_host_free(e->context, r->host_nonfinite);
    dp_context_host_free(e->context, r->host_sample_loss);
    dp_context_host_free(e->context, r->host_counts);
    close_milestones(r);
    dp_stream_destroy(&r->compute);
    dp_stream_destroy(&r->copy);
    dp_stream_destroy(&r->input);
}

/* ---- plans ---- */

dp_plan *dp_replica_find_plan(const dp_replica *r, int64_t samples, bool training)
{
    for (int i = 0; i < r->plan_count; i++)
        if (r->plans[i]->samples == samples && r->plans[i]->training == training)
            return r->plans[i];
    return NULL;
}

static void bind_all(dp_replica *r)
{
    const dp_plan_memory memory = {
        .activations = r->activations.data,
        .workspace = r->workspace.data,
        .parameters = r->weights,
        .gradients = r->gradients,
        .offset = r->engine->arena.offset,
        .buffers = r->buffers,
        .keep_running = r == r->engine->primary,
        .random = &r->random,
    };
    for (int i = 0; i < r->plan_count; i++)
        dp_plan_bind(r->plans[i], &memory);
}

static dp_status add_plan(dp_replica *r, int64_t samples, bool training, dp_error *err)
{
    const dp_engine *e = r->engine;
    const dp_plan_options options = {.training = training,
                                     .direct_convolution = e->config.direct_convolution,
                                     .trainable = e->arena.trainable};
    DP_TRY(dp_realloc(&r->plans, (size_t)r->plan_count + 1, sizeof(dp_plan *), "plans", err));
    dp_plan *plan;
    DP_TRY(dp_plan_create(r->device, e->model, samples, &options, &plan, err));
    r->plans[r->plan_count++] = plan;
    DP_TRY(grow(r, &r->activations, plan->activation_bytes, err));
    DP_TRY(grow(r, &r->workspace, plan->workspace_bytes, err));
    bind_all(r);
    return DP_OK;
}

/* Room for the per-sample results of `samples` on the device and on the host. */
static dp_status grow_losses(dp_replica *r, int64_t samples, dp_error *err)
{
    if (samples <= r->loss_capacity)
        return DP_OK;
    dp_context *context = r->engine->context;
    size_t row = ((size_t)samples * sizeof(float) + 63) / 64 * 64;
    size_t count_bytes = (size_t)samples * sizeof *r->counts;
    DP_TRY(grow(r, &r->loss_buffer, row + count_bytes, err));
    r->sample_loss = r->loss_buffer.data;
    r->counts = (dp_loss_counts *)((char *)r->loss_buffer.data + row);
    dp_context_host_free(context, r->host_sample_loss);
    dp_context_host_free(context, r->host_counts);
    r->host_sample_loss = NULL;
    r->host_counts = NULL;
    void *host;
    DP_TRY(dp_context_host_alloc(context, row, &host, err));
    r->host_sample_loss = host;
    DP_TRY(dp_context_host_alloc(context, count_bytes, &host, err));
    r->host_counts = host;
    r->loss_capacity = samples;
    return DP_OK;
}

dp_status dp_replica_plan(dp_replica *r, const void *argument, dp_error *err)
{
    const dp_plan_job *job = argument;
    const dp_engine *e = r->engine;
    int64_t n = job->chunk[r->index], rows = n; /* rows: of targets and losses */
    if (job->training && e->device_count > 1 && e->config.loss_mode == DP_LOSS_GATHER) {
        rows = r == e->output ? job->samples : 0;
        DP_TRY(grow(r, &r->gathered, (size_t)(rows * e->output_elements) * sizeof(float), err));
    }
    for (int s = 0; s < DP_SLOTS; s++) {
        DP_TRY(grow(r, &r->input_buffer[s], (size_t)(n * e->input_elements) * sizeof(float), err));
        DP_TRY(grow(r, &r->target_buffer[s], (size_t)rows * e->target_bytes, err));
        r->slots[s].x = r->input_buffer[s].data;
        r->slots[s].y = r->target_buffer[s].data;
    }
    DP_TRY(grow_losses(r, rows, err));
    return n == 0 || dp_replica_find_plan(r, n, job->training) ? DP_OK : add_plan(r, n, job->training, err);
}

/* ---- weights of the primary ---- */

static dp_status announce_weights(dp_replica *r, dp_error *err)
{
    for (int b = 0; b < r->engine->arena.bucket_count; b++)
        DP_TRY(dp_announce(&r->weights_ready[b], &r->copy, err));
    return dp_stream_synchronize(&r->copy, err);
}

dp_status dp_replica_set_weights(dp_replica *r, const void *argument, dp_error *err)
{
    const dp_model *model = r->engine->model;
    const dp_arena *arena = &r->engine->arena;
    const float *weights = argument;
    for (int p = 0; p < model->param_count; p++) {
        const dp_param_info *info = &model->params[p].info;
        DP_TRY(dp_copy(&r->copy, r->device, r->weights + arena->offset[p], NULL, weights + info->offset,
                       (size_t)info->elements * sizeof(float), err));
    }
    return announce_weights(r, err);
}

dp_status dp_replica_get_weights(dp_replica *r, const void *argument, dp_error *err)
{
    const dp_model *model = r->engine->model;
    float *weights = *(float *const *)argument;
    for (int p = 0; p < model->param_count; p++) {
        const dp_param_info *info = &model->params[p].info;
        DP_TRY(dp_copy(&r->copy, NULL, weights + info->offset, r->device,
                       r->weights + r->engine->arena.offset[p], (size_t)info->elements * sizeof(float), err));
    }
    return dp_stream_synchronize(&r->copy, err);
}

/* ---- running statistics of the primary ---- */

dp_status dp_replica_set_buffers(dp_replica *r, const void *argument, dp_error *err)
{
    size_t bytes = (size_t)r->engine->model->buffer_elements * sizeof(float);
    DP_TRY(dp_copy(&r->copy, r->device, r->buffers, NULL, argument, bytes, err));
    return dp_stream_synchronize(&r->copy, err);
}

dp_status dp_replica_get_buffers(dp_replica *r, const void *argument, dp_error *err)
{
    size_t bytes = (size_t)r->engine->model->buffer_elements * sizeof(float);
    DP_TRY(dp_copy(&r->copy, NULL, *(float *const *)argument, r->device, r->buffers, bytes, err));
    return dp_stream_synchronize(&r->copy, err);
}

/* ---- the optimizer's moments ---- */

dp_status dp_replica_set_moment(dp_replica *r, const void *moment_job, dp_error *err)
{
    const dp_moment_job *job = moment_job;
    const dp_model *model = r->engine->model;
    const dp_arena *arena = &r->engine->arena;
    for (int p = 0; p < model->param_count; p++) {
        const dp_param_info *info = &model->params[p].info;
        if (arena->trainable[p])
            DP_TRY(dp_copy(&r->copy, r->device, job->moment + arena->offset[p], NULL,
                           job->host + info->offset, (size_t)info->elements * sizeof(float), err));
    }
    return dp_stream_synchronize(&r->copy, err);
}

/* ---- one parameter ---- */

dp_status dp_replica_get_param(dp_replica *r, const void *param_job, dp_error *err)
{
    const dp_param_job *job = param_job;
    const dp_arena *arena = &r->engine->arena;
    const float *const parts[] = {r->weights, r->moment1, r->moment2};
    size_t bytes = (size_t)r->engine->model->params[job->param].info.elements * sizeof(float);
    if (job->moment > 0 && !arena->trainable[job->param]) {
        memset(job->out, 0, bytes);
        return DP_OK;
    }
    DP_TRY(dp_copy(&r->copy, NULL, job->out, r->device, parts[job->moment] + arena->offset[job->param], bytes,
                   err));
    return dp_stream_synchronize(&r->copy, err);
}

dp_status dp_replica_set_param(dp_replica *r, const void *param_job, dp_error *err)
{
    const dp_param_job *job = param_job;
    const dp_arena *arena = &r->engine->arena;
    float *const parts[] = {r->weights, r->moment1, r->moment2};
    if (job->moment > 0 && !arena->trainable[job->param])
        return DP_OK;
    DP_TRY(dp_copy(&r->copy, r->device, parts[job->moment] + arena->offset[job->param], NULL, job->values,
                   (size_t)r->engine->model->params[job->param].info.elements * sizeof(float), err));
    return job->moment == 0 ? announce_weights(r, err) : dp_stream_synchronize(&r->copy, err);
}
