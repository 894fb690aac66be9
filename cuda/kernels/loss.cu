// The criteria: the sum of a sample's terms and the gradient. A block has one sample, so every sum has one
// writer and a fixed order.
#include "device.cuh"

enum { NARROW = 32, WIDE = 256, WIDEST = 1024, FEW = 64, MANY = 8192 };

// The larger of two values and where it is; of equals the first.
static __device__ __forceinline__ void take_larger(float *value, int64_t *place, float other_value,
                                                   int64_t other_place)
{
    if (other_value > *value || (other_value == *value && other_place < *place)) {
        *value = other_value;
        *place = other_place;
    }
}

// The largest of a block's values and where it is, in every thread.
static __device__ __forceinline__ void block_largest(float *value, int64_t *place, float *shared_value,
                                                     int64_t *shared_place)
{
    for (int distance = 16; distance > 0; distance /= 2) {
        float other_value = __shfl_xor_sync(0xffffffffu, *value, distance);
        int64_t other_place = __shfl_xor_sync(0xffffffffu, *place, distance);
        take_larger(value, place, other_value, other_place);
    }
    if (blockDim.x == 32)
        return;
    if (threadIdx.x % 32 == 0) {
        shared_value[threadIdx.x / 32] = *value;
        shared_place[threadIdx.x / 32] = *place;
    }
    __syncthreads();
    for (unsigned warp = 0; warp < blockDim.x / 32; warp++)
        take_larger(value, place, shared_value[warp], shared_place[warp]);
}

// A block of 32, 256 or 1024 threads for each sample, 512 bytes of shared memory. Reads the logits three
// times (twice from the cache, where a sample fits it) and writes the gradient once; the least possible is
// once and once.
//
// -log softmax(x)[label]; exp is taken of differences to the maximum, so it cannot overflow. A label that is
// no class (the readers of data let none pass) gives NaN.
static __global__ void __launch_bounds__(WIDEST) cross_entropy_kernel(const dp_loss_parameters p)
{
    __shared__ float shared_value[32], shared_sum[32];
    __shared__ int64_t shared_place[32];
    const float *x = p.output + blockIdx.x * p.elements;
    const int64_t label = static_cast<const int32_t *>(p.target)[blockIdx.x];
    const bool known = label >= 0 && label < p.elements;
    const float at_label = known ? x[label] : NAN;

    float top = -INFINITY;
    int64_t largest = p.elements;
    for (int64_t j = threadIdx.x; j < p.elements; j += blockDim.x)
        take_larger(&top, &largest, x[j], j);
    block_largest(&top, &largest, shared_value, shared_place);

    float sum = 0.0f;
    for (int64_t j = threadIdx.x; j < p.elements; j += blockDim.x)
        sum += expf(x[j] - top);
    sum = dp_block_sum(sum, shared_sum);

    if (p.gradient) {
        __syncthreads(); // all have read x[label], which the gradient may overwrite
        float *gradient = p.gradient + blockIdx.x * p.elements;
        float factor = known ? p.scale / sum : NAN;
        for (int64_t j = threadIdx.x; j < p.elements; j += blockDim.x)
            gradient[j] = expf(x[j] - top) * factor - (j == label ? p.scale : 0.0f);
    }
    if (threadIdx.x == 0) {
        p.sample_loss[blockIdx.x] = logf(sum) + (top - at_label);
        if (p.counts)
            p.counts[blockIdx.x] = {largest == label, 0, 0};
    }
}

// PyTorch's form: (1 - t) x + (1 + (w - 1) t) softplus(-x), with softplus from exp(-|x|).
static __device__ __forceinline__ float bce_term(float x, float t, float pos_weight, float *slope)
{
    float e = expf(-fabsf(x));
    float weight = 1.0f + (pos_weight - 1.0f) * t;
    float larger = 1.0f / (1.0f + e), smaller = e / (1.0f + e);
    float positive = x >= 0.0f ? larger : smaller, negative = x >= 0.0f ? smaller : larger;
    *slope = (1.0f - t) * positive - pos_weight * t * negative;
    return (1.0f - t) * x + weight * (log1pf(e) + (x < 0.0f ? -x : 0.0f));
}

// The sum of a block's counts, in every thread; as dp_block_sum.
static __device__ __forceinline__ int32_t block_count(int32_t value, int32_t *shared)
{
    for (int distance = 16; distance > 0; distance /= 2)
        value += __shfl_xor_sync(0xffffffffu, value, distance);
    if (blockDim.x == 32)
        return value;
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = value;
    __syncthreads();
    int32_t sum = 0;
    for (unsigned warp = 0; warp < blockDim.x / 32; warp++)
        sum += shared[warp];
    return sum;
}

// A block of 32, 256 or 1024 threads for each sample, 256 bytes of shared memory. Reads output and target and
// writes the gradient once: the least possible. Few large samples leave multiprocessors idle; the price of a
// sum that needs no second kernel.
static __global__ void __launch_bounds__(WIDEST) elementwise_loss_kernel(const dp_loss_parameters p)
{
    __shared__ float shared[32];
    __shared__ int32_t shared_count[32]; // of one sum after the other
    const int64_t first = blockIdx.x * p.elements;
    float sum = 0.0f;
    dp_sample_counts counts = {0, 0, 0};
    for (int64_t j = threadIdx.x; j < p.elements; j += blockDim.x) {
        float x = p.output[first + j], t = static_cast<const float *>(p.target)[first + j];
        float d = x - t, slope;
        if (p.rule == DP_RULE_BCE_WITH_LOGITS) {
            sum += bce_term(x, t, p.pos_weight, &slope);
            const bool predicted = x > 0.0f, actual = t > 0.5f;
            counts.correct += predicted && actual;
            counts.predicted += predicted;
            counts.actual += actual;
        } else if (p.rule == DP_RULE_SQUARED) {
            sum += d * d;
            slope = 2.0f * d;
        } else {
            sum += fabsf(d);
            slope = d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d; // 0 stays 0 and NaN stays NaN
        }
        if (p.gradient)
            p.gradient[first + j] = p.scale * slope;
    }
    sum = dp_block_sum(sum, shared);
    if (p.counts) {
        counts.correct = block_count(counts.correct, shared_count);
        __syncthreads();
        counts.predicted = block_count(counts.predicted, shared_count);
        __syncthreads();
        counts.actual = block_count(counts.actual, shared_count);
    }
    if (threadIdx.x == 0) {
        p.sample_loss[blockIdx.x] = sum;
        if (p.counts)
            p.counts[blockIdx.x] = counts;
    }
}

extern "C" cudaError_t dp_loss_launch(cudaStream_t stream, const dp_loss_parameters *parameters)
{
    int threads = parameters->elements <= FEW ? NARROW : parameters->elements <= MANY ? WIDE : WIDEST;
    cudaLaunchConfig_t config = dp_grid(parameters->samples, threads, stream);
    if (parameters->rule == DP_RULE_CROSS_ENTROPY)
        return cudaLaunchKernelEx(&config, cross_entropy_kernel, *parameters);
    return cudaLaunchKernelEx(&config, elementwise_loss_kernel, *parameters);
}
