/* Weights, buffers and optimizer state of an engine's primary, set and read by the coordinator. */
#include <string.h>

#include "base/memory.h"
#include "parallel/engine.h"

dp_status dp_engine_set_weights(dp_engine *engine, const float *weights, dp_error *err)
{
    DP_TRY(dp_check_idle(engine, err));
    dp_worker_post(engine->primary, dp_replica_set_weights, weights);
    DP_TRY(dp_workers_wait(engine, err));
    engine->weights_number++;
    engine->frozen_number++;
    return DP_OK;
}

dp_status dp_engine_get_weights(dp_engine *engine, float *weights, dp_error *err)
{
    DP_TRY(dp_check_idle(engine, err));
    dp_worker_post(engine->primary, dp_replica_get_weights, &weights);
    return dp_workers_wait(engine, err);
}

dp_status dp_engine_set_buffers(dp_engine *engine, const float *values, const int64_t *counters,
                                dp_error *err)
{
    DP_TRY(dp_check_idle(engine, err));
    const dp_model *model = engine->model;
    for (int64_t i = 0; i < model->counters; i++)
        engine->counters[i] = counters[i];
    if (model->buffer_elements == 0)
        return DP_OK;
    dp_worker_post(engine->primary, dp_replica_set_buffers, values);
    DP_TRY(dp_workers_wait(engine, err));
    engine->buffers_number++;
    return DP_OK;
}

dp_status dp_engine_get_buffers(dp_engine *engine, float *values, int64_t *counters, dp_error *err)
{
    DP_TRY(dp_check_idle(engine, err));
    const dp_model *model = engine->model;
    for (int64_t i = 0; i < model->counters; i++)
        counters[i] = engine->counters[i];
    if (model->buffer_elements == 0)
        return DP_OK;
    dp_worker_post(engine->primary, dp_replica_get_buffers, &values);
    return dp_workers_wait(engine, err);
}

dp_status dp_init_buffers(dp_engine *e, dp_error *err)
{
    const dp_model *model = e->model;
    if (model->buffer_count == 0)
        return DP_OK;
    DP_TRY(dp_calloc((size_t)model->counters, sizeof *e->counters, "buffers", &e->counters, err));
    dp_model_state state;
    dp_status status = dp_model_state_create(model, &state, err);
    if (status == DP_OK) {
        dp_model_init_buffers(model, state.buffers, state.counters);
        status = dp_engine_set_buffers(e, state.buffers, state.counters, err);
    }
    dp_model_state_free(&state);
    return status;
}

dp_status dp_engine_set_state(dp_engine *engine, const dp_model_state *state, dp_error *err)
{
    DP_TRY(dp_engine_set_weights(engine, state->weights, err));
    return dp_engine_set_buffers(engine, state->buffers, state->counters, err);
}

dp_status dp_engine_get_state(dp_engine *engine, dp_model_state *state, dp_error *err)
{
    DP_TRY(dp_engine_get_weights(engine, state->weights, err));
    return dp_engine_get_buffers(engine, state->buffers, state->counters, err);
}

/* ---- the optimizer ---- */

int dp_optimizer_moments(const dp_optimizer_config *config)
{
    return config->adamw ? 2 : config->momentum != 0;
}

static dp_status check_param(const dp_engine *engine, int moment, int param, dp_error *err)
{
    int moments = engine->config.evaluation_only ? 0 : dp_optimizer_moments(&engine->config.optimizer);
    if (param < 0 || param >= engine->model->param_count || moment < 0 || moment > moments)
        return dp_fail(err, DP_ERROR_USAGE, "parameter %d, moment %d: there are %d parameters and %d moments",
                       param, moment, engine->model->param_count, moments);
    return DP_OK;
}

dp_status dp_engine_get_param(dp_engine *engine, int moment, int param, float *out, dp_error *err)
{
    DP_TRY(dp_check_idle(engine, err));
    DP_TRY(check_param(engine, moment, param, err));
    const dp_param_job job = {.moment = moment, .param = param, .out = out};
    dp_worker_post(engine->primary, dp_replica_get_param, &job);
    return dp_workers_wait(engine, err);
}

dp_status dp_engine_set_param(dp_engine *engine, int moment, int param, const float *values, dp_error *err)
{
    DP_TRY(dp_check_idle(engine, err));
    DP_TRY(check_param(engine, moment, param, err));
    const dp_param_job job = {.moment = moment, .param = param, .values = values};
    dp_worker_post(engine->primary, dp_replica_set_param, &job);
    DP_TRY(dp_workers_wait(engine, err));
    engine->weights_number += moment == 0;
    engine->frozen_number += moment == 0;
    return DP_OK;
}

dp_status dp_engine_get_optimizer(dp_engine *engine, dp_optimizer_state *state, dp_error *err)
{
    DP_TRY(dp_check_idle(engine, err));
    const dp_model *model = engine->model;
    state->updates = engine->update_count;
    for (int i = 0; i < dp_optimizer_moments(&engine->config.optimizer); i++)
        for (int p = 0; p < model->param_count; p++)
            DP_TRY(
                dp_engine_get_param(engine, i + 1, p, state->moment[i] + model->params[p].info.offset, err));
    return DP_OK;
}

dp_status dp_engine_set_optimizer(dp_engine *engine, const dp_optimizer_state *state, dp_error *err)
{
    DP_TRY(dp_check_idle(engine, err));
    engine->update_count = state->updates;
    float *const moments[] = {engine->primary->moment1, engine->primary->moment2};
    for (int i = 0; i < dp_optimizer_moments(&engine->config.optimizer); i++) {
        if (!state->moment[i])
            continue;
        const dp_moment_job job = {moments[i], state->moment[i]};
        dp_worker_post(engine->primary, dp_replica_set_moment, &job);
        DP_TRY(dp_workers_wait(engine, err));
    }
    return DP_OK;
}
