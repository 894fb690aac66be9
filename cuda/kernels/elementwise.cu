// Passes over memory that look at one element at a time.
#include "device.cuh"

enum { THREADS = 256 };

// 256 threads a block, no shared memory. Reads and writes each element once, which is the least possible.
static __global__ void __launch_bounds__(THREADS) relu_kernel(const float *x, float *y, int64_t count)
{
    for (int64_t i = dp_first_element(); i < count; i += dp_grid_stride())
        y[i] = dp_relu(x[i]);
}

// 256 threads a block, no shared memory. Reads gate and source once, writes target once: the least possible.
static __global__ void __launch_bounds__(THREADS)
    gate_kernel(const float *gate, const float *source, float *target, int64_t count)
{
    for (int64_t i = dp_first_element(); i < count; i += dp_grid_stride())
        target[i] = gate[i] <= 0.0f ? 0.0f : source[i];
}

// 256 threads a block, no shared memory. Reads both and writes target once: the least possible.
static __global__ void __launch_bounds__(THREADS)
    add_kernel(const float *source, float *target, int64_t count)
{
    for (int64_t i = dp_first_element(); i < count; i += dp_grid_stride())
        target[i] += source[i];
}

// 256 threads a block, no shared memory. Reads both and writes y once: the least possible.
static __global__ void __launch_bounds__(THREADS)
    sum_kernel(const float *a, const float *b, bool relu, float *y, int64_t count)
{
    for (int64_t i = dp_first_element(); i < count; i += dp_grid_stride()) {
        float value = a[i] + b[i];
        y[i] = relu ? dp_relu(value) : value;
    }
}

extern "C" cudaError_t dp_relu_forward(cudaStream_t stream, const float *x, float *y, int64_t count)
{
    cudaLaunchConfig_t config = dp_grid(dp_blocks_for(count, THREADS), THREADS, stream);
    return cudaLaunchKernelEx(&config, relu_kernel, x, y, count);
}

extern "C" cudaError_t dp_gate(cudaStream_t stream, const float *gate, const float *source, float *target,
                               int64_t count)
{
    cudaLaunchConfig_t config = dp_grid(dp_blocks_for(count, THREADS), THREADS, stream);
    return cudaLaunchKernelEx(&config, gate_kernel, gate, source, target, count);
}

extern "C" cudaError_t dp_add(cudaStream_t stream, const float *source, float *target, int64_t count)
{
    cudaLaunchConfig_t config = dp_grid(dp_blocks_for(count, THREADS), THREADS, stream);
    return cudaLaunchKernelEx(&config, add_kernel, source, target, count);
}

extern "C" cudaError_t dp_sum(cudaStream_t stream, const float *a, const float *b, bool relu, float *y,
                              int64_t count)
{
    cudaLaunchConfig_t config = dp_grid(dp_blocks_for(count, THREADS), THREADS, stream);
    return cudaLaunchKernelEx(&config, sum_kernel, a, b, relu, y, count);
}
