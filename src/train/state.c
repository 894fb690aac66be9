/* A model's state as a table of named tensors: parameters, then buffers. */
#include <string.h>

#include "train/train.h"

int dp_state_count(const dp_model *model)
{
    return dp_model_param_count(model) + dp_model_buffer_count(model);
}

dp_state_entry dp_state_at(const dp_model *model, const dp_model_state *state, int index)
{
    int params = dp_model_param_count(model);
    if (index < params) {
        const dp_param_info *p = dp_model_param(model, index);
        dp_state_entry e = {.name = p->name, .dtype = DP_F32, .rank = p->rank, .elements = p->elements};
        memcpy(e.shape, p->shape, sizeof p->shape);
        e.values = state->weights ? state->weights + p->offset : NULL;
        return e;
    }
    const dp_buffer_info *b = dp_model_buffer(model, index - params);
    dp_state_entry e = {.name = b->name,
                        .dtype = b->counter ? DP_I64 : DP_F32,
                        .rank = !b->counter,
                        .shape = {b->elements},
                        .elements = b->elements};
    if (b->counter && state->counters)
        e.counter = state->counters + b->offset;
    else if (!b->counter && state->buffers)
        e.values = state->buffers + b->offset;
    return e;
}
