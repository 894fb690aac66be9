/* Scatter and gather along any dimension, against a reference that moves one element at a time; and the
 * engine whose samples lie along another dimension than the first, whose model lies elsewhere, and whose
 * outputs are asked for. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "dptrain/engine.h"
#include "dptrain/tensor.h"

/* ---- tensors ---- */

enum { MAX_ELEMENTS = 4096, MAX_CHUNKS = 9 };

static int64_t elements_of(const dp_host_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        n *= t->shape[i];
    return n;
}

/* Where element `flat` of a chunk lies in the whole: its index, moved by `first` along dim. */
static int64_t place_in_whole(const dp_host_tensor *whole, const dp_host_tensor *chunk, int dim,
                              int64_t first, int64_t flat)
{
    int64_t index[DP_HOST_TENSOR_MAX_RANK], place = 0;
    for (int i = chunk->rank - 1; i >= 0; i--) {
        index[i] = flat % chunk->shape[i];
        flat /= chunk->shape[i];
    }
    index[dim] += first;
    for (int i = 0; i < whole->rank; i++)
        place = place * whole->shape[i] + index[i];
    return place;
}

static void check_round_trip(dp_host_tensor whole, int dim, int count, const int64_t *sizes)
{
    static unsigned char source[8 * MAX_ELEMENTS], back[8 * MAX_ELEMENTS], part[MAX_CHUNKS][8 * MAX_ELEMENTS];
    size_t bytes = whole.element_bytes, total = (size_t)elements_of(&whole) * bytes;
    dp_host_tensor chunks[MAX_CHUNKS] = {{0}}, gathered = {.data = back};
    dp_error err = {0};
    for (size_t i = 0; i < total; i++)
        source[i] = (unsigned char)(i * 151 + i / 251);
    whole.data = source;
    for (int k = 0; k < count; k++)
        chunks[k].data = part[k];
    memset(part, 0xAA, sizeof part);
    memset(back, 0xBB, sizeof back);
    ck_assert_msg(dp_scatter(&whole, dim, count, sizes, chunks, &err) == DP_OK, "%s", err.message);
    for (int64_t k = 0, first = 0; k < count; first += sizes[k++]) {
        ck_assert_int_eq(chunks[k].rank, whole.rank);
        for (int i = 0; i < whole.rank; i++)
            ck_assert_int_eq(chunks[k].shape[i], i == dim ? sizes[k] : whole.shape[i]);
        int64_t n = elements_of(&chunks[k]);
        for (int64_t e = 0; e < n; e++)
            ck_assert_mem_eq(part[k] + (size_t)e * bytes,
                             source + (size_t)place_in_whole(&whole, &chunks[k], dim, first, e) * bytes,
                             bytes);
        ck_assert_int_eq(part[k][(size_t)n * bytes], 0xAA); /* and not a byte more */
    }
    ck_assert_msg(dp_gather(chunks, count, dim - whole.rank, &gathered, &err) == DP_OK, "%s", err.message);
    ck_assert_int_eq(gathered.rank, whole.rank);
    ck_assert_mem_eq(gathered.shape, whole.shape, (size_t)whole.rank * sizeof *whole.shape);
    ck_assert_mem_eq(back, source, total);
    ck_assert_int_eq(back[total], 0xBB);
}

START_TEST(every_dimension_every_split)
{
    const dp_host_tensor whole = {.rank = 4, .shape = {9, 5, 7, 3}};
    for (int dim = 0; dim < 4; dim++)
        for (int count = 1; count <= MAX_CHUNKS; count++)
            for (size_t bytes = 1; bytes <= 4; bytes *= 2) {
                dp_host_tensor t = whole;
                int64_t sizes[MAX_CHUNKS];
                t.element_bytes = bytes;
                for (int kind = DP_SPLIT_CHUNK; kind <= DP_SPLIT_BALANCED; kind++) {
                    dp_split_batch((dp_split_kind)kind, NULL, count, t.shape[dim], sizes);
                    check_round_trip(t, dim, count, sizes);
                }
            }
}
END_TEST

START_TEST(uneven_and_empty_chunks_and_low_ranks)
{
    check_round_trip((dp_host_tensor){.rank = 3, .shape = {4, 10, 6}, .element_bytes = 8}, 1, 4,
                     (int64_t[]){0, 7, 1, 2});
    check_round_trip((dp_host_tensor){.rank = 1, .shape = {10}, .element_bytes = 4}, 0, 3,
                     (int64_t[]){1, 9, 0});
    check_round_trip((dp_host_tensor){.rank = 2, .shape = {0, 6}, .element_bytes = 4}, 1, 2,
                     (int64_t[]){4, 2});
    check_round_trip((dp_host_tensor){.rank = 2, .shape = {0, 6}, .element_bytes = 4}, 0, 2,
                     (int64_t[]){0, 0});
}
END_TEST

START_TEST(shapes_can_be_asked_for_first)
{
    const dp_host_tensor whole = {.rank = 2, .shape = {2, 6}, .element_bytes = 4, .data = (float[12]){0}};
    dp_host_tensor chunks[4] = {{0}}, joined = {0};
    int64_t sizes[4];
    ck_assert_int_eq(dp_split_batch(DP_SPLIT_CHUNK, NULL, 4, 6, sizes), 3); /* (2, 6) over 4 along 1 */
    ck_assert_int_eq(dp_scatter(&whole, 1, 4, sizes, chunks, NULL), DP_OK);
    for (int k = 0; k < 4; k++) {
        ck_assert_int_eq(chunks[k].shape[0], 2);
        ck_assert_int_eq(chunks[k].shape[1], k < 3 ? 2 : 0);
        ck_assert_ptr_null(chunks[k].data);
    }
    ck_assert_int_eq(dp_gather(chunks, 4, 1, &joined, NULL), DP_OK);
    ck_assert_int_eq(joined.shape[1], 6);
    ck_assert_ptr_null(joined.data);
}
END_TEST

START_TEST(scalars_are_gathered_into_a_vector)
{
    float loss[] = {0.3f, 0.2f, 0.8f}, all[3];
    dp_host_tensor scalars[3], joined = {.data = all};
    dp_error err = {0};
    for (int k = 0; k < 3; k++)
        scalars[k] = (dp_host_tensor){.element_bytes = sizeof(float), .data = &loss[k]};
    ck_assert_int_eq(dp_gather(scalars, 3, 0, &joined, &err), DP_OK);
    ck_assert_int_eq(joined.rank, 1);
    ck_assert_int_eq(joined.shape[0], 3);
    ck_assert_mem_eq(all, loss, sizeof all);
    ck_assert_int_eq(dp_gather(scalars, 3, 1, &joined, &err), DP_ERROR_USAGE);
    ck_assert_str_eq(err.message, "Dimension specified as 1 but tensor has no dimensions");
}
END_TEST

static void expect_failure(dp_status status, const dp_error *err, const char *text)
{
    ck_assert_int_eq(status, DP_ERROR_USAGE);
    ck_assert_msg(strstr(err->message, text) != NULL, "'%s' is not in '%s'", text, err->message);
}

START_TEST(what_cannot_be_scattered)
{
    dp_host_tensor chunks[2] = {{0}}, t = {.rank = 2, .shape = {2, 3}, .element_bytes = 4},
                   bad = {.element_bytes = 4};
    dp_error e = {0};
    expect_failure(dp_scatter(&bad, 0, 2, (int64_t[]){1, 1}, chunks, &e), &e,
                   "chunk expects at least a 1-dimensional tensor");
    expect_failure(dp_scatter(&t, 0, 0, NULL, chunks, &e), &e, "Expected at least one device to scatter to");
    expect_failure(dp_scatter(&t, 2, 2, (int64_t[]){1, 1}, chunks, &e), &e,
                   "Dimension out of range (expected to be in range of [-2, 1], but got 2)");
    expect_failure(dp_scatter(&t, -3, 2, (int64_t[]){1, 1}, chunks, &e), &e, "but got -3");
    expect_failure(dp_scatter(&t, 1, 2, (int64_t[]){1, 1}, chunks, &e), &e,
                   "leave 1 of 3 along dim 1 to nobody");
    expect_failure(dp_scatter(&t, 1, 2, (int64_t[]){2, 2}, chunks, &e), &e, "chunk 1 of 2 does not fit");
    expect_failure(dp_scatter(&t, 1, 2, (int64_t[]){4, -1}, chunks, &e), &e, "chunk 0 of 4 does not fit");
    bad = (dp_host_tensor){.rank = 9, .element_bytes = 4};
    expect_failure(dp_scatter(&bad, 0, 2, (int64_t[]){1, 1}, chunks, &e), &e, "rank 9");
    bad = (dp_host_tensor){.rank = 2, .shape = {2, -3}, .element_bytes = 4};
    expect_failure(dp_scatter(&bad, 0, 2, (int64_t[]){1, 1}, chunks, &e), &e, "cannot have shape [2, -3]");
    bad = (dp_host_tensor){.rank = 2, .shape = {INT64_MAX, INT64_MAX}, .element_bytes = 4};
    expect_failure(dp_scatter(&bad, 0, 1, (int64_t[]){INT64_MAX}, chunks, &e), &e, "cannot have shape");
    bad = (dp_host_tensor){.rank = 1, .shape = {2}};
    expect_failure(dp_scatter(&bad, 0, 2, (int64_t[]){1, 1}, chunks, &e), &e, "elements of 0 bytes");
}
END_TEST

START_TEST(what_cannot_be_gathered)
{
    const dp_host_tensor t = {.rank = 2, .shape = {2, 3}, .element_bytes = 4};
    dp_host_tensor joined = {0};
    dp_error e = {0};
    expect_failure(dp_gather(&t, 0, 0, &joined, &e), &e, "Expected at least one tensor to gather from");
    expect_failure(
        dp_gather((dp_host_tensor[]){t, {.rank = 2, .shape = {2, 4}, .element_bytes = 4}}, 2, 0, &joined, &e),
        &e, "Input tensor at index 1 has invalid shape [2, 4], but expected [2, 3]");
    expect_failure(
        dp_gather((dp_host_tensor[]){t, {.rank = 1, .shape = {2}, .element_bytes = 4}}, 2, 0, &joined, &e),
        &e, "Expected all input tensors to have the same number of dimensions");
    expect_failure(
        dp_gather((dp_host_tensor[]){t, {.rank = 2, .shape = {2, 3}, .element_bytes = 8}}, 2, 0, &joined, &e),
        &e, "elements of 8 bytes, but expected 4");
    expect_failure(dp_gather(&t, 1, 2, &joined, &e), &e, "Dimension out of range");
}
END_TEST

/* ---- the engine ---- */

enum { DEVICES = 3, BATCH = 7, FEATURES = 5, OUTPUTS = 4 };

typedef struct run {
    dp_context *context;
    dp_model *model;
    dp_engine *engine;
    dp_engine_config config;
    dp_error err;
} run;

static void open_run(run *r)
{
    memset(r, 0, sizeof *r);
    dp_context_config cc = dp_context_defaults();
    cc.backend = DP_BACKEND_CPU;
    cc.logical_devices = DEVICES;
    cc.threads_per_device = 1;
    ck_assert_int_eq(dp_context_open(&cc, &r->context, &r->err), DP_OK);
    ck_assert_int_eq(dp_model_create("small", &r->model, &r->err), DP_OK);
    dp_value x = dp_model_input(r->model, 1, (int64_t[]){FEATURES});
    x = dp_linear(r->model, "b", dp_relu(r->model, dp_linear(r->model, "a", x, 6)), OUTPUTS);
    ck_assert_int_eq(dp_model_finish(r->model, x, &r->err), DP_OK);
    r->config = dp_engine_defaults(); /* without device_ids: all three */
    r->config.criterion = DP_LOSS_MSE;
}

static void open_engine(run *r)
{
    float weights[256];
    ck_assert_int_le(dp_model_elements(r->model), 256);
    dp_model_init_weights(r->model, 3, weights);
    ck_assert_msg(dp_engine_create(r->context, r->model, &r->config, &r->engine, &r->err) == DP_OK, "%s",
                  r->err.message);
    ck_assert_int_eq(dp_engine_set_weights(r->engine, weights, &r->err), DP_OK);
}

static void close_run(run *r)
{
    dp_engine_free(r->engine);
    dp_model_free(r->model);
    dp_context_close(r->context);
}

static void fill(float *values, int count, uint32_t seed)
{
    for (int i = 0; i < count; i++)
        values[i] = (float)((seed = seed * 1664525u + 1013904223u) >> 8) / (float)(1 << 23) - 1;
}

static void transpose(const float *from, int rows, int columns, float *to)
{
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            to[c * rows + r] = from[r * columns + c];
}

START_TEST(all_devices_without_ids)
{
    run r;
    open_run(&r);
    open_engine(&r);
    ck_assert_int_eq(dp_engine_devices(r.engine), DEVICES);
    close_run(&r);
}
END_TEST

/* Two runs over the same batches, one with samples first and one with them last: every bit is the same. The
 * batches grow, so that the memory for turning does too; one is staged during another. */
START_TEST(samples_may_lie_along_the_last_dimension)
{
    run first, last;
    float outputs[2][BATCH * OUTPUTS], turned[BATCH * OUTPUTS], weights[2][256] = {{0}};
    open_run(&first);
    open_run(&last);
    last.config.dim = 1;
    open_engine(&first);
    open_engine(&last);
    static float x[8][2][BATCH * FEATURES], y[8][2][BATCH * OUTPUTS];
    for (int step = 0; step < 8; step++) {
        int n = step < 4 ? 1 + 2 * step : BATCH;
        fill(x[step][0], n * FEATURES, (uint32_t)step);
        fill(y[step][0], n * OUTPUTS, (uint32_t)step + 100);
        transpose(x[step][0], n, FEATURES, x[step][1]);
        transpose(y[step][0], n, OUTPUTS, y[step][1]);
    }
    for (int step = 0; step < 8; step++) {
        dp_step_result result[2];
        for (int i = 0; i < 2; i++) {
            run *r = i ? &last : &first;
            int n = step < 4 ? 1 + 2 * step : BATCH;
            dp_step s = {.batch = {n, x[step][i], y[step][i]}, .lr = 0.1, .update = true};
            ck_assert_msg(dp_engine_begin(r->engine, &s, &r->err) == DP_OK, "%s", r->err.message);
            if (step >= 4 && step < 7) {
                const dp_host_batch next = {BATCH, x[step + 1][i], y[step + 1][i]};
                ck_assert_int_eq(dp_engine_stage(r->engine, &next, &r->err), DP_OK);
            }
            ck_assert_msg(dp_engine_finish(r->engine, &result[i], &r->err) == DP_OK, "%s", r->err.message);
        }
        ck_assert(result[0].loss == result[1].loss);
        ck_assert_int_eq(result[0].devices, result[1].devices);
    }
    for (int i = 0; i < 2; i++) {
        run *r = i ? &last : &first;
        const dp_host_batch batch = {BATCH, x[7][i], NULL};
        dp_step_result result;
        ck_assert_int_eq(dp_engine_forward(r->engine, &batch, outputs[i], &r->err), DP_OK);
        ck_assert_int_eq(dp_engine_get_weights(r->engine, weights[i], &r->err), DP_OK);
        /* Outputs do not stay behind where a criterion belongs. */
        const dp_host_batch with_targets = {BATCH, x[7][i], y[7][i]};
        ck_assert_int_eq(dp_engine_evaluate(r->engine, &with_targets, &result, &r->err), DP_OK);
        double loss = 0;
        for (int e = 0; e < BATCH * OUTPUTS; e++)
            loss += (outputs[i][e] - y[7][i][e]) * (double)(outputs[i][e] - y[7][i][e]);
        ck_assert_double_eq_tol(result.loss, loss / (BATCH * OUTPUTS), 1e-6);
    }
    transpose(outputs[0], BATCH, OUTPUTS, turned);
    ck_assert_mem_eq(outputs[1], turned, sizeof turned);
    ck_assert_mem_eq(weights[0], weights[1], sizeof weights[0]);
    close_run(&first);
    close_run(&last);
}
END_TEST

/* Images [C, H, W] with the samples between any two of their dimensions, and labels. */
START_TEST(images_with_samples_along_any_dimension_that_the_outputs_have)
{
    enum { C = 2, H = 3, W = 4, N = 5 };
    const int64_t shape[] = {C, H, W};
    float x[N * C * H * W], turned[N * C * H * W], outputs[2][N * 3];
    const int32_t labels[N] = {0, 1, 2, 1, 0};
    double loss[2];
    fill(x, N * C * H * W, 9);
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++)
            memcpy(turned + (c * N + n) * H * W, x + (n * C + c) * H * W, H * W * sizeof *x);
    for (int dim = 0; dim < 2; dim++) {
        run r;
        dp_step_result result;
        open_run(&r);
        dp_model_free(r.model);
        ck_assert_int_eq(dp_model_create("images", &r.model, &r.err), DP_OK);
        dp_value v = dp_conv2d(r.model, "conv", dp_model_input(r.model, 3, shape), 2, 3, 1, 1);
        ck_assert_int_eq(
            dp_model_finish(r.model, dp_linear(r.model, "fc", dp_flatten(r.model, v), 3), &r.err), DP_OK);
        r.config.criterion = DP_LOSS_CROSS_ENTROPY;
        r.config.dim = dim;
        open_engine(&r);
        const dp_host_batch batch = {N, dim ? turned : x, labels};
        ck_assert_int_eq(dp_engine_evaluate(r.engine, &batch, &result, &r.err), DP_OK);
        ck_assert_int_eq(dp_engine_forward(r.engine, &batch, outputs[dim], &r.err), DP_OK);
        loss[dim] = result.loss;
        dp_engine_free(r.engine);
        r.engine = NULL;
        r.config.dim = 2;
        expect_failure(dp_engine_create(r.context, r.model, &r.config, &r.engine, &r.err), &r.err,
                       "dim 2: outputs of model 'images' have dimensions 0 to 1");
        r.config.dim = 4;
        expect_failure(dp_engine_create(r.context, r.model, &r.config, &r.engine, &r.err), &r.err,
                       "dim 4: a batch for model 'images' has dimensions 0 to 3");
        r.config.dim = -1;
        expect_failure(dp_engine_create(r.context, r.model, &r.config, &r.engine, &r.err), &r.err, "dim -1");
        close_run(&r);
    }
    ck_assert(loss[0] == loss[1]);
    for (int n = 0; n < N; n++)
        for (int o = 0; o < 3; o++)
            ck_assert(outputs[0][n * 3 + o] == outputs[1][o * N + n]);
}
END_TEST

START_TEST(outputs_do_not_depend_on_the_devices)
{
    float x[BATCH * FEATURES], outputs[DEVICES][BATCH * OUTPUTS];
    fill(x, BATCH * FEATURES, 1);
    for (int n = 1; n <= DEVICES; n++) {
        run r;
        open_run(&r);
        r.config.device_ids = (int[]){2, 0, 1};
        r.config.device_count = n;
        open_engine(&r);
        const dp_host_batch batch = {BATCH, x, NULL};
        ck_assert_int_eq(dp_engine_forward(r.engine, &batch, outputs[n - 1], &r.err), DP_OK);
        close_run(&r);
        for (int e = 0; e < BATCH * OUTPUTS; e++)
            ck_assert_float_eq_tol(outputs[n - 1][e], outputs[0][e], 1e-6f);
    }
}
END_TEST

START_TEST(a_module_elsewhere_is_refused_in_pytorchs_words)
{
    run r;
    open_run(&r);
    r.config.device_ids = (int[]){1, 2};
    r.config.device_count = 2;
    dp_model_to(r.model, 0);
    expect_failure(
        dp_engine_create(r.context, r.model, &r.config, &r.engine, &r.err), &r.err,
        "module must have its parameters and buffers on device cpu:1 (device_ids[0]) but found one of "
        "them on device: cpu:0");
    ck_assert_ptr_null(r.engine);
    dp_model_to(r.model, 1);
    open_engine(&r);
    dp_engine_free(r.engine);
    dp_model_to(r.model, 0); /* with one id the module is moved there */
    r.config.device_count = 1;
    open_engine(&r);
    close_run(&r);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("scatter");
    TCase *tensors = tcase_create("tensors"), *engine = tcase_create("engine");
    tcase_add_test(tensors, every_dimension_every_split);
    tcase_add_test(tensors, uneven_and_empty_chunks_and_low_ranks);
    tcase_add_test(tensors, shapes_can_be_asked_for_first);
    tcase_add_test(tensors, scalars_are_gathered_into_a_vector);
    tcase_add_test(tensors, what_cannot_be_scattered);
    tcase_add_test(tensors, what_cannot_be_gathered);
    tcase_add_test(engine, all_devices_without_ids);
    tcase_add_test(engine, samples_may_lie_along_the_last_dimension);
    tcase_add_test(engine, images_with_samples_along_any_dimension_that_the_outputs_have);
    tcase_add_test(engine, outputs_do_not_depend_on_the_devices);
    tcase_add_test(engine, a_module_elsewhere_is_refused_in_pytorchs_words);
    tcase_set_timeout(tensors, 30);
    tcase_set_timeout(engine, 30);
    suite_add_tcase(suite, tensors);
    suite_add_tcase(suite, engine);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
