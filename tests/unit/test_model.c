/* The builder, fusion, descriptions, the memory plan and the arenas. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nn/graph.h"
#include "nn/memory_plan.h"
#include "parallel/arena.h"

static dp_model *build(const char *name, int rank, const int64_t *shape, int64_t outputs)
{
    dp_model_config c = {.name = name, .input_rank = rank, .outputs = outputs};
    memcpy(c.input_shape, shape, (size_t)rank * sizeof *shape);
    dp_model *m = NULL;
    dp_error err = {0};
    ck_assert_msg(dp_model_build(&c, &m, &err) == DP_OK, "%s", err.message);
    return m;
}

START_TEST(lenet_has_pytorch_names_and_shapes)
{
    dp_model *m = build("lenet", 3, (int64_t[]){1, 28, 28}, 10);
    const char *names[] = {"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias",
                           "fc1.weight",   "fc1.bias",   "fc2.weight",   "fc2.bias"};
    const int64_t elements[] = {800, 32, 51200, 64, 1605632, 512, 5120, 10};
    ck_assert_int_eq(dp_model_param_count(m), 8);
    for (int i = 0; i < 8; i++) {
        ck_assert_str_eq(dp_model_param(m, i)->name, names[i]);
        ck_assert_int_eq(dp_model_param(m, i)->elements, elements[i]);
        ck_assert(dp_model_param(m, i)->used);
    }
    ck_assert_int_eq(dp_model_elements(m), 1663370);
    dp_model_free(m);
}
END_TEST

START_TEST(relu_is_fused_and_moves_behind_pooling)
{
    dp_model *m = build("lenet", 3, (int64_t[]){1, 28, 28}, 10);
    const dp_op_kind kinds[] = {DP_OP_CONV2D,  DP_OP_MAX_POOL2D, DP_OP_CONV2D, DP_OP_MAX_POOL2D,
                                DP_OP_FLATTEN, DP_OP_LINEAR,     DP_OP_LINEAR};
    const bool relu[] = {false, true, false, true, false, true, false};
    ck_assert_int_eq(m->program_count, 7);
    for (int i = 0; i < 7; i++) {
        ck_assert_int_eq(m->program[i].kind, kinds[i]);
        ck_assert_int_eq(m->program[i].relu, relu[i]);
    }
    dp_model_free(m);
}
END_TEST

START_TEST(what_the_output_does_not_need_is_unused)
{
    dp_model *m;
    dp_error err = {0};
    ck_assert(dp_model_create("forked", &m, &err) == DP_OK);
    dp_value x = dp_model_input(m, 1, (int64_t[]){4});
    dp_value kept = dp_linear(m, "kept", x, 3);
    dp_linear(m, "dead", x, 5);
    ck_assert(dp_model_finish(m, kept, &err) == DP_OK);
    ck_assert(dp_model_param(m, 0)->used && dp_model_param(m, 1)->used);
    ck_assert(!dp_model_param(m, 2)->used && !dp_model_param(m, 3)->used);
    dp_model_free(m);
}
END_TEST

static void expect_failure(dp_model *m, dp_value output, dp_status status, const char *text)
{
    dp_error err = {0};
    ck_assert_int_eq(dp_model_finish(m, output, &err), status);
    ck_assert_msg(strstr(err.message, text) != NULL, "'%s' does not say '%s'", err.message, text);
    dp_model_free(m);
}

static dp_model *images(dp_value *x, int64_t side)
{
    dp_model *m = NULL;
    dp_error err = {0};
    ck_assert(dp_model_create("wrong", &m, &err) == DP_OK);
    *x = dp_model_input(m, 3, (int64_t[]){1, side, side});
    return m;
}

START_TEST(builders_report_the_first_failure)
{
    dp_value x;
    dp_model *m = images(&x, 8);
    expect_failure(m, dp_relu(m, dp_linear(m, "fc", x, 3)), DP_ERROR_USAGE, "layer 'fc' takes flat samples");
    m = images(&x, 3);
    expect_failure(m, dp_conv2d(m, "c", x, 4, 5, 1, 0), DP_ERROR_USAGE, "too small for a window of 5x5");
    m = images(&x, 8);
    expect_failure(m, dp_conv2d(m, "c", dp_conv2d(m, "c", x, 1, 3, 1, 1), 1, 3, 1, 1), DP_ERROR_USAGE,
                   "two parameters are named 'c.weight'");
    m = images(&x, 8);
    expect_failure(m, dp_max_pool2d(m, x, 2, 0, 0), DP_ERROR_USAGE, "stride 0");
    m = images(&x, 8);
    expect_failure(m, x, DP_ERROR_USAGE, "must be made by a layer");
    m = images(&x, 8);
    expect_failure(m, dp_relu(m, 77), DP_ERROR_USAGE, "77 is not a value");
}
END_TEST

/* x: images [1, 8, 8], f: the same, flat. What is built on a failure passes it on. */
#define REFUSED(value, text)                                          \
    do {                                                              \
        dp_value x, f;                                                \
        dp_model *m = images(&x, 8);                                  \
        f = dp_flatten(m, x);                                         \
        (void)f;                                                      \
        expect_failure(m, dp_relu(m, (value)), DP_ERROR_USAGE, text); \
    } while (0)

START_TEST(what_cannot_be_built_is_said)
{
    char name[300];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    REFUSED(dp_model_input(m, 1, (int64_t[]){4}), "model 'wrong' has an input already");
    REFUSED(dp_linear(m, "fc", f, 0), "layer 'fc' cannot have 0 outputs");
    REFUSED(dp_conv2d(m, "c", f, 4, 3, 1, 1), "c takes images [channels, height, width]");
    REFUSED(dp_conv2d(m, "c", x, 0, 3, 1, 1), "layer 'c' cannot have 0 channels");
    REFUSED(dp_conv2d(m, "c", x, 4, 3, 1, 3), "c: kernel 3, stride 1 and padding 3 make no window");
    REFUSED(dp_conv_transpose2d(m, "d", f, 4, 2, 2, 0), "d takes images");
    REFUSED(dp_conv_transpose2d(m, "d", x, 4, 0, 2, 0), "d: kernel 0, stride 2 and padding 0 make no window");
    REFUSED(dp_conv_transpose2d(m, "d", x, -1, 2, 2, 0), "layer 'd' cannot have -1 channels");
    REFUSED(dp_conv_transpose2d(m, "d", dp_adaptive_avg_pool2d(m, x, 1, 1), 4, 3, 1, 2),
            "a dimension of -1 makes no tensor");
    REFUSED(dp_batch_norm2d(m, "bn", f), "bn takes images");
    REFUSED(dp_add(m, x, x), "add takes two different values of one shape");
    REFUSED(dp_add(m, x, f), "add takes two different values of one shape");
    REFUSED(dp_add(m, x, dp_max_pool2d(m, x, 2, 2, 0)), "add takes two different values of one shape");
    REFUSED(dp_concat(m, x, dp_upsample2x(m, x)),
            "concat takes two different values of equal height and width");
    REFUSED(dp_adaptive_avg_pool2d(m, x, 0, 1), "adaptive_avg_pool2d cannot make images of 0x1");
    REFUSED(dp_adaptive_avg_pool2d(m, f, 1, 1), "adaptive_avg_pool2d takes images");
    REFUSED(dp_upsample2x(m, f), "upsample2x takes images");
    REFUSED(dp_dropout(m, x, 1), "a dropout of 1 is not in [0, 1)");
    REFUSED(dp_dropout(m, x, NAN), "a dropout of ");
    REFUSED(dp_dropout2d(m, f, 0.5), "dropout2d takes images");
    REFUSED(dp_max_pool2d(m, x, 3, 1, 2), "max_pool2d: padding 2 is more than half of the window of 3");
    REFUSED(dp_linear(m, name, f, 3), "the layer name 'nnnn");
    REFUSED(dp_linear(m, "fc", f, INT64_MAX / 2), "parameter 'fc.weight' would be too large");
    REFUSED(dp_linear(m, "fc", dp_linear(m, "wide", f, (int64_t)1 << 24), (int64_t)1 << 24),
            "parameter 'fc.weight' would be too large");
    REFUSED(dp_concat(m, f, dp_flatten(m, dp_relu(m, x))), "concat takes images");
}
END_TEST

START_TEST(a_model_that_is_finished_stays_as_it_is)
{
    dp_error err = {0};
    dp_value x;
    dp_model *m = images(&x, 8);
    ck_assert(dp_model_finish(m, dp_conv2d(m, "c", x, 2, 3, 1, 1), &err) == DP_OK);
    ck_assert_int_lt(dp_relu(m, x), 0);
    ck_assert_int_eq(dp_model_param_count(m), 2);
    dp_model_free(m);
}
END_TEST

START_TEST(unknown_models_get_a_suggestion)
{
    dp_model_config c = {.name = "lennet", .input_rank = 1, .input_shape = {4}, .outputs = 2};
    dp_model *m;
    dp_error err = {0};
    ck_assert_int_eq(dp_model_build(&c, &m, &err), DP_ERROR_USAGE);
    ck_assert_str_eq(err.message, "unknown model 'lennet'; did you mean 'lenet'?");
    c.name = "lenet";
    ck_assert_int_eq(dp_model_build(&c, &m, &err), DP_ERROR_MISMATCH);
}
END_TEST

START_TEST(descriptions_rebuild_the_model)
{
    dp_model_config c = {.name = "mlp", .input_rank = 3, .input_shape = {1, 6, 6}, .outputs = 10};
    c.hidden_count = 2;
    c.hidden[0] = 32;
    c.hidden[1] = 16;
    dp_model *m, *again;
    dp_error err = {0};
    ck_assert(dp_model_build(&c, &m, &err) == DP_OK);
    ck_assert_msg(dp_model_from_description(dp_model_description(m), &again, &err) == DP_OK, "%s",
                  err.message);
    ck_assert_int_eq(dp_model_param_count(m), dp_model_param_count(again));
    ck_assert_str_eq(dp_model_description(m), dp_model_description(again));
    dp_model_free(m);
    dp_model_free(again);
    const char *bad[] = {"",
                         "[]",
                         "{}",
                         "{\"model\":\"mlp\"}",
                         "{\"model\":\"mlp\",\"input\":[4],\"outputs\":0}",
                         "{\"model\":\"mlp\",\"input\":[1,2],\"outputs\":2}",
                         "{\"model\":\"mlp\",\"input\":[4],\"outputs\":2,\"hidden\":[-1]}"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_int_eq(dp_model_from_description(bad[i], &m, &err), DP_ERROR_MISMATCH);
        ck_assert_ptr_null(m);
    }
}
END_TEST

START_TEST(initial_weights_depend_on_seed_alone)
{
    dp_model *m = build("mlp", 1, (int64_t[]){100}, 10);
    float *a = calloc((size_t)dp_model_elements(m), sizeof *a),
          *b = calloc((size_t)dp_model_elements(m), sizeof *b);
    dp_model_init_weights(m, 1, a);
    dp_model_init_weights(m, 1, b);
    ck_assert(memcmp(a, b, (size_t)dp_model_elements(m) * sizeof *a) == 0);
    dp_model_init_weights(m, 2, b);
    ck_assert(memcmp(a, b, (size_t)dp_model_elements(m) * sizeof *a) != 0);
    double sum = 0, square = 0; /* fc1.weight: uniform in +-0.1, so mean 0 and variance 0.01 / 3 */
    for (int64_t i = 0; i < 51200; i++) {
        ck_assert(a[i] >= -0.1f && a[i] <= 0.1f);
        sum += a[i];
        square += (double)a[i] * a[i];
    }
    ck_assert_double_eq_tol(sum / 51200, 0, 0.002);
    ck_assert_double_eq_tol(square / 51200, 0.01 / 3, 0.0001);
    free(a);
    free(b);
    dp_model_free(m);
}
END_TEST

START_TEST(blocks_that_live_together_do_not_overlap)
{
    dp_block blocks[40];
    uint32_t seed = 7;
    size_t total, sum = 0;
    dp_error err = {0};
    for (int i = 0; i < 40; i++) {
        seed = seed * 1664525u + 1013904223u;
        blocks[i] = (dp_block){.bytes = seed >> 20, .first = (int)(seed >> 8 & 15)};
        blocks[i].last = blocks[i].first + (int)(seed >> 4 & 7);
        sum += (blocks[i].bytes + 63) / 64 * 64;
    }
    ck_assert(dp_pack_blocks(blocks, 40, &total, &err) == DP_OK);
    ck_assert_uint_lt(total, sum);
    for (int i = 0; i < 40; i++) {
        ck_assert_uint_eq(blocks[i].offset % 64, 0);
        ck_assert_uint_le(blocks[i].offset + blocks[i].bytes, total);
        for (int j = 0; j < i; j++) {
            bool meet = blocks[i].first <= blocks[j].last && blocks[j].first <= blocks[i].last;
            bool overlap = blocks[i].offset < blocks[j].offset + blocks[j].bytes &&
                           blocks[j].offset < blocks[i].offset + blocks[i].bytes;
            ck_assert(!meet || !overlap);
        }
    }
}
END_TEST

START_TEST(buckets_cover_what_is_trained)
{
    dp_model *m = build("lenet", 3, (int64_t[]){1, 28, 28}, 10);
    const char *freeze[] = {"conv1.*"};
    dp_arena a;
    dp_error err = {0};
    ck_assert(dp_arena_create(m, freeze, 1, 0, &a, &err) == DP_OK);
    int64_t trained = 0, sent = 0;
    for (int b = 0; b < a.bucket_count; b++) {
        ck_assert_int_lt(a.buckets[b].begin, a.buckets[b].end);
        ck_assert(b == 0 || a.buckets[b].first_step >= a.buckets[b - 1].first_step);
        *(a.buckets[b].trainable ? &trained : &sent) += a.buckets[b].end - a.buckets[b].begin;
    }
    ck_assert_int_eq(trained, a.trainable_elements);
    ck_assert_int_eq(trained + sent, a.used_elements);
    ck_assert_int_eq(a.elements, a.used_elements);
    for (int p = 0; p < a.param_count; p++) {
        ck_assert_int_eq(a.offset[p] % 16, 0);
        ck_assert_int_eq(a.trainable[p], p >= 2);
        ck_assert_int_eq(a.offset[p] < a.trainable_elements, p >= 2);
    }
    dp_arena_clear(&a);
    freeze[0] = "conv9.*";
    ck_assert_int_eq(dp_arena_create(m, freeze, 1, 0, &a, &err), DP_ERROR_USAGE);
    ck_assert_ptr_nonnull(strstr(err.message, "'conv9.*' matches no parameter"));
    freeze[0] = "*";
    ck_assert_int_eq(dp_arena_create(m, freeze, 1, 0, &a, &err), DP_ERROR_USAGE);
    ck_assert_ptr_nonnull(strstr(err.message, "nothing is left to train"));
    dp_model_free(m);
}
END_TEST

/* Operations whose parameters lie in the bucket. */
static int operations_in(const dp_model *m, const dp_arena *a, const dp_bucket *b)
{
    int count = 0;
    for (int step = 0; step < m->program_count; step++) {
        const dp_node *node = &m->program[step];
        int64_t at = node->params ? a->offset[node->param[0]] : -1;
        count += at >= b->begin && at < b->end;
    }
    return count;
}

START_TEST(buckets_keep_to_their_limit)
{
    dp_model *m = build("lenet", 3, (int64_t[]){1, 28, 28}, 10);
    dp_arena a;
    dp_error err = {0};
    ck_assert(dp_arena_create(m, NULL, 0, 0, &a, &err) == DP_OK);
    ck_assert_int_eq(a.bucket_count, 2);
    int64_t elements = a.trainable_elements;
    dp_arena_clear(&a);
    for (size_t limit = 1; limit < 1 << 20; limit *= 4) {
        ck_assert(dp_arena_create(m, NULL, 0, limit, &a, &err) == DP_OK);
        ck_assert_int_eq(a.trainable_elements, elements);
        for (int b = 0; b < a.bucket_count; b++) {
            const dp_bucket *bucket = &a.buckets[b];
            size_t bytes = (size_t)(bucket->end - bucket->begin) * sizeof(float);
            ck_assert(bytes <= limit || operations_in(m, &a, bucket) == 1);
            ck_assert_int_eq(bucket->begin, b ? a.buckets[b - 1].end : 0);
        }
        if (limit == 1)
            ck_assert_int_eq(a.bucket_count, 4); /* every layer alone */
        dp_arena_clear(&a);
    }
    dp_model_free(m);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("model");
    TCase *t = tcase_create("model");
    tcase_add_test(t, lenet_has_pytorch_names_and_shapes);
    tcase_add_test(t, relu_is_fused_and_moves_behind_pooling);
    tcase_add_test(t, what_the_output_does_not_need_is_unused);
    tcase_add_test(t, builders_report_the_first_failure);
    tcase_add_test(t, what_cannot_be_built_is_said);
    tcase_add_test(t, a_model_that_is_finished_stays_as_it_is);
    tcase_add_test(t, unknown_models_get_a_suggestion);
    tcase_add_test(t, descriptions_rebuild_the_model);
    tcase_add_test(t, initial_weights_depend_on_seed_alone);
    tcase_add_test(t, blocks_that_live_together_do_not_overlap);
    tcase_add_test(t, buckets_cover_what_is_trained);
    tcase_add_test(t, buckets_keep_to_their_limit);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
