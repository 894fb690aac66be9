/* What a finished model says of itself, and its initial weights. */
#include "nn/graph.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"

const char *dp_model_name(const dp_model *model)
{
    return model->name;
}

void dp_model_to(dp_model *model, int device)
{
    model->device = device;
}

const char *dp_model_description(const dp_model *model)
{
    return model->description;
}

int dp_model_param_count(const dp_model *model)
{
    return model->param_count;
}

const dp_param_info *dp_model_param(const dp_model *model, int index)
{
    return &model->params[index].info;
}

int64_t dp_model_elements(const dp_model *model)
{
    return model->elements;
}

static int shape_of(const dp_model *model, dp_value value, int64_t shape[3])
{
    const dp_graph_value *v = &model->values[value];
    memcpy(shape, v->shape, (size_t)v->rank * sizeof *shape);
    return v->rank;
}

int dp_model_input_shape(const dp_model *model, int64_t shape[3])
{
    return shape_of(model, model->input, shape);
}

int dp_model_output_shape(const dp_model *model, int64_t shape[3])
{
    return shape_of(model, model->output, shape);
}

int dp_model_operation_count(const dp_model *model)
{
    return model->program_count;
}

dp_operation_info dp_model_operation(const dp_model *model, int index)
{
    const dp_node *node = &model->program[index];
    dp_operation_info info = {.kind = dp_op_kind_name(node->kind),
                              .adds = node->kind == DP_OP_BATCH_NORM2D && node->inputs > 1,
                              .relu = node->relu};
    info.rank = shape_of(model, node->output, info.shape);
    if (node->params > 0) {
        const char *name = model->params[node->param[0]].name, *dot = strrchr(name, '.');
        snprintf(info.layer, sizeof info.layer, "%.*s", dot ? (int)(dot - name) : 0, name);
    }
    return info;
}

void dp_model_init_weights(const dp_model *model, uint64_t seed, float *weights)
{
    for (int p = 0; p < model->param_count; p++) {
        const dp_param *param = &model->params[p];
        float *w = weights + param->info.offset;
        for (int64_t i = 0; i < param->info.elements; i++)
            switch (param->fill) {
            case DP_FILL_UNIFORM:
                w[i] = (2.0f * dp_rng_uniform(seed, DP_RNG_INIT, (uint32_t)p, 0, (uint64_t)i) - 1.0f) *
                       param->scale;
                break;
            case DP_FILL_NORMAL:
                w[i] = dp_rng_normal(seed, DP_RNG_INIT, (uint32_t)p, 0, (uint64_t)i) * param->scale;
                break;
            case DP_FILL_CONSTANT:
                w[i] = param->scale;
                break;
            }
    }
}

int dp_model_buffer_count(const dp_model *model)
{
    return model->buffer_count;
}

const dp_buffer_info *dp_model_buffer(const dp_model *model, int index)
{
    return &model->buffers[index].info;
}

int64_t dp_model_buffer_elements(const dp_model *model)
{
    return model->buffer_elements;
}

int64_t dp_model_counters(const dp_model *model)
{
    return model->counters;
}

void dp_model_init_buffers(const dp_model *model, float *values, int64_t *counters)
{
    for (int b = 0; b < model->buffer_count; b++) {
        const dp_model_buffer_entry *entry = &model->buffers[b];
        if (entry->info.counter)
            counters[entry->info.offset] = 0;
        else
            for (int64_t i = 0; i < entry->info.elements; i++)
                values[entry->info.offset + i] = entry->initial;
    }
}

dp_status dp_model_state_create(const dp_model *model, dp_model_state *out, dp_error *err)
{
    *out = (dp_model_state){0};
    DP_TRY(dp_calloc((size_t)model->elements, sizeof *out->weights, "the weights", &out->weights, err));
    if (model->buffer_count == 0)
        return DP_OK;
    DP_TRY(
        dp_calloc((size_t)model->buffer_elements, sizeof *out->buffers, "the buffers", &out->buffers, err));
    return dp_calloc((size_t)model->counters, sizeof *out->counters, "the buffers", &out->counters, err);
}

void dp_model_state_free(dp_model_state *state)
{
    dp_free(state->weights);
    dp_free(state->buffers);
    dp_free(state->counters);
    *state = (dp_model_state){0};
}

void dp_model_state_init(const dp_model *model, uint64_t seed, dp_model_state *state)
{
    dp_model_init_weights(model, seed, state->weights);
    dp_model_init_buffers(model, state->buffers, state->counters);
}
