// What the kernels share: launch configurations and sums over a block in a fixed order.
#pragma once

#include <cuda_runtime.h>

#include "kernels.h"

// A grid of one dimension without dynamic shared memory.
static inline cudaLaunchConfig_t dp_grid(int64_t blocks, int threads, cudaStream_t stream)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3((unsigned)threads);
    config.stream = stream;
    return config;
}

// Blocks of `threads` for a loop over count elements in strides of the grid: no more than fill any GPU.
static inline int64_t dp_blocks_for(int64_t count, int threads)
{
    const int64_t most = 4096;
    int64_t blocks = (count + threads - 1) / threads;
    return blocks < most ? blocks : most;
}

static __device__ __forceinline__ int64_t dp_first_element()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static __device__ __forceinline__ int64_t dp_grid_stride()
{
    return (int64_t)gridDim.x * blockDim.x;
}

// max(0, x) that lets a NaN through.
static __device__ __forceinline__ float dp_relu(float x)
{
    return x <= 0.0f ? 0.0f : x;
}

// The sum of a warp's values, in every lane. All 32 lanes call it.
static __device__ __forceinline__ float dp_warp_sum(float value)
{
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

// The sum of a block's values, in every thread: lanes by halves, then warps in order. All threads of a block
// of whole warps call it, with 32 floats of shared memory that nobody reads any more.
static __device__ __forceinline__ float dp_block_sum(float value, float *shared)
{
    value = dp_warp_sum(value);
    if (blockDim.x == 32)
        return value;
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.0f;
    for (unsigned warp = 0; warp < blockDim.x / 32; warp++)
        sum += shared[warp];
    return sum;
}
