// The sum of all replicas' gradients, in device order, and the optimizer's step in the same pass.
#include "device.cuh"

enum { THREADS = 256, LANES = 4 };

static __device__ __forceinline__ bool is_finite(float x)
{
    return (__float_as_uint(x) & 0x7f800000u) != 0x7f800000u;
}

// PyTorch's rules. m and v are read and written only where the rule has them.
static __device__ __forceinline__ void step(const dp_update_parameters &p, float g, float *w, float *m,
                                            float *v)
{
    if (p.adamw) {
        *m += p.rest1 * (g - *m);
        *v = p.beta2 * *v + p.rest2 * g * g;
        *w = p.keep * *w - p.step * (*m / (sqrtf(*v) / p.root + p.eps));
        return;
    }
    g += p.weight_decay * *w;
    if (p.moment1) {
        *m = p.momentum * *m + g;
        g = p.nesterov ? g + p.momentum * *m : *m;
    }
    *w -= p.lr * g;
}

// 256 threads a block, no shared memory beyond the vote. Reads each source, and reads and writes weight and
// moments, once: the least possible. Four neighbours at a time, so that reading a peer's memory takes 16-byte
// requests.
static __global__ void __launch_bounds__(THREADS)
    update_kernel(const __grid_constant__ dp_update_parameters p)
{
    bool finite = true;
    const int64_t quads = p.count / LANES;
    for (int64_t i = dp_first_element(); i < quads; i += dp_grid_stride()) {
        float4 g = reinterpret_cast<const float4 *>(p.source[0])[i];
        for (int k = 1; k < p.source_count; k++) {
            float4 more = reinterpret_cast<const float4 *>(p.source[k])[i];
            g.x += more.x;
            g.y += more.y;
            g.z += more.z;
            g.w += more.w;
        }
        finite = finite && is_finite(g.x) && is_finite(g.y) && is_finite(g.z) && is_finite(g.w);
        const float4 zero = {0.0f, 0.0f, 0.0f, 0.0f};
        float4 w = reinterpret_cast<float4 *>(p.weight)[i];
        float4 m = p.moment1 ? reinterpret_cast<float4 *>(p.moment1)[i] : zero;
        float4 v = p.adamw ? reinterpret_cast<float4 *>(p.moment2)[i] : zero;
        step(p, g.x, &w.x, &m.x, &v.x);
        step(p, g.y, &w.y, &m.y, &v.y);
        step(p, g.z, &w.z, &m.z, &v.z);
        step(p, g.w, &w.w, &m.w, &v.w);
        reinterpret_cast<float4 *>(p.weight)[i] = w;
        if (p.moment1)
            reinterpret_cast<float4 *>(p.moment1)[i] = m;
        if (p.adamw)
            reinterpret_cast<float4 *>(p.moment2)[i] = v;
    }
    int64_t i = quads * LANES + dp_first_element(); // up to three are left
    if (i < p.count) {
        float g = p.source[0][i];
        for (int k = 1; k < p.source_count; k++)
            g += p.source[k][i];
        finite = finite && is_finite(g);
        float m = p.moment1 ? p.moment1[i] : 0.0f, v = p.adamw ? p.moment2[i] : 0.0f;
        step(p, g, &p.weight[i], &m, &v);
        if (p.moment1)
            p.moment1[i] = m;
        if (p.adamw)
            p.moment2[i] = v;
    }
    if (__syncthreads_or(!finite) && threadIdx.x == 0)
        atomicAdd(p.nonfinite, 1u);
}

extern "C" cudaError_t dp_update_launch(cudaStream_t stream, const dp_update_parameters *parameters)
{
    int64_t threads = parameters->count / LANES + 1;
    cudaLaunchConfig_t config = dp_grid(dp_blocks_for(threads, THREADS), THREADS, stream);
    return cudaLaunchKernelEx(&config, update_kernel, *parameters);
}
