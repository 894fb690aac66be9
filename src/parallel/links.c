/* What the links between devices can do: a timed copy for each pair, and a look at what arrived. */
#include <string.h>

#include "base/memory.h"
#include "base/thread.h"
#include "parallel/context.h"

enum {
    TRIAL_COPY = 1 << 20,
    LARGE_COPY = 16 << 20, /* larger than caches, and long against the cost of a call */
    SMALL_COPY = 4 << 20,  /* with many devices: pairs grow with their square */
    MANY_DEVICES = 8,
    COPIES = 4
};

typedef struct link_test {
    dp_backend *backend;
    int count;
    uint64_t devices; /* bit k: device k takes part */
    size_t bytes;
    bool reads; /* kernels read the sender's memory, too */
    dp_link *links;
    void *sent[DP_MAX_DEVICES], *received[DP_MAX_DEVICES]; /* on each device */
    uint32_t *host;
    dp_status status;
    dp_error error;
} link_test;

/* Every device sends other words. As float32 they are finite and not negative: a kernel can add them to 0. */
static uint32_t word(int from, size_t i)
{
    return ((uint32_t)i * 2654435761u + (uint32_t)from) & 0x3fffffff;
}

/* The device's memory, touched by a thread that runs where the device's own would. */
static dp_status prepare(link_test *t, dp_device *device, dp_error *err)
{
    dp_stream stream;
    int k = device->id;
    DP_TRY(dp_memory_alloc(device, DP_MEM_STAGING, t->bytes, &t->sent[k], err));
    DP_TRY(dp_memory_alloc(device, DP_MEM_STAGING, t->bytes, &t->received[k], err));
    for (size_t i = 0; i < t->bytes / sizeof *t->host; i++)
        t->host[i] = word(k, i);
    DP_TRY(dp_stream_create(device, "prepare", &stream, err));
    dp_status status = dp_copy(&stream, device, t->sent[k], NULL, t->host, t->bytes, err);
    if (status == DP_OK)
        status = dp_stream_synchronize(&stream, err);
    dp_stream_destroy(&stream);
    return status;
}

typedef struct receiver {
    dp_device *device;
    dp_stream stream;
    dp_event start, end;
} receiver;

/* Whether the receiver holds what the sender has. */
static dp_status check_received(link_test *t, receiver *r, dp_device *from, bool *intact, dp_error *err)
{
    DP_TRY(dp_copy(&r->stream, NULL, t->host, r->device, t->received[r->device->id], t->bytes, err));
    /* Implied: a copy to pageable host memory is done when it returns (CUDA Runtime API, "API synchronization
     * behavior"). Other memory would need this. */
    DP_TRY(dp_stream_synchronize(&r->stream, err));
    *intact = true;
    for (size_t i = 0; i < t->bytes / sizeof *t->host; i++)
        *intact &= t->host[i] == word(from->id, i);
    return DP_OK;
}

/* The primary sums gradients where they are: by kernels that read other devices' memory. */
static dp_status read_by_kernel(link_test *t, receiver *r, dp_device *from, bool *intact, dp_error *err)
{
    dp_device *to = r->device;
    DP_TRY(dp_fill_zero(&r->stream, t->received[to->id], t->bytes, err));
    DP_TRY(t->backend->call->add(to, r->stream.handle, t->received[to->id], t->sent[from->id],
                                 (int64_t)(t->bytes / sizeof(float)), err));
    return check_received(t, r, from, intact, err);
}

static dp_status receive(link_test *t, receiver *r, dp_device *from, dp_error *err)
{
    dp_device *to = r->device;
    dp_link *link = &t->links[from->id * t->count + to->id];
    link->same_hardware = from->properties.physical == to->properties.physical;
    link->peer_access = t->backend->call->peer_readable(to, from);
    DP_TRY(dp_fill_zero(&r->stream, t->received[to->id], t->bytes, err));
    for (int i = 0; i < 1 + COPIES; i++) { /* the first one warms up */
        if (i == 1)
            DP_TRY(dp_event_record(&r->start, &r->stream, err));
        DP_TRY(dp_copy(&r->stream, to, t->received[to->id], from, t->sent[from->id], t->bytes, err));
    }
    DP_TRY(dp_event_record(&r->end, &r->stream, err));
    DP_TRY(check_received(t, r, from, &link->intact, err));
    double seconds;
    DP_TRY(dp_event_elapsed(&r->start, &r->end, &seconds, err));
    link->bytes_per_second = seconds > 0 ? (double)t->bytes * COPIES / seconds : 0;
    if (t->reads && link->intact && link->peer_access && !link->same_hardware)
        DP_TRY(read_by_kernel(t, r, from, &link->intact, err));
    return DP_OK;
}

static dp_status receive_all(link_test *t, dp_device *device, dp_error *err)
{
    receiver r = {.device = device};
    dp_status status = dp_stream_create(device, "links", &r.stream, err);
    if (status == DP_OK)
        status = dp_event_create(device, &r.start, err);
    if (status == DP_OK)
        status = dp_event_create(device, &r.end, err);
    for (int k = 0; status == DP_OK && k < t->count; k++)
        if (k != device->id && (t->devices >> k & 1))
            status = receive(t, &r, &t->backend->devices[k], err);
    if (status != DP_OK && r.stream.device)
        dp_stream_synchronize(&r.stream, NULL); /* what it still reads is about to be freed */
    dp_event_destroy(&r.end);
    dp_event_destroy(&r.start);
    dp_stream_destroy(&r.stream);
    return status;
}

static dp_status release(link_test *t, dp_device *device, dp_error *err)
{
    (void)err;
    dp_memory_free(device, DP_MEM_STAGING, t->bytes, t->received[device->id]);
    dp_memory_free(device, DP_MEM_STAGING, t->bytes, t->sent[device->id]);
    return DP_OK;
}

static dp_status on_every_device(link_test *t, dp_status (*act)(link_test *, dp_device *, dp_error *),
                                 dp_error *err)
{
    dp_status status = DP_OK;
    for (int k = 0; status == DP_OK && k < t->count; k++) {
        dp_device *device = &t->backend->devices[k];
        if (!(t->devices >> k & 1))
            continue;
        DP_TRY(dp_device_enter(device, err));
        status = act(t, device, err);
        dp_device_leave(device);
    }
    return status;
}

/* One thread plays all devices' in turn, so nothing else runs while a pair is timed. */
static void *measure(void *argument)
{
    link_test *t = argument;
    t->status = on_every_device(t, prepare, &t->error);
    if (t->status == DP_OK)
        t->status = on_every_device(t, receive_all, &t->error);
    on_every_device(t, release, NULL);
    return NULL;
}

static dp_status run_test(link_test *t, dp_context *context, dp_error *err)
{
    pthread_t thread;
    t->backend = context->backend;
    t->count = context->backend->device_count;
    memset(t->links, 0, (size_t)t->count * (size_t)t->count * sizeof *t->links);
    DP_TRY(dp_aligned_alloc(t->bytes, "what links carry", &t->host, err));
    dp_status status = dp_thread_start(&thread, "links", measure, t, err);
    if (status == DP_OK) {
        pthread_join(thread, NULL);
        status = t->status == DP_OK ? DP_OK : dp_fail(err, t->status, "%s", t->error.message);
    }
    dp_free(t->host);
    return status;
}

dp_status dp_context_measure_links(dp_context *context, dp_link *links, dp_error *err)
{
    link_test *t;
    DP_TRY(dp_calloc(1, sizeof *t, "a test of links", &t, err));
    t->devices = UINT64_MAX;
    t->bytes = context->backend->device_count > MANY_DEVICES ? SMALL_COPY : LARGE_COPY;
    t->links = links;
    dp_status status = run_test(t, context, err);
    dp_free(t);
    return status;
}

dp_status dp_context_try_link(dp_context *context, int a, int b, bool *intact, dp_error *err)
{
    int count = context->backend->device_count;
    link_test *t = NULL;
    dp_link *links = NULL;
    *intact = false;
    if (a < 0 || b < 0 || a >= count || b >= count)
        return dp_fail(err, DP_ERROR_USAGE, "there is no link between devices %d and %d of %d", a, b, count);
    dp_status status = dp_calloc(1, sizeof *t, "a test of a link", &t, err);
    if (status == DP_OK)
        status = dp_calloc((size_t)count * (size_t)count, sizeof *links, "a test of a link", &links, err);
    if (status == DP_OK) {
        t->devices = UINT64_C(1) << a | UINT64_C(1) << b;
        t->bytes = TRIAL_COPY;
        t->reads = true;
        t->links = links;
        status = run_test(t, context, err);
        *intact = status == DP_OK && (a == b || (links[a * count + b].intact && links[b * count + a].intact));
    }
    dp_free(links);
    dp_free(t);
    return status;
}
