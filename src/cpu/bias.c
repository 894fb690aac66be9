#include "cpu/bias.h"

#include <string.h>

#include "cpu/clones.h"
#include "cpu/internal.h"
#include "cpu/layout.h"

enum { CHANNELS = 16 }; /* that are handled together */

typedef struct bias_pass {
    dp_cpu_grouped group;
    int64_t samples, channels;
    int64_t blocks; /* groups of a sample */
    const float *bias;
    bool relu, accumulate;
    const float *gate; /* backward: y, or NULL */
    float *y;          /* backward: dy */
    float *sum;        /* backward: may be NULL */
} bias_pass;

static bias_pass pass_over(const dp_shape *shape, int tag)
{
    bias_pass v = {.group = dp_cpu_group(shape, tag), .samples = shape->dim[0], .channels = shape->dim[1]};
    v.blocks = (v.channels + v.group.inner - 1) / v.group.inner;
    return v;
}

/* ---- forward ---- */

/* `count` channels of one row of pixels. */
DP_INLINE void add_row(float *restrict y, const float *restrict bias, int64_t width, int64_t inner,
                       int64_t count, bool relu)
{
    for (int64_t x = 0; x < width; x++) {
        for (int64_t c = 0; c < count; c++) {
            float s = y[x * inner + c] + bias[c];
            y[x * inner + c] = relu && s <= 0 ? 0 : s;
        }
    }
}

/* The same where they are one behind the other. */
DP_INLINE void add_plain(float *restrict y, float bias, int64_t width, bool relu)
{
    for (int64_t x = 0; x < width; x++) {
        float s = y[x] + bias;
        y[x] = relu && s <= 0 ? 0 : s;
    }
}

/* The bias of the channels from c on; zero beyond the last, so that padding stays zero. */
DP_INLINE void read_bias(const bias_pass *v, int64_t c, float bias[CHANNELS])
{
    for (int64_t k = 0; k < CHANNELS; k++)
        bias[k] = v->bias && c + k < v->channels ? v->bias[c + k] : 0;
}

/* Rows [begin, end) of all groups. */
DP_CLONES static void forward_range(const void *context, int64_t begin, int64_t end)
{
    const bias_pass *v = context;
    int64_t width = v->group.width, inner = v->group.inner;
    float bias[CHANNELS];
    for (int64_t i = begin; i < end; i++) {
        int64_t first = i / v->group.height % v->blocks * inner;
        float *y = v->y + i * width * inner;
        if (inner == 1) {
            add_plain(y, v->bias ? v->bias[first] : 0, width, v->relu);
            continue;
        }
        for (int64_t c = 0; c < inner; c += CHANNELS) {
            read_bias(v, first + c, bias);
            if (inner - c >= CHANNELS)
                add_row(y + c, bias, width, inner, CHANNELS, v->relu);
            else if (inner - c == 8)
                add_row(y + c, bias, width, inner, 8, v->relu);
            else
                add_row(y + c, bias, width, inner, inner - c, v->relu);
        }
    }
}

void dp_cpu_add_bias(int threads, const dp_shape *shape, int tag, const float *bias, bool relu, float *y)
{
    bias_pass v = pass_over(shape, tag);
    v.bias = bias;
    v.relu = relu;
    v.y = y;
    dp_cpu_for(threads, v.group.groups * v.group.height, 16, forward_range, &v);
}

/* ---- backward ---- */

/* `count` channels of one row: masks and adds up. */
DP_INLINE void mask_row(const float *restrict gate, float *restrict dy, int64_t width, int64_t inner,
                        int64_t count, double *restrict total)
{
    float sum[CHANNELS] = {0};
    for (int64_t x = 0; x < width; x++) {
        for (int64_t c = 0; c < count; c++) {
            float d = dy[x * inner + c];
            if (gate) {
                d = gate[x * inner + c] <= 0 ? 0 : d;
                dy[x * inner + c] = d;
            }
            sum[c] += d;
        }
    }
    for (int64_t c = 0; c < count; c++)
        total[c] += (double)sum[c];
}

/* The same for one plain row, in interleaved parts. */
DP_INLINE void mask_plain(const float *restrict gate, float *restrict dy, int64_t width,
                          double *restrict total)
{
    float sum[CHANNELS] = {0};
    int64_t x = 0;
    for (; x + CHANNELS <= width; x += CHANNELS) {
        for (int64_t k = 0; k < CHANNELS; k++) {
            float d = dy[x + k];
            if (gate) {
                d = gate[x + k] <= 0 ? 0 : d;
                dy[x + k] = d;
            }
            sum[k] += d;
        }
    }
    for (int64_t k = 0; x < width; x++, k++) {
        if (gate)
            dy[x] = gate[x] <= 0 ? 0 : dy[x];
        sum[k] += dy[x];
    }
    for (int64_t k = 0; k < CHANNELS; k++)
        *total += (double)sum[k];
}

DP_INLINE void mask_channels(const bias_pass *v, int64_t n, int64_t c, int64_t count, double *total)
{
    int64_t width = v->group.width, inner = v->group.inner;
    int64_t at = (n * v->blocks + c / inner) * v->group.height * width * inner + c % inner;
    for (int64_t row = 0; row < v->group.height; row++, at += width * inner) {
        const float *gate = v->gate ? v->gate + at : NULL;
        if (inner == 1)
            mask_plain(gate, v->y + at, width, total);
        else if (count == CHANNELS)
            mask_row(gate, v->y + at, width, inner, CHANNELS, total);
        else if (count == 8)
            mask_row(gate, v->y + at, width, inner, 8, total);
        else
            mask_row(gate, v->y + at, width, inner, count, total);
    }
}

/* Bundles [begin, end) of channels: up to 16 that lie together, all samples. */
DP_CLONES static void backward_range(const void *context, int64_t begin, int64_t end)
{
    const bias_pass *v = context;
    int64_t inner = v->group.inner, bundles = (inner + CHANNELS - 1) / CHANNELS;
    for (int64_t i = begin; i < end; i++) {
        int64_t c = i / bundles * inner + i % bundles * CHANNELS, left = inner - i % bundles * CHANNELS;
        int64_t count = left < CHANNELS ? left : CHANNELS;
        double total[CHANNELS] = {0};
        for (int64_t n = 0; n < v->samples; n++)
            mask_channels(v, n, c, count, total);
        for (int64_t k = 0; k < count && c + k < v->channels && v->sum; k++)
            v->sum[c + k] = (v->accumulate ? v->sum[c + k] : 0) + (float)total[k];
    }
}

void dp_cpu_bias_gradient(int threads, const dp_shape *shape, int tag, const float *y, float *dy,
                          float *bias_gradient, bool accumulate)
{
    bias_pass v = pass_over(shape, tag);
    v.gate = y;
    v.y = dy;
    v.sum = bias_gradient;
    v.accumulate = accumulate;
    dp_cpu_for(threads, v.blocks * ((v.group.inner + CHANNELS - 1) / CHANNELS), 1, backward_range, &v);
}
