/* Data sets: synthetic samples, and sources that are none. */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>

#include "data/order.h"
#include "data/storage.h"
#include "dataset.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "scratch.h"

START_TEST(synthetic_data_is_standard_normal_around_its_classes)
{
    dp_data_config config = from("synthetic:600");
    config.no_validation = true;
    config.seed = 3;
    open_ok(&config);
    ck_assert_str_eq(info->description, "synthetic:600, 600 images 1x28x28, 10 classes");
    double sum = 0, squares = 0, *means = calloc(10 * 784, sizeof *means);
    float *x = malloc(600 * 784 * sizeof *x);
    int32_t label[600];
    int per_class[10] = {0};
    for (int i = 0; i < 600; i++) {
        ck_assert(dp_dataset_read(train, i, 0, x + i * 784, &label[i], NULL) == DP_OK);
        ck_assert(label[i] >= 0 && label[i] < 10);
        per_class[label[i]]++;
        for (int e = 0; e < 784; e++) {
            sum += x[i * 784 + e];
            squares += (double)x[i * 784 + e] * x[i * 784 + e];
            if (i < 300)
                means[label[i] * 784 + e] += x[i * 784 + e];
        }
    }
    ck_assert_double_eq_tol(sum / (600 * 784), 0, 0.03);
    ck_assert_double_eq_tol(squares / (600 * 784), 1 + 16.0 / 784, 0.02);
    for (int c = 0; c < 10; c++)
        ck_assert_msg(per_class[c] > 30 && per_class[c] < 90, "class %d: %d", c, per_class[c]);
    /* Means of the classes over the first half tell the classes of the second half: there is something to
     * learn. By chance it would be one in ten. */
    int right = 0;
    for (int i = 300; i < 600; i++) {
        int best = 0;
        double best_score = -INFINITY;
        for (int c = 0; c < 10; c++) {
            double score = 0;
            for (int e = 0; e < 784; e++)
                score += means[c * 784 + e] * x[i * 784 + e];
            if (score > best_score) {
                best = c;
                best_score = score;
            }
        }
        right += best == label[i];
    }
    ck_assert_int_gt(right, 150);
    free(means);
    free(x);
    close_both();
}
END_TEST

START_TEST(synthetic_data_follows_its_seed_and_shape)
{
    float x[2][24];
    int32_t label;
    dp_data_config config = from("synthetic");
    memcpy(config.synthetic_shape, (int64_t[]){3, 2, 4}, sizeof config.synthetic_shape);
    config.synthetic_classes = 5;
    open_ok(&config);
    ck_assert_int_eq(info->samples + dp_dataset_info_of(valid)->samples, 4096);
    ck_assert(info->shape[0] == 3 && info->shape[1] == 2 && info->shape[2] == 4 && info->classes == 5);
    ck_assert(dp_dataset_read(train, 100, 0, x[0], &label, NULL) == DP_OK);
    close_both();
    open_ok(&config);
    ck_assert(dp_dataset_read(train, 100, 0, x[1], &label, NULL) == DP_OK);
    ck_assert_int_eq(memcmp(x[0], x[1], sizeof x[0]), 0);
    close_both();
    config.seed = 1;
    config.classes = 7;
    open_ok(&config);
    ck_assert_int_eq(info->classes, 7);
    ck_assert(dp_dataset_read(train, 100, 0, x[1], &label, NULL) == DP_OK);
    ck_assert_int_ne(memcmp(x[0], x[1], sizeof x[0]), 0);
    close_both();
}
END_TEST

START_TEST(malformed_sources_are_usage_errors)
{
    static const struct {
        const char *source, *why;
    } cases[] = {
        {"synthetic:", "must be a whole number from 1"},
        {"synthetic:0", "must be a whole number from 1"},
        {"synthetic:-5", "must be a whole number from 1"},
        {"synthetic: 5", "must be a whole number from 1"},
        {"synthetic:+5", "must be a whole number from 1"},
        {"synthetic:12x", "data 'synthetic:12x'"},
        {"synthetic:1e3", "must be a whole number from 1"},
        {"synthetic:99999999999999999999", "must be a whole number from 1"},
        {"synthetic:2000000000", "must be a whole number from 1"},
        {"idx", "needs a directory: idx:DIR"},
        {"idx:", "needs a directory: idx:DIR"},
        {"safetensors", "needs a file: safetensors:FILE"},
        {"safetensors:", "needs a file: safetensors:FILE"},
        {"fashion-mnsit", "unknown data 'fashion-mnsit': did you mean 'fashion-mnist'?"},
        {"syntetic:5", "did you mean 'synthetic'?"},
        {"safetensor:file", "did you mean 'safetensors'?"},
        {"cifar10",
         "use fashion-mnist, idx:DIR, safetensors:FILE, segmentation:DIR, images:DIR or synthetic[:N]"},
        {"a-name-that-is-much-longer-than-any-kind-of-data:x", "unknown data"},
        {"", "unknown data ''"},
        {NULL, "unknown data ''"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const dp_data_config config = from(cases[i].source);
        open_fails(&config, DP_ERROR_USAGE, cases[i].why);
    }
    char want[2200];
    dp_data_config config = from(scratch_directory);
    snprintf(want, sizeof want, "did you mean 'idx:%s'?", scratch_directory);
    open_fails(&config, DP_ERROR_USAGE, want);
    config.source = scratch_write("file", "x", 1);
    snprintf(want, sizeof want, "did you mean 'safetensors:%s'?", config.source);
    open_fails(&config, DP_ERROR_USAGE, want);
}
END_TEST

START_TEST(impossible_synthetic_data_is_refused)
{
    dp_data_config config = from("synthetic:1000000");
    memcpy(config.synthetic_shape, (int64_t[]){1, 4000000, 4000000}, sizeof config.synthetic_shape);
    open_fails(&config, DP_ERROR_MEMORY, "out of memory");
    memcpy(config.synthetic_shape, (int64_t[]){1, 1ll << 40, 1ll << 40}, sizeof config.synthetic_shape);
    open_fails(&config, DP_ERROR_MISMATCH, "dimension 2");
    memcpy(config.synthetic_shape, (int64_t[]){1, 1, 0}, sizeof config.synthetic_shape);
    open_fails(&config, DP_ERROR_MISMATCH, "dimension 2");
    config = from("synthetic:10");
    config.synthetic_classes = 0;
    open_fails(&config, DP_ERROR_USAGE, "0 classes");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("dataset, synthetic");
    TCase *t = tcase_create("dataset, synthetic");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, scratch_make, scratch_remove);
    tcase_add_test(t, synthetic_data_is_standard_normal_around_its_classes);
    tcase_add_test(t, synthetic_data_follows_its_seed_and_shape);
    tcase_add_test(t, malformed_sources_are_usage_errors);
    tcase_add_test(t, impossible_synthetic_data_is_refused);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
