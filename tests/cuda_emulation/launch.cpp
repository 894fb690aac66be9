// Kernel launches: checks what CUDA checks at the call, then queues the grid on its stream.
#include "internal.h"

#include <cstdlib>
#include <cstring>
#include <cxxabi.h>
#include <dlfcn.h>

using namespace emulation;

// As declared in emulation.h, which is for .cu files only.
struct emulation_launch_request {
    const cudaLaunchConfig_t *config;
    const void *function;
    const char *text;
    const void *const *pointers;
    size_t pointer_count;
    void *closure;
    void (*run)(void *closure);
    void (*destroy)(void *closure);
};

static const size_t default_shared_limit = 48 << 10, largest_shared_limit = 227 << 10;

// "&config, scale<float, 4>, x, n" -> "scale<float, 4>": the second argument of the launch as written.
static std::string name_from_text(const char *text)
{
    int depth = 0;
    const char *begin = nullptr, *at = text;
    for (; *at; at++) {
        if (strchr("(<[{", *at))
            depth++;
        else if (strchr(")>]}", *at))
            depth--;
        else if (*at == ',' && depth == 0) {
            if (begin)
                break;
            begin = at + 1;
        }
    }
    if (!begin)
        return text;
    begin += strspn(begin, " ");
    return std::string(begin, (size_t)(at - begin));
}

// "_Z4axpyfPKfPfm" -> "axpy"
static std::string demangled(const char *symbol)
{
    int status;
    std::unique_ptr<char, decltype(&free)> whole(abi::__cxa_demangle(symbol, nullptr, nullptr, &status),
                                                 free);
    if (!whole)
        return symbol;
    std::string name = whole.get();
    if (name.rfind("void ", 0) == 0) // only templates come with their return type
        name.erase(0, 5);
    size_t parameters = name.find('(', name.rfind("(anonymous namespace)", 0) == 0 ? 1 : 0);
    return name.substr(0, parameters);
}

// The linker's name where it is known, else the launch's own words.
static const char *kernel_name(const emulation_launch_request *request)
{
    static auto *names = new std::map<const void *, std::string>;
    Guard guard(runtime().mutex);
    std::string &name = (*names)[request->function];
    if (name.empty()) {
        Dl_info info;
        bool known =
            dladdr(request->function, &info) && info.dli_sname && info.dli_saddr == request->function;
        name = known ? demangled(info.dli_sname) : name_from_text(request->text);
    }
    return name.c_str();
}

static cudaError_t check_sizes(const emulation_launch_request *request)
{
    const dim3 &grid = request->config->gridDim, &block = request->config->blockDim;
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    if (block.x > 1024 || block.y > 1024 || block.z > 64 || threads == 0 || threads > 1024)
        return cudaErrorInvalidConfiguration;
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535)
        return cudaErrorInvalidConfiguration;
    Guard guard(runtime().mutex);
    auto raised = runtime().dynamic_shared_limit.find(request->function);
    size_t limit =
        raised == runtime().dynamic_shared_limit.end() ? default_shared_limit : (size_t)raised->second;
    return request->config->dynamicSmemBytes > limit ? cudaErrorInvalidValue : cudaSuccess;
}

// Pointers that the kernel cannot follow. Those inside structures are left to the checking build.
static void check_pointers(const char *kernel, const Gpu *gpu, const emulation_launch_request *request)
{
    for (size_t i = 0; i < request->pointer_count; i++) {
        const void *pointer = request->pointers[i];
        if (!pointer)
            continue;
        Location location = locate(pointer, 0);
        if (location.kind == Location::pageable)
            emulation_fail("kernel %s on GPU %d gets %p, which is pageable host memory", kernel, gpu->ordinal,
                           pointer);
        if (location.kind == Location::device && !accessible(gpu, location.gpu))
            emulation_fail("kernel %s on GPU %d gets %p, memory of GPU %d, without peer access", kernel,
                           gpu->ordinal, pointer, location.gpu->ordinal);
    }
}

extern "C" {

cudaError_t emulation_launch(const emulation_launch_request *request)
{
    // Freed by the stream when the grid has run, or here if it never does.
    std::shared_ptr<void> closure(request->closure, request->destroy);
    Gpu *gpu;
    cudaError_t error = enter("cudaLaunchKernelExC", &gpu);
    if (error != cudaSuccess)
        return error;
    const char *kernel = kernel_name(request);
    cudaStream_t stream = request->config->stream;
    check_stream(kernel, stream);
    if (request->config->numAttrs > 0)
        emulation_fail("kernel %s: launch attributes are not emulated", kernel);
    error = check_sizes(request);
    if (error == cudaSuccess && stream_gpu(stream) != gpu)
        error = cudaErrorInvalidResourceHandle;
    if (error != cudaSuccess)
        return record(error);
    check_pointers(kernel, gpu, request);
    Grid grid = {request->config->gridDim,
                 request->config->blockDim,
                 request->config->dynamicSmemBytes,
                 request->run,
                 closure.get(),
                 kernel,
                 gpu};
    {
        Guard guard(runtime().mutex);
        runtime().figures[gpu->physical].kernels++;
    }
    enqueue(stream, [grid, closure = std::move(closure)] { run_grid(grid); });
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        emulation_fail("%s: attribute %d is not emulated", __func__, (int)attribute);
    if (value < 0 || (size_t)value > largest_shared_limit)
        return record(cudaErrorInvalidValue);
    Guard guard(runtime().mutex);
    runtime().dynamic_shared_limit[function] = value;
    return cudaSuccess;
}

} // extern "C"
