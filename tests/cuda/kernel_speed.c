/* How fast each of our own kernels is against a plain copy on the same GPU: what it must read and write at
 * least, by the time that it takes, as a share of the bytes a second that cudaMemcpyAsync moves there.
 *
 *     kernel_speed [ELEMENTS]      of the largest tensors (2^24: 64 MiB, more than caches hold)
 *
 * A line for each launcher of cuda/kernels/kernels.h: name, GB/s, share. A share above 100 % is no mistake:
 * kernels that read more than they write may beat a copy. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/kernels/kernels.h"

enum { CHANNELS = 64, PLANE = 64, CLASSES = 1024, TENSORS = 6, LAUNCHES = 8, ROUNDS = 5 };

static cudaStream_t stream;
static float *t[TENSORS]; /* count elements each */
static float *small;      /* parameters and partial sums: an eighth of that, and what CLASSES need */
static void *positions;
static int64_t count;
static int side; /* of planes: count = samples * CHANNELS * side * side */
static int64_t samples;

/* ---- one launch each ---- */

static cudaError_t copy(void)
{
    return cudaMemcpyAsync(t[1], t[0], (size_t)count * sizeof(float), cudaMemcpyDeviceToDevice, stream);
}

static cudaError_t relu_forward(void)
{
    return dp_relu_forward(stream, t[0], t[1], count);
}

static cudaError_t gate(void)
{
    return dp_gate(stream, t[0], t[1], t[2], count);
}

static cudaError_t add(void)
{
    return dp_add(stream, t[0], t[1], count);
}

static cudaError_t sum(void)
{
    return dp_sum(stream, t[0], t[1], true, t[2], count);
}

static dp_batch_norm_shape norm_shape(void)
{
    return (dp_batch_norm_shape){.batch = samples,
                                 .channels = CHANNELS,
                                 .plane = (int64_t)side * side,
                                 .epsilon = 1e-5f,
                                 .momentum = 0.1f,
                                 .rest = 0.9f,
                                 .relu = true};
}

/* Of `small`: weight, bias, mean and variance, saved, then partial. */
static float *norm_values(int i)
{
    return small + (size_t)i * CHANNELS;
}

static cudaError_t batch_norm_train(void)
{
    const dp_batch_norm_shape s = norm_shape();
    return dp_batch_norm_train(stream, &s, t[0], NULL, norm_values(0), norm_values(1), t[1], norm_values(8),
                               norm_values(4), norm_values(2), norm_values(3));
}

static cudaError_t batch_norm_infer(void)
{
    const dp_batch_norm_shape s = norm_shape();
    return dp_batch_norm_infer(stream, &s, t[0], NULL, norm_values(0), norm_values(1), t[1], norm_values(2),
                               norm_values(3));
}

static cudaError_t batch_norm_backward(void)
{
    const dp_batch_norm_shape s = norm_shape();
    return dp_batch_norm_backward(stream, &s, t[0], NULL, norm_values(4), norm_values(0), norm_values(1),
                                  t[1], norm_values(8), t[2], false, norm_values(6), norm_values(7));
}

static cudaError_t concat(void)
{
    return dp_concat(stream, t[0], t[1], t[2], samples, count / samples / 2, count / samples / 2);
}

static cudaError_t split(void)
{
    return dp_split(stream, t[2], t[0], t[1], samples, count / samples / 2, count / samples / 2);
}

static cudaError_t upsample_forward(void)
{
    return dp_upsample2x_forward(stream, t[0], t[1], samples * CHANNELS, side / 2, side / 2);
}

static cudaError_t upsample_backward(void)
{
    return dp_upsample2x_backward(stream, t[1], t[0], samples * CHANNELS, side / 2, side / 2);
}

static dp_average_shape average_shape(void)
{
    return (dp_average_shape){samples * CHANNELS, {side, side}, {side / 2, side / 2}};
}

static cudaError_t average_forward(void)
{
    const dp_average_shape s = average_shape();
    return dp_average_forward(stream, &s, t[0], t[1]);
}

static cudaError_t average_backward(void)
{
    const dp_average_shape s = average_shape();
    return dp_average_backward(stream, &s, t[1], t[0]);
}

static cudaError_t dropout(void)
{
    const dp_dropout_parameters p = {.seed = 1,
                                     .threshold = 1u << 23,
                                     .scale = 2,
                                     .samples = samples,
                                     .elements = count / samples,
                                     .repeat = 1};
    return dp_dropout(stream, &p, t[0], t[1]);
}

static cudaError_t bias_planes(void)
{
    return dp_bias_planes(stream, t[0], small, true, samples, CHANNELS, (int64_t)side * side);
}

static cudaError_t bias_columns(void)
{
    return dp_bias_columns(stream, t[0], small, true, count / CLASSES, CLASSES);
}

static cudaError_t bias_gradient_planes(void)
{
    return dp_bias_gradient_planes(stream, t[0], t[1], t[2], samples * CHANNELS, (int64_t)side * side);
}

static cudaError_t bias_gradient_columns(void)
{
    return dp_bias_gradient_columns(stream, t[0], t[1], t[2], count / CLASSES, CLASSES);
}

static cudaError_t bias_gradient_finish(void)
{
    return dp_bias_gradient_finish(stream, t[0], count / CLASSES, CLASSES, false, small);
}

static dp_pool_shape pool_shape(void)
{
    return (dp_pool_shape){.planes = samples * CHANNELS,
                           .in = {side, side},
                           .out = {side / 2, side / 2},
                           .kernel = {2, 2},
                           .stride = {2, 2},
                           .relu = true};
}

static cudaError_t max_pool_forward(void)
{
    const dp_pool_shape s = pool_shape();
    return dp_max_pool_forward(stream, &s, t[0], t[1], positions);
}

static cudaError_t max_pool_backward(void)
{
    const dp_pool_shape s = pool_shape();
    return dp_max_pool_backward(stream, &s, t[1], positions, t[0]);
}

static cudaError_t loss(dp_loss_rule rule)
{
    const dp_loss_parameters p = {.rule = rule,
                                  .samples = count / CLASSES,
                                  .elements = CLASSES,
                                  .output = t[0],
                                  .target = t[1], /* zeros: the first class, or no mark */
                                  .pos_weight = 1,
                                  .scale = 1,
                                  .sample_loss = t[3],
                                  .gradient = t[2]};
    return dp_loss_launch(stream, &p);
}

static cudaError_t cross_entropy(void)
{
    return loss(DP_RULE_CROSS_ENTROPY);
}

static cudaError_t bce_with_logits(void)
{
    return loss(DP_RULE_BCE_WITH_LOGITS);
}

static cudaError_t update(bool adamw)
{
    const dp_update_parameters p = {.source = {t[0], t[1]},
                                    .count = count,
                                    .source_count = 2,
                                    .adamw = adamw,
                                    .weight = t[2],
                                    .moment1 = t[3],
                                    .moment2 = t[4],
                                    .nonfinite = (uint32_t *)t[5],
                                    .lr = 0.1f,
                                    .momentum = 0.9f,
                                    .keep = 1,
                                    .rest1 = 0.1f,
                                    .beta2 = 0.999f,
                                    .rest2 = 0.001f,
                                    .step = 0.1f,
                                    .root = 1,
                                    .eps = 1e-8f};
    return dp_update_launch(stream, &p);
}

static cudaError_t update_sgd(void)
{
    return update(false);
}

static cudaError_t update_adamw(void)
{
    return update(true);
}

static const struct {
    const char *name;
    cudaError_t (*launch)(void);
    double floats; /* read and written, for each of count; what a second pass reads again counts again */
} kernels[] = {
    {"dp_relu_forward", relu_forward, 2},
    {"dp_gate", gate, 3},
    {"dp_add", add, 3},
    {"dp_sum", sum, 3},
    {"dp_batch_norm_train", batch_norm_train, 3},
    {"dp_batch_norm_infer", batch_norm_infer, 2},
    {"dp_batch_norm_backward", batch_norm_backward, 5},
    {"dp_concat", concat, 2},
    {"dp_split", split, 2},
    {"dp_upsample2x_forward", upsample_forward, 1.25},
    {"dp_upsample2x_backward", upsample_backward, 1.25},
    {"dp_average_forward", average_forward, 1.25},
    {"dp_average_backward", average_backward, 1.25},
    {"dp_dropout", dropout, 2},
    {"dp_bias_planes", bias_planes, 2},
    {"dp_bias_columns", bias_columns, 2},
    {"dp_bias_gradient_planes", bias_gradient_planes, 3},
    {"dp_bias_gradient_columns", bias_gradient_columns, 3},
    {"dp_bias_gradient_finish", bias_gradient_finish, 1},
    {"dp_max_pool_forward", max_pool_forward, 1.25 + 1.0 / 16}, /* positions are bytes */
    {"dp_max_pool_backward", max_pool_backward, 1.25 + 1.0 / 16},
    {"dp_loss_launch, cross entropy", cross_entropy, 2},
    {"dp_loss_launch, BCE", bce_with_logits, 3},
    {"dp_update_launch, SGD of 2 sources", update_sgd, 6},
    {"dp_update_launch, AdamW of 2 sources", update_adamw, 8},
};

/* ---- the clock ---- */

static cudaError_t fill(void)
{
    cudaError_t code = cudaSuccess;
    for (int i = 0; i < TENSORS && code == cudaSuccess; i++)
        code = cudaMemsetAsync(t[i], 0, (size_t)count * sizeof(float), stream);
    if (code == cudaSuccess)
        code = cudaMemsetAsync(small, 0, (size_t)(count / 8 + 16 * CLASSES) * sizeof(float), stream);
    return code == cudaSuccess ? cudaMemsetAsync(positions, 0, (size_t)count, stream) : code;
}

/* Seconds of a launch in the fastest of some rounds: the GPU's own time, from event to event. */
static cudaError_t clock_launches(cudaError_t (*launch)(void), cudaEvent_t begin, cudaEvent_t end,
                                  double *seconds)
{
    cudaError_t code = fill();
    *seconds = 1e9;
    for (int round = 0; round <= ROUNDS && code == cudaSuccess; round++) { /* the first warms up */
        float milliseconds = 0;
        code = cudaEventRecord(begin, stream);
        for (int i = 0; i < LAUNCHES && code == cudaSuccess; i++)
            code = launch();
        if (code == cudaSuccess)
            code = cudaEventRecord(end, stream);
        if (code == cudaSuccess)
            code = cudaStreamSynchronize(stream);
        if (code == cudaSuccess)
            code = cudaEventElapsedTime(&milliseconds, begin, end);
        if (round > 0 && milliseconds / LAUNCHES * 1e-3 < *seconds)
            *seconds = milliseconds / LAUNCHES * 1e-3;
    }
    return code;
}

static cudaError_t open_gpu(cudaEvent_t *begin, cudaEvent_t *end)
{
    cudaError_t code = cudaSetDevice(0);
    if (code == cudaSuccess)
        code = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (code == cudaSuccess)
        code = cudaEventCreateWithFlags(begin, cudaEventDefault);
    if (code == cudaSuccess)
        code = cudaEventCreateWithFlags(end, cudaEventDefault);
    for (int i = 0; i < TENSORS && code == cudaSuccess; i++)
        code = cudaMalloc((void **)&t[i], (size_t)count * sizeof(float));
    if (code == cudaSuccess)
        code = cudaMalloc((void **)&small, (size_t)(count / 8 + 16 * CLASSES) * sizeof(float));
    return code == cudaSuccess ? cudaMalloc(&positions, (size_t)count) : code;
}

static void close_gpu(cudaEvent_t begin, cudaEvent_t end)
{
    for (int i = 0; i < TENSORS; i++)
        cudaFree(t[i]);
    cudaFree(small);
    cudaFree(positions);
    if (begin)
        cudaEventDestroy(begin);
    if (end)
        cudaEventDestroy(end);
    if (stream)
        cudaStreamDestroy(stream);
}

static cudaError_t measure(const char **what)
{
    cudaEvent_t begin = NULL, end = NULL;
    double copied = 1, seconds;
    *what = "its memory";
    cudaError_t code = open_gpu(&begin, &end);
    if (code == cudaSuccess) {
        *what = "a copy";
        code = clock_launches(copy, begin, end, &copied);
    }
    double bytes = (double)count * sizeof(float), rate = 2 * bytes / copied;
    if (code == cudaSuccess)
        printf("%-38s %8.1f GB/s %6d %%\n", "a copy", rate * 1e-9, 100);
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels && code == cudaSuccess; k++) {
        *what = kernels[k].name;
        code = clock_launches(kernels[k].launch, begin, end, &seconds);
        double got = kernels[k].floats * bytes / seconds;
        if (code == cudaSuccess)
            printf("%-38s %8.1f GB/s %6.0f %%\n", kernels[k].name, got * 1e-9, 100 * got / rate);
    }
    close_gpu(begin, end);
    return code;
}

int main(int argc, char **argv)
{
    count = argc > 1 ? atoll(argv[1]) : 1 << 24;
    side = PLANE;
    while (side > 2 && count < (int64_t)4 * CHANNELS * side * side)
        side /= 2;
    samples = count / CHANNELS / side / side;
    if (samples < 1 || samples * CHANNELS * side * side != count || count % CLASSES != 0) {
        fprintf(stderr, "kernel_speed: the number of elements is a power of two from 1024\n");
        return EXIT_FAILURE;
    }
    const char *what;
    cudaError_t code = measure(&what);
    if (code != cudaSuccess)
        fprintf(stderr, "kernel_speed: %s: %s\n", what, cudaGetErrorString(code));
    return code == cudaSuccess ? EXIT_SUCCESS : EXIT_FAILURE;
}
