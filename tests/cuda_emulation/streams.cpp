// Streams and events. A stream is a host thread that runs its queue in order; before each operation it may
// sleep for a random time, so that whatever is not ordered by events does go wrong some day.
#include "internal.h"

#include <ctime>
#include <pthread.h>

using namespace emulation;

struct Operation {
    std::function<void()> work;         // empty where there is only
    std::shared_ptr<Ticket> completion; // a ticket to complete
    Operation *next = nullptr;
};

// Guarded by runtime().mutex but for the constants.
struct CUstream_st {
    Gpu *gpu;
    uint64_t random;
    Operation *first = nullptr, **last = &first;
    unsigned pending = 0; // queued or running
    bool closing = false;
    Condition work_arrived;
};

struct CUevent_st {
    Gpu *gpu;
    unsigned flags;
    std::shared_ptr<Ticket> latest; // of the last record, null before the first
};

namespace emulation
{

static double now_milliseconds()
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

static void random_delay(CUstream_st *stream)
{
    uint64_t most = settings().max_delay_us;
    if (most == 0)
        return;
    uint64_t microseconds = next_random(&stream->random) % (most + 1);
    struct timespec time = {(time_t)(microseconds / 1000000), (long)(microseconds % 1000000 * 1000)};
    nanosleep(&time, nullptr);
}

// Whoever has waited for the ticket finds the stream idle if nothing else is queued: both change at once.
static void finish(CUstream_st *stream, Operation *operation)
{
    Ticket *ticket = operation->completion.get();
    if (ticket)
        happens_before(ticket);
    Guard guard(runtime().mutex);
    if (ticket) {
        ticket->milliseconds = now_milliseconds();
        ticket->done = true;
        ticket->completed.notify_all();
    }
    stream->pending--;
    delete operation;
}

// The next operation; null when the stream is closing and all is done.
static Operation *take_operation(CUstream_st *stream)
{
    Guard guard(runtime().mutex);
    while (!stream->first && !stream->closing)
        stream->work_arrived.wait(guard);
    Operation *operation = stream->first;
    if (operation) {
        stream->first = operation->next;
        if (!stream->first)
            stream->last = &stream->first;
    }
    return operation;
}

static void *run_stream(void *opaque)
{
    auto *stream = static_cast<CUstream_st *>(opaque);
    std::vector<char> signal_stack(64 << 10);
    use_alternate_stack(signal_stack.data(), signal_stack.size());
    while (Operation *operation = take_operation(stream)) {
        random_delay(stream);
        happens_after(operation);
        if (operation->work)
            operation->work();
        happens_before(stream); // for cudaStreamQuery
        finish(stream, operation);
    }
    discard_executor();
    delete stream;
    use_alternate_stack(nullptr, 0);
    return nullptr;
}

static bool is_default(cudaStream_t stream)
{
    return !stream || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
}

void check_stream(const char *function, cudaStream_t stream)
{
    if (is_default(stream))
        emulation_fail("%s on the default stream; only explicit streams are emulated", function);
    Guard guard(runtime().mutex);
    for (const auto &gpu : runtime().gpus)
        if (gpu->streams.count(stream))
            return;
    emulation_fail("%s on a stream that has been destroyed or never existed", function);
}

static void check_event(const char *function, cudaEvent_t event)
{
    Guard guard(runtime().mutex);
    if (!runtime().events.count(event))
        emulation_fail("%s on an event that has been destroyed or never existed", function);
}

Gpu *stream_gpu(cudaStream_t stream)
{
    return stream->gpu;
}

// With the mutex held.
static void append_held(CUstream_st *stream, Operation *operation)
{
    *stream->last = operation;
    stream->last = &operation->next;
    stream->pending++;
    stream->work_arrived.notify_all();
}

static void append(CUstream_st *stream, Operation *operation)
{
    happens_before(operation);
    Guard guard(runtime().mutex);
    append_held(stream, operation);
}

void enqueue(cudaStream_t stream, std::function<void()> work)
{
    append(stream, new Operation{std::move(work), nullptr});
}

static void enqueue_completion(cudaStream_t stream, const std::shared_ptr<Ticket> &ticket)
{
    append(stream, new Operation{nullptr, ticket});
}

// Whoever lets go of a ticket last frees it, in no order that TSan knows of.
static std::shared_ptr<Ticket> make_ticket()
{
    Quiet quiet;
    return std::make_shared<Ticket>();
}

static void wait_for(const std::shared_ptr<Ticket> &ticket)
{
    {
        Guard guard(runtime().mutex);
        while (!ticket->done)
            ticket->completed.wait(guard);
    }
    happens_after(ticket.get());
}

// A ticket of its own and not "the queue is empty": what another thread enqueues meanwhile is not waited for.
void synchronize(cudaStream_t stream)
{
    auto ticket = make_ticket();
    enqueue_completion(stream, ticket);
    wait_for(ticket);
}

// Under one lock, as another thread may destroy a stream meanwhile: what is queued before that still runs.
void synchronize_all(Gpu *gpu)
{
    std::vector<std::shared_ptr<Ticket>> tickets;
    {
        Guard guard(runtime().mutex);
        for (CUstream_st *stream : gpu->streams) {
            tickets.push_back(std::make_shared<Ticket>());
            append_held(stream, new Operation{nullptr, tickets.back()});
        }
    }
    for (const auto &ticket : tickets)
        wait_for(ticket);
}

// With the mutex held. The stream's thread finishes what is queued and frees the stream.
static void close_stream(CUstream_st *stream)
{
    stream->gpu->streams.erase(stream);
    stream->closing = true;
    stream->work_arrived.notify_all();
}

void discard_streams_and_events(Gpu *gpu)
{
    Guard guard(runtime().mutex);
    while (!gpu->streams.empty())
        close_stream(*gpu->streams.begin());
    auto &events = runtime().events;
    for (auto event = events.begin(); event != events.end();) {
        CUevent_st *found = *event;
        event = found->gpu == gpu ? events.erase(event) : std::next(event);
        if (found->gpu == gpu)
            delete found;
    }
}

} // namespace emulation

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int flags)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    if (flags == cudaStreamDefault)
        emulation_fail("%s without cudaStreamNonBlocking; only non-blocking streams are emulated", __func__);
    if (!out || flags != cudaStreamNonBlocking)
        return record(cudaErrorInvalidValue);
    auto *stream = new CUstream_st;
    stream->gpu = gpu;
    {
        Guard guard(runtime().mutex);
        stream->random = settings().seed * 1000003 + ++runtime().streams_created;
        gpu->streams.insert(stream);
    }
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    int failed = pthread_create(&thread, &attributes, run_stream, stream);
    pthread_attr_destroy(&attributes);
    if (failed)
        emulation_fail("%s: no thread for the stream", __func__);
    *out = stream;
    return cudaSuccess;
}

// As CUDA: returns at once, and the stream goes when its work is done.
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    check_stream(__func__, stream);
    Guard guard(runtime().mutex);
    close_stream(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    check_stream(__func__, stream);
    if (!skips_wait(__builtin_return_address(0)))
        synchronize(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    check_stream(__func__, stream);
    {
        Guard guard(runtime().mutex);
        if (stream->pending > 0)
            return record(cudaErrorNotReady);
    }
    happens_after(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    if (flags != 0)
        return record(cudaErrorInvalidValue);
    check_stream(__func__, stream);
    check_event(__func__, event);
    std::shared_ptr<Ticket> ticket;
    {
        Guard guard(runtime().mutex);
        ticket = event->latest;
    }
    // Waiting for an event that has not been recorded does nothing, as in CUDA.
    if (ticket && !skips_wait(__builtin_return_address(0)))
        enqueue(stream, [ticket] { wait_for(ticket); });
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned int flags)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    if (!out || (flags & ~(unsigned)(cudaEventBlockingSync | cudaEventDisableTiming)))
        return record(cudaErrorInvalidValue);
    auto *event = new CUevent_st{gpu, flags, nullptr};
    Guard guard(runtime().mutex);
    runtime().events.insert(event);
    *out = event;
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    check_event(__func__, event);
    Guard guard(runtime().mutex);
    runtime().events.erase(event);
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    check_stream(__func__, stream);
    check_event(__func__, event);
    if (event->gpu != stream->gpu)
        return record(cudaErrorInvalidResourceHandle);
    auto ticket = make_ticket();
    {
        Guard guard(runtime().mutex);
        event->latest = ticket;
    }
    enqueue_completion(stream, ticket);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    check_event(__func__, event);
    std::shared_ptr<Ticket> ticket;
    {
        Guard guard(runtime().mutex);
        ticket = event->latest;
    }
    if (ticket && !skips_wait(__builtin_return_address(0)))
        wait_for(ticket);
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    check_event(__func__, event);
    std::shared_ptr<Ticket> ticket;
    {
        Guard guard(runtime().mutex);
        ticket = event->latest;
        if (ticket && !ticket->done)
            return record(cudaErrorNotReady);
    }
    if (ticket)
        happens_after(ticket.get());
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    check_event(__func__, start);
    check_event(__func__, end);
    Guard guard(runtime().mutex);
    if (!milliseconds)
        return record(cudaErrorInvalidValue);
    if (((start->flags | end->flags) & cudaEventDisableTiming) || !start->latest || !end->latest ||
        start->gpu != end->gpu)
        return record(cudaErrorInvalidResourceHandle);
    if (!start->latest->done || !end->latest->done)
        return record(cudaErrorNotReady);
    *milliseconds = (float)(end->latest->milliseconds - start->latest->milliseconds);
    return cudaSuccess;
}

} // extern "C"
