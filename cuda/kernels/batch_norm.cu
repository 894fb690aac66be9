// Batch normalisation of [batch, channels, plane], with an optional second input and an optional ReLU.
//
// The elements of a channel are numbered through its planes and cut into pieces of 16 for each thread; a
// block has one piece. What has to be known of a whole channel comes from its pieces: a first kernel leaves
// two numbers of each, and every warp of the second one puts those of its channel together, always in the
// same order. Pieces depend on the shape alone, so all GPUs get the same bits.
#include "device.cuh"

enum { WIDE = 256, NARROW = 32, FEW = 512, HELD = 16 };

typedef dp_batch_norm_shape shape_t;

static int threads_for(const shape_t *shape)
{
    return shape->batch * shape->plane <= FEW ? NARROW : WIDE;
}

extern "C" int64_t dp_batch_norm_pieces(const dp_batch_norm_shape *shape)
{
    int64_t piece = (int64_t)threads_for(shape) * HELD;
    return (shape->batch * shape->plane + piece - 1) / piece;
}

static cudaLaunchConfig_t grid_for(const shape_t *shape, cudaStream_t stream)
{
    return dp_grid(shape->channels * dp_batch_norm_pieces(shape), threads_for(shape), stream);
}

// ---- pieces

struct Piece {
    unsigned channel, pieces, number; // pieces: of the channel; number: which this block has
    int first, count;                 // elements of the channel
};

static __device__ __forceinline__ int elements_of(const shape_t &s)
{
    return (int)(s.batch * s.plane);
}

static __device__ __forceinline__ Piece own_piece(const shape_t &s)
{
    Piece p;
    const int size = (int)blockDim.x * HELD;
    p.pieces = gridDim.x / (unsigned)s.channels;
    p.channel = blockIdx.x / p.pieces;
    p.number = blockIdx.x % p.pieces;
    p.first = (int)p.number * size;
    p.count = min(size, elements_of(s) - p.first);
    return p;
}

// Calls visit(k, place in memory) for each of a thread's elements of its piece; k < HELD numbers them.
template <typename Visit>
static __device__ __forceinline__ void for_each_own(const shape_t &s, const Piece &p, Visit visit)
{
    // Image and place in its plane are carried along instead of divided out for each element.
    const int plane = (int)s.plane, threads = (int)blockDim.x;
    const int image_step = threads / plane, within_step = threads % plane;
    int element = (int)threadIdx.x;
    int image = (p.first + element) / plane, within = (p.first + element) % plane;
#pragma unroll
    for (int k = 0; k < HELD; k++) {
        if (element < p.count)
            visit(k, ((int64_t)image * s.channels + p.channel) * plane + within);
        element += threads;
        image += image_step;
        within += within_step;
        if (within >= plane) {
            within -= plane;
            image++;
        }
    }
}

// ---- forward

struct Moments {
    float mean, squares; // squares: the sum of squared differences from the mean
};

// A block of 32 or 256 threads for each piece, 256 bytes of shared memory; its elements wait in registers for
// their mean. Reads x once, the least possible, and writes 8 bytes for each piece.
static __global__ void __launch_bounds__(WIDE)
    moments_kernel(const shape_t s, const float *x, Moments *partial)
{
    __shared__ float shared[2][32];
    const Piece p = own_piece(s);
    float held[HELD] = {}, sum = 0.0f, squares = 0.0f;
    for_each_own(s, p, [&](int k, int64_t place) {
        held[k] = x[place];
        sum += held[k];
    });
    const float mean = dp_block_sum(sum, shared[0]) / (float)p.count;
    for_each_own(s, p, [&](int k, int64_t) {
        float difference = held[k] - mean;
        squares += difference * difference;
    });
    squares = dp_block_sum(squares, shared[1]);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = {mean, squares};
}

// The moments of a channel from those of its pieces (Chan, Golub, LeVeque: "Updating formulae and a pairwise
// algorithm for computing sample variances", 1979), in every lane of a warp.
static __device__ __forceinline__ Moments moments_of_channel(const shape_t &s, const Piece &p,
                                                             const Moments *partial)
{
    partial += (int64_t)p.channel * p.pieces;
    if (p.pieces == 1)
        return partial[0];
    const int size = (int)blockDim.x * HELD, all = elements_of(s);
    float sum = 0.0f, squares = 0.0f;
    for (int k = (int)threadIdx.x % 32; k < (int)p.pieces; k += 32)
        sum += partial[k].mean * (float)min(size, all - k * size);
    const float mean = dp_warp_sum(sum) / (float)all;
    for (int k = (int)threadIdx.x % 32; k < (int)p.pieces; k += 32) {
        float difference = partial[k].mean - mean;
        squares += partial[k].squares + difference * difference * (float)min(size, all - k * size);
    }
    return {mean, dp_warp_sum(squares)};
}

// What the first thread of a channel's first piece leaves for backward and for inference.
static __device__ __forceinline__ void keep(const shape_t &s, unsigned channel, Moments m, float inverse,
                                            float *saved, float *running_mean, float *running_variance)
{
    if (saved) {
        saved[2 * channel] = m.mean;
        saved[2 * channel + 1] = inverse;
    }
    if (running_mean) {
        float unbiased = m.squares / (float)max(elements_of(s) - 1, 1);
        running_mean[channel] = s.rest * running_mean[channel] + s.momentum * m.mean;
        running_variance[channel] = s.rest * running_variance[channel] + s.momentum * unbiased;
    }
}

// The output before a second input and ReLU. Backward asks again, and must get the same bits.
static __device__ __forceinline__ float normalised(float difference, float scale, float shift)
{
    return __fmaf_rn(difference, scale, shift);
}

static __device__ __forceinline__ float scale_of(const float *weight, unsigned channel, float inverse)
{
    return weight ? __fmul_rn(weight[channel], inverse) : inverse;
}

// A block of 32 or 256 threads for each piece, no shared memory. Reads x, and `more` where there is one, and
// writes y once; with the read for the moments that is one more than the least possible, which only a channel
// that fits into one block could reach. partial is NULL in inference.
static __global__ void __launch_bounds__(WIDE)
    forward_kernel(const shape_t s, const float *x, const float *more, const Moments *partial,
                   const float *weight, const float *bias, float *y, float *saved, float *running_mean,
                   float *running_variance)
{
    const Piece p = own_piece(s);
    Moments m = {};
    if (partial)
        m = moments_of_channel(s, p, partial);
    const float mean = partial ? m.mean : running_mean[p.channel];
    const float variance = partial ? m.squares / (float)elements_of(s) : running_variance[p.channel];
    const float inverse = 1.0f / sqrtf(variance + s.epsilon);
    const float scale = scale_of(weight, p.channel, inverse), shift = bias ? bias[p.channel] : 0.0f;
    for_each_own(s, p, [&](int, int64_t place) {
        float value = normalised(x[place] - mean, scale, shift);
        if (more)
            value += more[place];
        y[place] = s.relu ? dp_relu(value) : value;
    });
    if (partial && p.number == 0 && threadIdx.x == 0)
        keep(s, p.channel, m, inverse, saved, running_mean, running_variance);
}

extern "C" cudaError_t dp_batch_norm_train(cudaStream_t stream, const dp_batch_norm_shape *shape,
                                           const float *x, const float *more, const float *weight,
                                           const float *bias, float *y, float *partial, float *saved,
                                           float *running_mean, float *running_variance)
{
    cudaLaunchConfig_t config = grid_for(shape, stream);
    Moments *moments = reinterpret_cast<Moments *>(partial);
    cudaError_t code = cudaLaunchKernelEx(&config, moments_kernel, *shape, x, moments);
    if (code != cudaSuccess)
        return code;
    return cudaLaunchKernelEx(&config, forward_kernel, *shape, x, more, (const Moments *)moments, weight,
                              bias, y, saved, running_mean, running_variance);
}

extern "C" cudaError_t dp_batch_norm_infer(cudaStream_t stream, const dp_batch_norm_shape *shape,
                                           const float *x, const float *more, const float *weight,
                                           const float *bias, float *y, const float *running_mean,
                                           const float *running_variance)
{
    cudaLaunchConfig_t config = grid_for(shape, stream);
    return cudaLaunchKernelEx(&config, forward_kernel, *shape, x, more, (const Moments *)nullptr, weight,
                              bias, y, (float *)nullptr, const_cast<float *>(running_mean),
                              const_cast<float *>(running_variance));
}

// ---- backward: with d = x - mean, r = 1 / sqrt(variance + epsilon) and n elements of a channel
//     dweight = r sum(dy d),  dbias = sum(dy),  dx = weight r (dy - sum(dy) / n - d r^2 sum(dy d) / n)

struct Sums {
    float gradient, product; // of dy, and of dy and d
};

// What a channel's blocks know before they begin.
struct Channel {
    float mean, inverse, scale, shift;
};

static __device__ __forceinline__ Channel channel_of(const float *saved, const float *weight,
                                                     const float *bias, unsigned channel)
{
    Channel c;
    c.mean = saved[2 * channel];
    c.inverse = saved[2 * channel + 1];
    c.scale = scale_of(weight, channel, c.inverse);
    c.shift = bias ? bias[channel] : 0.0f;
    return c;
}

// dy behind the ReLU. Without a second input the output's sign is computed again, which is cheaper than
// reading it; with one, the first kernel has masked dy in place.
static __device__ __forceinline__ float behind_relu(const shape_t &s, const Channel &c, bool masked,
                                                    float difference, float gradient)
{
    if (!s.relu || masked)
        return gradient;
    return normalised(difference, c.scale, c.shift) <= 0.0f ? 0.0f : gradient;
}

// A block of 32 or 256 threads for each piece, 256 bytes of shared memory. Reads x and dy once; with a gate
// (the output of an addition behind a ReLU) also reads that and writes dy, which becomes the gradient of the
// second input: the least possible.
static __global__ void __launch_bounds__(WIDE)
    sums_kernel(const shape_t s, const float *x, const float *gate, const float *saved, const float *weight,
                const float *bias, float *dy, Sums *partial)
{
    __shared__ float shared[2][32];
    const Piece p = own_piece(s);
    const Channel c = channel_of(saved, weight, bias, p.channel);
    Sums sums = {0.0f, 0.0f};
    for_each_own(s, p, [&](int, int64_t place) {
        float difference = x[place] - c.mean, gradient = dy[place];
        if (gate) {
            gradient = gate[place] <= 0.0f ? 0.0f : gradient;
            dy[place] = gradient;
        }
        gradient = behind_relu(s, c, gate != nullptr, difference, gradient);
        sums.gradient += gradient;
        sums.product += gradient * difference;
    });
    sums.gradient = dp_block_sum(sums.gradient, shared[0]);
    sums.product = dp_block_sum(sums.product, shared[1]);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sums;
}

static __device__ __forceinline__ Sums sums_of_channel(const Piece &p, const Sums *partial)
{
    partial += (int64_t)p.channel * p.pieces;
    if (p.pieces == 1)
        return partial[0];
    Sums all = {0.0f, 0.0f};
    for (int k = (int)threadIdx.x % 32; k < (int)p.pieces; k += 32) {
        all.gradient += partial[k].gradient;
        all.product += partial[k].product;
    }
    return {dp_warp_sum(all.gradient), dp_warp_sum(all.product)};
}

// A block of 32 or 256 threads for each piece, no shared memory. Reads x and dy and writes dx once; with the
// reads for the sums that is two more than the least possible, as in the forward direction. dx, dweight and
// dbias may be NULL.
static __global__ void __launch_bounds__(WIDE)
    backward_kernel(const shape_t s, const float *x, bool masked, const float *saved, const float *weight,
                    const float *bias, const float *dy, const Sums *partial, float *dx, bool accumulate,
                    float *dweight, float *dbias)
{
    const Piece p = own_piece(s);
    const Channel c = channel_of(saved, weight, bias, p.channel);
    const Sums sums = sums_of_channel(p, partial);
    if (dx) {
        const float all = (float)elements_of(s);
        const float offset = sums.gradient / all;
        const float slope = sums.product / all * c.inverse * c.inverse;
        for_each_own(s, p, [&](int, int64_t place) {
            float difference = x[place] - c.mean;
            float gradient = behind_relu(s, c, masked, difference, dy[place]);
            dx[place] = c.scale * (gradient - offset - difference * slope);
        });
    }
    if (p.number != 0 || threadIdx.x != 0)
        return;
    if (dweight)
        dweight[p.channel] = (accumulate ? dweight[p.channel] : 0.0f) + sums.product * c.inverse;
    if (dbias)
        dbias[p.channel] = (accumulate ? dbias[p.channel] : 0.0f) + sums.gradient;
}

extern "C" cudaError_t dp_batch_norm_backward(cudaStream_t stream, const dp_batch_norm_shape *shape,
                                              const float *x, const float *gate, const float *saved,
                                              const float *weight, const float *bias, float *dy,
                                              float *partial, float *dx, bool accumulate, float *dweight,
                                              float *dbias)
{
    cudaLaunchConfig_t config = grid_for(shape, stream);
    Sums *sums = reinterpret_cast<Sums *>(partial);
    cudaError_t code =
        cudaLaunchKernelEx(&config, sums_kernel, *shape, x, gate, saved, weight, bias, dy, sums);
    if (code != cudaSuccess)
        return code;
    return cudaLaunchKernelEx(&config, backward_kernel, *shape, x, gate != nullptr, saved, weight, bias,
                              (const float *)dy, (const Sums *)sums, dx, accumulate, dweight, dbias);
}
