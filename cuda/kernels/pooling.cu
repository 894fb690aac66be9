// Maximum pooling over planes in row-major order, with an optional ReLU behind it.
//
// Forward keeps, for training, where in its window each maximum was, so that backward needs neither input nor
// output. Backward asks for each input which windows chose it, so every sum has one writer and a fixed order.
#include "device.cuh"

enum { MOST_THREADS = 256, BYTE_POSITIONS = 255 };

// The position that says that ReLU cut the output off: no gradient passes.
template <typename Position> static __host__ __device__ constexpr Position cut_off()
{
    return sizeof(Position) == 1 ? (Position)BYTE_POSITIONS : (Position)0x7fffffff;
}

extern "C" size_t dp_max_pool_position_bytes(const dp_pool_shape *shape)
{
    return (int64_t)shape->kernel[0] * shape->kernel[1] <= BYTE_POSITIONS ? sizeof(uint8_t) : sizeof(int32_t);
}

static int threads_for(int64_t elements)
{
    int64_t warps = (elements + 31) / 32;
    return warps * 32 < MOST_THREADS ? (int)warps * 32 : MOST_THREADS;
}

// A block of up to 256 threads for each plane, no shared memory. Reads x once (what windows share comes from
// the cache) and writes y, and one or four bytes of position, once: the least possible.
// Sectors: neighbouring windows begin a stride apart, so a load of all lanes skips what the window's next one
// reads, by then from the cache; and the rows of a small plane end inside sectors.
template <typename Position>
static __global__ void __launch_bounds__(MOST_THREADS)
    pool_forward_kernel(const dp_pool_shape p, const float *x, float *y, Position *positions)
{
    const float *plane = x + (int64_t)blockIdx.x * p.in[0] * p.in[1];
    const int outputs = p.out[0] * p.out[1];
    const int64_t first = (int64_t)blockIdx.x * outputs;
    for (int o = (int)threadIdx.x; o < outputs; o += (int)blockDim.x) {
        int row0 = o / p.out[1] * p.stride[0] - p.padding[0];
        int column0 = o % p.out[1] * p.stride[1] - p.padding[1];
        int top = max(row0, 0), bottom = min(row0 + p.kernel[0], p.in[0]);
        int left = max(column0, 0), right = min(column0 + p.kernel[1], p.in[1]);
        float best = plane[top * p.in[1] + left];
        int place = (top - row0) * p.kernel[1] + left - column0;
        for (int row = top; row < bottom; row++) {
            for (int column = left; column < right; column++) {
                float value = plane[row * p.in[1] + column];
                if (value > best || value != value) { // a NaN wins, as in PyTorch
                    best = value;
                    place = (row - row0) * p.kernel[1] + column - column0;
                }
            }
        }
        bool closed = p.relu && best <= 0.0f;
        y[first + o] = closed ? 0.0f : best;
        if (positions)
            positions[first + o] = closed ? cut_off<Position>() : (Position)place;
    }
}

// A block of up to 256 threads for each plane, no shared memory. Reads dy and the positions once (what inputs
// share comes from the cache) and writes dx once: the least possible.
// Sectors: neighbours share windows, so a warp reads a few bytes of each of several short rows of positions,
// which begin and end inside sectors.
template <typename Position>
static __global__ void __launch_bounds__(MOST_THREADS)
    pool_backward_kernel(const dp_pool_shape p, const float *dy, const Position *positions, float *dx)
{
    const int inputs = p.in[0] * p.in[1];
    const int64_t out_first = (int64_t)blockIdx.x * p.out[0] * p.out[1];
    float *plane = dx + (int64_t)blockIdx.x * inputs;
    for (int i = (int)threadIdx.x; i < inputs; i += (int)blockDim.x) {
        int row = i / p.in[1] + p.padding[0], column = i % p.in[1] + p.padding[1];
        // Windows that cover this input: from the first that reaches down to it to the last that begins at
        // it.
        int top = max((row - p.kernel[0]) / p.stride[0] + (row >= p.kernel[0] ? 1 : 0), 0);
        int left = max((column - p.kernel[1]) / p.stride[1] + (column >= p.kernel[1] ? 1 : 0), 0);
        int bottom = min(row / p.stride[0], p.out[0] - 1), right = min(column / p.stride[1], p.out[1] - 1);
        float sum = 0.0f;
        for (int a = top; a <= bottom; a++) {
            for (int b = left; b <= right; b++) {
                int64_t o = out_first + a * p.out[1] + b;
                int place = (row - a * p.stride[0]) * p.kernel[1] + column - b * p.stride[1];
                if (positions[o] == (Position)place)
                    sum += dy[o];
            }
        }
        plane[i] = sum;
    }
}

extern "C" cudaError_t dp_max_pool_forward(cudaStream_t stream, const dp_pool_shape *shape, const float *x,
                                           float *y, void *positions)
{
    int threads = threads_for((int64_t)shape->out[0] * shape->out[1]);
    cudaLaunchConfig_t config = dp_grid(shape->planes, threads, stream);
    if (dp_max_pool_position_bytes(shape) == 1)
        return cudaLaunchKernelEx(&config, pool_forward_kernel<uint8_t>, *shape, x, y, (uint8_t *)positions);
    return cudaLaunchKernelEx(&config, pool_forward_kernel<int32_t>, *shape, x, y, (int32_t *)positions);
}

extern "C" cudaError_t dp_max_pool_backward(cudaStream_t stream, const dp_pool_shape *shape, const float *dy,
                                            const void *positions, float *dx)
{
    int threads = threads_for((int64_t)shape->in[0] * shape->in[1]);
    cudaLaunchConfig_t config = dp_grid(shape->planes, threads, stream);
    if (dp_max_pool_position_bytes(shape) == 1)
        return cudaLaunchKernelEx(&config, pool_backward_kernel<uint8_t>, *shape, dy,
                                  (const uint8_t *)positions, dx);
    return cudaLaunchKernelEx(&config, pool_backward_kernel<int32_t>, *shape, dy, (const int32_t *)positions,
                              dx);
}
