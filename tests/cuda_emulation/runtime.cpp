// GPUs: their number, properties, contexts, peers, and each host thread's current one.
#include "internal.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <sys/mman.h>

namespace emulation
{

static __thread int current_ordinal;
static __thread cudaError_t last_error;
static std::atomic<bool> forked{false};

static Runtime *make_runtime()
{
    auto *made = new Runtime;
    for (int physical : settings().visible) {
        auto gpu = std::make_unique<Gpu>();
        gpu->ordinal = (int)made->gpus.size();
        gpu->physical = physical;
        void *arena =
            mmap(nullptr, arena_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (arena == MAP_FAILED)
            emulation_fail("no %zu bytes of address space for a GPU (is there a limit on virtual memory?)",
                           arena_bytes);
        gpu->arena = static_cast<char *>(arena);
        made->gpus.push_back(std::move(gpu));
    }
    install_fault_handler();
    // CUDA does not survive a fork: the child has no stream threads.
    pthread_atfork(nullptr, nullptr, [] { forked = true; });
    atexit([] {
        if (!forked)
            write_report_at_exit();
    });
    return made;
}

Runtime &runtime()
{
    static Runtime *instance = make_runtime();
    return *instance;
}

bool valid_ordinal(int ordinal)
{
    return ordinal >= 0 && (size_t)ordinal < runtime().gpus.size();
}

Gpu *current_gpu()
{
    return valid_ordinal(current_ordinal) ? runtime().gpus[(size_t)current_ordinal].get() : nullptr;
}

cudaError_t record(cudaError_t error)
{
    if (error != cudaSuccess)
        last_error = error;
    return error;
}

// Errors after which a context is of no use any more.
static bool is_sticky(int code)
{
    switch (code) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
        return true;
    default:
        return false;
    }
}

void make_context(Gpu *gpu)
{
    if (gpu->has_context)
        return;
    gpu->has_context = true;
    runtime().figures[gpu->physical].contexts++;
}

cudaError_t enter_without_context(const char *function)
{
    if (forked)
        return record(cudaErrorInitializationError);
    if (runtime().gpus.empty())
        return record(cudaErrorNoDevice);
    int code;
    if (injected_fault(function, &code)) {
        if (is_sticky(code) && current_gpu()) {
            Guard guard(runtime().mutex);
            current_gpu()->sticky = (cudaError_t)code;
        }
        return record((cudaError_t)code);
    }
    return cudaSuccess;
}

cudaError_t enter(const char *function, Gpu **gpu)
{
    cudaError_t error = enter_without_context(function);
    if (error != cudaSuccess)
        return error;
    *gpu = current_gpu();
    Guard guard(runtime().mutex);
    make_context(*gpu);
    return record((*gpu)->sticky);
}

static void fill_properties(cudaDeviceProp *properties, const Gpu *gpu)
{
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "Emulated GPU %d (times prove nothing)",
             gpu->physical);
    properties->uuid = uuid_bytes(gpu->physical);
    properties->totalGlobalMem = settings().memory[gpu->physical];
    properties->multiProcessorCount = settings().multiprocessors[gpu->physical];
    properties->major = 9;
    properties->warpSize = 32;
    properties->sharedMemPerBlock = 48 << 10;
    properties->sharedMemPerBlockOptin = 227 << 10;
    properties->sharedMemPerMultiprocessor = 228 << 10;
    properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxBlocksPerMultiProcessor = 32;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 0x7fffffff;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->totalConstMem = 65536;
    properties->textureAlignment = 512;
    properties->l2CacheSize = 50 << 20;
    properties->asyncEngineCount = 3;
    properties->concurrentKernels = properties->unifiedAddressing = properties->canMapHostMemory = 1;
    properties->pciBusID = 0x1b + 0x10 * gpu->physical;
}

// What cudaDeviceGetAttribute answers; -1: not emulated.
static int attribute_value(cudaDeviceAttr attribute, const Gpu *gpu)
{
    cudaDeviceProp properties;
    fill_properties(&properties, gpu);
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
        return properties.maxThreadsPerBlock;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        return (int)properties.sharedMemPerBlock;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        return (int)properties.sharedMemPerBlockOptin;
    case cudaDevAttrWarpSize:
        return properties.warpSize;
    case cudaDevAttrMultiProcessorCount:
        return properties.multiProcessorCount;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
        return properties.maxThreadsPerMultiProcessor;
    case cudaDevAttrComputeCapabilityMajor:
        return properties.major;
    case cudaDevAttrComputeCapabilityMinor:
        return properties.minor;
    case cudaDevAttrPciBusId:
        return properties.pciBusID;
    case cudaDevAttrPciDeviceId:
        return properties.pciDeviceID;
    case cudaDevAttrPciDomainId:
        return properties.pciDomainID;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrConcurrentKernels:
        return 1;
    case cudaDevAttrAsyncEngineCount:
        return properties.asyncEngineCount;
    case cudaDevAttrL2CacheSize:
        return properties.l2CacheSize;
    case cudaDevAttrClockRate:
        return 1000000;
    case cudaDevAttrMemoryClockRate:
        return 2000000;
    case cudaDevAttrGlobalMemoryBusWidth:
        return 4096;
    case cudaDevAttrIntegrated:
    case cudaDevAttrKernelExecTimeout:
    case cudaDevAttrComputeMode:
    case cudaDevAttrEccEnabled:
    case cudaDevAttrMemoryPoolsSupported:
    case cudaDevAttrManagedMemory:
        return 0;
    default:
        return -1;
    }
}

} // namespace emulation

using namespace emulation;

extern "C" {

cudaError_t cudaGetDeviceCount(int *count)
{
    cudaError_t error = enter_without_context(__func__);
    if (error == cudaSuccess)
        *count = (int)runtime().gpus.size();
    return error;
}

cudaError_t cudaSetDevice(int device)
{
    cudaError_t error = enter_without_context(__func__);
    if (error != cudaSuccess)
        return error;
    if (!valid_ordinal(device))
        return record(cudaErrorInvalidDevice);
    current_ordinal = device;
    // Since CUDA 12 this initialises the device.
    Guard guard(runtime().mutex);
    make_context(current_gpu());
    return record(current_gpu()->sticky);
}

cudaError_t cudaGetDevice(int *device)
{
    cudaError_t error = enter_without_context(__func__);
    if (error == cudaSuccess)
        *device = current_ordinal;
    return error;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    cudaError_t error = enter_without_context(__func__);
    if (error != cudaSuccess)
        return error;
    if (!valid_ordinal(device))
        return record(cudaErrorInvalidDevice);
    fill_properties(properties, runtime().gpus[(size_t)device].get());
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    cudaError_t error = enter_without_context(__func__);
    if (error != cudaSuccess)
        return error;
    if (!valid_ordinal(device))
        return record(cudaErrorInvalidDevice);
    int answer = attribute_value(attribute, runtime().gpus[(size_t)device].get());
    if (answer < 0)
        emulation_fail("cudaDeviceGetAttribute: attribute %d is not emulated", (int)attribute);
    *value = answer;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int device)
{
    cudaError_t error = enter_without_context(__func__);
    if (error != cudaSuccess)
        return error;
    if (!valid_ordinal(device))
        return record(cudaErrorInvalidDevice);
    if (!text || length < 13)
        return record(cudaErrorInvalidValue);
    cudaDeviceProp properties;
    fill_properties(&properties, runtime().gpus[(size_t)device].get());
    snprintf(text, (size_t)length, "%04X:%02X:%02X.0", properties.pciDomainID & 0xffff,
             properties.pciBusID & 0xff, properties.pciDeviceID & 0xff);
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error == cudaSuccess)
        synchronize_all(gpu);
    return error;
}

cudaError_t cudaDeviceReset(void)
{
    cudaError_t error = enter_without_context(__func__);
    if (error != cudaSuccess)
        return error;
    Gpu *gpu = current_gpu();
    synchronize_all(gpu);
    discard_streams_and_events(gpu);
    free_all(gpu);
    Guard guard(runtime().mutex);
    for (bool &enabled : gpu->peer_enabled)
        enabled = false;
    gpu->has_context = false;
    gpu->sticky = cudaSuccess;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = settings().gpus > 0 ? CUDART_VERSION : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    Gpu *gpu = runtime().gpus.empty() ? nullptr : current_gpu();
    last_error = gpu ? gpu->sticky : cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

// ---- peers

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    cudaError_t error = enter_without_context(__func__);
    if (error != cudaSuccess)
        return error;
    if (!valid_ordinal(device) || !valid_ordinal(peer))
        return record(cudaErrorInvalidDevice);
    const auto &gpus = runtime().gpus;
    *can = device != peer &&
           settings().link[gpus[(size_t)device]->physical][gpus[(size_t)peer]->physical] != Link::absent;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attribute, int source,
                                      int destination)
{
    cudaError_t error = enter_without_context(__func__);
    if (error != cudaSuccess)
        return error;
    if (!valid_ordinal(source) || !valid_ordinal(destination) || source == destination)
        return record(cudaErrorInvalidDevice);
    const auto &gpus = runtime().gpus;
    bool linked =
        settings().link[gpus[(size_t)source]->physical][gpus[(size_t)destination]->physical] != Link::absent;
    switch (attribute) {
    case cudaDevP2PAttrPerformanceRank:
        *value = 0;
        return cudaSuccess;
    case cudaDevP2PAttrAccessSupported:
    case cudaDevP2PAttrNativeAtomicSupported:
        *value = linked;
        return cudaSuccess;
    case cudaDevP2PAttrCudaArrayAccessSupported:
        *value = 0;
        return cudaSuccess;
    default:
        return record(cudaErrorInvalidValue);
    }
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    if (flags != 0)
        return record(cudaErrorInvalidValue);
    if (!valid_ordinal(peer) || peer == gpu->ordinal)
        return record(cudaErrorInvalidDevice);
    Gpu *other = runtime().gpus[(size_t)peer].get();
    if (settings().link[gpu->physical][other->physical] == Link::absent)
        return record(cudaErrorPeerAccessUnsupported);
    Guard guard(runtime().mutex);
    if (gpu->peer_enabled[peer])
        return record(cudaErrorPeerAccessAlreadyEnabled);
    make_context(other); // access is to a context of the peer
    gpu->peer_enabled[peer] = true;
    runtime().figures[gpu->physical].peers_enabled++;
    return cudaSuccess;
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    if (!valid_ordinal(peer) || peer == gpu->ordinal)
        return record(cudaErrorInvalidDevice);
    Guard guard(runtime().mutex);
    if (!gpu->peer_enabled[peer])
        return record(cudaErrorPeerAccessNotEnabled);
    gpu->peer_enabled[peer] = false;
    return cudaSuccess;
}

int emulation_context_count(int physical_gpu)
{
    if (physical_gpu < 0 || physical_gpu >= max_gpus)
        return 0;
    Guard guard(runtime().mutex);
    return runtime().figures[physical_gpu].contexts;
}

} // extern "C"
