// Bias and ReLU behind a product, and the gradient of the bias before one.
#include "device.cuh"

enum {
    WIDE = 256,
    NARROW = 32,        // threads of a block that has a small plane
    SMALL_PLANE = 512,  // elements
    COLUMN_BLOCK = 128, // threads of a block that sums columns
    GROUP_ROWS = 8,     // rows that one thread adds up
};

static int threads_for_plane(int64_t plane)
{
    return plane <= SMALL_PLANE ? NARROW : WIDE;
}

// ---- forward

// A block of 32 or 256 threads for each plane, no shared memory. Reads and writes y once: the least possible
// for a pass of its own (a product that adds the bias itself would save both).
static __global__ void __launch_bounds__(WIDE)
    bias_planes_kernel(float *y, const float *bias, bool relu, int64_t channels, int64_t plane)
{
    float b = bias ? bias[blockIdx.x % channels] : 0.0f;
    float *row = y + blockIdx.x * plane;
    for (int64_t i = threadIdx.x; i < plane; i += blockDim.x) {
        float value = row[i] + b;
        row[i] = relu ? dp_relu(value) : value;
    }
}

extern "C" cudaError_t dp_bias_planes(cudaStream_t stream, float *y, const float *bias, bool relu,
                                      int64_t batch, int64_t channels, int64_t plane)
{
    cudaLaunchConfig_t config = dp_grid(batch * channels, threads_for_plane(plane), stream);
    return cudaLaunchKernelEx(&config, bias_planes_kernel, y, bias, relu, channels, plane);
}

// 256 threads a block, no shared memory. Reads and writes y once, as above; bias stays in the cache.
static __global__ void __launch_bounds__(WIDE)
    bias_columns_kernel(float *y, const float *bias, bool relu, int64_t count, int64_t columns)
{
    // The column is carried along instead of divided out for each element.
    int64_t i = dp_first_element(), stride = dp_grid_stride();
    int64_t column = i % columns, column_step = stride % columns;
    for (; i < count; i += stride) {
        float value = y[i] + (bias ? bias[column] : 0.0f);
        y[i] = relu ? dp_relu(value) : value;
        column += column_step;
        if (column >= columns)
            column -= columns;
    }
}

extern "C" cudaError_t dp_bias_columns(cudaStream_t stream, float *y, const float *bias, bool relu,
                                       int64_t rows, int64_t columns)
{
    int64_t count = rows * columns;
    cudaLaunchConfig_t config = dp_grid(dp_blocks_for(count, WIDE), WIDE, stream);
    return cudaLaunchKernelEx(&config, bias_columns_kernel, y, bias, relu, count, columns);
}

// ---- the gradient of the bias, first stage

// dy[i] behind the gate of a ReLU, written back where that changes it.
static __device__ __forceinline__ float gated(float *dy, const float *gate, int64_t i)
{
    float value = dy[i];
    if (gate) {
        value = gate[i] <= 0.0f ? 0.0f : value;
        dy[i] = value;
    }
    return value;
}

// A block of 32 or 256 threads for each plane, 128 bytes of shared memory. With a gate reads gate and dy and
// writes dy once, without one reads dy once: the least possible.
static __global__ void __launch_bounds__(WIDE)
    gradient_planes_kernel(float *dy, const float *gate, float *partial, int64_t plane)
{
    __shared__ float shared[32];
    int64_t first = blockIdx.x * plane;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < plane; i += blockDim.x)
        sum += gated(dy, gate, first + i);
    sum = dp_block_sum(sum, shared);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

extern "C" cudaError_t dp_bias_gradient_planes(cudaStream_t stream, float *dy, const float *gate,
                                               float *partial, int64_t planes, int64_t plane)
{
    cudaLaunchConfig_t config = dp_grid(planes, threads_for_plane(plane), stream);
    return cudaLaunchKernelEx(&config, gradient_planes_kernel, dy, gate, partial, plane);
}

// 128 threads a block, one for each column of a group of 8 rows; no shared memory. Traffic as above, and an
// eighth of dy for the partial sums.
static __global__ void __launch_bounds__(COLUMN_BLOCK)
    gradient_columns_kernel(float *dy, const float *gate, float *partial, int64_t rows, int64_t columns,
                            unsigned blocks_per_group)
{
    int64_t group = blockIdx.x / blocks_per_group;
    int64_t column = (int64_t)(blockIdx.x % blocks_per_group) * blockDim.x + threadIdx.x;
    int64_t end = (group + 1) * GROUP_ROWS < rows ? (group + 1) * GROUP_ROWS : rows;
    if (column >= columns)
        return;
    float sum = 0.0f;
    for (int64_t row = group * GROUP_ROWS; row < end; row++)
        sum += gated(dy, gate, row * columns + column);
    partial[group * columns + column] = sum;
}

extern "C" int64_t dp_bias_gradient_groups(int64_t rows)
{
    return (rows + GROUP_ROWS - 1) / GROUP_ROWS;
}

extern "C" cudaError_t dp_bias_gradient_columns(cudaStream_t stream, float *dy, const float *gate,
                                                float *partial, int64_t rows, int64_t columns)
{
    int64_t per_group = (columns + COLUMN_BLOCK - 1) / COLUMN_BLOCK;
    cudaLaunchConfig_t config = dp_grid(per_group * dp_bias_gradient_groups(rows), COLUMN_BLOCK, stream);
    return cudaLaunchKernelEx(&config, gradient_columns_kernel, dy, gate, partial, rows, columns,
                              (unsigned)per_group);
}

// ---- second stage

// 256 threads a block, a warp for each column; no shared memory. Reads partial once.
// Sectors: lanes are rows apart, so each reads one of its own; partial is small and in the cache, where the
// warps of the neighbouring columns find the same sectors.
static __global__ void __launch_bounds__(WIDE)
    gradient_finish_kernel(const float *partial, int64_t rows, int64_t columns, bool accumulate,
                           float *target)
{
    int64_t column = dp_first_element() / 32;
    int lane = (int)(threadIdx.x % 32);
    if (column >= columns) // a whole warp
        return;
    float sum = 0.0f;
    for (int64_t row = lane; row < rows; row += 32)
        sum += partial[row * columns + column];
    sum = dp_warp_sum(sum);
    if (lane == 0)
        target[column] = accumulate ? target[column] + sum : sum;
}

extern "C" cudaError_t dp_bias_gradient_finish(cudaStream_t stream, const float *partial, int64_t rows,
                                               int64_t columns, bool accumulate, float *target)
{
    cudaLaunchConfig_t config = dp_grid((columns * 32 + WIDE - 1) / WIDE, WIDE, stream);
    return cudaLaunchKernelEx(&config, gradient_finish_kernel, partial, rows, columns, accumulate, target);
}
