/* Data sets: IDX directories and Fashion-MNIST, normalisation, labels. */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <zlib.h>

#include "data/order.h"
#include "data/storage.h"
#include "dataset.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "scratch.h"

/* ---- IDX directories ---- */

static const char train_images[] = "train-images-idx3-ubyte", train_labels[] = "train-labels-idx1-ubyte",
                  test_images[] = "t10k-images-idx3-ubyte", test_labels[] = "t10k-labels-idx1-ubyte";

static void write_gz(const char *name, const void *bytes, size_t size)
{
    gzFile f = gzopen(scratch(name), "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(gzwrite(f, bytes, (unsigned)size), (int)size);
    ck_assert_int_eq(gzclose(f), Z_OK);
}

/* n images of 2 x 3; pixel p of image i is (10 i + p) mod 256. */
static void write_images(const char *name, unsigned char n, unsigned char height)
{
    unsigned char bytes[16 + 100 * 6] = {0, 0, 8, 3, 0, 0, 0, n, 0, 0, 0, height, 0, 0, 0, 3};
    for (int i = 0; i < n; i++) {
        for (int p = 0; p < height * 3; p++)
            bytes[16 + i * height * 3 + p] = (unsigned char)(10 * i + p);
    }
    size_t size = 16u + (size_t)n * height * 3;
    if (strstr(name, ".gz"))
        write_gz(name, bytes, size);
    else
        scratch_write(name, bytes, size);
}

/* The label of image i is i mod 4, except that the last one is `last`. */
static void write_labels(const char *name, unsigned char n, unsigned char last)
{
    unsigned char bytes[8 + 256] = {0, 0, 8, 1, 0, 0, 0, n};
    for (int i = 0; i < n; i++)
        bytes[8 + i] = (unsigned char)(i % 4);
    if (n)
        bytes[8 + n - 1] = last;
    if (strstr(name, ".gz"))
        write_gz(name, bytes, 8u + n);
    else
        scratch_write(name, bytes, 8u + n);
}

static dp_data_config idx_config(void)
{
    static char source[600];
    snprintf(source, sizeof source, "idx:%s", scratch_directory);
    return from(source);
}

static void write_idx_set(void)
{
    write_images(train_images, 20, 2);
    write_labels("train-labels-idx1-ubyte.gz", 20, 3);
    write_images("t10k-images-idx3-ubyte.gz", 5, 2);
    write_labels(test_labels, 5, 6);
}

START_TEST(idx_directories_are_read)
{
    write_idx_set();
    dp_data_config config = idx_config();
    open_ok(&config);
    ck_assert_int_eq(info->samples, 20);
    ck_assert_int_eq(info->rank, 3);
    ck_assert(info->shape[0] == 1 && info->shape[1] == 2 && info->shape[2] == 3);
    ck_assert_int_eq(info->elements, 6);
    ck_assert_int_eq(info->target, DP_TARGET_LABELS);
    ck_assert_int_eq(info->classes, 7); /* the test part counts */
    ck_assert_int_eq(info->target_elements, 1);
    ck_assert_uint_eq(info->target_bytes, 4);
    ck_assert_int_eq(info->normalize_channels, 0);
    ck_assert_ptr_nonnull(strstr(info->description, ", 20 images 1x2x3, 7 classes"));
    ck_assert_int_eq(dp_dataset_info_of(valid)->samples, 5);
    ck_assert(!info->is_test && dp_dataset_info_of(valid)->is_test);
    ck_assert_int_eq(dp_dataset_info_of(valid)->classes, 7);
    float x[6];
    int32_t label;
    dp_error err = {0};
    ck_assert(dp_dataset_read(train, 7, 0, x, &label, &err) == DP_OK);
    for (int p = 0; p < 6; p++)
        ck_assert(x[p] == (float)(70 + p) / 255.0f);
    ck_assert_int_eq(label, 3);
    ck_assert(dp_dataset_read(valid, 4, 0, x, &label, &err) == DP_OK);
    ck_assert_int_eq(label, 6);
    ck_assert_int_eq(dp_dataset_read(train, 20, 0, x, &label, &err), DP_ERROR_USAGE);
    ck_assert_int_eq(dp_dataset_read(train, -1, 0, x, &label, &err), DP_ERROR_USAGE);
    close_both();
}
END_TEST

START_TEST(without_a_test_part_a_share_is_held_out)
{
    write_images(train_images, 20, 2);
    write_labels(train_labels, 20, 3);
    dp_data_config config = idx_config();
    open_ok(&config);
    ck_assert_int_eq(info->samples, 17); /* 0.15 of 20 are 3 */
    ck_assert_int_eq(dp_dataset_info_of(valid)->samples, 3);
    ck_assert(!info->is_test && !dp_dataset_info_of(valid)->is_test);
    close_both();
    config.valid_split = 0;
    open_ok(&config);
    ck_assert_int_eq(info->samples, 20);
    ck_assert_ptr_null(valid);
    close_both();
}
END_TEST

START_TEST(no_validation_opens_no_test_part)
{
    write_idx_set();
    scratch_write(test_images, "garbage", 7);
    dp_data_config config = idx_config();
    open_fails(&config, DP_ERROR_IO, "not an IDX file");
    config.no_validation = true;
    config.valid_split = 0;
    open_ok(&config);
    ck_assert_int_eq(info->samples, 20);
    ck_assert_int_eq(info->classes, 4);
    ck_assert_ptr_null(valid);
    close_both();
}
END_TEST

START_TEST(unsound_idx_directories_are_refused)
{
    dp_data_config config = idx_config();
    open_fails(&config, DP_ERROR_IO, "holds neither train-images-idx3-ubyte nor train-images-idx3-ubyte.gz");
    write_images(train_images, 20, 2);
    open_fails(&config, DP_ERROR_IO, "holds neither train-labels-idx1-ubyte");
    write_labels(train_labels, 19, 3);
    open_fails(&config, DP_ERROR_MISMATCH, "holds 19 labels");
    write_labels(train_labels, 20, 3);
    write_images(test_images, 5, 2);
    open_fails(&config, DP_ERROR_IO, "holds neither t10k-labels-idx1-ubyte"); /* half a part */
    write_labels(test_labels, 5, 3);
    write_images(test_images, 5, 1);
    open_fails(&config, DP_ERROR_MISMATCH, "training images are 1x2x3, test images 1x1x3");
    write_images(train_images, 0, 2);
    open_fails(&config, DP_ERROR_MISMATCH, "holds no images");
    write_images(train_images, 20, 0);
    open_fails(&config, DP_ERROR_MISMATCH, "dimension 1 of a sample cannot be 0");
    write_labels(train_images, 20, 3);
    open_fails(&config, DP_ERROR_MISMATCH, "has 1 dimension; images have 3 or 4");
    write_images(train_images, 20, 2);
    write_images(train_labels, 20, 2);
    open_fails(&config, DP_ERROR_MISMATCH, "has 3 dimensions; labels have 1");
    config.source = "idx:/nowhere/at/all";
    open_fails(&config, DP_ERROR_IO, "cannot read '/nowhere/at/all'");
}
END_TEST

START_TEST(labels_outside_the_classes_are_named)
{
    write_images(train_images, 20, 2);
    write_labels(train_labels, 20, 9);
    dp_data_config config = idx_config();
    config.classes = 9;
    open_fails(&config, DP_ERROR_MISMATCH, "the label of sample 19 is 9, but there are 9 classes (0 to 8)");
    config.classes = 10;
    open_ok(&config);
    ck_assert_int_eq(info->classes, 10);
    close_both();
    config.classes = 20; /* more outputs than labels is fine */
    open_ok(&config);
    ck_assert_int_eq(info->classes, 20);
    close_both();
    config.classes = 10;
    write_images(test_images, 5, 2);
    write_labels(test_labels, 5, 10);
    open_fails(&config, DP_ERROR_MISMATCH, "t10k-labels-idx1-ubyte': the label of sample 4 is 10");
}
END_TEST

START_TEST(normalisation_can_be_set)
{
    write_images(train_images, 20, 2);
    write_labels(train_labels, 20, 3);
    dp_data_config config = idx_config();
    config.no_validation = true;
    config.normalize_set = true;
    config.normalize_channels = 1;
    config.mean[0] = 0.5f;
    config.std[0] = 0.25f;
    open_ok(&config);
    ck_assert_int_eq(info->normalize_channels, 1);
    ck_assert(info->mean[0] == 0.5f && info->std[0] == 0.25f);
    float x[6];
    int32_t label;
    ck_assert(dp_dataset_read(train, 19, 0, x, &label, NULL) == DP_OK);
    for (int p = 0; p < 6; p++)
        ck_assert(x[p] == ((float)(190 + p) / 255.0f - 0.5f) / 0.25f);
    close_both();
    config.normalize_channels = 3;
    open_fails(&config, DP_ERROR_MISMATCH, "mean and std have 3 values; the data has 1 channel:");
    config.normalize_channels = 1;
    config.std[0] = 0;
    open_fails(&config, DP_ERROR_USAGE, "std must be above 0");
    config.std[0] = NAN;
    open_fails(&config, DP_ERROR_USAGE, "std must be above 0");
    config.normalize_channels = 0; /* as in a run without: none at all */
    open_ok(&config);
    ck_assert_int_eq(info->normalize_channels, 0);
    close_both();
}
END_TEST

/* ---- Fashion-MNIST ---- */

START_TEST(fashion_mnist_is_found_or_said_to_be_missing)
{
    dp_data_config config = from("fashion-mnist");
    if (!dp_file_exists("/usr/share/datasets/fashion-mnist") &&
        !dp_file_exists("/usr/share/dataset-fashion-mnist")) {
        open_fails(&config, DP_ERROR_IO, "run 'apt-get install dataset-fashion-mnist' or use --data idx:DIR");
        return;
    }
    open_ok(&config);
    ck_assert_str_eq(info->description, "fashion-mnist, 60,000 images 1x28x28, 10 classes");
    ck_assert_str_eq(dp_dataset_info_of(valid)->description,
                     "fashion-mnist, 10,000 images 1x28x28, 10 classes");
    ck_assert_int_eq(info->classes, 10);
    ck_assert(info->normalize_channels == 1 && info->mean[0] == 0.2860f && info->std[0] == 0.3530f);
    static const int32_t first[] = {9, 0, 0, 3, 0, 2, 7, 2, 5, 5}; /* as published */
    double sum = 0, squares = 0;
    int per_class[10] = {0};
    for (int64_t i = 0; i < 60000; i++) {
        float x[784];
        int32_t label;
        ck_assert(dp_dataset_read(train, i, 0, x, &label, NULL) == DP_OK);
        if (i < 10)
            ck_assert_int_eq(label, first[i]);
        per_class[label]++;
        for (int p = 0; p < 784; p++) {
            sum += x[p];
            squares += (double)x[p] * x[p];
        }
    }
    for (int c = 0; c < 10; c++)
        ck_assert_int_eq(per_class[c], 6000);
    double n = 60000.0 * 784;
    ck_assert_double_eq_tol(sum / n, 0, 1e-3); /* normalised by its own mean and deviation */
    ck_assert_double_eq_tol(squares / n, 1, 1e-3);
    close_both();
    config.classes = 9;
    open_fails(&config, DP_ERROR_MISMATCH, "is 9, but there are 9 classes");
    config.source = "fashion-mnist:x";
    open_fails(&config, DP_ERROR_USAGE, "takes nothing after it");
}
END_TEST

START_TEST(a_missing_package_is_named)
{
    const char *const nowhere[] = {"/nowhere/a", "/nowhere/b", NULL};
    const dp_data_config config = dp_data_defaults();
    dp_source source = {0};
    dp_error err = {0};
    ck_assert_int_eq(dp_open_fashion_mnist_in(nowhere, &config, &source, &err), DP_ERROR_IO);
    ck_assert_str_eq(err.message,
                     "fashion-mnist is not installed: run 'apt-get install dataset-fashion-mnist' or "
                     "use --data idx:DIR");
    write_idx_set();
    const char *const here[] = {"/nowhere/a", scratch_directory, NULL};
    ck_assert_int_eq(dp_open_fashion_mnist_in(here, &config, &source, &err), DP_OK);
    ck_assert(source.train->samples == 20 && source.test->samples == 5);
    dp_storage_release(source.train);
    dp_storage_release(source.test);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("dataset, idx");
    TCase *t = tcase_create("dataset, idx");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, scratch_make, scratch_remove);
    tcase_add_test(t, idx_directories_are_read);
    tcase_add_test(t, without_a_test_part_a_share_is_held_out);
    tcase_add_test(t, no_validation_opens_no_test_part);
    tcase_add_test(t, unsound_idx_directories_are_refused);
    tcase_add_test(t, labels_outside_the_classes_are_named);
    tcase_add_test(t, normalisation_can_be_set);
    tcase_add_test(t, fashion_mnist_is_found_or_said_to_be_missing);
    tcase_add_test(t, a_missing_package_is_named);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
