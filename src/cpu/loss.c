/* The criteria: per-sample sums and the gradient in one pass over the outputs. */
#include <math.h>

#include "cpu/internal.h"

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

/* PyTorch's form: (1 - t) x + (1 + (p - 1) t) softplus(-x), with softplus from exp(-|x|). */
static double bce_with_logits(sample *s)
{
    double sum = 0;
    dp_loss_counts counts = {0};
    for (int64_t j = 0; j < s->elements; j++) {
        float x = s->output[j], t = s->target[j], e = expf(-fabsf(x));
        float weight = 1 + (s->pos_weight - 1) * t;
        bool predicted = x > 0, actual = t > 0.5f;
        counts.correct += predicted && actual;
        counts.predicted += predicted;
        counts.actual += actual;
        sum += (double)((1 - t) * x + weight * (log1pf(e) + (x < 0 ? -x : 0)));
        if (s->gradient) {
            float larger = 1 / (1 + e), smaller = e / (1 + e);
            float positive = x >= 0 ? larger : smaller, negative = x >= 0 ? smaller : larger;
            s->gradient[j] = s->scale * ((1 - t) * positive - s->pos_weight * t * negative);
        }
    }
    s->counts = counts;
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
