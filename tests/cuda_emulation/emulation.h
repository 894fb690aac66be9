// Lets a .cu file compile as ordinary C++17: g++ -x c++ -include emulation.h kernel.cu
//
// The file gets NVIDIA's own cuda_runtime.h (types, enums, prototypes) and, on top of it, the part of the
// device language that the emulation covers. What is missing here is a compile error in the emulated build,
// which keeps the kernels inside the covered subset.
#pragma once

// cuda_runtime.h would declare threadIdx and its kin as plain externs; here they belong to a host thread.
#define __DEVICE_LAUNCH_PARAMETERS_H__
#include <cuda_runtime.h>

#include <cfloat>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <math.h>
#include <tuple>
#include <type_traits>
#include <utility>

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __grid_constant__
#undef __forceinline__
#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __launch_bounds__(...)
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))

// A stream's host thread runs one block at a time, so memory shared by a block is memory of that thread.
#define __shared__ static __thread

// Declares `type *name`, the block's dynamic shared memory.
#define DP_DYN_SHARED(type, name) type *name = static_cast<type *>(emulation_dynamic_shared)

struct emulation_launch_request {
    const cudaLaunchConfig_t *config;
    const void *function;
    const char *text;            // the launch as written: names the kernel in reports
    const void *const *pointers; // the kernel's arguments that are pointers
    size_t pointer_count;
    void *closure; // kernel and arguments; the callee frees it with `destroy`, also when it fails
    void (*run)(void *closure);
    void (*destroy)(void *closure);
};

extern "C" {
// Variables and not macros: cudaLaunchConfig_t has members called gridDim and blockDim.
extern __thread uint3 threadIdx, blockIdx;
extern __thread uint3 blockDim, gridDim;
extern __thread void *emulation_dynamic_shared;
extern __thread int emulation_lane;

cudaError_t emulation_launch(const emulation_launch_request *request);
void emulation_barrier(const char *file, int line);
// A barrier that also returns how many threads came with a predicate that is true.
int emulation_barrier_count(const char *file, int line, int predicate);
// All lanes of the mask meet; returns the bits that lane `source` brought. `votes` (may be null): the lanes
// whose bits are not all zero.
uint64_t emulation_warp_exchange(unsigned mask, uint64_t bits, int source, unsigned *votes,
                                 const char *operation);
// Called before each atomic operation where a checker is linked in.
void emulation_on_atomic(const void *address, size_t bytes) __attribute__((weak));
void emulation_fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
}

static constexpr int warpSize = 32;

// ---- barriers and fences

#define __syncthreads()                emulation_barrier(__FILE__, __LINE__)
#define __syncthreads_count(predicate) emulation_barrier_count(__FILE__, __LINE__, (predicate) != 0)
#define __syncthreads_or(predicate)    (emulation_barrier_count(__FILE__, __LINE__, (predicate) != 0) != 0)
#define __syncthreads_and(predicate)   (emulation_barrier_count(__FILE__, __LINE__, (predicate) == 0) == 0)

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    emulation_warp_exchange(mask, 0, emulation_lane, nullptr, "__syncwarp");
}

static inline void __threadfence_block()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void __threadfence_system()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

#define __trap() \
    emulation_fail("%s:%d: __trap() in thread %u of block %u", __FILE__, __LINE__, threadIdx.x, blockIdx.x)

// ---- warp operations on values of up to 8 bytes

template <class To, class From> static inline To emulation_bit_cast(From from)
{
    static_assert(sizeof(To) <= 8 && sizeof(From) <= 8, "values of more than 8 bytes are not emulated");
    To to{};
    memcpy(&to, &from, sizeof to < sizeof from ? sizeof to : sizeof from);
    return to;
}

template <class T>
static inline T emulation_shuffle(unsigned mask, T value, int source, const char *operation)
{
    return emulation_bit_cast<T>(
        emulation_warp_exchange(mask, emulation_bit_cast<uint64_t>(value), source, nullptr, operation));
}

template <class T> static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32)
{
    int first = emulation_lane & ~(width - 1);
    return emulation_shuffle(mask, value, first + (source & (width - 1)), "__shfl_sync");
}

template <class T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    bool inside = (emulation_lane & (width - 1)) + (int)delta < width;
    return emulation_shuffle(mask, value, inside ? emulation_lane + (int)delta : emulation_lane,
                             "__shfl_down_sync");
}

template <class T> static inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32)
{
    bool inside = (emulation_lane & (width - 1)) >= (int)delta;
    return emulation_shuffle(mask, value, inside ? emulation_lane - (int)delta : emulation_lane,
                             "__shfl_up_sync");
}

template <class T> static inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32)
{
    int source = (emulation_lane & (width - 1)) ^ lanes;
    bool inside = source < width;
    int first = emulation_lane & ~(width - 1);
    return emulation_shuffle(mask, value, inside ? first + source : emulation_lane, "__shfl_xor_sync");
}

static inline unsigned __ballot_sync(unsigned mask, int predicate)
{
    unsigned votes = 0;
    emulation_warp_exchange(mask, predicate != 0, emulation_lane, &votes, "__ballot_sync");
    return votes;
}

static inline int __any_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) != 0;
}

static inline int __all_sync(unsigned mask, int predicate)
{
    return __ballot_sync(mask, predicate) == mask;
}

// ---- atomic operations (relaxed, as CUDA's; they return the old value)

// With a checker linked in, atomics announce themselves through emulation_on_atomic instead.
#ifdef EMULATION_CHECK
#define EMULATION_ATOMIC __attribute__((no_sanitize("thread"))) static inline
#else
#define EMULATION_ATOMIC static inline
#endif

template <class T, class Combine> EMULATION_ATOMIC T emulation_atomic(T *address, Combine combine)
{
    using Word = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
    static_assert(sizeof(T) == sizeof(Word), "atomics work on 4 or 8 bytes");
    if (emulation_on_atomic)
        emulation_on_atomic(address, sizeof *address);
    Word *word = reinterpret_cast<Word *>(address);
    Word old = __atomic_load_n(word, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(word, &old,
                                        emulation_bit_cast<Word>(combine(emulation_bit_cast<T>(old))), false,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
    return emulation_bit_cast<T>(old);
}

template <class T> static inline T atomicAdd(T *address, std::common_type_t<T> value)
{
    return emulation_atomic(address, [=](T old) { return (T)(old + value); });
}

template <class T> static inline T atomicSub(T *address, std::common_type_t<T> value)
{
    static_assert(std::is_integral_v<T>, "CUDA has atomicSub for integers only");
    return emulation_atomic(address, [=](T old) { return (T)(old - value); });
}

template <class T> static inline T atomicMax(T *address, std::common_type_t<T> value)
{
    static_assert(std::is_integral_v<T>, "CUDA has atomicMax for integers only");
    return emulation_atomic(address, [=](T old) { return old > value ? old : value; });
}

template <class T> static inline T atomicMin(T *address, std::common_type_t<T> value)
{
    static_assert(std::is_integral_v<T>, "CUDA has atomicMin for integers only");
    return emulation_atomic(address, [=](T old) { return old < value ? old : value; });
}

template <class T> static inline T atomicOr(T *address, std::common_type_t<T> value)
{
    return emulation_atomic(address, [=](T old) { return (T)(old | value); });
}

template <class T> static inline T atomicAnd(T *address, std::common_type_t<T> value)
{
    return emulation_atomic(address, [=](T old) { return (T)(old & value); });
}

template <class T> static inline T atomicExch(T *address, std::common_type_t<T> value)
{
    return emulation_atomic(address, [=](T) { return value; });
}

template <class T>
static inline T atomicCAS(T *address, std::common_type_t<T> expected, std::common_type_t<T> value)
{
    static_assert(std::is_integral_v<T>, "CUDA has atomicCAS for integers only");
    return emulation_atomic(address, [=](T old) { return old == expected ? value : old; });
}

// ---- arithmetic and memory functions of the device

template <class T> static inline T __ldg(const T *address)
{
    return *address;
}

template <class T> static inline T __ldcs(const T *address)
{
    return *address;
}

template <class T> static inline void __stcs(T *address, T value)
{
    *address = value;
}

static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}

static inline float __fdividef(float a, float b)
{
    return a / b;
}

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

static inline float __fsqrt_rn(float x)
{
    return sqrtf(x);
}

static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}

static inline float __fmaf_rn(float a, float b, float c)
{
    return fmaf(a, b, c);
}

static inline float __saturatef(float x)
{
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}

// glibc has functions of these names already.
#define __expf expf
#define __logf logf
#define __powf powf

static inline int __float_as_int(float x)
{
    return emulation_bit_cast<int>(x);
}

static inline unsigned __float_as_uint(float x)
{
    return emulation_bit_cast<unsigned>(x);
}

static inline float __int_as_float(int x)
{
    return emulation_bit_cast<float>(x);
}

static inline float __uint_as_float(unsigned x)
{
    return emulation_bit_cast<float>(x);
}

static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}

static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

// CUDA's min and max mix types as C's arithmetic does; of a number and a NaN they give the number.
template <class A, class B> static inline std::common_type_t<A, B> min(A a, B b)
{
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>)
        return std::fmin((T)a, (T)b);
    else
        return (T)b < (T)a ? (T)b : (T)a;
}

template <class A, class B> static inline std::common_type_t<A, B> max(A a, B b)
{
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>)
        return std::fmax((T)a, (T)b);
    else
        return (T)a < (T)b ? (T)b : (T)a;
}

// ---- launching

// NVIDIA's template of this name erases the argument types; this one has the same signature and keeps them.
template <class... Parameters, class... Arguments>
static inline cudaError_t emulation_launch_kernel(const char *text, const cudaLaunchConfig_t *config,
                                                  void (*kernel)(Parameters...), Arguments &&...arguments)
{
    struct Closure {
        void (*kernel)(Parameters...);
        std::tuple<std::remove_cv_t<Parameters>...> arguments;
    };
    auto *closure = new Closure{
        kernel, std::tuple<std::remove_cv_t<Parameters>...>(std::forward<Arguments>(arguments)...)};

    const void *pointers[sizeof...(Parameters) + 1];
    size_t count = 0;
    auto collect = [&](const auto &argument) {
        using Argument = std::decay_t<decltype(argument)>;
        if constexpr (std::is_pointer_v<Argument>)
            pointers[count++] = const_cast<const void *>(static_cast<const volatile void *>(argument));
    };
    std::apply([&](const auto &...each) { (collect(each), ...); }, closure->arguments);

    emulation_launch_request request = {};
    request.config = config;
    request.function = reinterpret_cast<const void *>(kernel);
    request.text = text;
    request.pointers = pointers;
    request.pointer_count = count;
    request.closure = closure;
    request.run = [](void *opaque) {
        auto *self = static_cast<Closure *>(opaque);
        std::apply(self->kernel, self->arguments);
    };
    request.destroy = [](void *opaque) { delete static_cast<Closure *>(opaque); };
    return emulation_launch(&request);
}

template <class T>
static inline cudaError_t cudaFuncSetAttribute(T *kernel, enum cudaFuncAttribute attribute, int value)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}

#define cudaLaunchKernelEx(...) emulation_launch_kernel(#__VA_ARGS__, __VA_ARGS__)
