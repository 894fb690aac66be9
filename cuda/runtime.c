/* Devices' threads, memory, streams, events and copies: one CUDA call each, more or less. */
#include <nvtx3/nvToolsExtCudaRt.h>
#include <stdio.h>
#include <unistd.h>

#include "base/memory.h"
#include "internal.h"

/* ---- threads ---- */

static void note_entered(dp_device *device)
{
    dp_cuda_backend *b = device->backend->state;
    int gpu = dp_cuda_state(device)->physical;
    pthread_mutex_lock(&b->mutex);
    b->entered[gpu] = true;
    if (b->first_entered < 0)
        b->first_entered = gpu;
    pthread_mutex_unlock(&b->mutex);
}

dp_status dp_cuda_device_enter(dp_device *device, dp_error *err)
{
    const dp_cuda_device *d = dp_cuda_state(device);
    DP_CUDA_TRY(d->label, err, cudaSetDevice(d->physical));
    note_entered(device);
    nvtxNameOsThreadA((uint32_t)gettid(), d->label); /* for profilers */
    return DP_OK;
}

void dp_cuda_device_leave(dp_device *device)
{
    dp_cuda_device *d = dp_cuda_state(device);
    if (d->blas)
        cublasDestroy(d->blas);
    if (d->dnn)
        cudnnDestroy(d->dnn);
    d->blas = NULL;
    d->dnn = NULL;
}

/* ---- memory ---- */

/* Every thread begins with GPU 0 as its current one. */
static dp_status make_current(dp_device *device, dp_error *err)
{
    const dp_cuda_device *d = dp_cuda_state(device);
    int current = -1;
    DP_CUDA_TRY(d->label, err, cudaGetDevice(&current));
    if (current != d->physical)
        DP_CUDA_TRY(d->label, err, cudaSetDevice(d->physical));
    return DP_OK;
}

dp_status dp_cuda_memory_alloc(dp_device *device, size_t bytes, void **out, dp_error *err)
{
    char call[64];
    *out = NULL;
    DP_TRY(make_current(device, err));
    snprintf(call, sizeof call, "cudaMalloc of %zu bytes", bytes);
    cudaError_t code = cudaMalloc(out, bytes);
    return code == cudaSuccess ? DP_OK : dp_cuda_fail(err, dp_cuda_state(device)->label, call, code);
}

/* After a failure work that uses the memory may still be queued. Drivers mostly wait for it, but cudaFree
 * does not promise that. */
void dp_cuda_memory_free(dp_device *device, void *pointer)
{
    const dp_cuda_device *d = dp_cuda_state(device);
    if (!pointer || make_current(device, NULL) != DP_OK)
        return;
    for (int i = 0; i < d->stream_count; i++)
        cudaStreamSynchronize(d->streams[i]);
    cudaFree(pointer);
}

/* Before each block of host memory lies how to free it. */
typedef struct host_header {
    bool pinned;
    _Alignas(64) char block[];
} host_header;

/* cudaHostAlloc and cudaFreeHost would create a context on GPU 0 in a thread that has no GPU of its own; make
 * it one that is in use. A device's thread keeps its own. False where no GPU is in use yet. */
static bool choose_gpu_in_use(dp_cuda_backend *b)
{
    int current = -1, wanted;
    if (cudaGetDevice(&current) != cudaSuccess)
        return false;
    pthread_mutex_lock(&b->mutex);
    bool in_use = current >= 0 && current < DP_CUDA_MAX_GPUS && b->entered[current];
    wanted = in_use ? current : b->first_entered;
    pthread_mutex_unlock(&b->mutex);
    return wanted >= 0 && (wanted == current || cudaSetDevice(wanted) == cudaSuccess);
}

/* Before the first device is entered there is no GPU to pin memory with; plain memory serves (copies from it
 * are slower). */
dp_status dp_cuda_host_alloc(dp_backend *backend, size_t bytes, void **out, dp_error *err)
{
    host_header *header = NULL;
    *out = NULL;
    if (bytes > PTRDIFF_MAX - sizeof *header)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory: cannot allocate %zu bytes of host memory",
                       bytes);
    if (!choose_gpu_in_use(backend->state)) {
        DP_TRY(dp_aligned_alloc(sizeof *header + bytes, "host memory", &header, err));
        header->pinned = false;
    } else {
        void *pinned;
        char call[64];
        snprintf(call, sizeof call, "cudaHostAlloc of %zu bytes", bytes);
        cudaError_t code = cudaHostAlloc(&pinned, sizeof *header + bytes, cudaHostAllocPortable);
        if (code != cudaSuccess)
            return dp_cuda_fail(err, "pinned host memory", call, code);
        header = pinned;
        header->pinned = true;
    }
    *out = header->block;
    return DP_OK;
}

void dp_cuda_host_free(dp_backend *backend, void *pointer)
{
    if (!pointer)
        return;
    host_header *header = (host_header *)((char *)pointer - sizeof *header);
    if (!header->pinned)
        dp_free(header);
    else if (choose_gpu_in_use(backend->state))
        cudaFreeHost(header);
}

/* ---- streams and events ---- */

dp_status dp_cuda_stream_create(dp_device *device, const char *name, void **out, dp_error *err)
{
    dp_cuda_device *d = dp_cuda_state(device);
    cudaStream_t stream;
    DP_TRY(dp_realloc(&d->streams, (size_t)d->stream_count + 1, sizeof *d->streams, "streams", err));
    DP_CUDA_TRY(d->label, err, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    d->streams[d->stream_count++] = stream;
    char full[64];
    snprintf(full, sizeof full, "%s %s", d->label, name);
    nvtxNameCudaStreamA(stream, full);
    *out = stream;
    return DP_OK;
}

void dp_cuda_stream_destroy(dp_device *device, void *stream)
{
    dp_cuda_device *d = dp_cuda_state(device);
    for (int i = 0; i < d->stream_count; i++)
        if (d->streams[i] == stream)
            d->streams[i] = d->streams[--d->stream_count];
    cudaStreamDestroy(stream);
}

dp_status dp_cuda_stream_synchronize(dp_device *device, void *stream, dp_error *err)
{
    DP_CUDA_TRY(dp_cuda_state(device)->label, err, cudaStreamSynchronize(stream));
    return DP_OK;
}

dp_status dp_cuda_event_create(dp_device *device, void **out, dp_error *err)
{
    cudaEvent_t event;
    DP_CUDA_TRY(dp_cuda_state(device)->label, err, cudaEventCreateWithFlags(&event, cudaEventDefault));
    *out = event;
    return DP_OK;
}

void dp_cuda_event_destroy(dp_device *device, void *event)
{
    (void)device;
    cudaEventDestroy(event);
}

dp_status dp_cuda_event_record(dp_device *device, void *event, void *stream, dp_error *err)
{
    DP_CUDA_TRY(dp_cuda_state(device)->label, err, cudaEventRecord(event, stream));
    return DP_OK;
}

dp_status dp_cuda_stream_wait(dp_device *device, void *stream, void *event, dp_error *err)
{
    DP_CUDA_TRY(dp_cuda_state(device)->label, err, cudaStreamWaitEvent(stream, event, 0));
    return DP_OK;
}

/* An error counts as done: whoever synchronizes reports it. */
bool dp_cuda_event_done(dp_device *device, void *event)
{
    return make_current(device, NULL) != DP_OK || cudaEventQuery(event) != cudaErrorNotReady;
}

dp_status dp_cuda_event_elapsed(dp_device *device, void *start, void *end, double *seconds, dp_error *err)
{
    float milliseconds;
    DP_CUDA_TRY(dp_cuda_state(device)->label, err, cudaEventElapsedTime(&milliseconds, start, end));
    *seconds = (double)milliseconds * 1e-3;
    return DP_OK;
}

/* ---- copies ---- */

dp_status dp_cuda_copy(dp_device *device, void *stream, dp_device *to, void *destination, dp_device *from,
                       const void *source, size_t bytes, dp_error *err)
{
    const char *label = dp_cuda_state(device)->label;
    if (to && from && dp_cuda_state(to)->physical != dp_cuda_state(from)->physical) {
        DP_CUDA_TRY(label, err,
                    cudaMemcpyPeerAsync(destination, dp_cuda_state(to)->physical, source,
                                        dp_cuda_state(from)->physical, bytes, stream));
        return DP_OK;
    }
    enum cudaMemcpyKind kind = to && from ? cudaMemcpyDeviceToDevice
                               : to       ? cudaMemcpyHostToDevice
                               : from     ? cudaMemcpyDeviceToHost
                                          : cudaMemcpyHostToHost;
    DP_CUDA_TRY(label, err, cudaMemcpyAsync(destination, source, bytes, kind, stream));
    return DP_OK;
}

dp_status dp_cuda_fill_zero(dp_device *device, void *stream, void *pointer, size_t bytes, dp_error *err)
{
    DP_CUDA_TRY(dp_cuda_state(device)->label, err, cudaMemsetAsync(pointer, 0, bytes, stream));
    return DP_OK;
}
