/* Opens a backend: the one place that knows the names of the implementations. */
#include "parallel/context.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/thread.h"
#include "cpu/cpu.h"
#include "cuda/cuda.h"

enum { DEFAULT_CPU_DEVICES = 4 };

dp_context_config dp_context_defaults(void)
{
    return (dp_context_config){.backend = DP_BACKEND_AUTO};
}

static dp_status open_cpu(dp_context *c, const dp_context_config *config, dp_error *err)
{
#ifdef DP_WITHOUT_CPU
    (void)c, (void)config;
    return dp_fail(err, DP_ERROR_DEVICE, "no CPU devices (built with CPU=0, without oneDNN)");
#else
    int devices = config->logical_devices;
    if (devices == 0) {
        devices = dp_usable_cores();
        if (devices > DEFAULT_CPU_DEVICES)
            devices = DEFAULT_CPU_DEVICES;
    }
    return dp_cpu_backend_open(devices, config->threads_per_device, &c->backend, err);
#endif
}

/* libdptrain_cuda.so lies beside the file that holds this code (the program where it was built, or the shared
 * library), or is installed in the lib directory next to the program's bin. False if in neither. */
static bool find_cuda_library(char path[PATH_MAX])
{
    static const char *const names[] = {"libdptrain_cuda.so", "../lib/libdptrain_cuda.so"};
    char file[PATH_MAX];
    Dl_info here;
    bool shared = dladdr((const void *)(uintptr_t)dp_context_open, &here) && here.dli_fname &&
                  strstr(here.dli_fname, ".so");
    if (!realpath(shared ? here.dli_fname : "/proc/self/exe", file))
        file[0] = 0;
    const char *slash = strrchr(file, '/');
    int directory = slash ? (int)(slash - file + 1) : 0;
    for (int i = 0; i < 2; i++)
        if (snprintf(path, PATH_MAX, "%.*s%s", directory, file, names[i]) < PATH_MAX &&
            access(path, F_OK) == 0)
            return true;
    return false;
}

/* The CUDA half is a library of its own, so that a machine without CUDA runs the rest. */
static dp_status open_cuda(dp_context *c, const dp_context_config *config, dp_error *err)
{
    char path[PATH_MAX];
    if (!find_cuda_library(path))
        return dp_fail(err, DP_ERROR_DEVICE,
                       "no CUDA backend (libdptrain_cuda.so is neither beside the program nor in ../lib)");
    c->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!c->library)
        return dp_fail(err, DP_ERROR_DEVICE, "no CUDA backend (%s)", dlerror());
    dp_cuda_open_function *open = NULL;
    void *symbol = dlsym(c->library, DP_CUDA_OPEN_SYMBOL);
    memcpy(&open, &symbol, sizeof open); /* ISO C has no cast from an object's address to a function's */
    if (!open)
        return dp_fail(err, DP_ERROR_DEVICE, "'%s' is not a CUDA backend of dptrain", path);
    const dp_cuda_config cuda = {.logical_devices = config->logical_devices,
                                 .allow_tf32 = config->allow_tf32};
    return open(&cuda, &c->backend, err);
}

static dp_status open_backend(dp_context *c, const dp_context_config *config, dp_error *err)
{
    dp_error why = {0};
    if (config->backend == DP_BACKEND_CPU)
        return open_cpu(c, config, err);
    dp_status status = open_cuda(c, config, &why);
    if (config->backend == DP_BACKEND_CUDA)
        return status == DP_OK
                   ? DP_OK
                   : dp_fail(err, status, "CUDA is not available: %s; use --device cpu", why.message);
    if (status == DP_OK) {
        snprintf(c->choice, sizeof c->choice, "using CUDA devices: a GPU is usable");
        return DP_OK;
    }
    snprintf(c->choice, sizeof c->choice, "using CPU devices: %.250s", why.message);
    return open_cpu(c, config, err);
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
    dp_context *c;
    DP_TRY(dp_calloc(1, sizeof *c, "a context", &c, err));
    dp_status status = open_backend(c, config, err);
    if (status != DP_OK) {
        if (c->library)
            dlclose(c->library);
        dp_free(c);
        return status;
    }
    c->p2p = config->p2p;
    c->allows_tf32 = config->allow_tf32;
    for (int k = 0; k < c->backend->device_count && c->p2p != DP_P2P_ON; k++)
        c->backend->devices[k].staged = UINT64_MAX;
    *out = c;
    return DP_OK;
}

void dp_context_close(dp_context *context)
{
    if (!context)
        return;
    context->backend->call->close(context->backend);
    if (context->library)
        dlclose(context->library);
    dp_free(context);
}

const char *dp_context_backend_name(const dp_context *context)
{
    return context->backend->call->name;
}

bool dp_context_allows_tf32(const dp_context *context)
{
    return context->allows_tf32;
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

bool dp_context_free_memory(const dp_context *context, int id, uint64_t *bytes)
{
    const dp_backend *backend = context->backend;
    return id >= 0 && id < backend->device_count && backend->call->free_bytes(&backend->devices[id], bytes);
}

static uint64_t memory_of(const dp_device *device)
{
    return device->properties.memory_bytes;
}

static uint64_t multiprocessors_of(const dp_device *device)
{
    return (uint64_t)device->properties.multiprocessors;
}

bool dp_context_imbalance(const dp_context *context, const int *ids, int count, int *weak, int *strong)
{
    uint64_t (*const measures[])(const dp_device *) = {memory_of, multiprocessors_of};
    const dp_device *devices = context->backend->devices;
    for (int m = 0; m < 2 && count > 0; m++) {
        *weak = *strong = ids[0];
        for (int k = 1; k < count; k++) {
            if (measures[m](&devices[ids[k]]) < measures[m](&devices[*weak]))
                *weak = ids[k];
            if (measures[m](&devices[ids[k]]) > measures[m](&devices[*strong]))
                *strong = ids[k];
        }
        if ((double)measures[m](&devices[*weak]) < 0.75 * (double)measures[m](&devices[*strong]))
            return true;
    }
    return false;
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
