/* Weight gradient for few input channels: dW[o, c, i, j] = sum over samples and positions of
 * x[c, row * stride + i, column * stride + j] * dy[o, row, column].
 *
 * Matrix products and the library's kernels work along input channels, of which there are too few here. This
 * works along output channels instead: 8 of them are a vector, and the sums of one kernel row (all j) of one
 * or two vectors stay in registers while a whole image passes by. Then each output gradient is loaded once
 * for KW products, and an image's share of it, read again for every kernel row, stays in the second cache. */
#include "cpu/thin_conv.h"

#include <string.h>

#include "cpu/clones.h"
#include "cpu/internal.h"

enum { MAX_CHANNELS = 4, MAX_WIDTH = 5, LANES = 8, UNIT = 2 * LANES };

/* May alias float arrays, at any float's address. */
typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));

typedef struct thin_pass {
    const dp_conv_shape *shape;
    int block;
    const float *x; /* with its padding */
    const float *y;
    float *dy, *weights, *bias, *padded, *sums;
    const float *source;
    bool accumulate;
} thin_pass;

bool dp_thin_conv_fits(const dp_conv_shape *s, int block)
{
    return s->in_channels <= MAX_CHANNELS && s->kernel[1] <= MAX_WIDTH && (block == 8 || block == 16);
}

static int64_t padded_height(const dp_conv_shape *s)
{
    return s->in_height + 2 * s->padding[0];
}

static int64_t padded_width(const dp_conv_shape *s)
{
    return s->in_width + 2 * s->padding[1];
}

static bool has_padding(const dp_conv_shape *s)
{
    return s->padding[0] || s->padding[1];
}

/* Vectors of output channels, and the floats of the sums of one of them: all taps, then the bias. */
static int64_t vectors(const dp_conv_shape *s, int block)
{
    return (s->out_channels + block - 1) / block * block / LANES;
}

static int64_t sums_of_vector(const dp_conv_shape *s)
{
    return (s->in_channels * s->kernel[0] * s->kernel[1] + 1) * LANES;
}

static size_t padded_bytes(const dp_conv_shape *s)
{
    if (!has_padding(s))
        return 0;
    return dp_align64((size_t)(s->batch * s->in_channels * padded_height(s) * padded_width(s)) *
                      sizeof(float));
}

size_t dp_thin_conv_workspace(const dp_conv_shape *s, int block)
{
    return padded_bytes(s) + (size_t)(vectors(s, block) * sums_of_vector(s)) * sizeof(float);
}

static void pad_range(const void *context, int64_t begin, int64_t end)
{
    const thin_pass *v = context;
    const dp_conv_shape *s = v->shape;
    int64_t height = padded_height(s), width = padded_width(s);
    for (int64_t image = begin; image < end; image++) {
        float *to = v->padded + image * height * width;
        const float *from = v->source + image * s->in_height * s->in_width;
        memset(to, 0, (size_t)(height * width) * sizeof(float));
        for (int64_t row = 0; row < s->in_height; row++)
            memcpy(to + (row + s->padding[0]) * width + s->padding[1], from + row * s->in_width,
                   (size_t)s->in_width * sizeof(float));
    }
}

/* Adds one kernel row's products over one image to sums[KW][8] of one vector, or of two (the second's sums
 * lie `sums_step` on, its gradients `dy_step`). pixel: floats from one pixel of dy to the next. */
DP_INLINE void kernel_row(const float *x, int64_t x_row, int64_t stride, const float *dy, int64_t dy_step,
                          int64_t pixel, int64_t rows, int64_t columns, float *sums, int64_t sums_step,
                          const int width, const bool two)
{
    lanes a[MAX_WIDTH], b[MAX_WIDTH];
    for (int j = 0; j < width; j++) {
        a[j] = *(const lanes *)(sums + j * LANES);
        if (two)
            b[j] = *(const lanes *)(sums + sums_step + j * LANES);
    }
    for (int64_t row = 0; row < rows; row++) {
        const float *xp = x + row * x_row;
        for (int64_t column = 0; column < columns; column++) {
            lanes g = *(const lanes *)dy, h = two ? *(const lanes *)(dy + dy_step) : g;
            for (int j = 0; j < width; j++) {
                a[j] += xp[j] * g;
                if (two)
                    b[j] += xp[j] * h;
            }
            xp += stride;
            dy += pixel;
        }
    }
    for (int j = 0; j < width; j++) {
        *(lanes *)(sums + j * LANES) = a[j];
        if (two)
            *(lanes *)(sums + sums_step + j * LANES) = b[j];
    }
}

/* All taps of one kernel width. Two vectors at once: the sums of 5 taps, two gradients and an input are 13
 * vectors, as many as AVX2's registers allow. Wider kernels would spill, and the library is as fast there. */
DP_INLINE void all_taps(const dp_conv_shape *s, const float *x, const float *dy, int64_t dy_step,
                        int64_t pixel, float *sums, bool two, const int width)
{
    int64_t x_width = padded_width(s), plane = padded_height(s) * x_width, step = sums_of_vector(s);
    for (int64_t c = 0; c < s->in_channels; c++) {
        for (int i = 0; i < s->kernel[0]; i++) {
            const float *xp = x + c * plane + i * x_width;
            int64_t x_row = s->stride[0] * x_width;
            if (two)
                kernel_row(xp, x_row, s->stride[1], dy, dy_step, pixel, s->out_height, s->out_width, sums,
                           step, width, true);
            else
                kernel_row(xp, x_row, s->stride[1], dy, 0, pixel, s->out_height, s->out_width, sums, 0, width,
                           false);
            sums += width * LANES;
        }
    }
}

/* Four partial sums, so that one addition need not wait for the last. */
DP_INLINE void sum_pixels(const float *dy, int64_t pixel, int64_t pixels, float *sum)
{
    lanes part[4] = {{0}, {0}, {0}, {0}};
    int64_t i = 0;
    for (; i + 4 <= pixels; i += 4)
        for (int k = 0; k < 4; k++)
            part[k] += *(const lanes *)(dy + (i + k) * pixel);
    for (; i < pixels; i++)
        part[0] += *(const lanes *)(dy + i * pixel);
    *(lanes *)sum += (part[0] + part[1]) + (part[2] + part[3]);
}

DP_INLINE void mask(int64_t count, const float *restrict y, float *restrict dy)
{
    for (int64_t i = 0; i < count; i++)
        dy[i] = y[i] <= 0 ? 0 : dy[i];
}

/* The sums of one vector into the plain gradients. */
static void write_out(const thin_pass *v, int64_t vector)
{
    const dp_conv_shape *s = v->shape;
    int64_t taps = s->in_channels * s->kernel[0] * s->kernel[1];
    const float *sums = v->sums + vector * sums_of_vector(s);
    for (int64_t k = 0; k < LANES && vector * LANES + k < s->out_channels; k++) {
        int64_t o = vector * LANES + k;
        for (int64_t t = 0; t < taps && v->weights; t++)
            v->weights[o * taps + t] = (v->accumulate ? v->weights[o * taps + t] : 0) + sums[t * LANES + k];
        if (v->bias)
            v->bias[o] = (v->accumulate ? v->bias[o] : 0) + sums[taps * LANES + k];
    }
}

/* Units are pairs of vectors; a thread takes its units through the whole batch. */
DP_CLONES static void unit_range(const void *context, int64_t begin, int64_t end)
{
    const thin_pass *v = context;
    const dp_conv_shape *s = v->shape;
    int64_t all = vectors(s, v->block), pixels = s->out_height * s->out_width, step = sums_of_vector(s);
    int64_t image_in = s->in_channels * padded_height(s) * padded_width(s);
    int64_t dy_step = v->block == 16 ? LANES : pixels * LANES, pixel = v->block;
    memset(v->sums + begin * 2 * step, 0,
           (size_t)(((2 * end < all ? 2 * end : all) - 2 * begin) * step) * sizeof(float));
    for (int64_t n = 0; n < s->batch; n++) {
        for (int64_t unit = begin; unit < end; unit++) {
            bool two = 2 * unit + 1 < all;
            int64_t at = n * all * pixels * LANES + unit * pixels * UNIT;
            float *dy = v->dy + at, *sums = v->sums + 2 * unit * step;
            const float *x = v->x + n * image_in;
            if (v->y)
                mask(pixels * (two ? UNIT : LANES), v->y + at, dy);
            sum_pixels(dy, pixel, pixels, sums + step - LANES);
            if (two)
                sum_pixels(dy + dy_step, pixel, pixels, sums + 2 * step - LANES);
            switch (s->kernel[1]) {
            case 1:
                all_taps(s, x, dy, dy_step, pixel, sums, two, 1);
                break;
            case 2:
                all_taps(s, x, dy, dy_step, pixel, sums, two, 2);
                break;
            case 3:
                all_taps(s, x, dy, dy_step, pixel, sums, two, 3);
                break;
            case 4:
                all_taps(s, x, dy, dy_step, pixel, sums, two, 4);
                break;
            default:
                all_taps(s, x, dy, dy_step, pixel, sums, two, MAX_WIDTH);
            }
        }
    }
    for (int64_t vector = 2 * begin; vector < 2 * end && vector < all; vector++)
        write_out(v, vector);
}

void dp_thin_conv_gradient(int threads, const dp_conv_shape *shape, int block, const float *x, const float *y,
                           float *out_gradient, float *weights_gradient, float *bias_gradient,
                           bool accumulate, void *workspace)
{
    thin_pass v = {.shape = shape,
                   .block = block,
                   .x = x,
                   .source = x,
                   .y = y,
                   .dy = out_gradient,
                   .weights = weights_gradient,
                   .bias = bias_gradient,
                   .padded = workspace,
                   .sums = (float *)((char *)workspace + padded_bytes(shape)),
                   .accumulate = accumulate};
    if (has_padding(shape)) {
        dp_cpu_for(threads, shape->batch * shape->in_channels, 8, pad_range, &v);
        v.x = v.padded;
    }
    dp_cpu_for(threads, (vectors(shape, block) + 1) / 2, 1, unit_range, &v);
}
