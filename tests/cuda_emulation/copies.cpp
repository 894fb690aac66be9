// Copies and fills, in stream order. Pageable host memory behaves as in CUDA: a copy from it takes the values
// of the moment of the call, a copy to it returns when done. Pinned memory is read and written when the
// stream gets there.
#include "internal.h"

#include <cstring>

using namespace emulation;

// Does a copy between these two take their direct link? Without peer access CUDA goes through the host.
static bool takes_link(const Gpu *a, const Gpu *b)
{
    return a != b && (accessible(a, b) || accessible(b, a));
}

static Link link_between(const Gpu *a, const Gpu *b)
{
    return takes_link(a, b) ? settings().link[a->physical][b->physical] : Link::good;
}

[[noreturn]] static void hang()
{
    for (;;)
        pause();
}

// Flips a bit in every 256 bytes, the first byte included.
static void corrupt(void *destination, size_t bytes)
{
    auto *at = static_cast<unsigned char *>(destination);
    for (size_t i = 0; i < bytes; i += 256)
        at[i] ^= 0x10;
}

static void check_still_live(const char *role, const void *address, size_t bytes)
{
    if (!locate(address, bytes).inside)
        emulation_fail("the %s of a copy of %zu bytes at %p was freed before the copy ran", role, bytes,
                       address);
}

static cudaError_t copy(cudaStream_t stream, void *destination, const Location &to, const void *source,
                        const Location &from, size_t bytes)
{
    // The values at the time of the call, for a pageable source.
    std::shared_ptr<std::vector<char>> staged;
    if (from.kind == Location::pageable) {
        staged = std::make_shared<std::vector<char>>(bytes);
        memcpy(staged->data(), source, bytes);
    }
    bool direct = to.gpu && from.gpu && takes_link(to.gpu, from.gpu); // locks, as link_between does
    Link link = to.gpu && from.gpu ? link_between(to.gpu, from.gpu) : Link::good;
    {
        Guard guard(runtime().mutex);
        Figures &figures = runtime().figures[stream_gpu(stream)->physical];
        (to.gpu && from.gpu && to.gpu != from.gpu ? figures.peer_copies : figures.copies)++;
        figures.direct_copies += direct;
    }
    if (link == Link::fails)
        return record(cudaErrorUnknown);
    // The stream alone keeps the staged values, so that it and not this thread frees them.
    enqueue(stream, [destination, source, bytes, link, staged = std::move(staged)] {
        if (link == Link::hangs)
            hang();
        check_still_live("destination", destination, bytes);
        if (!staged)
            check_still_live("source", source, bytes);
        memcpy(destination, staged ? staged->data() : source, bytes);
        if (link == Link::corrupts)
            corrupt(destination, bytes);
        if (emulation_on_copy)
            emulation_on_copy(destination, source, bytes);
    });
    if (to.kind == Location::pageable)
        synchronize(stream);
    return cudaSuccess;
}

static bool fits(cudaMemcpyKind kind, const Location &to, const Location &from)
{
    bool to_device = to.kind == Location::device, from_device = from.kind == Location::device;
    switch (kind) {
    case cudaMemcpyHostToHost:
        return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
        return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
        return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
        return to_device && from_device;
    default:
        return kind == cudaMemcpyDefault;
    }
}

extern "C" {

cudaError_t cudaMemcpyAsync(void *destination, const void *source, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    check_stream(__func__, stream);
    if (bytes == 0)
        return cudaSuccess;
    if (!destination || !source)
        return record(cudaErrorInvalidValue);
    Location to = locate(destination, bytes), from = locate(source, bytes);
    if (!to.inside || !from.inside)
        return record(cudaErrorInvalidValue);
    if (!fits(kind, to, from))
        return record(cudaErrorInvalidMemcpyDirection);
    return copy(stream, destination, to, source, from, bytes);
}

cudaError_t cudaMemcpyPeerAsync(void *destination, int destination_device, const void *source,
                                int source_device, size_t bytes, cudaStream_t stream)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    check_stream(__func__, stream);
    if (!valid_ordinal(destination_device) || !valid_ordinal(source_device))
        return record(cudaErrorInvalidDevice);
    if (bytes == 0)
        return cudaSuccess;
    Location to = locate(destination, bytes), from = locate(source, bytes);
    if (!to.gpu || to.gpu->ordinal != destination_device || !to.inside || !from.gpu ||
        from.gpu->ordinal != source_device || !from.inside)
        return record(cudaErrorInvalidValue);
    return copy(stream, destination, to, source, from, bytes);
}

cudaError_t cudaMemsetAsync(void *destination, int value, size_t bytes, cudaStream_t stream)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    check_stream(__func__, stream);
    if (bytes == 0)
        return cudaSuccess;
    Location to = locate(destination, bytes);
    if (to.kind != Location::device || !to.inside)
        return record(cudaErrorInvalidValue);
    if (to.gpu != stream_gpu(stream) && !accessible(stream_gpu(stream), to.gpu))
        return record(cudaErrorInvalidValue);
    enqueue(stream, [=] {
        check_still_live("destination", destination, bytes);
        memset(destination, value, bytes);
        if (emulation_on_copy)
            emulation_on_copy(destination, nullptr, bytes);
    });
    return cudaSuccess;
}

} // extern "C"
