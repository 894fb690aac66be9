/* Opens a backend: the one place that knows the names of the implementations. */
#include "parallel/context.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/thread.h"
#include "cpu/cpu.h"

enum { DEFAULT_CPU_DEVICES = 4 };

dp_context_config dp_context_defaults(void)
{
    return (dp_context_config){.backend = DP_BACKEND_AUTO};
}

dp_status dp_context_open(const dp_context_config *config, dp_context **out, dp_error *err)
{
    *out = NULL;
    if (config->logical_devices < 0 || config->logical_devices > DP_MAX_DEVICES)
        return dp_fail(err, DP_ERROR_USAGE, "%d logical devices: 1 to %d are possible",
                       config->logical_devices, DP_MAX_DEVICES);
    if (config->threads_per_device < 0)
        return dp_fail(err, DP_ERROR_USAGE, "%d threads per device: at least 1 is needed",
                       config->threads_per_device);
    if (config->backend == DP_BACKEND_CUDA)
        return dp_fail(err, DP_ERROR_DEVICE,
                       "CUDA is not available: this build has no CUDA backend; use --device cpu");
    dp_context *c;
    DP_TRY(dp_calloc(1, sizeof *c, "a context", &c, err));
    int devices = config->logical_devices;
    if (devices == 0) {
        devices = dp_usable_cores();
        if (devices > DEFAULT_CPU_DEVICES)
            devices = DEFAULT_CPU_DEVICES;
    }
    dp_status status = dp_cpu_backend_open(devices, config->threads_per_device, &c->backend, err);
    if (status != DP_OK) {
        dp_free(c);
        return status;
    }
    if (config->backend == DP_BACKEND_AUTO)
        snprintf(c->choice, sizeof c->choice, "using CPU devices: this build has no CUDA backend");
    *out = c;
    return DP_OK;
}

void dp_context_close(dp_context *context)
{
    if (!context)
        return;
    context->backend->call->close(context->backend);
    dp_free(context);
}

const char *dp_context_backend_name(const dp_context *context)
{
    return context->backend->call->name;
}

const char *dp_context_choice(const dp_context *context)
{
    return context->choice[0] ? context->choice : NULL;
}

int dp_context_device_count(const dp_context *context)
{
    return context->backend->device_count;
}

dp_status dp_context_device(const dp_context *context, int id, dp_device_info *out, dp_error *err)
{
    const dp_backend *backend = context->backend;
    if (id < 0 || id >= backend->device_count)
        return dp_fail(err, DP_ERROR_USAGE, "there is no device %s:%d; %s:0 to %s:%d are visible",
                       backend->call->name, id, backend->call->name, backend->call->name,
                       backend->device_count - 1);
    const dp_device_properties *p = &backend->devices[id].properties;
    memset(out, 0, sizeof *out);
    out->id = id;
    snprintf(out->label, sizeof out->label, "%s:%d", backend->call->name, id);
    snprintf(out->name, sizeof out->name, "%s", p->name);
    snprintf(out->bus_id, sizeof out->bus_id, "%s", p->bus_id);
    snprintf(out->uuid, sizeof out->uuid, "%s", p->uuid);
    out->memory_bytes = p->memory_bytes;
    out->multiprocessors = p->multiprocessors;
    out->shares_hardware = p->shares_hardware;
    return DP_OK;
}

dp_status dp_context_host_alloc(dp_context *context, size_t bytes, void **out, dp_error *err)
{
    return context->backend->call->host_alloc(context->backend, bytes, out, err);
}

void dp_context_host_free(dp_context *context, void *pointer)
{
    if (pointer)
        context->backend->call->host_free(context->backend, pointer);
}
