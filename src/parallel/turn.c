/* Batches whose samples lie along another dimension than the first. Replicas always see samples first, so
 * that a chunk is a block of memory: the coordinator turns what comes, and what goes back. */
#include <string.h>

#include "base/memory.h"
#include "parallel/engine.h"

/* A sample's shape, cut where the samples lie: [before, samples, after] in the caller's memory. */
typedef struct cut {
    int64_t before, after;
} cut;

static cut cut_shape(int rank, const int64_t *sample_shape, int dim)
{
    cut c = {1, 1};
    for (int i = 0; i < rank; i++)
        *(i < dim ? &c.before : &c.after) *= sample_shape[i];
    return c;
}

static cut cut_input(const dp_engine *e)
{
    int64_t shape[3];
    int rank = dp_model_input_shape(e->model, shape);
    return cut_shape(rank, shape, e->config.dim);
}

static cut cut_output(const dp_engine *e)
{
    int64_t shape[3];
    int rank = dp_model_output_shape(e->model, shape);
    return cut_shape(rank, shape, e->config.dim);
}

/* [rows, columns, elements] to [columns, rows, elements], float32. */
static void turn(const float *from, int64_t rows, int64_t columns, int64_t elements, float *to)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            memcpy(to + (c * rows + r) * elements, from + (r * columns + c) * elements,
                   (size_t)elements * sizeof(float));
}

dp_status dp_turn_check(const dp_model *model, const dp_engine_config *config, dp_error *err)
{
    int64_t shape[3];
    int in = dp_model_input_shape(model, shape), out = dp_model_output_shape(model, shape);
    if (config->dim < 0 || config->dim > in)
        return dp_fail(err, DP_ERROR_USAGE, "dim %d: a batch for model '%s' has dimensions 0 to %d",
                       config->dim, model->name, in);
    if (config->dim > out)
        return dp_fail(
            err, DP_ERROR_USAGE,
            "dim %d: outputs of model '%s' have dimensions 0 to %d, and are gathered along the same",
            config->dim, model->name, out);
    return DP_OK;
}

dp_status dp_turn_reserve(dp_engine *e, int64_t samples, dp_error *err)
{
    dp_turned *t = &e->turned;
    if (e->config.dim == 0 || samples <= t->samples)
        return DP_OK;
    dp_turn_release(e);
    void *outputs;
    for (int s = 0; s < DP_SLOTS; s++) {
        DP_TRY(dp_context_host_alloc(e->context, (size_t)(samples * e->input_elements) * sizeof(float),
                                     &t->x[s], err));
        DP_TRY(dp_context_host_alloc(e->context, (size_t)samples * e->target_bytes, &t->y[s], err));
    }
    DP_TRY(dp_context_host_alloc(e->context, (size_t)(samples * e->output_elements) * sizeof(float), &outputs,
                                 err));
    t->outputs = outputs;
    t->samples = samples;
    return DP_OK;
}

void dp_turn_release(dp_engine *e)
{
    dp_turned *t = &e->turned;
    for (int s = 0; s < DP_SLOTS; s++) {
        dp_context_host_free(e->context, t->x[s]);
        dp_context_host_free(e->context, t->y[s]);
    }
    dp_context_host_free(e->context, t->outputs);
    *t = (dp_turned){0};
}

void dp_turn_batch(dp_engine *e, dp_chunk_job *job)
{
    if (e->config.dim == 0)
        return;
    cut in = cut_input(e), out = cut_output(e);
    turn(job->x, in.before, job->samples, in.after, e->turned.x[job->slot]);
    job->x = e->turned.x[job->slot];
    if (job->y && e->config.criterion != DP_LOSS_CROSS_ENTROPY) { /* labels have the one dimension */
        turn(job->y, out.before, job->samples, out.after, e->turned.y[job->slot]);
        job->y = e->turned.y[job->slot];
    }
}

void dp_turn_outputs(const dp_engine *e, int64_t samples, float *outputs)
{
    if (e->config.dim == 0)
        return;
    cut out = cut_output(e);
    turn(e->turned.outputs, samples, out.before, out.after, outputs);
}
