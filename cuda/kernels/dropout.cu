// Dropout. The random numbers are functions of (seed, step, sample, element), so nothing is kept for backward
// and replicas need not agree on anything. The same kernel serves both directions.
#include "device.cuh"

enum { THREADS = 256, LANES = 4 };

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011).
static __device__ __forceinline__ void philox(uint64_t seed, uint32_t counter[4])
{
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t product0 = (uint64_t)0xD2511F53u * counter[0];
        const uint64_t product1 = (uint64_t)0xCD9E8D57u * counter[2];
        counter[0] = (uint32_t)(product1 >> 32) ^ counter[1] ^ key0;
        counter[1] = (uint32_t)product1;
        counter[2] = (uint32_t)(product0 >> 32) ^ counter[3] ^ key1;
        counter[3] = (uint32_t)product0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

// The factors, 0 or scale, of the four elements of a sample that begin at `element`, a multiple of four.
static __device__ __forceinline__ void factors_of(const dp_dropout_parameters &p, unsigned sample,
                                                  unsigned element, float factor[LANES])
{
    const uint64_t block = (p.first_element + element) / LANES;
    uint32_t words[4] = {(uint32_t)block, (uint32_t)(block >> 32) ^ p.purpose << 24, p.step,
                         p.first_sample + sample};
    philox(p.seed, words);
    for (int k = 0; k < LANES; k++)
        factor[k] = words[k] >> 8 >= p.threshold ? p.scale : 0.0f;
}

static __device__ __forceinline__ float dropped(float x, float factor)
{
    return factor == 0.0f ? 0.0f : x * factor; // also of a NaN
}

// 256 threads a block, one for each four neighbours of a sample, whose numbers come together; no shared
// memory. Reads x and writes y once: the least possible.
// Sectors: where samples are no multiple of four long, a thread's four go one by one and lanes are four
// apart; the next three find the sectors in the cache. Sixteen bytes at once would not be aligned.
static __global__ void __launch_bounds__(THREADS)
    elements_kernel(const dp_dropout_parameters p, const float *x, float *y)
{
    const unsigned quads = (unsigned)((p.elements + LANES - 1) / LANES);
    const int64_t count = p.samples * quads;
    const bool aligned = p.elements % LANES == 0;
    for (int64_t i = dp_first_element(); i < count; i += dp_grid_stride()) {
        const unsigned sample = (unsigned)i / quads, element = (unsigned)i % quads * LANES;
        const int64_t first = (int64_t)sample * p.elements + element;
        float factor[LANES];
        factors_of(p, sample, element, factor);
        if (aligned) {
            float4 four = *reinterpret_cast<const float4 *>(x + first);
            four = {dropped(four.x, factor[0]), dropped(four.y, factor[1]), dropped(four.z, factor[2]),
                    dropped(four.w, factor[3])};
            *reinterpret_cast<float4 *>(y + first) = four;
        } else {
            for (int k = 0; k < LANES && element + k < p.elements; k++)
                y[first + k] = dropped(x[first + k], factor[k]);
        }
    }
}

// A block of 256 threads for each run of elements with one number, no shared memory. Reads x and writes y
// once: the least possible.
static __global__ void __launch_bounds__(THREADS)
    runs_kernel(const dp_dropout_parameters p, const float *x, float *y)
{
    const unsigned sample = blockIdx.x / (unsigned)p.elements, element = blockIdx.x % (unsigned)p.elements;
    float factor[LANES];
    factors_of(p, sample, element / LANES * LANES, factor);
    const unsigned nth = element % LANES;
    const float own = nth == 0 ? factor[0] : nth == 1 ? factor[1] : nth == 2 ? factor[2] : factor[3];
    const int64_t first = blockIdx.x * p.repeat;
    for (int64_t i = threadIdx.x; i < p.repeat; i += blockDim.x)
        y[first + i] = dropped(x[first + i], own);
}

extern "C" cudaError_t dp_dropout(cudaStream_t stream, const dp_dropout_parameters *parameters,
                                  const float *x, float *y)
{
    const dp_dropout_parameters &p = *parameters;
    if (p.repeat > 1) {
        cudaLaunchConfig_t config = dp_grid(p.samples * p.elements, THREADS, stream);
        return cudaLaunchKernelEx(&config, runs_kernel, p, x, y);
    }
    int64_t quads = p.samples * ((p.elements + LANES - 1) / LANES);
    cudaLaunchConfig_t config = dp_grid(dp_blocks_for(quads, THREADS), THREADS, stream);
    return cudaLaunchKernelEx(&config, elements_kernel, p, x, y);
}
