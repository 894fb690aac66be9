/* Data sets: a safetensors file with x and y. */
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

static float floats[200];
static unsigned char bytes_of[200];
static int64_t labels[20];

static void fill_arrays(void)
{
    for (int i = 0; i < 200; i++) {
        floats[i] = (float)i / 8;
        bytes_of[i] = (unsigned char)i;
    }
    for (int i = 0; i < 20; i++)
        labels[i] = i % 3;
}

START_TEST(features_with_labels)
{
    fill_arrays();
    write_tensors(tensor("x", DP_F32, SHAPE(10, 4), floats), tensor("y", DP_I64, SHAPE(10), labels));
    dp_data_config config = file_config();
    config.no_validation = true;
    open_ok(&config);
    ck_assert(info->rank == 1 && info->shape[0] == 4 && info->samples == 10 && info->classes == 3);
    ck_assert_ptr_nonnull(strstr(info->description, ", 10 samples of 4 features, 3 classes"));
    float x[4];
    int32_t label;
    ck_assert(dp_dataset_read(train, 5, 0, x, &label, NULL) == DP_OK);
    ck_assert_int_eq(memcmp(x, floats + 20, sizeof x), 0); /* float samples are as they are */
    ck_assert_int_eq(label, 2);
    close_both();
    config.normalize_set = true;
    config.normalize_channels = 1;
    config.mean[0] = 1;
    config.std[0] = 2;
    open_ok(&config);
    ck_assert(dp_dataset_read(train, 5, 0, x, &label, NULL) == DP_OK);
    for (int e = 0; e < 4; e++)
        ck_assert(x[e] == (floats[20 + e] - 1) / 2);
    close_both();
}
END_TEST

START_TEST(byte_images_of_several_channels)
{
    fill_arrays();
    write_tensors(tensor("x", DP_U8, SHAPE(5, 3, 2, 2), bytes_of), tensor("y", DP_I64, SHAPE(5), labels));
    dp_data_config config = file_config();
    config.no_validation = true;
    open_ok(&config);
    ck_assert(info->rank == 3 && info->shape[0] == 3 && info->shape[1] == 2 && info->elements == 12);
    float x[12];
    int32_t label;
    ck_assert(dp_dataset_read(train, 2, 0, x, &label, NULL) == DP_OK);
    for (int e = 0; e < 12; e++)
        ck_assert(x[e] == (float)(24 + e) / 255.0f);
    close_both();
    config.normalize_set = true;
    config.normalize_channels = 3;
    memcpy(config.mean, (float[]){0.1f, 0.2f, 0.3f}, 12);
    memcpy(config.std, (float[]){1, 2, 4}, 12);
    open_ok(&config);
    ck_assert(dp_dataset_read(train, 2, 0, x, &label, NULL) == DP_OK);
    for (int e = 0; e < 12; e++)
        ck_assert(x[e] == ((float)(24 + e) / 255.0f - config.mean[e / 4]) / config.std[e / 4]);
    close_both();
}
END_TEST

START_TEST(values_and_masks)
{
    fill_arrays();
    dp_data_config config = file_config();
    config.no_validation = true;
    float x[12], y[4];
    write_tensors(tensor("x", DP_F32, SHAPE(6, 4), floats), tensor("y", DP_F32, SHAPE(6), floats + 100));
    open_ok(&config);
    ck_assert(info->target == DP_TARGET_VALUES && info->target_elements == 1 && info->classes == 0);
    ck_assert_ptr_nonnull(strstr(info->description, "1 target value"));
    ck_assert(dp_dataset_read(train, 5, 0, x, y, NULL) == DP_OK && y[0] == floats[105]);
    close_both();

    write_tensors(tensor("x", DP_F32, SHAPE(6, 4), floats), tensor("y", DP_F32, SHAPE(6, 3), floats + 100));
    open_ok(&config);
    ck_assert(info->target == DP_TARGET_VALUES && info->target_elements == 3 && info->target_bytes == 12);
    ck_assert(dp_dataset_read(train, 2, 0, x, y, NULL) == DP_OK && y[2] == floats[108]);
    close_both();

    write_tensors(tensor("x", DP_F32, SHAPE(6, 3, 2, 2), floats),
                  tensor("y", DP_F32, SHAPE(6, 1, 2, 2), floats));
    open_ok(&config);
    ck_assert(info->target == DP_TARGET_MASK && info->target_elements == 4);
    ck_assert_ptr_nonnull(strstr(info->description, "masks"));
    ck_assert(dp_dataset_read(train, 5, 0, x, y, NULL) == DP_OK && y[3] == floats[23]);
    close_both();

    write_tensors(tensor("x", DP_F32, SHAPE(6, 2, 2), floats),
                  tensor("y", DP_F32, SHAPE(6, 1, 2, 2), floats));
    open_ok(&config); /* [N, H, W] is one channel */
    ck_assert(info->rank == 3 && info->shape[0] == 1 && info->shape[2] == 2 &&
              info->target == DP_TARGET_MASK);
    close_both();
}
END_TEST

static void file_fails(dp_tensor a, dp_tensor b, const char *why)
{
    write_tensors(a, b);
    const dp_data_config config = file_config();
    open_fails(&config, DP_ERROR_MISMATCH, why);
}

START_TEST(tensors_that_are_no_data_are_refused)
{
    fill_arrays();
    const dp_tensor x = tensor("x", DP_F32, SHAPE(6, 4), floats), y = tensor("y", DP_I64, SHAPE(6), labels);
    file_fails(tensor("z", DP_F32, SHAPE(6, 4), floats), y, "has no tensor 'x'");
    file_fails(x, tensor("z", DP_I64, SHAPE(6), labels), "has no tensor 'y'");
    file_fails(tensor("x", DP_F64, SHAPE(6, 4), floats), y, "x is F64; samples are F32, or U8");
    file_fails(tensor("x", DP_F32, SHAPE(6), floats), y, "x has shape [6]; it must be");
    file_fails(tensor("x", DP_F32, SHAPE(6, 1, 1, 1, 2), floats), y, "x has shape [6, 1, 1, 1, 2]");
    file_fails(tensor("x", DP_F32, SHAPE(0, 4), floats), y, "x holds no samples");
    file_fails(tensor("x", DP_F32, SHAPE(6, 0), floats), y, "dimension 0 of a sample cannot be 0");
    file_fails(x, tensor("y", DP_I64, SHAPE(5), labels), "y has shape [5], but x holds 6 samples");
    file_fails(x, tensor("y", DP_F32, SHAPE(7, 2), floats), "y has shape [7, 2], but x holds 6 samples");
    file_fails(x, tensor("y", DP_F32, 0, NULL, floats), "y has shape [], but");
    file_fails(x, tensor("y", DP_I64, SHAPE(6, 1), labels), "y is I64 of shape [6, 1]; targets are");
    file_fails(x, tensor("y", DP_I32, SHAPE(6), labels), "y is I32");
    file_fails(x, tensor("y", DP_F64, SHAPE(6), floats), "y is F64");
    file_fails(x, tensor("y", DP_F32, SHAPE(6, 0), floats), "y is F32 of shape [6, 0]");
    file_fails(x, tensor("y", DP_F32, SHAPE(6, 1, 2, 2), floats), "y is F32 of shape [6, 1, 2, 2]");
    const dp_tensor image = tensor("x", DP_F32, SHAPE(6, 1, 2, 2), floats);
    file_fails(image, tensor("y", DP_F32, SHAPE(6, 1, 2, 3), floats), "y is F32 of shape [6, 1, 2, 3]");
    file_fails(image, tensor("y", DP_F32, SHAPE(6, 2, 2, 2), floats), "y is F32 of shape [6, 2, 2, 2]");

    const int64_t negative[6] = {0, 1, -1, 0, 0, 0}, far[6] = {0, 0, 0, 0, 0, 1ll << 31};
    file_fails(x, tensor("y", DP_I64, SHAPE(6), negative), "data': the label of sample 2 is -1, below 0");
    file_fails(x, tensor("y", DP_I64, SHAPE(6), far), "the label of sample 5 is 2147483648");
    write_tensors(x, y);
    dp_data_config config = file_config();
    config.classes = 2;
    open_fails(&config, DP_ERROR_MISMATCH, "the label of sample 2 is 2, but there are 2 classes (0 to 1)");
    scratch_write("data", "garbage", 7);
    open_fails(&config, DP_ERROR_IO, "not a safetensors file");
    config.source = "safetensors:/nowhere";
    open_fails(&config, DP_ERROR_IO, "cannot read '/nowhere'");
}
END_TEST

START_TEST(long_names_are_shortened)
{
    char directory[220], source[2300];
    fill_arrays();
    memset(directory, 'd', sizeof directory - 1);
    directory[sizeof directory - 1] = '\0';
    ck_assert_int_eq(mkdir(scratch(directory), 0700), 0);
    write_tensors(tensor("x", DP_F32, SHAPE(10, 4), floats), tensor("y", DP_I64, SHAPE(10), labels));
    snprintf(source, sizeof source, "%s/the-end", scratch(directory));
    ck_assert_int_eq(rename(scratch("data"), source), 0);
    snprintf(source, sizeof source, "safetensors:%s/the-end", scratch(directory));
    const dp_data_config config = from(source);
    open_ok(&config);
    ck_assert_int_eq(strncmp(info->description, "...ddd", 6), 0);
    ck_assert_ptr_nonnull(strstr(info->description, "ddd/the-end, 8 samples of 4 features, 3 classes"));
    close_both();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("dataset, safetensors");
    TCase *t = tcase_create("dataset, safetensors");
    tcase_set_timeout(t, 60);
    tcase_add_checked_fixture(t, scratch_make, scratch_remove);
    tcase_add_test(t, features_with_labels);
    tcase_add_test(t, byte_images_of_several_channels);
    tcase_add_test(t, values_and_masks);
    tcase_add_test(t, tensors_that_are_no_data_are_refused);
    tcase_add_test(t, long_names_are_shortened);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
