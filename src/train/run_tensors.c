/* The tensors of a run, as files and checks go through them: from host memory, or one parameter after the
 * other from the engine, so that the host holds no second copy of what the primary holds. */
#include "base/memory.h"
#include "train/train.h"

static const char *const moment_prefixes[DP_MOMENTS] = {"moment1.", "moment2."};

static dp_status fetch(void *user, int index, const void **data, dp_error *err)
{
    const dp_run_views *v = user;
    const dp_run_tensors *t = v->tensors;
    int params = dp_model_param_count(v->model), entries = dp_state_count(v->model);
    bool is_moment = index >= entries;
    int moment = is_moment ? 1 + (index - entries) / params : 0;
    *data = t->fetched;
    return dp_engine_get_param(t->engine, moment, is_moment ? (index - entries) % params : index, t->fetched,
                               err);
}

dp_status dp_run_views_make(const dp_model *model, const dp_run_tensors *tensors, const char *prefix,
                            bool moments, dp_run_views *out, dp_error *err)
{
    *out = (dp_run_views){.model = model, .tensors = tensors, .source = {.fetch = fetch, .user = out}};
    dp_views *list = &out->list;
    dp_status status = dp_views_add(list, model, prefix, &tensors->model, dp_state_count(model), err);
    for (int i = 0; moments && i < tensors->moments && status == DP_OK; i++)
        status = dp_views_add(list, model, moment_prefixes[i], &(dp_model_state){0},
                              dp_model_param_count(model), err);
    if (status != DP_OK)
        dp_views_clear(list);
    return status;
}

dp_status dp_run_views_contents(const dp_run_views *v, int index, const void **data, dp_error *err)
{
    return dp_tensor_contents(v->list.tensors, index, &v->source, data, err);
}

/* One parameter's part, from the file to the engine. */
static dp_status hand_on(const dp_safetensors *file, const char *path, const dp_model *model,
                         const char *prefix, int moment, int param, dp_run_tensors *t, dp_error *err)
{
    const dp_state_entry e = dp_state_at(model, &t->model, param);
    const dp_tensor *tensor;
    DP_TRY(dp_views_find(file, path, model, prefix, &e, &tensor, err));
    DP_TRY(dp_safetensors_read(file, tensor, 0, t->fetched, tensor->bytes, err));
    return dp_engine_set_param(t->engine, moment, param, t->fetched, err);
}

dp_status dp_run_tensors_check(const dp_safetensors *file, const char *path, const dp_model *model,
                               const char *prefix, int moments, dp_error *err)
{
    const dp_tensor *tensor;
    for (int i = 0; i < dp_state_count(model); i++) {
        const dp_state_entry e = dp_state_at(model, &(dp_model_state){0}, i);
        DP_TRY(dp_views_find(file, path, model, prefix, &e, &tensor, err));
        for (int m = 0; m < moments && i < dp_model_param_count(model); m++)
            DP_TRY(dp_views_find(file, path, model, moment_prefixes[m], &e, &tensor, err));
    }
    return DP_OK;
}

dp_status dp_run_tensors_read(const dp_safetensors *file, const char *path, const dp_model *model,
                              const char *prefix, dp_run_tensors *t, dp_error *err)
{
    int params = dp_model_param_count(model), entries = dp_state_count(model);
    if (!t->engine)
        return dp_views_read(file, path, model, prefix, &t->model, 0, entries, err);
    DP_TRY(dp_views_read(file, path, model, prefix, &t->model, params, entries, err));
    DP_TRY(dp_engine_set_buffers(t->engine, t->model.buffers, t->model.counters, err));
    for (int m = 0; m <= t->moments; m++)
        for (int p = 0; p < params; p++)
            DP_TRY(hand_on(file, path, model, m == 0 ? prefix : moment_prefixes[m - 1], m, p, t, err));
    return DP_OK;
}

dp_status dp_run_tensors_leave(dp_run_tensors *t, const dp_model *model, dp_engine *engine, dp_error *err)
{
    int64_t largest = 0;
    for (int p = 0; p < dp_model_param_count(model); p++)
        if (dp_model_param(model, p)->elements > largest)
            largest = dp_model_param(model, p)->elements;
    t->engine = engine;
    t->model.weights = NULL;
    return dp_calloc((size_t)largest, sizeof *t->fetched, "a parameter", &t->fetched, err);
}

void dp_run_tensors_clear(dp_run_tensors *t)
{
    dp_free(t->fetched);
}
