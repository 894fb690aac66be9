/* The CUDA backend's table of functions, its devices, and the way to the operations. */
#include "cuda.h"

#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "internal.h"

/* ---- operations ---- */

static dp_status (*const creators[DP_OP_KINDS])(dp_device *, const dp_op_request *, dp_op *, dp_error *) = {
    [DP_OP_LINEAR] = dp_cuda_linear_create,
    [DP_OP_CONV2D] = dp_cuda_conv2d_create,
    [DP_OP_RELU] = dp_cuda_relu_create,
    [DP_OP_MAX_POOL2D] = dp_cuda_pool_create,
    [DP_OP_FLATTEN] = dp_cuda_flatten_create,
    [DP_OP_BATCH_NORM2D] = dp_cuda_batch_norm_create,
    [DP_OP_ADD] = dp_cuda_add_create,
    [DP_OP_CONCAT] = dp_cuda_concat_create,
    [DP_OP_CONV_TRANSPOSE2D] = dp_cuda_conv2d_create,
    [DP_OP_UPSAMPLE2X] = dp_cuda_upsample_create,
    [DP_OP_ADAPTIVE_AVG_POOL2D] = dp_cuda_average_create,
    [DP_OP_DROPOUT] = dp_cuda_dropout_create,
    [DP_OP_DROPOUT2D] = dp_cuda_dropout_create,
};

static dp_status op_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    const dp_op_desc *desc = request->desc;
    memset(out, 0, sizeof *out);
    if (desc->kind < 0 || desc->kind >= DP_OP_KINDS || !creators[desc->kind])
        return dp_fail(err, DP_ERROR_INTERNAL, "the CUDA backend has no operation %d", (int)desc->kind);
    out->backend = device->backend;
    out->desc = *desc;
    out->out = (dp_layout){DP_LAYOUT_PLAIN, (size_t)dp_shape_elements(&desc->out) * sizeof(float)};
    dp_status status = creators[desc->kind](device, request, out, err);
    if (status != DP_OK)
        out->backend = NULL;
    return status;
}

static void op_destroy(dp_device *device, dp_op *op)
{
    (void)device;
    dp_cuda_op *state = op->state;
    if (state)
        state->destroy(state);
    op->state = NULL;
}

static dp_status op_forward(dp_device *device, dp_op *op, void *stream, const dp_op_args *args, dp_error *err)
{
    return ((dp_cuda_op *)op->state)->forward(device, op, stream, args, err);
}

static dp_status op_backward(dp_device *device, dp_op *op, void *stream, const dp_op_args *args,
                             dp_error *err)
{
    return ((dp_cuda_op *)op->state)->backward(device, op, stream, args, err);
}

/* ---- ranges for profilers: a call through a null pointer's check where no tool is attached ---- */

static void range_push(const char *name)
{
    nvtxRangePushA(name);
}

static void range_pop(void)
{
    nvtxRangePop();
}

/* ---- opening and closing ---- */

static void backend_close(dp_backend *backend)
{
    if (!backend)
        return;
    dp_cuda_backend *state = backend->state;
    for (int i = 0; backend->devices && i < backend->device_count; i++) {
        dp_cuda_device *device = backend->devices[i].state;
        if (device)
            dp_free(device->streams);
        dp_free(device);
    }
    if (state) {
        dp_cuda_nvml_close(state->nvml);
        if (state->mutex_exists)
            pthread_mutex_destroy(&state->mutex);
        dp_free(state->convs);
    }
    dp_free(state);
    dp_free(backend->devices);
    dp_free(backend);
}

static const dp_backend_functions functions = {
    .name = "cuda",
    .device_enter = dp_cuda_device_enter,
    .device_leave = dp_cuda_device_leave,
    .memory_alloc = dp_cuda_memory_alloc,
    .memory_free = dp_cuda_memory_free,
    .host_alloc = dp_cuda_host_alloc,
    .host_free = dp_cuda_host_free,
    .free_bytes = dp_cuda_free_bytes,
    .stream_create = dp_cuda_stream_create,
    .stream_destroy = dp_cuda_stream_destroy,
    .stream_synchronize = dp_cuda_stream_synchronize,
    .event_create = dp_cuda_event_create,
    .event_destroy = dp_cuda_event_destroy,
    .event_record = dp_cuda_event_record,
    .stream_wait = dp_cuda_stream_wait,
    .event_done = dp_cuda_event_done,
    .event_elapsed = dp_cuda_event_elapsed,
    .peer_possible = dp_cuda_peer_possible,
    .peer_readable = dp_cuda_peer_readable,
    .copy = dp_cuda_copy,
    .fill_zero = dp_cuda_fill_zero,
    .op_create = op_create,
    .op_destroy = op_destroy,
    .op_forward = op_forward,
    .op_backward = op_backward,
    .add = dp_cuda_add,
    .loss = dp_cuda_loss,
    .update = dp_cuda_update,
    .range_push = range_push,
    .range_pop = range_pop,
    .close = backend_close,
};

/* As nvidia-smi writes it: GPU-8a6f1c2e-... */
static void format_uuid(const cudaUUID_t *uuid, char *out, size_t size)
{
    size_t used = (size_t)snprintf(out, size, "GPU");
    for (int i = 0; i < 16; i++) {
        bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        used += (size_t)snprintf(out + used, size - used, "%s%02x", dash ? "-" : "",
                                 (unsigned)(unsigned char)uuid->bytes[i]);
    }
}

static dp_status open_device(dp_backend *backend, int id, int gpus, dp_error *err)
{
    dp_device *device = &backend->devices[id];
    device->backend = backend;
    device->id = id;
    dp_cuda_device *state;
    DP_TRY(dp_calloc(1, sizeof *state, "a CUDA device", &state, err));
    device->state = state;
    snprintf(state->label, sizeof state->label, "cuda:%d", id);
    state->physical = id % gpus;
    struct cudaDeviceProp p;
    DP_CUDA_TRY(state->label, err, cudaGetDeviceProperties(&p, state->physical));
    state->capability = 10 * p.major + p.minor;
    dp_device_properties *out = &device->properties;
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, p.name);
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", (unsigned)p.pciDomainID,
             (unsigned)p.pciBusID, (unsigned)p.pciDeviceID);
    format_uuid(&p.uuid, out->uuid, sizeof out->uuid);
    out->memory_bytes = p.totalGlobalMem;
    out->multiprocessors = p.multiProcessorCount;
    /* Round-robin: the first devices / gpus rounds are whole, the last one may be partial. */
    out->physical = state->physical;
    out->shares_hardware = state->physical + gpus < backend->device_count;
    return DP_OK;
}

static dp_status count_gpus(int *gpus, dp_error *err)
{
    *gpus = 0;
    cudaError_t code = cudaGetDeviceCount(gpus);
    if (code != cudaSuccess)
        return dp_fail(err, DP_ERROR_DEVICE, "no usable GPU: %s (%d)", cudaGetErrorString(code), (int)code);
    if (*gpus < 1)
        return dp_fail(err, DP_ERROR_DEVICE, "no usable GPU: CUDA sees none");
    if (*gpus > DP_CUDA_MAX_GPUS)
        *gpus = DP_CUDA_MAX_GPUS;
    return DP_OK;
}

static dp_status open_state(dp_backend *backend, const dp_cuda_config *config, dp_error *err)
{
    dp_cuda_backend *state;
    DP_TRY(dp_calloc(1, sizeof *state, "the CUDA backend", &state, err));
    backend->state = state;
    state->allow_tf32 = config->allow_tf32;
    state->first_entered = -1;
    if (pthread_mutex_init(&state->mutex, NULL) != 0)
        return dp_fail(err, DP_ERROR_MEMORY, "out of memory: cannot create a mutex");
    state->mutex_exists = true;
    return DP_OK;
}

dp_status dp_cuda_backend_open(const dp_cuda_config *config, dp_backend **out, dp_error *err)
{
    *out = NULL;
    if (config->logical_devices < 0 || config->logical_devices > DP_MAX_DEVICES)
        return dp_fail(err, DP_ERROR_USAGE, "%d logical devices: 1 to %d are possible",
                       config->logical_devices, (int)DP_MAX_DEVICES);
    int gpus;
    DP_TRY(count_gpus(&gpus, err));
    nvtxInitialize(NULL); /* else the first calls of two devices' threads would race to do it */
    dp_backend *backend;
    DP_TRY(dp_calloc(1, sizeof *backend, "the CUDA backend", &backend, err));
    backend->call = &functions;
    backend->device_count = config->logical_devices ? config->logical_devices : gpus;
    dp_status status = open_state(backend, config, err);
    if (status == DP_OK)
        status = dp_calloc((size_t)backend->device_count, sizeof *backend->devices, "CUDA devices",
                           &backend->devices, err);
    for (int i = 0; status == DP_OK && i < backend->device_count; i++)
        status = open_device(backend, i, gpus, err);
    if (status != DP_OK) {
        backend_close(backend);
        return status;
    }
    *out = backend;
    return DP_OK;
}
