#include <cuda_runtime.h>

#include "mistakes.h"

enum { THREADS = 64, BLOCKS = 2 };

struct Arrays {
    const float *x;
    float *y;
};

__global__ void no_mistake(Arrays a)
{
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    a.y[i] = a.x[i];
}

__global__ void write_past(Arrays a)
{
    a.y[blockIdx.x * THREADS + threadIdx.x + 1] = 1.0f;
}

__global__ void read_before(Arrays a)
{
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);
    a.y[i] = a.x[i - 1];
}

__global__ void unaligned_four(Arrays a)
{
    if (threadIdx.x == 3)
        *reinterpret_cast<float4 *>(a.y + 4 * blockIdx.x) = *reinterpret_cast<const float4 *>(a.x + 1);
}

__global__ void shared_unwritten(Arrays a)
{
    __shared__ float shared[THREADS];
    if (blockIdx.x == 0)
        shared[threadIdx.x] = 1.0f;
    __syncthreads();
    a.y[blockIdx.x * THREADS + threadIdx.x] = shared[threadIdx.x];
}

// How a thread that has written a word waits before it reads the one of the thread `distance` behind.
enum Between { NOTHING, BARRIER, SHUFFLE, SYNCWARP };

static inline __device__ void neighbour(float *memory, float *y, Between between, unsigned distance)
{
    memory[threadIdx.x] = 2.0f;
    if (between == BARRIER)
        __syncthreads();
    else if (between == SHUFFLE)
        __shfl_xor_sync(0xffffffffu, 1, 1);
    else if (between == SYNCWARP)
        __syncwarp();
    y[blockIdx.x * THREADS + threadIdx.x] = memory[(threadIdx.x + distance) % THREADS];
}

__global__ void shared_race(Arrays a, Between between, unsigned distance)
{
    __shared__ float shared[THREADS];
    shared[threadIdx.x] = 1.0f;
    __syncthreads();
    // Within the warp for SYNCWARP: the thread before or behind.
    unsigned partner = distance == 1 ? (threadIdx.x ^ 1) : (threadIdx.x + distance) % THREADS;
    neighbour(shared, a.y, between, (partner - threadIdx.x) % THREADS);
}

__global__ void shared_bytes(Arrays a)
{
    __shared__ unsigned char shared[THREADS];
    shared[threadIdx.x] = (unsigned char)threadIdx.x;
    a.y[blockIdx.x * THREADS + threadIdx.x] = shared[threadIdx.x];
}

__global__ void dynamic_past(Arrays a)
{
    DP_DYN_SHARED(float, shared);
    if (threadIdx.x < 26)
        shared[threadIdx.x] = 1.0f;
    a.y[blockIdx.x * THREADS + threadIdx.x] = 1.0f;
}

__global__ void blocks_write(Arrays a)
{
    if (threadIdx.x == 5)
        a.y[0] = (float)blockIdx.x;
}

__global__ void blocks_read(Arrays a)
{
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    a.y[i] = a.x[i] + a.y[i ^ THREADS];
}

__global__ void blocks_bytes(Arrays a)
{
    if (threadIdx.x == 5)
        reinterpret_cast<unsigned char *>(a.y)[blockIdx.x] = 1;
}

__global__ void blocks_atomic(Arrays a, bool plain)
{
    atomicAdd(a.y, 1.0f);
    if (plain && blockIdx.x == 1)
        a.y[THREADS + threadIdx.x] = a.y[0];
}

__global__ void global_race(Arrays a)
{
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    a.y[i] = a.y[i ^ 1];
}

__global__ void strided(Arrays a)
{
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    a.y[i] = a.x[8 * i];
}

extern "C" cudaError_t launch_mistake(cudaStream_t stream, mistake which, const float *x, float *y)
{
    Arrays a = {x, y};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(BLOCKS);
    config.blockDim = dim3(THREADS);
    config.stream = stream;
    switch (which) {
    case NONE:
        return cudaLaunchKernelEx(&config, no_mistake, a);
    case WRITE_PAST:
        return cudaLaunchKernelEx(&config, write_past, a);
    case READ_BEFORE:
        return cudaLaunchKernelEx(&config, read_before, a);
    case UNALIGNED_FOUR:
        return cudaLaunchKernelEx(&config, unaligned_four, a);
    case SHARED_UNWRITTEN:
        return cudaLaunchKernelEx(&config, shared_unwritten, a);
    case SHARED_RACE:
        return cudaLaunchKernelEx(&config, shared_race, a, NOTHING, 1u);
    case SHARED_ORDERED:
        return cudaLaunchKernelEx(&config, shared_race, a, BARRIER, 1u);
    case SHUFFLE_RACE:
        return cudaLaunchKernelEx(&config, shared_race, a, SHUFFLE, 1u);
    case SYNCWARP_ORDERED:
        return cudaLaunchKernelEx(&config, shared_race, a, SYNCWARP, 1u);
    case SYNCWARP_RACE:
        return cudaLaunchKernelEx(&config, shared_race, a, SYNCWARP, 32u);
    case SHARED_BYTES:
        return cudaLaunchKernelEx(&config, shared_bytes, a);
    case DYNAMIC_PAST:
        config.dynamicSmemBytes = 100;
        return cudaLaunchKernelEx(&config, dynamic_past, a);
    case BLOCKS_WRITE:
        return cudaLaunchKernelEx(&config, blocks_write, a);
    case BLOCKS_READ:
        return cudaLaunchKernelEx(&config, blocks_read, a);
    case BLOCKS_BYTES:
        return cudaLaunchKernelEx(&config, blocks_bytes, a);
    case BLOCKS_ATOMIC:
        return cudaLaunchKernelEx(&config, blocks_atomic, a, false);
    case ATOMIC_AND_PLAIN:
        return cudaLaunchKernelEx(&config, blocks_atomic, a, true);
    case GLOBAL_RACE:
        return cudaLaunchKernelEx(&config, global_race, a);
    case STRIDED:
        return cudaLaunchKernelEx(&config, strided, a);
    }
    return cudaErrorInvalidValue;
}
