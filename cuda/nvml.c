/* Free memory as nvidia-smi shows it. CUDA's own cudaMemGetInfo would create a context on the GPU; NVML,
 * which comes with the driver, does not. It is opened when somebody first asks, and nothing depends on it
 * being there.
 *
 * nvml.h is no part of every toolkit, so what is used of it stands here: see the NVML API Reference,
 * "Initialization and Cleanup" and "Device Queries" (nvmlDeviceGetHandleByUUID, nvmlDeviceGetMemoryInfo,
 * nvmlMemory_t). */
#include <dlfcn.h>
#include <string.h>

#include "base/memory.h"
#include "internal.h"

typedef struct nvml_memory {
    unsigned long long total, free, used; /* bytes */
} nvml_memory;

typedef struct dp_cuda_nvml {
    void *library;
    int (*init)(void); /* all return 0 for success */
    int (*shutdown)(void);
    int (*handle_by_uuid)(const char *uuid, void **handle);
    int (*memory_info)(void *handle, nvml_memory *memory);
    bool initialized;
} dp_cuda_nvml;

static bool find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof symbol); /* ISO C has no cast from an object's address to a function's */
    return symbol != NULL;
}

void dp_cuda_nvml_close(dp_cuda_nvml *nvml)
{
    if (!nvml)
        return;
    if (nvml->initialized)
        nvml->shutdown();
    if (nvml->library)
        dlclose(nvml->library);
    dp_free(nvml);
}

static dp_cuda_nvml *open_nvml(void)
{
    dp_cuda_nvml *n;
    if (dp_calloc(1, sizeof *n, "NVML", &n, NULL) != DP_OK)
        return NULL;
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    n->initialized = n->library && find(n->library, "nvmlInit_v2", &n->init) &&
                     find(n->library, "nvmlShutdown", &n->shutdown) &&
                     find(n->library, "nvmlDeviceGetHandleByUUID", &n->handle_by_uuid) &&
                     find(n->library, "nvmlDeviceGetMemoryInfo", &n->memory_info) && n->init() == 0;
    if (n->initialized)
        return n;
    dp_cuda_nvml_close(n);
    return NULL;
}

bool dp_cuda_free_bytes(dp_device *device, uint64_t *bytes)
{
    dp_cuda_backend *b = device->backend->state;
    pthread_mutex_lock(&b->mutex);
    if (!b->nvml_tried)
        b->nvml = open_nvml();
    b->nvml_tried = true;
    pthread_mutex_unlock(&b->mutex);
    void *handle;
    nvml_memory memory;
    /* By UUID: NVML's numbers know nothing of CUDA_VISIBLE_DEVICES. */
    if (!b->nvml || b->nvml->handle_by_uuid(device->properties.uuid, &handle) != 0 ||
        b->nvml->memory_info(handle, &memory) != 0)
        return false;
    *bytes = memory.free;
    return true;
}
