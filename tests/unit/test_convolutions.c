/* The CPU backend's own convolutions, Winograd and products of few pixels, against the definition, also in
 * orders that this machine would not choose. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "cpu/announce.h"
#include "cpu/cpu.h"
#include "cpu/im2col.h"
#include "cpu/onednn.h"
#include "cpu/winograd.h"
#include "maps.h"

typedef struct products {
    double *out, *in_gradient, *weights_gradient; /* plain */
} products;

/* All three products of a convolution with plain x, w and dy, by the definition. */
static products reference(const dp_conv_shape *s, const float *x, const float *w, const float *dy)
{
    int64_t size = s->in_height * s->in_width, out_size = s->out_height * s->out_width;
    int64_t taps = (int64_t)s->kernel[0] * s->kernel[1];
    products r = {calloc((size_t)(s->batch * s->out_channels * out_size), sizeof(double)),
                  calloc((size_t)(s->batch * s->in_channels * size), sizeof(double)),
                  calloc((size_t)(s->out_channels * s->in_channels * taps), sizeof(double))};
    ck_assert(r.out && r.in_gradient && r.weights_gradient);
    for (int64_t n = 0; n < s->batch; n++)
        for (int64_t o = 0; o < s->out_channels; o++)
            for (int64_t c = 0; c < s->in_channels; c++)
                for (int64_t i = 0; i < out_size * taps; i++) {
                    int64_t to = i / taps, tap = i % taps;
                    int64_t row = to / s->out_width * s->stride[0] + tap / s->kernel[1] - s->padding[0];
                    int64_t column = to % s->out_width * s->stride[1] + tap % s->kernel[1] - s->padding[1];
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
        worst = isnan(worst) || off <= worst ? worst : off; /* a NaN is the worst */
    }
    ck_assert_msg(worst <= 3e-6 * largest, "off by %g of %g", worst, largest);
}

/* Full and cut tiles of 6x6 and of 4x4 inputs (2 rows, or few small images), down to a single one; several
 * batches of tiles, with more tiles than columns and with fewer; several groups of rows; pairs of blocks of
 * columns that two threads can share evenly and that they cannot; channels that fill no block. */
static const dp_conv_shape winograds[] = {
    {2, 32, 13, 10, 24, 13, 10, {3, 3}, {1, 1}, {1, 1}}, {3, 29, 9, 12, 37, 7, 12, {3, 3}, {1, 1}, {0, 1}},
    {1, 512, 8, 7, 40, 8, 7, {3, 3}, {1, 1}, {1, 1}},    {2, 24, 13, 10, 40, 13, 10, {5, 5}, {1, 1}, {2, 2}},
    {2, 29, 9, 12, 37, 7, 14, {5, 5}, {1, 1}, {1, 3}},   {1, 256, 6, 5, 40, 6, 5, {5, 5}, {1, 1}, {2, 2}},
    {1, 40, 5, 6, 512, 9, 10, {5, 5}, {1, 1}, {4, 4}},   {1, 76, 4, 3, 144, 4, 3, {3, 3}, {1, 1}, {1, 1}},
    {2, 96, 2, 2, 176, 2, 2, {3, 3}, {1, 1}, {1, 1}},    {4, 40, 2, 61, 24, 2, 61, {3, 3}, {1, 1}, {1, 1}},
    {2, 136, 4, 4, 168, 4, 4, {3, 3}, {1, 1}, {1, 1}},   {1, 136, 4, 4, 16, 4, 4, {3, 3}, {1, 1}, {1, 1}},
    {4, 24, 29, 26, 40, 29, 26, {3, 3}, {1, 1}, {1, 1}}, {17, 40, 2, 61, 24, 2, 61, {3, 3}, {1, 1}, {1, 1}},
    {1, 24, 2, 2, 40, 2, 2, {3, 3}, {1, 1}, {1, 1}},
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

static void check_winograd(const dp_conv_shape *s, int tag, int threads)
{
    int block = dp_cpu_block(tag);
    dp_shape in = {4, {s->batch, s->in_channels, s->in_height, s->in_width}};
    dp_shape out = {4, {s->batch, s->out_channels, s->out_height, s->out_width}};
    int64_t weights = s->out_channels * s->in_channels * s->kernel[0] * s->kernel[1];
    float *x = noise(dp_shape_elements(&in), 1), *w = noise(weights, 2);
    float *dy = noise(dp_shape_elements(&out), 3), *dw = room((size_t)weights * sizeof *dw);
    float *x_blocks = in_layout(&in, tag, x), *dy_blocks = in_layout(&out, tag, dy);
    float *y = room(dp_cpu_layout(&out, tag).bytes), *dx = room(dp_cpu_layout(&in, tag).bytes);
    void *workspace = room(dp_winograd_workspace(s, block, threads));
    products wanted = reference(s, x, w, dy);

    dp_winograd_forward(threads, s, block, x_blocks, w, NULL, false, y, workspace);
    check_padding(&out, tag, y);
    float *plain = in_plain(&out, tag, y);
    close_to(plain, wanted.out, dp_shape_elements(&out), 0);
    dp_free(plain);
    float *bias = values(s->out_channels, 4, 0);
    dp_winograd_forward(threads, s, block, x_blocks, w, bias, true, y, workspace);
    plain = in_plain(&out, tag, y);
    check_biased(plain, wanted.out, bias, &out);
    dp_free(bias);
    dp_free(plain);
    dp_winograd_backward_data(threads, s, block, dy_blocks, w, dx, workspace);
    check_padding(&in, tag, dx);
    plain = in_plain(&in, tag, dx);
    close_to(plain, wanted.in_gradient, dp_shape_elements(&in), 0);
    dp_free(plain);
    dp_winograd_backward_weights(threads, s, block, x_blocks, dy_blocks, dw, false, workspace);
    close_to(dw, wanted.weights_gradient, weights, 0);
    for (int64_t i = 0; i < weights; i++)
        dw[i] = 1;
    dp_winograd_backward_weights(threads, s, block, x_blocks, dy_blocks, dw, true, workspace);
    close_to(dw, wanted.weights_gradient, weights, 1);

    free(wanted.out), free(wanted.in_gradient), free(wanted.weights_gradient);
    dp_free(x), dp_free(w), dp_free(dy), dp_free(dw), dp_free(x_blocks), dp_free(dy_blocks);
    dp_free(y), dp_free(dx), dp_free(workspace);
}

/* No machine chooses both. */
START_TEST(winograd_in_both_orders)
{
    for (int tag = DP_CPU_BLOCKED8; tag <= DP_CPU_BLOCKED16; tag++) {
        check_winograd(&winograds[_i], tag, 1);
#ifndef DP_TSAN
        check_winograd(&winograds[_i], tag, 2);
#endif
    }
}
END_TEST

/* What encoders and deconvolutions of a U-Net ask for; other kernels, steps and edges; a last panel with
 * fewer channels, one channel group that is not full; one point, and more than registers hold; taps
 * that are never inside, 20 taps, and 25 in several panels. */
static const dp_conv_shape few_pixels[] = {
    {2, 32, 8, 8, 64, 4, 4, {4, 4}, {2, 2}, {1, 1}},  {2, 48, 7, 9, 80, 4, 5, {3, 3}, {2, 2}, {1, 1}},
    {1, 80, 4, 6, 16, 3, 3, {2, 3}, {1, 2}, {0, 1}},  {3, 16, 9, 5, 144, 5, 1, {5, 5}, {1, 1}, {0, 0}},
    {1, 112, 2, 2, 32, 1, 1, {2, 2}, {2, 2}, {0, 0}}, {1, 16, 5, 5, 16, 6, 6, {4, 4}, {1, 1}, {2, 2}},
    {13, 96, 3, 3, 48, 1, 1, {3, 3}, {1, 1}, {0, 0}}, {7, 16, 2, 9, 32, 2, 9, {3, 3}, {1, 1}, {1, 1}},
    {1, 16, 2, 2, 16, 7, 7, {2, 2}, {1, 1}, {3, 3}},  {1, 64, 5, 5, 16, 1, 2, {4, 5}, {2, 1}, {0, 1}},
    {1, 48, 9, 9, 160, 5, 5, {5, 5}, {1, 1}, {0, 0}},
};

enum { FEW_PIXELS = sizeof few_pixels / sizeof *few_pixels };

/* By one thread, and as a deconvolution goes back, where `in` is kept from the product to the gradient of the
 * weights: the same bits. */
static void check_other_way(const dp_conv_shape *s, const float *x, const float *dy, const float *w,
                            const float *y, const float *dw, void *workspace)
{
    int64_t outs = s->batch * s->out_channels * s->out_height * s->out_width;
    int64_t weights = s->out_channels * s->in_channels * s->kernel[0] * s->kernel[1];
    float *again = room((size_t)outs * sizeof *again), *gradient = room((size_t)weights * sizeof *gradient);
    for (int64_t i = 0; i < weights; i++)
        gradient[i] = 1;
    dp_im2col_take_in(1, s, x, workspace);
    dp_im2col_forward(1, s, w, again, workspace);
    ck_assert(memcmp(again, y, (size_t)outs * sizeof *y) == 0);
    dp_im2col_take_out(1, s, dy, workspace);
    dp_im2col_backward_weights(1, s, gradient, true, workspace);
    ck_assert(memcmp(gradient, dw, (size_t)weights * sizeof *dw) == 0);
    dp_free(again);
    dp_free(gradient);
}

/* All passes, from memory full of NaN. */
static void check_im2col(const dp_conv_shape *s, int threads)
{
    int tag = DP_CPU_BLOCKED8;
    dp_shape in = {4, {s->batch, s->in_channels, s->in_height, s->in_width}};
    dp_shape out = {4, {s->batch, s->out_channels, s->out_height, s->out_width}};
    int64_t ins = dp_shape_elements(&in), outs = dp_shape_elements(&out);
    int64_t weights = s->out_channels * s->in_channels * s->kernel[0] * s->kernel[1];
    float *x = noise(ins, 1), *w = noise(weights, 2), *dy = noise(outs, 3);
    float *x_blocks = in_layout(&in, tag, x), *dy_blocks = in_layout(&out, tag, dy);
    float *y = room((size_t)outs * sizeof *y), *dx = room((size_t)ins * sizeof *dx);
    float *dw = room((size_t)weights * sizeof *dw);
    size_t bytes = dp_im2col_workspace(s, threads);
    void *workspace = room(bytes);
    products wanted = reference(s, x, w, dy);

    dp_im2col_take_in(threads, s, x_blocks, workspace);
    dp_im2col_forward(threads, s, w, y, workspace);
    float *plain = in_plain(&out, tag, y);
    close_to(plain, wanted.out, outs, 0);
    dp_free(plain);
    memset(workspace, 0xff, bytes);
    dp_im2col_take_out(threads, s, dy_blocks, workspace);
    dp_im2col_backward_data(threads, s, w, dx, workspace);
    plain = in_plain(&in, tag, dx);
    close_to(plain, wanted.in_gradient, ins, 0);
    dp_free(plain);
    dp_im2col_take_in(threads, s, x_blocks, workspace);
    dp_im2col_backward_weights(threads, s, dw, false, workspace);
    close_to(dw, wanted.weights_gradient, weights, 0);
    for (int64_t i = 0; i < weights; i++)
        dw[i] = 1;
    dp_im2col_backward_weights(threads, s, dw, true, workspace);
    close_to(dw, wanted.weights_gradient, weights, 1);
    check_other_way(s, x_blocks, dy_blocks, w, y, dw, workspace);

    free(wanted.out), free(wanted.in_gradient), free(wanted.weights_gradient);
    dp_free(x), dp_free(w), dp_free(dy), dp_free(dw), dp_free(x_blocks), dp_free(dy_blocks);
    dp_free(y), dp_free(dx), dp_free(workspace);
}

START_TEST(products_of_few_pixels)
{
    check_im2col(&few_pixels[_i], 1);
#ifndef DP_TSAN
    check_im2col(&few_pixels[_i], 2);
    check_im2col(&few_pixels[_i], 3);
#endif
}
END_TEST

static dp_conv_shape square(int64_t batch, int64_t channels, int64_t side, int kernel, int stride)
{
    int64_t out = (side - kernel + 2) / stride + 1;
    return (dp_conv_shape){
        batch, channels, side, side, channels, out, out, {kernel, kernel}, {stride, stride}, {1, 1}};
}

/* Many pixels, few weights for each, channels that fill no slice, and kernels of fewer than 4 or more than 25
 * taps are the library's. */
START_TEST(the_rule_of_few_pixels)
{
    if (dp_dnnl_lanes() != 8)
        return;
    dp_conv_shape few = square(4, 512, 16, 4, 2), many = square(5, 512, 16, 4, 2),
                  thin = square(4, 16, 16, 4, 2);
    dp_conv_shape odd = square(1, 520, 4, 3, 2), pointwise = square(1, 512, 2, 1, 1);
    ck_assert(dp_im2col_fits(&few, DP_CPU_BLOCKED8));
    ck_assert(!dp_im2col_fits(&few, DP_CPU_BLOCKED16));
    ck_assert(!dp_im2col_fits(&many, DP_CPU_BLOCKED8));
    ck_assert(!dp_im2col_fits(&thin, DP_CPU_BLOCKED8));
    ck_assert(!dp_im2col_fits(&odd, DP_CPU_BLOCKED8));
    ck_assert(!dp_im2col_fits(&pointwise, DP_CPU_BLOCKED8));
    dp_conv_shape large = square(1, 512, 8, 6, 2), line = square(1, 512, 4, 3, 1),
                  just = square(1, 32, 16, 4, 2);
    dp_conv_shape odd_out = square(1, 512, 4, 3, 2);
    line.kernel[0] = 1;
    odd_out.out_channels = 520;
    ck_assert(!dp_im2col_fits(&large, DP_CPU_BLOCKED8));
    ck_assert(!dp_im2col_fits(&line, DP_CPU_BLOCKED8));
    ck_assert(!dp_im2col_fits(&odd_out, DP_CPU_BLOCKED8));
    ck_assert(dp_im2col_fits(&just, DP_CPU_BLOCKED8)); /* 256 weights to each of 64 points */
}
END_TEST

/* The one device of a CPU backend, which this thread drives until closed(). */
static dp_device *opened(dp_backend **backend)
{
    dp_error err = {0};
    ck_assert_int_eq(dp_cpu_backend_open(1, 1, backend, &err), DP_OK);
    ck_assert_int_eq(dp_device_enter(&(*backend)->devices[0], &err), DP_OK);
    return &(*backend)->devices[0];
}

static void closed(dp_backend *backend)
{
    dp_device_leave(&backend->devices[0]);
    backend->call->close(backend);
}

static size_t workspace_of(dp_device *device, int kind, const dp_shape *in, const dp_shape *out, int kernel,
                           int stride)
{
    dp_error err = {0};
    dp_op op;
    dp_op_desc desc = {.kind = kind, .inputs = 1, .in = {*in}, .out = *out, .params = 2};
    for (int i = 0; i < 2; i++)
        desc.kernel[i] = kernel, desc.stride[i] = stride, desc.padding[i] = 1;
    dp_op_request request = {.desc = &desc,
                             .in = {dp_cpu_layout(in, DP_CPU_BLOCKED8)},
                             .training = true,
                             .input_gradient = {true},
                             .param_gradient = {true, true}};
    ck_assert_int_eq(device->backend->call->op_create(device, &request, &op, &err), DP_OK);
    size_t bytes = op.workspace_bytes;
    device->backend->call->op_destroy(device, &op);
    return bytes;
}

/* What operations choose shows in the memory that they ask for: ours for few pixels, and Winograd first. */
START_TEST(few_pixels_are_multiplied)
{
    dp_backend *backend;
    if (dp_dnnl_lanes() != 8)
        return;
    dp_device *device = opened(&backend);
    dp_conv_shape strided = square(1, 64, 8, 3, 2), turned = square(1, 64, 8, 4, 2),
                  dense = square(1, 64, 4, 3, 1);
    dp_shape small = {4, {1, 64, 4, 4}}, large = {4, {1, 64, 8, 8}};
    ck_assert_uint_eq(workspace_of(device, DP_OP_CONV2D, &large, &small, 3, 2),
                      (dp_im2col_workspace(&strided, 1) + 63) / 64 * 64);
    ck_assert_uint_eq(workspace_of(device, DP_OP_CONV_TRANSPOSE2D, &small, &large, 4, 2),
                      (dp_im2col_workspace(&turned, 1) + 63) / 64 * 64);
    ck_assert(dp_im2col_fits(&dense, DP_CPU_BLOCKED8));
    ck_assert_uint_ne(workspace_of(device, DP_OP_CONV2D, &small, &small, 3, 1),
                      (dp_im2col_workspace(&dense, 1) + 63) / 64 * 64);
    closed(backend);
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
    dp_device *device = opened(&backend);
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
    closed(backend);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("convolutions of the CPU backend");
    TCase *t = tcase_create("convolutions");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, winograd_in_both_orders, 0, WINOGRADS);
    tcase_add_loop_test(t, products_of_few_pixels, 0, FEW_PIXELS);
    tcase_add_test(t, the_rule_of_few_pixels);
    tcase_add_test(t, few_pixels_are_multiplied);
    tcase_add_test(t, small_images_stay_in_blocks);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
