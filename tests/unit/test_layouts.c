/* Operations in every pair of the CPU backend's layouts, also those that no convolution chooses on this
 * machine: the results are those of the plain order, which the operation table compares with float64. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "cpu/announce.h"
#include "cpu/bias.h"
#include "cpu/cpu.h"
#include "cpu/layout.h"
#include "cpu/onednn.h"
#include "cpu/winograd.h"

enum { TENSORS = 8, KERNEL = 4 };

/* Everything one operation reads and writes; gradients in the plain order again when it is done. */
typedef struct results {
    float *out, *gradient[2], *param_gradient[2], *buffer[2];
} results;

static void *room(size_t bytes)
{
    dp_error err = {0};
    void *p;
    ck_assert_msg(dp_aligned_alloc(bytes ? bytes : 64, "a test", &p, &err) == DP_OK, "%s", err.message);
    memset(p, 0xff, bytes ? bytes : 64); /* NaN */
    return p;
}

static float *values(int64_t count, int seed, float offset)
{
    float *x = room((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)((i * 7919 + seed * 104729) % 2003) / 1001.5f - 1 + offset;
    return x;
}

static float *in_layout(const dp_shape *shape, int tag, const float *plain)
{
    float *x = room(dp_cpu_layout(shape, tag).bytes);
    dp_cpu_from_plain(1, shape, tag, plain, x);
    return x;
}

static float *in_plain(const dp_shape *shape, int tag, const float *x)
{
    float *plain = room(dp_cpu_layout(shape, DP_CPU_PLAIN).bytes);
    dp_cpu_to_plain(1, shape, tag, x, plain);
    return plain;
}

static void free_results(results *r)
{
    dp_free(r->out);
    for (int i = 0; i < 2; i++) {
        dp_free(r->gradient[i]);
        dp_free(r->param_gradient[i]);
        dp_free(r->buffer[i]);
    }
}

/* Values that only fill a block are zero: the next operation relies on it. */
static void check_padding(const dp_shape *shape, int tag, const float *x)
{
    int block = dp_cpu_block(tag), nonzero = 0;
    int64_t blocks = (shape->dim[1] + block - 1) / block, pixels = shape->dim[2] * shape->dim[3];
    for (int64_t n = 0; n < shape->dim[0] && block > 1; n++)
        for (int64_t p = 0; p < pixels; p++)
            for (int64_t c = shape->dim[1]; c < blocks * block; c++)
                nonzero += x[((n * blocks + c / block) * pixels + p) * block + c % block] != 0;
    ck_assert_int_eq(nonzero, 0);
}

static int64_t parameters_of(const dp_op_desc *desc, int which)
{
    bool weights = desc->kind == DP_OP_CONV_TRANSPOSE2D && which == 0;
    return desc->out.dim[1] * (weights ? desc->in[0].dim[1] * KERNEL * KERNEL : 1);
}

/* The layout of the result; a deconvolution has its own. */
static void check_tag(const dp_op_desc *desc, const int tag[2], int got)
{
    if (desc->kind == DP_OP_CONCAT && tag[0] == DP_CPU_PLAIN)
        ck_assert_int_eq(got, tag[1]);
    else if (desc->kind != DP_OP_CONV_TRANSPOSE2D)
        ck_assert_int_eq(got, tag[0]);
}

static void run(dp_device *device, const dp_op_desc *desc, const int tag[2], const bool wanted[2],
                bool training, results *r)
{
    dp_error err = {0};
    const dp_backend_functions *call = device->backend->call;
    const dp_op_random random = {.seed = 5, .step = 6, .first_sample = 7};
    dp_op_request request = {.desc = desc, .training = training, .param_gradient = {training, training}};
    dp_op op;
    dp_op_args args = {.random = training ? &random : NULL};
    void *owned[TENSORS];
    int kept = 0;
    for (int i = 0; i < desc->inputs; i++) {
        const dp_shape *shape = &desc->in[i];
        float *plain = values(dp_shape_elements(shape), i, 0);
        request.in[i] = dp_cpu_layout(shape, tag[i]);
        request.input_gradient[i] = training && wanted[i];
        args.in[i] = owned[kept++] = in_layout(shape, tag[i], plain);
        dp_free(plain);
    }
    ck_assert_msg(call->op_create(device, &request, &op, &err) == DP_OK, "%s", err.message);
    check_tag(desc, tag, op.out.tag);
    args.out = owned[kept++] = room(op.out.bytes);
    args.workspace = owned[kept++] = room(op.workspace_bytes);
    args.saved = owned[kept++] = room(op.saved_bytes);
    float *parameters[2] = {values(parameters_of(desc, 0), 4, 0.1f), values(parameters_of(desc, 1), 5, 0)};
    *r = (results){0};
    for (int i = 0; i < desc->params; i++) {
        args.param[i] = parameters[i];
        if (desc->kind == DP_OP_BATCH_NORM2D)
            args.buffer[i] = r->buffer[i] = values(desc->out.dim[1], 6 + i, 2);
        args.param_gradient[i] = r->param_gradient[i] = room((size_t)parameters_of(desc, i) * sizeof(float));
    }
    ck_assert_msg(call->op_forward(device, &op, NULL, &args, &err) == DP_OK, "%s", err.message);
    check_padding(&desc->out, op.out.tag, args.out);
    r->out = in_plain(&desc->out, op.out.tag, args.out);
    float *plain = values(dp_shape_elements(&desc->out), 8, 0);
    float *gradient = in_layout(&desc->out, op.out.tag, plain);
    args.out_gradient = gradient;
    for (int i = 0; i < desc->inputs; i++)
        if (request.input_gradient[i])
            args.in_gradient[i] = op.passes_gradient[i] ? gradient : room(request.in[i].bytes);
    if (training)
        ck_assert_msg(call->op_backward(device, &op, NULL, &args, &err) == DP_OK, "%s", err.message);
    for (int i = 0; i < desc->inputs; i++)
        if (request.input_gradient[i]) {
            check_padding(&desc->in[i], tag[i], args.in_gradient[i]);
            r->gradient[i] = in_plain(&desc->in[i], tag[i], args.in_gradient[i]);
            dp_free(op.passes_gradient[i] ? NULL : args.in_gradient[i]);
        }
    call->op_destroy(device, &op);
    dp_free(plain);
    dp_free(gradient);
    dp_free(parameters[0]);
    dp_free(parameters[1]);
    while (kept > 0)
        dp_free(owned[--kept]);
}

static void same(const float *got, const float *wanted, int64_t count, float tolerance)
{
    ck_assert_int_eq(got == NULL, wanted == NULL);
    float largest = 0;
    int different = 0; /* an assertion for each value would take most of the time */
    for (int64_t i = 0; i < count && wanted; i++)
        largest = fmaxf(largest, fabsf(wanted[i]));
    for (int64_t i = 0; i < count && wanted; i++)
        different += !(fabsf(got[i] - wanted[i]) <= tolerance * largest);
    ck_assert_int_eq(different, 0);
}

static void compare(dp_device *device, const dp_op_desc *desc, const int tag[2], const bool wanted[2],
                    bool training)
{
    results got, plain;
    /* A deconvolution is not the same code, and sums of many products, in two layouts. */
    const float tolerance = desc->kind == DP_OP_CONV_TRANSPOSE2D ? 1e-5f : 2e-6f;
    run(device, desc, (int[2]){DP_CPU_PLAIN, DP_CPU_PLAIN}, wanted, training, &plain);
    run(device, desc, tag, wanted, training, &got);
    same(got.out, plain.out, dp_shape_elements(&desc->out), tolerance);
    for (int i = 0; i < 2; i++) {
        same(got.gradient[i], plain.gradient[i], dp_shape_elements(&desc->in[i]), tolerance);
        if (training)
            same(got.param_gradient[i], plain.param_gradient[i], parameters_of(desc, i), tolerance);
        same(got.buffer[i], plain.buffer[i], desc->out.dim[1], tolerance);
    }
    free_results(&got);
    free_results(&plain);
}

/* Two threads share units; of fewer units than threads, the batch. */
static const struct {
    dp_shape shape;
    int threads;
} settings[] = {
    {{4, {3, 19, 7, 5}}, 1},  {{4, {2, 8, 3, 4}}, 1},  {{4, {5, 32, 6, 6}}, 1},
    {{4, {2, 3, 17, 16}}, 1}, {{4, {4, 17, 1, 1}}, 1},
#ifndef DP_TSAN /* which cannot see how OpenMP's threads wait for each other */
    {{4, {3, 8, 3, 4}}, 2},   {{4, {3, 21, 3, 4}}, 2},
#endif
};

enum { SETTINGS = sizeof settings / sizeof *settings };

static void every_pair(dp_device *device, dp_op_desc desc)
{
    for (int a = 0; a < DP_CPU_LAYOUTS; a++)
        for (int b = 0; b < (desc.inputs > 1 ? DP_CPU_LAYOUTS : 1); b++)
            for (int wanted = 0; wanted < (desc.inputs > 1 ? 4 : 2); wanted++)
                compare(device, &desc, (int[2]){a, b}, (bool[2]){wanted & 1, wanted & 2}, true);
    compare(device, &desc, (int[2]){DP_CPU_BLOCKED8, DP_CPU_NHWC}, (bool[2]){false}, false);
    compare(device, &desc, (int[2]){DP_CPU_NHWC, DP_CPU_BLOCKED16}, (bool[2]){false}, false);
}

START_TEST(every_layout)
{
    dp_error err = {0};
    dp_backend *backend;
    ck_assert_int_eq(dp_cpu_backend_open(1, settings[_i].threads, &backend, &err), DP_OK);
    dp_device *device = &backend->devices[0];
    ck_assert_int_eq(dp_device_enter(device, &err), DP_OK);
    const dp_shape *s = &settings[_i].shape;
    for (int relu = 0; relu < 2; relu++) {
        dp_op_desc desc = {.inputs = 1, .in = {*s, *s}, .out = *s, .relu = relu};
        desc.kind = DP_OP_BATCH_NORM2D;
        desc.params = 2;
        every_pair(device, desc);
        desc.inputs = 2;
        every_pair(device, desc);
        desc.kind = DP_OP_ADD;
        desc.params = 0;
        every_pair(device, desc);
    }
    dp_device_leave(device);
    backend->call->close(backend);
}
END_TEST

/* The operations of one input and no parameters; the windows of pooling overlap. */
static void every_map(dp_device *device, const dp_shape *s)
{
    static const dp_op_kind kinds[] = {DP_OP_UPSAMPLE2X, DP_OP_ADAPTIVE_AVG_POOL2D, DP_OP_DROPOUT,
                                       DP_OP_DROPOUT2D};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        dp_op_desc desc = {
            .kind = kinds[i], .inputs = 1, .in = {*s}, .out = *s, .probability = 0.4, .layer = 2};
        for (int k = 2; k < 4; k++)
            if (kinds[i] == DP_OP_UPSAMPLE2X)
                desc.out.dim[k] = 2 * s->dim[k];
            else if (kinds[i] == DP_OP_ADAPTIVE_AVG_POOL2D)
                desc.out.dim[k] = (2 * s->dim[k] + 2) / 3;
        every_pair(device, desc);
    }
}

static void every_concat(dp_device *device, const dp_shape *s)
{
    dp_op_desc desc = {.kind = DP_OP_CONCAT, .inputs = 2, .in = {*s, *s}, .out = *s};
    static const int64_t channels[] = {16, 5};
    for (int i = 0; i < 2; i++) {
        desc.in[1].dim[1] = channels[i];
        desc.out.dim[1] = s->dim[1] + channels[i];
        every_pair(device, desc);
    }
}

static void every_deconv(dp_device *device, const dp_shape *s)
{
    dp_op_desc desc = {.kind = DP_OP_CONV_TRANSPOSE2D,
                       .inputs = 1,
                       .in = {*s},
                       .out = {4, {s->dim[0], 9, 2 * s->dim[2], 2 * s->dim[3]}},
                       .params = 2,
                       .kernel = {KERNEL, KERNEL},
                       .stride = {2, 2},
                       .padding = {1, 1}};
    every_pair(device, desc);
    desc.params = 1;
    desc.out.dim[1] = 24;
    every_pair(device, desc);
}

START_TEST(every_layout_of_maps)
{
    dp_error err = {0};
    dp_backend *backend;
    ck_assert_int_eq(dp_cpu_backend_open(1, settings[_i].threads, &backend, &err), DP_OK);
    dp_device *device = &backend->devices[0];
    ck_assert_int_eq(dp_device_enter(device, &err), DP_OK);
    every_map(device, &settings[_i].shape);
    every_concat(device, &settings[_i].shape);
    every_deconv(device, &settings[_i].shape);
    dp_device_leave(device);
    backend->call->close(backend);
}
END_TEST

static bool same_bits(const float *a, const float *b, int64_t count)
{
    return memcmp(a, b, (size_t)count * sizeof *a) == 0;
}

/* Bias and ReLU around a product, in every layout, against the plain loops. */
START_TEST(every_layout_of_bias)
{
    const dp_shape *s = &settings[_i].shape;
    int64_t count = dp_shape_elements(s), channels = s->dim[1], pixels = s->dim[2] * s->dim[3];
    int threads = settings[_i].threads;
    float *bias = values(channels, 1, 0), *x = values(count, 2, 0), *g = values(count, 3, 0);
    float *y = room((size_t)count * sizeof *y), *masked = room((size_t)count * sizeof *masked);
    float *sum = room((size_t)channels * sizeof *sum), *got = room((size_t)channels * sizeof *got);
    for (int64_t c = 0; c < channels; c++)
        sum[c] = 1;
    for (int64_t i = 0; i < count; i++) {
        int64_t c = i / pixels % channels;
        y[i] = fmaxf(x[i] + bias[c], 0);
        masked[i] = y[i] > 0 ? g[i] : 0;
        sum[c] += masked[i];
    }
    for (int tag = 0; tag < DP_CPU_LAYOUTS; tag++) {
        float *out = in_layout(s, tag, x), *gradient = in_layout(s, tag, g);
        dp_cpu_add_bias(threads, s, tag, bias, true, out);
        check_padding(s, tag, out);
        for (int64_t c = 0; c < channels; c++)
            got[c] = 1;
        dp_cpu_bias_gradient(threads, s, tag, out, gradient, got, true);
        float *plain = in_plain(s, tag, out), *plain_gradient = in_plain(s, tag, gradient);
        ck_assert(same_bits(plain, y, count));
        ck_assert(same_bits(plain_gradient, masked, count));
        same(got, sum, channels, 1e-5f);
        dp_free(out);
        dp_free(gradient);
        dp_free(plain);
        dp_free(plain_gradient);
    }
    dp_free(bias), dp_free(x), dp_free(g), dp_free(y), dp_free(masked), dp_free(sum), dp_free(got);
}
END_TEST

/* ---- Winograd, in both blocked orders: no machine chooses both ---- */

typedef struct products {
    double *out, *in_gradient, *weights_gradient; /* plain */
} products;

/* All three products of a convolution with plain x, w and dy, by the definition. */
static products reference(const dp_winograd *s, const float *x, const float *w, const float *dy)
{
    int64_t size = s->in_height * s->in_width, out_size = s->out_height * s->out_width;
    int64_t taps = (int64_t)s->kernel * s->kernel;
    products r = {calloc((size_t)(s->batch * s->out_channels * out_size), sizeof(double)),
                  calloc((size_t)(s->batch * s->in_channels * size), sizeof(double)),
                  calloc((size_t)(s->out_channels * s->in_channels * taps), sizeof(double))};
    ck_assert(r.out && r.in_gradient && r.weights_gradient);
    for (int64_t n = 0; n < s->batch; n++)
        for (int64_t o = 0; o < s->out_channels; o++)
            for (int64_t c = 0; c < s->in_channels; c++)
                for (int64_t i = 0; i < out_size * taps; i++) {
                    int64_t to = i / taps, tap = i % taps;
                    int64_t row = to / s->out_width + tap / s->kernel - s->padding[0];
                    int64_t column = to % s->out_width + tap % s->kernel - s->padding[1];
                    if (row < 0 || row >= s->in_height || column < 0 || column >= s->in_width)
                        continue;
                    int64_t at = (n * s->in_channels + c) * size + row * s->in_width + column;
                    int64_t weight = (o * s->in_channels + c) * taps + tap;
                    to += (n * s->out_channels + o) * out_size;
                    r.out[to] += (double)x[at] * (double)w[weight];
                    r.in_gradient[at] += (double)dy[to] * (double)w[weight];
                    r.weights_gradient[weight] += (double)dy[to] * (double)x[at];
                }
    return r;
}

/* Without pattern, in -1..1: long sums do not cancel. */
static float *noise(int64_t count, uint32_t seed)
{
    float *x = room((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u; /* Numerical Recipes' */
        x[i] = (float)(seed >> 8) / 8388608.0f - 1;
    }
    return x;
}

/* Within 3e-6 of the largest value. */
static void close_to(const float *got, const double *wanted, int64_t count, double offset)
{
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmax(largest, fabs(wanted[i]));
        double off = fabs((double)got[i] - wanted[i] - offset);
        worst = off <= worst ? worst : off; /* a NaN is the worst */
    }
    ck_assert_msg(worst <= 3e-6 * largest, "off by %g of %g", worst, largest);
}

/* Full and cut tiles of 6x6 and of 4x4 inputs (2 rows, or few small images), down to a single one; several
 * batches of tiles, with more tiles than columns and with fewer; several groups of rows; pairs of blocks of
 * columns that two threads can share evenly and that they cannot; channels that fill no block. */
static const dp_winograd winograds[] = {
    {2, 32, 13, 10, 24, 13, 10, {1, 1}, 3, 0}, {3, 29, 9, 12, 37, 7, 12, {0, 1}, 3, 0},
    {1, 512, 8, 7, 40, 8, 7, {1, 1}, 3, 0},    {2, 24, 13, 10, 40, 13, 10, {2, 2}, 5, 0},
    {2, 29, 9, 12, 37, 7, 14, {1, 3}, 5, 0},   {1, 256, 6, 5, 40, 6, 5, {2, 2}, 5, 0},
    {1, 40, 5, 6, 512, 9, 10, {4, 4}, 5, 0},   {1, 76, 4, 3, 144, 4, 3, {1, 1}, 3, 0},
    {2, 96, 2, 2, 176, 2, 2, {1, 1}, 3, 0},    {4, 40, 2, 61, 24, 2, 61, {1, 1}, 3, 0},
    {2, 136, 4, 4, 168, 4, 4, {1, 1}, 3, 0},   {1, 136, 4, 4, 16, 4, 4, {1, 1}, 3, 0},
    {4, 24, 29, 26, 40, 29, 26, {1, 1}, 3, 0}, {17, 40, 2, 61, 24, 2, 61, {1, 1}, 3, 0},
    {1, 24, 2, 2, 40, 2, 2, {1, 1}, 3, 0},
};

enum { WINOGRADS = sizeof winograds / sizeof *winograds };

/* got = max(sums + bias of the channel, 0). */
static void check_biased(const float *got, const double *sums, const float *bias, const dp_shape *shape)
{
    int64_t count = dp_shape_elements(shape), pixels = shape->dim[2] * shape->dim[3];
    double *wanted = calloc((size_t)count, sizeof *wanted);
    ck_assert_ptr_nonnull(wanted);
    for (int64_t i = 0; i < count; i++)
        wanted[i] = fmax(sums[i] + (double)bias[i / pixels % shape->dim[1]], 0);
    close_to(got, wanted, count, 0);
    free(wanted);
}

static void check_winograd(dp_winograd s, int tag, int threads)
{
    s.block = dp_cpu_block(tag);
    dp_shape in = {4, {s.batch, s.in_channels, s.in_height, s.in_width}};
    dp_shape out = {4, {s.batch, s.out_channels, s.out_height, s.out_width}};
    int64_t weights = s.out_channels * s.in_channels * s.kernel * s.kernel;
    float *x = noise(dp_shape_elements(&in), 1), *w = noise(weights, 2);
    float *dy = noise(dp_shape_elements(&out), 3), *dw = room((size_t)weights * sizeof *dw);
    float *x_blocks = in_layout(&in, tag, x), *dy_blocks = in_layout(&out, tag, dy);
    float *y = room(dp_cpu_layout(&out, tag).bytes), *dx = room(dp_cpu_layout(&in, tag).bytes);
    void *workspace = room(dp_winograd_workspace(&s, threads));
    products wanted = reference(&s, x, w, dy);

    dp_winograd_forward(threads, &s, x_blocks, w, NULL, false, y, workspace);
    check_padding(&out, tag, y);
    float *plain = in_plain(&out, tag, y);
    close_to(plain, wanted.out, dp_shape_elements(&out), 0);
    dp_free(plain);
    float *bias = values(s.out_channels, 4, 0);
    dp_winograd_forward(threads, &s, x_blocks, w, bias, true, y, workspace);
    plain = in_plain(&out, tag, y);
    check_biased(plain, wanted.out, bias, &out);
    dp_free(bias);
    dp_free(plain);
    dp_winograd_backward_data(threads, &s, dy_blocks, w, dx, workspace);
    check_padding(&in, tag, dx);
    plain = in_plain(&in, tag, dx);
    close_to(plain, wanted.in_gradient, dp_shape_elements(&in), 0);
    dp_free(plain);
    dp_winograd_backward_weights(threads, &s, x_blocks, dy_blocks, dw, false, workspace);
    close_to(dw, wanted.weights_gradient, weights, 0);
    for (int64_t i = 0; i < weights; i++)
        dw[i] = 1;
    dp_winograd_backward_weights(threads, &s, x_blocks, dy_blocks, dw, true, workspace);
    close_to(dw, wanted.weights_gradient, weights, 1);

    free(wanted.out), free(wanted.in_gradient), free(wanted.weights_gradient);
    dp_free(x), dp_free(w), dp_free(dy), dp_free(dw), dp_free(x_blocks), dp_free(dy_blocks);
    dp_free(y), dp_free(dx), dp_free(workspace);
}

START_TEST(winograd_in_both_orders)
{
    for (int tag = DP_CPU_BLOCKED8; tag <= DP_CPU_BLOCKED16; tag++) {
        check_winograd(winograds[_i], tag, 1);
#ifndef DP_TSAN
        check_winograd(winograds[_i], tag, 2);
#endif
    }
}
END_TEST

/* oneDNN has no blocked code for images of 2x2; our own keeps them in the machine's blocked order, or brings
 * them there. */
START_TEST(small_images_stay_in_blocks)
{
    dp_error err = {0};
    dp_backend *backend;
    int tag = dp_dnnl_lanes() == 16 ? DP_CPU_BLOCKED16 : DP_CPU_BLOCKED8;
    if (dp_dnnl_lanes() < 8)
        return;
    ck_assert_int_eq(dp_cpu_backend_open(1, 1, &backend, &err), DP_OK);
    dp_device *device = &backend->devices[0];
    ck_assert_int_eq(dp_device_enter(device, &err), DP_OK);
    dp_shape shape = {4, {2, 32, 2, 2}};
    dp_op_desc desc = {.kind = DP_OP_CONV2D, .inputs = 1, .in = {shape}, .out = shape, .params = 2};
    for (int i = 0; i < 2; i++)
        desc.kernel[i] = 3, desc.stride[i] = desc.padding[i] = 1;
    dp_op_request request = {
        .desc = &desc, .training = true, .input_gradient = {true}, .param_gradient = {true, true}};
    const int given[] = {tag, DP_CPU_PLAIN};
    for (int i = 0; i < 2; i++) {
        dp_op op;
        request.in[0] = dp_cpu_layout(&shape, given[i]);
        ck_assert_int_eq(device->backend->call->op_create(device, &request, &op, &err), DP_OK);
        ck_assert_int_eq(op.out.tag, tag);
        device->backend->call->op_destroy(device, &op);
    }
    dp_device_leave(device);
    backend->call->close(backend);
}
END_TEST

/* A mean that is large beside the deviation leaves as much precision as float32 inputs have. */
START_TEST(far_from_zero)
{
    dp_error err = {0};
    dp_backend *backend;
    ck_assert_int_eq(dp_cpu_backend_open(1, 1, &backend, &err), DP_OK);
    dp_device *device = &backend->devices[0];
    ck_assert_int_eq(dp_device_enter(device, &err), DP_OK);
    dp_shape shape = {4, {4, 8, 16, 16}};
    dp_op_desc desc = {.kind = DP_OP_BATCH_NORM2D, .inputs = 1, .in = {shape}, .out = shape, .params = 2};
    dp_op_request request = {.desc = &desc, .in = {dp_cpu_layout(&shape, DP_CPU_BLOCKED8)}, .training = true};
    dp_op op;
    ck_assert_int_eq(device->backend->call->op_create(device, &request, &op, &err), DP_OK);
    int64_t count = dp_shape_elements(&shape);
    float *x = room((size_t)count * sizeof *x), ones[8], zeros[8] = {0};
    for (int i = 0; i < 8; i++)
        ones[i] = 1;
    for (int64_t i = 0; i < count; i++)
        x[i] = 1000 + (i / 8 % 2 ? 0.25f : -0.25f); /* mean 1000, deviation 1/4, exactly */
    float *out = room((size_t)count * sizeof *out);
    dp_op_args args = {.in = {x}, .out = out, .param = {ones, zeros}};
    args.workspace = room(op.workspace_bytes);
    args.saved = room(op.saved_bytes);
    ck_assert_int_eq(device->backend->call->op_forward(device, &op, NULL, &args, &err), DP_OK);
    float wanted = 0.25f / sqrtf(0.0625f + 1e-5f);
    int different = 0;
    for (int64_t i = 0; i < count; i++)
        different += !(fabsf(out[i] - (i / 8 % 2 ? wanted : -wanted)) <= 1e-6f);
    ck_assert_int_eq(different, 0);
    device->backend->call->op_destroy(device, &op);
    dp_free(x);
    dp_free(out);
    dp_free(args.workspace);
    dp_free(args.saved);
    dp_device_leave(device);
    backend->call->close(backend);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("layouts of the CPU backend");
    TCase *t = tcase_create("layouts");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, every_layout, 0, SETTINGS);
    tcase_add_loop_test(t, every_layout_of_maps, 0, SETTINGS);
    tcase_add_loop_test(t, every_layout_of_bias, 0, SETTINGS);
    tcase_add_loop_test(t, winograd_in_both_orders, 0, WINOGRADS);
    tcase_add_test(t, small_images_stay_in_blocks);
    tcase_add_test(t, far_from_zero);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
