// Kernels for the emulation's tests, in CUDA C++ that nvcc compiles as well.
#include <cuda_runtime.h>

#include "kernels.h"

#ifdef __CUDACC__
#define DP_DYN_SHARED(type, name)                                 \
    extern __shared__ __align__(16) unsigned char name##_bytes[]; \
    type *name = reinterpret_cast<type *>(name##_bytes)
#endif

static cudaLaunchConfig_t configuration(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes = 0)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    return config;
}

__global__ void __launch_bounds__(256)
    axpy(float a, const float *__restrict__ x, float *__restrict__ y, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        y[i] = a * x[i] + y[i];
}

struct Sources {
    const float *at[2];
};

__global__ void add_two(Sources sources, float *y, size_t n)
{
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        y[i] += __ldg(&sources.at[0][i]) + sources.at[1][i];
}

__global__ void block_sum(const float *x, float *out, size_t n)
{
    __shared__ float partial[256];
    float sum = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        sum += x[i];
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned half = blockDim.x / 2; half > 0; half >>= 1) {
        if (threadIdx.x < half)
            partial[threadIdx.x] += partial[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        out[blockIdx.x] = partial[0];
}

template <typename T> __device__ __forceinline__ T warp_max(T value)
{
    for (int lanes = 16; lanes > 0; lanes >>= 1)
        value = max(value, __shfl_xor_sync(0xffffffffu, value, lanes));
    return value;
}

template <typename T> __device__ __forceinline__ T warp_sum(T value)
{
    for (int lanes = 16; lanes > 0; lanes >>= 1)
        value += __shfl_down_sync(0xffffffffu, value, lanes);
    return __shfl_sync(0xffffffffu, value, 0);
}

template <typename T, int Unused> __global__ void softmax(const T *x, T *y, int rows, int columns)
{
    int row = blockIdx.x * (blockDim.x / warpSize) + threadIdx.x / warpSize, lane = threadIdx.x % warpSize;
    if (row >= rows)
        return; // whole warps leave together
    x += (size_t)row * columns;
    y += (size_t)row * columns;
    T largest = (T)-INFINITY;
    for (int c = lane; c < columns; c += warpSize)
        largest = max(largest, x[c]);
    largest = warp_max(largest);
    T sum = 0;
    for (int c = lane; c < columns; c += warpSize)
        sum += expf(x[c] - largest);
    sum = warp_sum(sum);
    for (int c = lane; c < columns; c += warpSize)
        y[c] = expf(x[c] - largest) / sum;
}

__global__ void histogram(const int *values, int *counts, int n, int bins)
{
    DP_DYN_SHARED(int, local);
    for (int i = threadIdx.x; i < bins; i += blockDim.x)
        local[i] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&local[values[i]], 1);
    __syncthreads();
    for (int i = threadIdx.x; i < bins; i += blockDim.x)
        atomicAdd(&counts[i], local[i]);
}

__global__ void votes(int *out)
{
    int lane = threadIdx.x % warpSize;
    unsigned even = __ballot_sync(0xffffffffu, lane % 2 == 0);
    int any = __any_sync(0xffffffffu, lane == 7), all = __all_sync(0xffffffffu, lane < 31);
    int large = __syncthreads_count(threadIdx.x >= 40);
    int before = __shfl_up_sync(0xffffffffu, lane, 1);
    __syncwarp();
    if (threadIdx.x == 0) {
        out[0] = (int)even;
        out[1] = any;
        out[2] = all;
        out[3] = large;
    }
    if (threadIdx.x < 32)
        out[4 + lane] = before;
}

__global__ void indices(int *out)
{
    unsigned x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    unsigned z = blockIdx.z * blockDim.z + threadIdx.z;
    unsigned flat = (z * gridDim.y * blockDim.y + y) * gridDim.x * blockDim.x + x;
    out[flat] = (int)flat;
}

__global__ void read_one(const float *x, long index, float *out)
{
    *out = x[index];
}

__global__ void slow_write(float *x, float value, int microseconds)
{
    volatile float sink = 0;
    for (long i = 0; i < microseconds * 400L; i++)
        sink = sink + 1;
    *x = value;
}

__global__ void hold(const volatile int *go)
{
    while (*go == 0)
        ;
}

__global__ void divergent_barrier(int *unused)
{
    (void)unused;
    if (threadIdx.x < 16)
        __syncthreads();
    else
        __syncthreads();
}

__global__ void missing_lane(int *unused)
{
    (void)unused;
    if (threadIdx.x < 16)
        return;
    __syncwarp(0xffffffffu);
}

__global__ void shared_overrun(int *unused)
{
    (void)unused;
    DP_DYN_SHARED(int, local);
    local[threadIdx.x == 31 ? 32 : threadIdx.x] = 1;
}

__global__ void nothing(int *unused)
{
    (void)unused;
}

extern "C" {

cudaError_t launch_axpy(cudaStream_t stream, float a, const float *x, float *y, size_t n)
{
    cudaLaunchConfig_t config = configuration(stream, 16, 256);
    return cudaLaunchKernelEx(&config, axpy, a, x, y, n);
}

cudaError_t launch_add_two(cudaStream_t stream, const float *first, const float *second, float *y, size_t n)
{
    cudaLaunchConfig_t config = configuration(stream, (unsigned)((n + 255) / 256), 256);
    Sources sources = {{first, second}};
    return cudaLaunchKernelEx(&config, add_two, sources, y, n);
}

cudaError_t launch_block_sum(cudaStream_t stream, const float *x, float *out, size_t n, unsigned blocks)
{
    cudaLaunchConfig_t config = configuration(stream, blocks, 256);
    return cudaLaunchKernelEx(&config, block_sum, x, out, n);
}

cudaError_t launch_softmax(cudaStream_t stream, const float *x, float *y, int rows, int columns)
{
    cudaLaunchConfig_t config = configuration(stream, (unsigned)(rows + 3) / 4, 128);
    return cudaLaunchKernelEx(&config, softmax<float, 0>, x, y, rows, columns);
}

cudaError_t launch_histogram(cudaStream_t stream, const int *values, int *counts, int n, int bins)
{
    cudaLaunchConfig_t config = configuration(stream, 8, 128, (size_t)bins * sizeof(int));
    return cudaLaunchKernelEx(&config, histogram, values, counts, n, bins);
}

cudaError_t launch_votes(cudaStream_t stream, int *out)
{
    cudaLaunchConfig_t config = configuration(stream, 1, 64);
    return cudaLaunchKernelEx(&config, votes, out);
}

cudaError_t launch_indices(cudaStream_t stream, dim3 grid, dim3 block, int *out)
{
    cudaLaunchConfig_t config = configuration(stream, grid, block);
    return cudaLaunchKernelEx(&config, indices, out);
}

cudaError_t launch_read(cudaStream_t stream, const float *x, long index, float *out)
{
    cudaLaunchConfig_t config = configuration(stream, 1, 1);
    return cudaLaunchKernelEx(&config, read_one, x, index, out);
}

cudaError_t launch_slow_write(cudaStream_t stream, float *x, float value, int microseconds)
{
    cudaLaunchConfig_t config = configuration(stream, 1, 1);
    return cudaLaunchKernelEx(&config, slow_write, x, value, microseconds);
}

cudaError_t launch_hold(cudaStream_t stream, const volatile int *go)
{
    cudaLaunchConfig_t config = configuration(stream, 1, 1);
    return cudaLaunchKernelEx(&config, hold, go);
}

cudaError_t launch_divergent_barrier(cudaStream_t stream)
{
    cudaLaunchConfig_t config = configuration(stream, 1, 32);
    return cudaLaunchKernelEx(&config, divergent_barrier, nullptr);
}

cudaError_t launch_missing_lane(cudaStream_t stream)
{
    cudaLaunchConfig_t config = configuration(stream, 1, 32);
    return cudaLaunchKernelEx(&config, missing_lane, nullptr);
}

cudaError_t launch_shared_overrun(cudaStream_t stream)
{
    cudaLaunchConfig_t config = configuration(stream, 1, 32, 32 * sizeof(int));
    return cudaLaunchKernelEx(&config, shared_overrun, nullptr);
}

cudaError_t launch_nothing(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes)
{
    cudaLaunchConfig_t config = configuration(stream, grid, block, shared_bytes);
    return cudaLaunchKernelEx(&config, nothing, nullptr);
}

cudaError_t allow_shared(int bytes)
{
    return cudaFuncSetAttribute(nothing, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

} // extern "C"
