/* The sum of all replicas' gradients and the optimizer's step, in one pass over memory.
 *
 * The work goes in chunks: the sum of a chunk, which stays in the first cache, the check for values that are
 * not finite, the step. Small ones, so that the processor sees all tensors as streams and fetches ahead in
 * each. One source needs no sum and is used where it lies. */
#include <math.h>
#include <string.h>

#include "cpu/clones.h"
#include "cpu/internal.h"

#if !defined(__clang__)
#pragma GCC optimize("no-math-errno") /* nobody reads sqrtf's errno; without it the loop is no vector code \
                                       */
#endif

enum { CHUNK = 128, SMALLEST_SHARE = 16384 };

/* out = sources[0] + sources[1] + ... over count floats from `at`, in that order. */
DP_INLINE void sum_sources(const dp_update_args *a, int64_t at, int64_t count, float *restrict out)
{
    const float *const *s = a->sources;
    const float *restrict p = s[0] + at, *restrict q = s[1] + at;
    int done = 2;
    if (a->source_count == 2) {
        for (int64_t i = 0; i < count; i++)
            out[i] = p[i] + q[i];
    } else if (a->source_count == 3) {
        const float *restrict r = s[2] + at;
        for (int64_t i = 0; i < count; i++)
            out[i] = p[i] + q[i] + r[i];
        done = 3;
    } else {
        const float *restrict r = s[2] + at, *restrict t = s[3] + at;
        for (int64_t i = 0; i < count; i++)
            out[i] = p[i] + q[i] + r[i] + t[i];
        done = 4;
    }
    for (; done < a->source_count; done++) {
        const float *restrict more = s[done] + at;
        for (int64_t i = 0; i < count; i++)
            out[i] += more[i];
    }
}

/* Infinities and NaN are the values whose exponent bits are all set. */
DP_INLINE bool any_nonfinite(const float *g, int64_t count)
{
    uint32_t found = 0;
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, g + i, sizeof bits);
        found |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return found != 0;
}

DP_INLINE void sgd_step(const dp_update_args *a, int64_t at, int64_t count, const float *restrict gradient)
{
    float *restrict w = a->weight + at;
    float lr = a->lr, decay = a->weight_decay, momentum = a->momentum;
    if (!a->moment1) {
        for (int64_t i = 0; i < count; i++)
            w[i] -= lr * (gradient[i] + decay * w[i]);
        return;
    }
    float *restrict m = a->moment1 + at;
    if (a->nesterov) {
        for (int64_t i = 0; i < count; i++) {
            float g = gradient[i] + decay * w[i];
            m[i] = momentum * m[i] + g;
            w[i] -= lr * (g + momentum * m[i]);
        }
    } else {
        for (int64_t i = 0; i < count; i++) {
            m[i] = momentum * m[i] + (gradient[i] + decay * w[i]);
            w[i] -= lr * m[i];
        }
    }
}

DP_INLINE void adamw_step(const dp_update_args *a, int64_t at, int64_t count, const float *restrict gradient)
{
    float *restrict w = a->weight + at, *restrict m = a->moment1 + at, *restrict v = a->moment2 + at;
    float keep = (float)(1 - (double)a->lr * (double)a->weight_decay);
    float rest1 = (float)(1 - (double)a->beta1), rest2 = (float)(1 - (double)a->beta2), beta2 = a->beta2;
    float step = (float)((double)a->lr / (double)a->bias1), root = (float)sqrt((double)a->bias2),
          eps = a->eps;
    for (int64_t i = 0; i < count; i++) {
        float g = gradient[i];
        m[i] += rest1 * (g - m[i]);
        v[i] = beta2 * v[i] + rest2 * g * g;
        w[i] = keep * w[i] - step * (m[i] / (sqrtf(v[i]) / root + eps));
    }
}

/* To the other replicas. Nobody reads them before the next forward pass, and lines that are not read first
 * need not be fetched to be overwritten. */
DP_INLINE void write_copies(const dp_update_args *a, int64_t at, int64_t count)
{
    for (int k = 0; k < a->copy_count; k++)
        dp_cpu_stream(a->copies[k] + at, a->weight + at, (size_t)count * sizeof(float));
}

DP_CLONES static void update_range(const void *context, int64_t begin, int64_t end)
{
    const dp_update_args *a = context;
    float sum[CHUNK] __attribute__((aligned(64)));
    bool nonfinite = false;
    for (int64_t at = begin; at < end; at += CHUNK) {
        int64_t count = end - at < CHUNK ? end - at : CHUNK;
        const float *gradient = a->sources[0] + at;
        if (a->source_count > 1) {
            sum_sources(a, at, count, sum);
            gradient = sum;
        }
        nonfinite |= any_nonfinite(gradient, count);
        if (a->kind == DP_SGD)
            sgd_step(a, at, count, gradient);
        else
            adamw_step(a, at, count, gradient);
        write_copies(a, at, count);
    }
    if (a->copy_count)
        dp_cpu_stream_end();
    if (nonfinite)
        __atomic_fetch_add(a->nonfinite, 1, __ATOMIC_RELAXED);
}

void dp_cpu_update(int threads, const dp_update_args *args)
{
    dp_cpu_for(threads, args->count, SMALLEST_SHARE, update_range, args);
}
