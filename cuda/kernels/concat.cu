// Two arrays of samples side by side, and apart again.
#include "device.cuh"

enum { THREADS = 256, LANES = 4 };

// 256 threads a block, no shared memory. Reads a and b and writes out once: the least possible.
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    concat_kernel(const T *a, const T *b, T *out, int64_t count, int64_t a_size, int64_t b_size)
{
    const int64_t both = a_size + b_size, stride = dp_grid_stride();
    const int64_t sample_step = stride / both, within_step = stride % both;
    int64_t i = dp_first_element(), sample = i / both, within = i % both;
    for (; i < count; i += stride) {
        out[i] = within < a_size ? a[sample * a_size + within] : b[sample * b_size + within - a_size];
        sample += sample_step;
        within += within_step;
        if (within >= both) {
            within -= both;
            sample++;
        }
    }
}

// 256 threads a block, no shared memory. Reads what is wanted of `from` and writes it once: the least
// possible.
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    split_kernel(const T *from, T *a, T *b, int64_t count, int64_t a_size, int64_t b_size)
{
    const int64_t both = a_size + b_size, stride = dp_grid_stride();
    const int64_t sample_step = stride / both, within_step = stride % both;
    int64_t i = dp_first_element(), sample = i / both, within = i % both;
    for (; i < count; i += stride) {
        if (within < a_size) {
            if (a)
                a[sample * a_size + within] = from[i];
        } else if (b) {
            b[sample * b_size + within - a_size] = from[i];
        }
        sample += sample_step;
        within += within_step;
        if (within >= both) {
            within -= both;
            sample++;
        }
    }
}

static bool in_fours(int64_t a_size, int64_t b_size)
{
    return a_size % LANES == 0 && b_size % LANES == 0;
}

extern "C" cudaError_t dp_concat(cudaStream_t stream, const float *a, const float *b, float *out,
                                 int64_t samples, int64_t a_size, int64_t b_size)
{
    int64_t lanes = in_fours(a_size, b_size) ? LANES : 1, count = samples * (a_size + b_size) / lanes;
    cudaLaunchConfig_t config = dp_grid(dp_blocks_for(count, THREADS), THREADS, stream);
    if (lanes == 1)
        return cudaLaunchKernelEx(&config, concat_kernel<float>, a, b, out, count, a_size, b_size);
    return cudaLaunchKernelEx(&config, concat_kernel<float4>, (const float4 *)a, (const float4 *)b,
                              (float4 *)out, count, a_size / LANES, b_size / LANES);
}

extern "C" cudaError_t dp_split(cudaStream_t stream, const float *from, float *a, float *b, int64_t samples,
                                int64_t a_size, int64_t b_size)
{
    int64_t lanes = in_fours(a_size, b_size) ? LANES : 1, count = samples * (a_size + b_size) / lanes;
    cudaLaunchConfig_t config = dp_grid(dp_blocks_for(count, THREADS), THREADS, stream);
    if (lanes == 1)
        return cudaLaunchKernelEx(&config, split_kernel<float>, from, a, b, count, a_size, b_size);
    return cudaLaunchKernelEx(&config, split_kernel<float4>, (const float4 *)from, (float4 *)a, (float4 *)b,
                              count, a_size / LANES, b_size / LANES);
}
