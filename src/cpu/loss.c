/* The criteria: per-sample sums and the gradient in one pass over the outputs. */
#include <math.h>
#include <string.h>

#include "cpu/clones.h"
#include "cpu/internal.h"

#if !defined(__clang__)
/* Fused multiply-adds, which -std=c17 switches off; and nobody asks which comparison met a NaN: without that
 * a loop with choices is no vector code. */
#pragma GCC optimize("fp-contract=fast", "no-trapping-math")
#endif

enum { SMALLEST_SHARE = 4096 }; /* elements for which another thread pays */

typedef struct sample {
    int64_t elements;
    const float *output;
    const float *target;
    float *gradient; /* may be output; may be NULL */
    float pos_weight, scale;
    dp_loss_counts counts;
} sample;

/* Returns -log softmax(output)[label]; exp is taken of differences to the maximum, so it cannot overflow. */
static double cross_entropy(sample *s, int32_t label)
{
    const float *x = s->output;
    int64_t largest = 0;
    for (int64_t j = 1; j < s->elements; j++)
        if (x[j] > x[largest])
            largest = j;
    s->counts.correct = largest == label;
    float top = x[largest], at_label = x[label];
    double sum = 0;
    for (int64_t j = 0; j < s->elements; j++) {
        float e = expf(x[j] - top);
        sum += (double)e;
        if (s->gradient)
            s->gradient[j] = e;
    }
    if (s->gradient) {
        float factor = (float)((double)s->scale / sum);
        for (int64_t j = 0; j < s->elements; j++)
            s->gradient[j] *= factor;
        s->gradient[label] -= s->scale;
    }
    return log(sum) + ((double)top - (double)at_label);
}

/* exp(-a) for a from 0 on, within 2 units in the last place; 0 beyond 87, where it is below 1e-37. A NaN
 * stays one. -a is n ln 2 + r: n is rounded by an addition after which no bits are left behind the point, ln
 * 2 has two parts so that r is exact, and a power series makes exp(r) (Cody and Waite, "Software Manual for
 * the Elementary Functions", 1980). In this form compilers make vector code of a loop over it. */
DP_INLINE float exp_of_minus(float a)
{
    const float magic = 0x1.8p23f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    float shifted = magic - a * 0x1.715476p0f, n = shifted - magic;
    float r = (-a - n * ln2_high) - n * ln2_low;
    float series = 1.0f / 5040;
    series = series * r + 1.0f / 720;
    series = series * r + 1.0f / 120;
    series = series * r + 1.0f / 24;
    series = series * r + 1.0f / 6;
    series = series * r + 0.5f;
    series = series * r * r + r + 1;
    uint32_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits - 0x4b400000u + 127) << 23; /* 2^n */
    float power;
    memcpy(&power, &bits, sizeof power);
    return a > 87 ? 0 : series * power;
}

/* log(1 + e) for e in [0, 1], as twice the area hyperbolic tangent of e / (2 + e). */
DP_INLINE float log_of_one_plus(float e)
{
    float s = e / (2 + e), square = s * s, series = 1.0f / 15;
    for (int k = 13; k >= 3; k -= 2)
        series = series * square + 1.0f / (float)k;
    return 2 * s * (series * square + 1);
}

enum { CHUNK = 64 };

/* PyTorch's form: (1 - t) x + (1 + (p - 1) t) softplus(-x), with softplus from exp(-|x|). */
DP_INLINE void bce_of(const sample *s, const float *output, const float *target, int count, float *loss,
                      float *gradient)
{
    for (int i = 0; i < count; i++) {
        float x = output[i], t = target[i], e = exp_of_minus(fabsf(x));
        float weight = 1 + (s->pos_weight - 1) * t;
        loss[i] = (1 - t) * x + weight * (log_of_one_plus(e) + (x < 0 ? -x : 0));
        float larger = 1 / (1 + e), smaller = e * larger; /* sigmoid(|x|) and sigmoid(-|x|) */
        float positive = x >= 0 ? larger : smaller, negative = x >= 0 ? smaller : larger;
        gradient[i] = s->scale * ((1 - t) * positive - s->pos_weight * t * negative);
    }
}

DP_INLINE void count_overlap(const float *output, const float *target, int count, dp_loss_counts *counts)
{
    int correct = 0, predicted = 0, actual = 0;
    for (int i = 0; i < count; i++) {
        bool is_predicted = output[i] > 0, is_actual = target[i] > 0.5f;
        correct += is_predicted & is_actual;
        predicted += is_predicted;
        actual += is_actual;
    }
    counts->correct += correct;
    counts->predicted += predicted;
    counts->actual += actual;
}

DP_CLONES static double bce_with_logits(sample *s)
{
    double sum = 0;
    float loss[CHUNK], gradient[CHUNK]; /* s->gradient may be s->output */
    for (int64_t j = 0; j < s->elements; j += CHUNK) {
        int count = (int)(s->elements - j < CHUNK ? s->elements - j : CHUNK);
        bce_of(s, s->output + j, s->target + j, count, loss, gradient);
        count_overlap(s->output + j, s->target + j, count, &s->counts);
        for (int i = 0; i < count; i++)
            sum += (double)loss[i];
        if (s->gradient)
            memcpy(s->gradient + j, gradient, (size_t)count * sizeof *gradient);
    }
    return sum;
}

static double squared_error(const sample *s)
{
    double sum = 0;
    for (int64_t j = 0; j < s->elements; j++) {
        float d = s->output[j] - s->target[j];
        sum += (double)d * (double)d;
        if (s->gradient)
            s->gradient[j] = s->scale * 2 * d;
    }
    return sum;
}

static double absolute_error(const sample *s)
{
    double sum = 0;
    for (int64_t j = 0; j < s->elements; j++) {
        float d = s->output[j] - s->target[j];
        sum += (double)fabsf(d);
        if (s->gradient)
            s->gradient[j] = d > 0 ? s->scale : d < 0 ? -s->scale : s->scale * d; /* NaN stays, 0 stays 0 */
    }
    return sum;
}

static void loss_range(const void *context, int64_t begin, int64_t end)
{
    const dp_loss_args *a = context;
    for (int64_t i = begin; i < end; i++) {
        sample s = {.elements = a->elements,
                    .output = a->output + i * a->elements,
                    .gradient = a->gradient ? a->gradient + i * a->elements : NULL,
                    .pos_weight = a->pos_weight,
                    .scale = a->scale};
        double sum;
        if (a->criterion == DP_CROSS_ENTROPY) {
            sum = cross_entropy(&s, ((const int32_t *)a->target)[i]);
        } else {
            s.target = (const float *)a->target + i * a->elements;
            sum = a->criterion == DP_BCE_WITH_LOGITS ? bce_with_logits(&s)
                  : a->criterion == DP_MSE           ? squared_error(&s)
                                                     : absolute_error(&s);
        }
        a->sample_loss[i] = (float)sum;
        if (a->counts)
            a->counts[i] = s.counts;
    }
}

dp_status dp_cpu_loss(int threads, const dp_loss_args *args, dp_error *err)
{
    if (args->criterion == DP_CROSS_ENTROPY) {
        const int32_t *label = args->target;
        for (int64_t i = 0; i < args->samples; i++)
            if (label[i] < 0 || label[i] >= args->elements)
                return dp_fail(err, DP_ERROR_MISMATCH,
                               "label %d (sample %lld of the batch) is not in 0..%lld", (int)label[i],
                               (long long)i, (long long)args->elements - 1);
    }
    int64_t grain = args->elements ? SMALLEST_SHARE / args->elements : args->samples;
    dp_cpu_for(threads, args->samples, grain > 0 ? grain : 1, loss_range, args);
    return DP_OK;
}
