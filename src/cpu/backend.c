/* The CPU's table of functions: devices, memory, streams, events, copies, and the way to the operations.
 *
 * A stream runs its work at once in the calling thread, so an event is a time of day and a wait has nothing
 * to do (device.c has checked that the record has been issued). */
#include "cpu/cpu.h"

#include <omp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/thread.h"
#include "cpu/announce.h"
#include "cpu/internal.h"
#include "cpu/layout.h"

typedef struct cpu_event {
    _Atomic double seconds;
} cpu_event;

/* ---- devices ---- */

static dp_status device_enter(dp_device *device, dp_error *err)
{
    dp_cpu_device *state = device->state;
    if (state->pinned) {
        sched_getaffinity(0, sizeof state->before, &state->before);
        sched_setaffinity(0, sizeof state->cores,
                          &state->cores); /* where it is refused, work goes on unpinned */
    }
    omp_set_dynamic(0);
    omp_set_num_threads(state->threads); /* of this host thread's own teams */
    return state->dnnl ? DP_OK : dp_dnnl_open(&state->dnnl, err);
}

static void device_leave(dp_device *device)
{
    dp_cpu_device *state = device->state;
    if (state->pinned)
        sched_setaffinity(0, sizeof state->before, &state->before);
}

/* ---- memory ---- */

static dp_status memory_alloc(dp_device *device, size_t bytes, void **out, dp_error *err)
{
    (void)device;
    return dp_aligned_alloc(bytes, "device memory", out, err);
}

static void memory_free(dp_device *device, void *pointer)
{
    (void)device;
    dp_free(pointer);
}

static dp_status host_alloc(dp_backend *backend, size_t bytes, void **out, dp_error *err)
{
    (void)backend;
    return dp_aligned_alloc(bytes, "host memory", out, err);
}

static void host_free(dp_backend *backend, void *pointer)
{
    (void)backend;
    dp_free(pointer);
}

/* What the kernel says new programs may have without swapping. */
static bool free_bytes(dp_device *device, uint64_t *bytes)
{
    (void)device;
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f)
        return false;
    char line[128];
    unsigned long long kib;
    bool found = false;
    while (!found && fgets(line, sizeof line, f))
        found = sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
    fclose(f);
    if (found)
        *bytes = (uint64_t)kib << 10;
    return found;
}

/* ---- streams and events ---- */

static dp_status stream_create(dp_device *device, const char *name, void **out, dp_error *err)
{
    (void)name, (void)err;
    *out = device; /* all that a stream needs is an identity */
    return DP_OK;
}

static void stream_destroy(dp_device *device, void *stream)
{
    (void)device, (void)stream;
}

static dp_status stream_synchronize(dp_device *device, void *stream, dp_error *err)
{
    (void)device, (void)stream, (void)err;
    return DP_OK;
}

static dp_status event_create(dp_device *device, void **out, dp_error *err)
{
    (void)device;
    return dp_calloc(1, sizeof(cpu_event), "an event", out, err);
}

static void event_destroy(dp_device *device, void *event)
{
    (void)device;
    dp_free(event);
}

static dp_status event_record(dp_device *device, void *event, void *stream, dp_error *err)
{
    (void)device, (void)stream, (void)err;
    atomic_store(&((cpu_event *)event)->seconds, dp_now());
    return DP_OK;
}

static dp_status stream_wait(dp_device *device, void *stream, void *event, dp_error *err)
{
    (void)device, (void)stream, (void)event, (void)err;
    return DP_OK;
}

static dp_status event_elapsed(dp_device *device, void *start, void *end, double *seconds, dp_error *err)
{
    (void)device, (void)err;
    *seconds = atomic_load(&((cpu_event *)end)->seconds) - atomic_load(&((cpu_event *)start)->seconds);
    return DP_OK;
}

static bool event_done(dp_device *device, void *event)
{
    (void)device, (void)event;
    return true;
}

/* ---- copies ---- */

static bool peer_possible(dp_device *device, dp_device *peer)
{
    (void)device, (void)peer;
    return false;
}

static bool peer_readable(dp_device *device, dp_device *peer)
{
    (void)device, (void)peer;
    return true;
}

static dp_status copy(dp_device *device, void *stream, dp_device *to, void *destination, dp_device *from,
                      const void *source, size_t bytes, dp_error *err)
{
    (void)device, (void)stream, (void)to, (void)from, (void)err;
    memcpy(destination, source, bytes);
    return DP_OK;
}

static dp_status fill_zero(dp_device *device, void *stream, void *pointer, size_t bytes, dp_error *err)
{
    (void)device, (void)stream, (void)err;
    memset(pointer, 0, bytes);
    return DP_OK;
}

/* ---- operations ---- */

/* Bytes of parameter i of an operation; 0 where it has none. */
static size_t param_bytes(const dp_op_desc *d, int i)
{
    if (i >= d->params)
        return 0;
    int64_t out = d->out.dim[1], weights = out;
    if (d->kind == DP_OP_CONV2D || d->kind == DP_OP_CONV_TRANSPOSE2D)
        weights = out * d->in[0].dim[1] * d->kernel[0] * d->kernel[1];
    else if (d->kind == DP_OP_LINEAR)
        weights = out * dp_shape_sample_elements(&d->in[0]);
    return (size_t)(i == 0 ? weights : out) * sizeof(float);
}

static dp_status (*const creators[DP_OP_KINDS])(dp_cpu_device *, const dp_op_request *, dp_op *,
                                                dp_error *) = {
    [DP_OP_LINEAR] = dp_cpu_linear_create,
    [DP_OP_CONV2D] = dp_cpu_conv2d_create,
    [DP_OP_RELU] = dp_cpu_relu_create,
    [DP_OP_MAX_POOL2D] = dp_cpu_pool_create,
    [DP_OP_FLATTEN] = dp_cpu_flatten_create,
    [DP_OP_CONCAT] = dp_cpu_concat_create,
    [DP_OP_CONV_TRANSPOSE2D] = dp_cpu_deconv2d_create,
    [DP_OP_UPSAMPLE2X] = dp_cpu_upsample_create,
    [DP_OP_ADAPTIVE_AVG_POOL2D] = dp_cpu_average_create,
    [DP_OP_DROPOUT] = dp_cpu_dropout_create,
    [DP_OP_DROPOUT2D] = dp_cpu_dropout_create,
    [DP_OP_BATCH_NORM2D] = dp_cpu_batch_norm_create,
    [DP_OP_ADD] = dp_cpu_add_create,
};

static dp_status op_create(dp_device *device, const dp_op_request *request, dp_op *out, dp_error *err)
{
    const dp_op_desc *desc = request->desc;
    memset(out, 0, sizeof *out);
    if (desc->kind < 0 || desc->kind >= DP_OP_KINDS || !creators[desc->kind])
        return dp_fail(err, DP_ERROR_INTERNAL, "the CPU backend has no operation %d", (int)desc->kind);
    out->backend = device->backend;
    out->desc = *desc;
    out->out = dp_cpu_layout(&desc->out, DP_CPU_PLAIN);
    dp_status status = creators[desc->kind](device->state, request, out, err);
    if (status != DP_OK) {
        dp_error_prefix(err, "cpu:%d: %s", device->id, dp_op_kind_name(desc->kind));
        return status;
    }
    dp_cpu_op *state = out->state;
    state->device = device->state;
    for (int i = 0; i < desc->inputs; i++)
        state->in_bytes[i] = request->in[i].bytes;
    for (int i = 0; i < DP_OP_MAX_PARAMS; i++)
        state->param_bytes[i] = param_bytes(desc, i);
    return DP_OK;
}

static void op_destroy(dp_device *device, dp_op *op)
{
    (void)device;
    dp_cpu_op *state = op->state;
    if (state)
        state->destroy(state);
    op->state = NULL;
}

static dp_status op_forward(dp_device *device, dp_op *op, void *stream, const dp_op_args *args, dp_error *err)
{
    (void)device, (void)stream;
    dp_cpu_op *state = op->state;
    for (int i = 0; i < op->desc.inputs; i++)
        dp_announce_read(args->in[i], state->in_bytes[i]);
    for (int i = 0; i < op->desc.params; i++)
        dp_announce_read(args->param[i], state->param_bytes[i]);
    dp_announce_write(args->out, op->out.bytes);
    dp_announce_write(args->saved, op->saved_bytes);
    dp_announce_write(args->workspace, op->workspace_bytes);
    return state->forward(op, args, err);
}

static dp_status op_backward(dp_device *device, dp_op *op, void *stream, const dp_op_args *args,
                             dp_error *err)
{
    (void)device, (void)stream;
    dp_cpu_op *state = op->state;
    if (op->backward_reads_input)
        dp_announce_read(args->in[0], state->in_bytes[0]);
    if (op->backward_reads_output)
        dp_announce_read(args->out, op->out.bytes);
    for (int i = 0; i < op->desc.params; i++)
        dp_announce_read(args->param[i], state->param_bytes[i]);
    dp_announce_read(args->saved, op->saved_bytes);
    dp_announce_write(args->out_gradient, op->out.bytes);
    dp_announce_write(args->workspace, op->workspace_bytes);
    for (int i = 0; i < op->desc.inputs; i++)
        dp_announce_write(args->in_gradient[i], state->in_bytes[i]);
    for (int i = 0; i < op->desc.params; i++)
        dp_announce_write(args->param_gradient[i], state->param_bytes[i]);
    return state->backward(op, args, err);
}

static dp_status add(dp_device *device, void *stream, float *target, const float *source, int64_t count,
                     dp_error *err)
{
    (void)stream, (void)err;
    dp_cpu_device *state = device->state;
    dp_cpu_add(state->threads, count, source, target);
    return DP_OK;
}

static dp_status loss(dp_device *device, void *stream, const dp_loss_args *args, dp_error *err)
{
    (void)stream;
    dp_cpu_device *state = device->state;
    return dp_cpu_loss(state->threads, args, err);
}

static dp_status update(dp_device *device, void *stream, const dp_update_args *args, dp_error *err)
{
    (void)stream, (void)err;
    dp_cpu_device *state = device->state;
    dp_cpu_update(state->threads, args);
    return DP_OK;
}

/* ---- opening and closing ---- */

static void backend_close(dp_backend *backend)
{
    if (!backend)
        return;
    for (int i = 0; backend->devices && i < backend->device_count; i++) {
        dp_cpu_device *state = backend->devices[i].state;
        if (state)
            dp_dnnl_close(state->dnnl);
        dp_free(state);
    }
    dp_free(backend->devices);
    dp_free(backend);
}

static const dp_backend_functions functions = {
    .name = "cpu",
    .one_memory = true,
    .device_enter = device_enter,
    .device_leave = device_leave,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .free_bytes = free_bytes,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_synchronize = stream_synchronize,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .stream_wait = stream_wait,
    .event_done = event_done,
    .event_elapsed = event_elapsed,
    .peer_possible = peer_possible,
    .peer_readable = peer_readable,
    .copy = copy,
    .fill_zero = fill_zero,
    .op_create = op_create,
    .op_destroy = op_destroy,
    .op_forward = op_forward,
    .op_backward = op_backward,
    .add = add,
    .loss = loss,
    .update = update,
    .close = backend_close,
};

/* The processor's name from /proc/cpuinfo, or "CPU". */
static void read_cpu_name(char *name, size_t size)
{
    snprintf(name, size, "CPU");
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (!f)
        return;
    char line[256];
    while (fgets(line, sizeof line, f)) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value += 1 + strspn(value + 1, " \t");
        value[strcspn(value, "\n")] = '\0';
        snprintf(name, size, "%s", value);
        break;
    }
    fclose(f);
}

static uint64_t total_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
}

/* Gives device k the k-th group of `threads` cores of the process's own. */
static bool pick_cores(const cpu_set_t *usable, int device, int threads, cpu_set_t *out)
{
    CPU_ZERO(out);
    int seen = 0;
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, usable))
            continue;
        if (seen / threads == device)
            CPU_SET(core, out);
        seen++;
    }
    return CPU_COUNT(out) == threads;
}

static dp_status open_device(dp_backend *backend, int id, int threads, bool pin, bool shares, dp_error *err)
{
    dp_device *device = &backend->devices[id];
    device->backend = backend;
    device->id = id;
    dp_cpu_device *state;
    DP_TRY(dp_calloc(1, sizeof *state, "a CPU device", &state, err));
    device->state = state;
    state->threads = threads;
    cpu_set_t usable;
    if (pin && sched_getaffinity(0, sizeof usable, &usable) == 0)
        state->pinned = pick_cores(&usable, id, threads, &state->cores);
    read_cpu_name(device->properties.name, sizeof device->properties.name);
    device->properties.memory_bytes = total_memory();
    device->properties.multiprocessors = threads;
    device->properties.shares_hardware = shares;
    return DP_OK;
}

dp_status dp_cpu_backend_open(int devices, int threads_per_device, dp_backend **out, dp_error *err)
{
    *out = NULL;
    if (devices < 1 || devices > DP_MAX_DEVICES || threads_per_device < 0)
        return dp_fail(err, DP_ERROR_USAGE, "%d CPU devices of %d threads: use 1 to %d devices", devices,
                       threads_per_device, (int)DP_MAX_DEVICES);
    int cores = dp_usable_cores();
    int threads = threads_per_device ? threads_per_device : cores / devices > 0 ? cores / devices : 1;
    bool shares = (int64_t)devices * threads > cores;
    /* Devices that fill the process's cores get one group each. With cores to spare the scheduler does as
     * well and does not crowd two programs onto the same first cores; a quota of time gives no core of one's
     * own. */
    cpu_set_t mask;
    bool pin =
        sched_getaffinity(0, sizeof mask, &mask) == 0 && devices * threads == CPU_COUNT(&mask) && !shares;
    dp_backend *backend;
    DP_TRY(dp_calloc(1, sizeof *backend, "the CPU backend", &backend, err));
    backend->call = &functions;
    backend->device_count = devices;
    dp_status status =
        dp_calloc((size_t)devices, sizeof *backend->devices, "CPU devices", &backend->devices, err);
    for (int i = 0; status == DP_OK && i < devices; i++)
        status = open_device(backend, i, threads, pin, shares, err);
    if (status != DP_OK) {
        backend_close(backend);
        return status;
    }
    *out = backend;
    return DP_OK;
}
