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
#include "maps.h"

enum { TENSORS = 8, KERNEL = 4 };

/* Everything one operation reads and writes; gradients in the plain order again when it is done. */
typedef struct results {
    float *out, *gradient[2], *param_gradient[2], *buffer[2];
} results;

static void free_results(results *r)
{
    dp_free(r->out);
    for (int i = 0; i < 2; i++) {
        dp_free(r->gradient[i]);
        dp_free(r->param_gradient[i]);
        dp_free(r->buffer[i]);
    }
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
    tcase_add_test(t, far_from_zero);
    suite_add_tcase(s, t);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
