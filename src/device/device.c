/* What every backend shares: the ledger, the numbering of event records, names. */
#include "device/device.h"

#include <string.h>

static const char *const purpose_names[DP_MEM_PURPOSES] = {
    "parameters", "gradients",        "optimizer", "buffers", "activations",
    "inputs",     "gathered_outputs", "loss",      "staging", "workspace",
};

const char *dp_purpose_name(dp_purpose purpose)
{
    return purpose_names[purpose];
}

static const char *const op_kind_names[DP_OP_KINDS] = {
    [DP_OP_LINEAR] = "linear",
    [DP_OP_CONV2D] = "conv2d",
    [DP_OP_RELU] = "relu",
    [DP_OP_MAX_POOL2D] = "max_pool2d",
    [DP_OP_FLATTEN] = "flatten",
    [DP_OP_BATCH_NORM2D] = "batch_norm2d",
    [DP_OP_ADD] = "add",
    [DP_OP_CONCAT] = "concat",
    [DP_OP_CONV_TRANSPOSE2D] = "conv_transpose2d",
    [DP_OP_UPSAMPLE2X] = "upsample2x",
    [DP_OP_ADAPTIVE_AVG_POOL2D] = "adaptive_avg_pool2d",
    [DP_OP_DROPOUT] = "dropout",
    [DP_OP_DROPOUT2D] = "dropout2d",
};

const char *dp_op_kind_name(dp_op_kind kind)
{
    return op_kind_names[kind];
}

int64_t dp_shape_sample_elements(const dp_shape *shape)
{
    int64_t n = 1;
    for (int i = 1; i < shape->rank; i++)
        n *= shape->dim[i];
    return n;
}

int64_t dp_shape_elements(const dp_shape *shape)
{
    return shape->rank ? shape->dim[0] * dp_shape_sample_elements(shape) : 1;
}

dp_status dp_device_enter(dp_device *device, dp_error *err)
{
    return device->backend->call->device_enter(device, err);
}

void dp_device_leave(dp_device *device)
{
    device->backend->call->device_leave(device);
}

/* What a dry device's memory is said to lie at: aligned, and never touched. */
static const uintptr_t DRY_ADDRESS = 1 << 20;

static void raise_peak(_Atomic uint64_t *peak, uint64_t value)
{
    uint64_t seen = atomic_load(peak);
    while (seen < value && !atomic_compare_exchange_weak(peak, &seen, value))
        ;
}

dp_status dp_memory_alloc(dp_device *device, dp_purpose purpose, size_t bytes, void *out_pointer,
                          dp_error *err)
{
    void *p = (void *)DRY_ADDRESS;
    dp_status status = device->dry ? DP_OK : device->backend->call->memory_alloc(device, bytes, &p, err);
    memcpy(out_pointer, &p, sizeof p);
    if (status != DP_OK) {
        dp_error_prefix(err, "%s:%d: %zu bytes for %s", device->backend->call->name, device->id, bytes,
                        dp_purpose_name(purpose));
        return status;
    }
    dp_ledger *l = &device->ledger;
    raise_peak(&l->peak[purpose], atomic_fetch_add(&l->current[purpose], bytes) + bytes);
    raise_peak(&l->peak_total, atomic_fetch_add(&l->total, bytes) + bytes);
    atomic_fetch_add(&l->allocations, 1);
    return DP_OK;
}

void dp_memory_free(dp_device *device, dp_purpose purpose, size_t bytes, void *pointer)
{
    if (!pointer)
        return;
    if (!device->dry)
        device->backend->call->memory_free(device, pointer);
    atomic_fetch_sub(&device->ledger.current[purpose], bytes);
    atomic_fetch_sub(&device->ledger.total, bytes);
}

void dp_ledger_restart(dp_ledger *ledger)
{
    if (atomic_load(&ledger->total) > 0)
        return;
    for (int i = 0; i < DP_MEM_PURPOSES; i++)
        atomic_store(&ledger->peak[i], 0);
    atomic_store(&ledger->peak_total, 0);
}

uint64_t dp_ledger_peaks(const dp_ledger *ledger, uint64_t bytes[DP_MEM_PURPOSES])
{
    for (int i = 0; i < DP_MEM_PURPOSES; i++)
        bytes[i] = atomic_load(&ledger->peak[i]);
    return atomic_load(&ledger->peak_total);
}

dp_status dp_stream_create(dp_device *device, const char *name, dp_stream *out, dp_error *err)
{
    memset(out, 0, sizeof *out);
    DP_TRY(device->backend->call->stream_create(device, name, &out->handle, err));
    out->device = device;
    return DP_OK;
}

void dp_stream_destroy(dp_stream *stream)
{
    if (stream->device)
        stream->device->backend->call->stream_destroy(stream->device, stream->handle);
    stream->device = NULL;
}

dp_status dp_stream_synchronize(dp_stream *stream, dp_error *err)
{
    return stream->device->backend->call->stream_synchronize(stream->device, stream->handle, err);
}

dp_status dp_event_create(dp_device *device, dp_event *out, dp_error *err)
{
    memset(out, 0, sizeof *out);
    DP_TRY(device->backend->call->event_create(device, &out->handle, err));
    out->device = device;
    return DP_OK;
}

void dp_event_destroy(dp_event *event)
{
    if (event->device)
        event->device->backend->call->event_destroy(event->device, event->handle);
    event->device = NULL;
}

dp_status dp_event_record(dp_event *event, dp_stream *stream, dp_error *err)
{
    dp_device *device = stream->device;
    DP_TRY(device->backend->call->event_record(device, event->handle, stream->handle, err));
    atomic_fetch_add(&event->recorded, 1);
    return DP_OK;
}

dp_status dp_stream_wait(dp_stream *stream, dp_event *event, uint64_t number, const char *what, dp_error *err)
{
    dp_device *device = stream->device;
    uint64_t recorded = atomic_load(&event->recorded);
    if (recorded < number)
        return dp_fail(
            err, DP_ERROR_INTERNAL,
            "%s:%d waits for %s, record %llu of which has not been issued (%llu have): a missing hand-over",
            device->backend->call->name, device->id, what, (unsigned long long)number,
            (unsigned long long)recorded);
    return device->backend->call->stream_wait(device, stream->handle, event->handle, err);
}

dp_status dp_event_elapsed(dp_event *start, dp_event *end, double *seconds, dp_error *err)
{
    return start->device->backend->call->event_elapsed(start->device, start->handle, end->handle, seconds,
                                                       err);
}

dp_status dp_copy(dp_stream *stream, dp_device *to, void *destination, dp_device *from, const void *source,
                  size_t bytes, dp_error *err)
{
    dp_device *device = stream->device;
    if (bytes == 0 || device->dry)
        return DP_OK;
    return device->backend->call->copy(device, stream->handle, to, destination, from, source, bytes, err);
}

dp_status dp_fill_zero(dp_stream *stream, void *pointer, size_t bytes, dp_error *err)
{
    if (bytes == 0 || stream->device->dry)
        return DP_OK;
    return stream->device->backend->call->fill_zero(stream->device, stream->handle, pointer, bytes, err);
}

void dp_range_push(const dp_device *device, const char *name)
{
    if (device->backend->call->range_push)
        device->backend->call->range_push(name);
}

void dp_range_pop(const dp_device *device)
{
    if (device->backend->call->range_pop)
        device->backend->call->range_pop();
}
