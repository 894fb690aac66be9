// Planes to other sizes: bilinear to twice the size, and means over windows. Backward asks for each input
// which outputs it went into, so every sum has one writer and a fixed order.
#include "device.cuh"

enum { THREADS = 256, WARP = 32, LARGE_WINDOW = 16 };

static cudaLaunchConfig_t grid_over(int64_t count, cudaStream_t stream)
{
    return dp_grid(dp_blocks_for(count, THREADS), THREADS, stream);
}

// ---- bilinear, twice the size: an output lies a quarter of a pixel beside its input's middle, so it takes
// three quarters of that input and one of the neighbour on its side; at the border the input is its own
// neighbour.

// 256 threads a block, one for each input and the four outputs over it; no shared memory. Reads x once (what
// neighbours share comes from the cache) and writes y once: the least possible.
static __global__ void __launch_bounds__(THREADS)
    upsample_forward_kernel(const float *x, float *y, int64_t count, int height, int width)
{
    for (int64_t i = dp_first_element(); i < count; i += dp_grid_stride()) {
        const unsigned line = (unsigned)i / (unsigned)width; // of all planes' together
        const int column = (int)((unsigned)i % (unsigned)width), row = (int)(line % (unsigned)height);
        const int left = column > 0 ? -1 : 0, right = column < width - 1 ? 1 : 0;
        const float *at = x + i;
        const float *above = row > 0 ? at - width : at, *below = row < height - 1 ? at + width : at;
        float upper[3], lower[3];
        for (int k = 0; k < 3; k++) {
            int shift = k == 0 ? left : k == 1 ? 0 : right;
            upper[k] = 0.25f * above[shift] + 0.75f * at[shift];
            lower[k] = 0.75f * at[shift] + 0.25f * below[shift];
        }
        float2 *to = reinterpret_cast<float2 *>(y) + 2 * (int64_t)line * width + column;
        // One store of two neighbours each.
        const float2 over = {0.25f * upper[0] + 0.75f * upper[1], 0.75f * upper[1] + 0.25f * upper[2]};
        const float2 under = {0.25f * lower[0] + 0.75f * lower[1], 0.75f * lower[1] + 0.25f * lower[2]};
        to[0] = over;
        to[width] = under;
    }
}

// The share of input k / 2 (k even) or of its neighbours in output k - 1 + nth, of n outputs, nth from 0 to
// 3; 0 where there is no such output.
static __device__ __forceinline__ float share(int k, int nth, int n)
{
    const int output = k - 1 + nth;
    if (output < 0 || output >= n)
        return 0.0f;
    if (output == 0 || output == n - 1)
        return 1.0f;
    return nth == 0 || nth == 3 ? 0.25f : 0.75f;
}

// 256 threads a block, one for each input; no shared memory. Reads dy once (each value goes into four inputs,
// three times from the cache) and writes dx once: the least possible.
// Sectors: neighbours read every second value; the ones between are the next load, from the cache.
static __global__ void __launch_bounds__(THREADS)
    upsample_backward_kernel(const float *dy, float *dx, int64_t count, int height, int width)
{
    for (int64_t i = dp_first_element(); i < count; i += dp_grid_stride()) {
        const unsigned line = (unsigned)i / (unsigned)width;
        const int column = (int)((unsigned)i % (unsigned)width), row = (int)(line % (unsigned)height);
        const float *at = dy + 4 * (int64_t)line * width + 2 * column;
        float sum = 0.0f;
        for (int a = 0; a < 4; a++) {
            const float down = share(2 * row, a, 2 * height);
            for (int b = 0; b < 4; b++) {
                const float across = share(2 * column, b, 2 * width);
                if (down * across > 0.0f)
                    sum += down * across * at[(a - 1) * (int64_t)(2 * width) + b - 1];
            }
        }
        dx[i] = sum;
    }
}

extern "C" cudaError_t dp_upsample2x_forward(cudaStream_t stream, const float *x, float *y, int64_t planes,
                                             int height, int width)
{
    int64_t count = planes * height * width;
    cudaLaunchConfig_t config = grid_over(count, stream);
    return cudaLaunchKernelEx(&config, upsample_forward_kernel, x, y, count, height, width);
}

extern "C" cudaError_t dp_upsample2x_backward(cudaStream_t stream, const float *dy, float *dx, int64_t planes,
                                              int height, int width)
{
    int64_t count = planes * height * width;
    cudaLaunchConfig_t config = grid_over(count, stream);
    return cudaLaunchKernelEx(&config, upsample_backward_kernel, dy, dx, count, height, width);
}

// ---- means over windows

// floor(i s / n) and ceil((i + 1) s / n)
static __host__ __device__ __forceinline__ int window_begin(int i, int s, int n)
{
    return (int)((int64_t)i * s / n);
}

static __host__ __device__ __forceinline__ int window_end(int i, int s, int n)
{
    return (int)(((int64_t)(i + 1) * s + n - 1) / n);
}

// 256 threads a block; a thread for each output with a small window, a warp for each other; no shared memory.
// Reads x once (where windows overlap, again from the cache) and writes y once: the least possible.
// Sectors: threads with a small window each read its places one after the other, a window apart from their
// neighbours; the next places are in the cache. A warp on one window crosses rows that end inside sectors.
static __global__ void __launch_bounds__(THREADS)
    average_forward_kernel(const dp_average_shape s, const float *x, float *y, int64_t count, int lanes)
{
    const int lane = (int)(threadIdx.x % (unsigned)lanes);
    for (int64_t i = dp_first_element() / lanes; i < count; i += dp_grid_stride() / lanes) {
        const unsigned line = (unsigned)i / (unsigned)s.out[1], plane = line / (unsigned)s.out[0];
        const int column = (int)((unsigned)i % (unsigned)s.out[1]), row = (int)(line % (unsigned)s.out[0]);
        const int top = window_begin(row, s.in[0], s.out[0]), bottom = window_end(row, s.in[0], s.out[0]);
        const int left = window_begin(column, s.in[1], s.out[1]);
        const int wide = window_end(column, s.in[1], s.out[1]) - left, all = (bottom - top) * wide;
        const float *corner = x + ((int64_t)plane * s.in[0] + top) * s.in[1] + left;
        float sum = 0.0f;
        for (int k = lane; k < all; k += lanes)
            sum += corner[(int64_t)(k / wide) * s.in[1] + k % wide];
        if (lanes == WARP)
            sum = dp_warp_sum(sum);
        if (lane == 0)
            y[i] = sum / (float)all;
    }
}

// 256 threads a block, one for each input; no shared memory. Reads dy once (again from the cache for the rest
// of a window) and writes dx once: the least possible.
// Sectors: where outputs are more than inputs, neighbours are a window of outputs apart, and the rest of it
// is in the cache; where they are fewer, a warp reads few values, of short rows that end inside sectors.
static __global__ void __launch_bounds__(THREADS)
    average_backward_kernel(const dp_average_shape s, const float *dy, float *dx, int64_t count)
{
    for (int64_t i = dp_first_element(); i < count; i += dp_grid_stride()) {
        const unsigned line = (unsigned)i / (unsigned)s.in[1], plane = line / (unsigned)s.in[0];
        const int column = (int)((unsigned)i % (unsigned)s.in[1]), row = (int)(line % (unsigned)s.in[0]);
        // The windows that an input is in lie as the inputs that are in a window.
        const int bottom = window_end(row, s.out[0], s.in[0]), right = window_end(column, s.out[1], s.in[1]);
        float sum = 0.0f;
        for (int a = window_begin(row, s.out[0], s.in[0]); a < bottom; a++) {
            int high = window_end(a, s.in[0], s.out[0]) - window_begin(a, s.in[0], s.out[0]);
            for (int b = window_begin(column, s.out[1], s.in[1]); b < right; b++) {
                int wide = window_end(b, s.in[1], s.out[1]) - window_begin(b, s.in[1], s.out[1]);
                sum += dy[((int64_t)plane * s.out[0] + a) * s.out[1] + b] / (float)(high * wide);
            }
        }
        dx[i] = sum;
    }
}

extern "C" cudaError_t dp_average_forward(cudaStream_t stream, const dp_average_shape *shape, const float *x,
                                          float *y)
{
    const int64_t count = shape->planes * shape->out[0] * shape->out[1];
    const int64_t inputs = shape->planes * shape->in[0] * shape->in[1];
    const int lanes = inputs / count >= LARGE_WINDOW ? WARP : 1;
    cudaLaunchConfig_t config = grid_over(count * lanes, stream);
    return cudaLaunchKernelEx(&config, average_forward_kernel, *shape, x, y, count, lanes);
}

extern "C" cudaError_t dp_average_backward(cudaStream_t stream, const dp_average_shape *shape,
                                           const float *dy, float *dx)
{
    const int64_t count = shape->planes * shape->in[0] * shape->in[1];
    cudaLaunchConfig_t config = grid_over(count, stream);
    return cudaLaunchKernelEx(&config, average_backward_kernel, *shape, dy, dx, count);
}
