/* Data sets: the sources, normalisation, labels, the held-out share. */
#include <check.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <zlib.h>

#include "data/order.h"
#include "data/storage.h"
#include "dptrain/data.h"
#include "io/file.h"
#include "io/safetensors.h"
#include "scratch.h"

static dp_dataset *train, *valid;
static const dp_dataset_info *info;

static dp_data_config from(const char *source)
{
    dp_data_config config = dp_data_defaults();
    config.source = source;
    return config;
}

static void open_ok(const dp_data_config *config)
{
    dp_error err = {0};
    ck_assert_msg(dp_data_open(config, &train, &valid, &err) == DP_OK, "%s", err.message);
    info = dp_dataset_info_of(train);
}

static void close_both(void)
{
    dp_dataset_free(train); /* either order */
    dp_dataset_free(valid);
}

static void open_fails(const dp_data_config *config, dp_status status, const char *why)
{
    dp_error err = {0};
    dp_status got = dp_data_open(config, &train, &valid, &err);
    ck_assert_msg(got == status, "status %d, %s", (int)got, err.message);
    ck_assert_msg(strstr(err.message, why) != NULL, "%s (wanted: %s)", err.message, why);
    ck_assert_ptr_null(train);
    ck_assert_ptr_null(valid);
}

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
    ck_assert(dp_dataset_read(train, 7, x, &label, &err) == DP_OK);
    for (int p = 0; p < 6; p++)
        ck_assert(x[p] == (float)(70 + p) / 255.0f);
    ck_assert_int_eq(label, 3);
    ck_assert(dp_dataset_read(valid, 4, x, &label, &err) == DP_OK);
    ck_assert_int_eq(label, 6);
    ck_assert_int_eq(dp_dataset_read(train, 20, x, &label, &err), DP_ERROR_USAGE);
    ck_assert_int_eq(dp_dataset_read(train, -1, x, &label, &err), DP_ERROR_USAGE);
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
    ck_assert(dp_dataset_read(train, 19, x, &label, NULL) == DP_OK);
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
        ck_assert(dp_dataset_read(train, i, x, &label, NULL) == DP_OK);
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

/* ---- safetensors ---- */

static dp_data_config file_config(void)
{
    static char source[2100];
    snprintf(source, sizeof source, "safetensors:%s", scratch("data"));
    return from(source);
}

static dp_tensor tensor(const char *name, dp_dtype dtype, int rank, const int64_t *shape, const void *data)
{
    dp_tensor t = {
        .name = (char *)(uintptr_t)name, .dtype = dtype, .rank = rank, .elements = 1, .data = data};
    for (int d = 0; d < rank; d++) {
        t.shape[d] = shape[d];
        t.elements *= shape[d];
    }
    t.bytes = (size_t)t.elements * dp_dtype_size(dtype);
    return t;
}

static void write_tensors(dp_tensor a, dp_tensor b)
{
    /* One odd byte in front: nothing lies aligned. */
    static const unsigned char odd[1] = {7};
    const dp_tensor tensors[] = {tensor("odd", DP_U8, 1, (int64_t[]){1}, odd), a, b};
    dp_error err = {0};
    ck_assert_msg(dp_safetensors_write(scratch("data"), tensors, 3, NULL, 0, &err) == DP_OK, "%s",
                  err.message);
}

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

#define SHAPE(...)                                                         \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) \
    {                                                                      \
        __VA_ARGS__                                                        \
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
    ck_assert(dp_dataset_read(train, 5, x, &label, NULL) == DP_OK);
    ck_assert_int_eq(memcmp(x, floats + 20, sizeof x), 0); /* float samples are as they are */
    ck_assert_int_eq(label, 2);
    close_both();
    config.normalize_set = true;
    config.normalize_channels = 1;
    config.mean[0] = 1;
    config.std[0] = 2;
    open_ok(&config);
    ck_assert(dp_dataset_read(train, 5, x, &label, NULL) == DP_OK);
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
    ck_assert(dp_dataset_read(train, 2, x, &label, NULL) == DP_OK);
    for (int e = 0; e < 12; e++)
        ck_assert(x[e] == (float)(24 + e) / 255.0f);
    close_both();
    config.normalize_set = true;
    config.normalize_channels = 3;
    memcpy(config.mean, (float[]){0.1f, 0.2f, 0.3f}, 12);
    memcpy(config.std, (float[]){1, 2, 4}, 12);
    open_ok(&config);
    ck_assert(dp_dataset_read(train, 2, x, &label, NULL) == DP_OK);
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
    ck_assert(dp_dataset_read(train, 5, x, y, NULL) == DP_OK && y[0] == floats[105]);
    close_both();

    write_tensors(tensor("x", DP_F32, SHAPE(6, 4), floats), tensor("y", DP_F32, SHAPE(6, 3), floats + 100));
    open_ok(&config);
    ck_assert(info->target == DP_TARGET_VALUES && info->target_elements == 3 && info->target_bytes == 12);
    ck_assert(dp_dataset_read(train, 2, x, y, NULL) == DP_OK && y[2] == floats[108]);
    close_both();

    write_tensors(tensor("x", DP_F32, SHAPE(6, 3, 2, 2), floats),
                  tensor("y", DP_F32, SHAPE(6, 1, 2, 2), floats));
    open_ok(&config);
    ck_assert(info->target == DP_TARGET_MASK && info->target_elements == 4);
    ck_assert_ptr_nonnull(strstr(info->description, "masks"));
    ck_assert(dp_dataset_read(train, 5, x, y, NULL) == DP_OK && y[3] == floats[23]);
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

/* ---- synthetic ---- */

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
        ck_assert(dp_dataset_read(train, i, x + i * 784, &label[i], NULL) == DP_OK);
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
    ck_assert(dp_dataset_read(train, 100, x[0], &label, NULL) == DP_OK);
    close_both();
    open_ok(&config);
    ck_assert(dp_dataset_read(train, 100, x[1], &label, NULL) == DP_OK);
    ck_assert_int_eq(memcmp(x[0], x[1], sizeof x[0]), 0);
    close_both();
    config.seed = 1;
    config.classes = 7;
    open_ok(&config);
    ck_assert_int_eq(info->classes, 7);
    ck_assert(dp_dataset_read(train, 100, x[1], &label, NULL) == DP_OK);
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
        {"cifar10", "use fashion-mnist, idx:DIR, safetensors:FILE or synthetic[:N]"},
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

/* ---- the held-out share ---- */

/* Opens 100 samples whose single feature is their number; sets held[number] for those held out. */
static void split(uint64_t seed, double share, bool held[100])
{
    float numbers[100], x;
    int64_t none[100] = {0};
    bool seen[100] = {false};
    int32_t label;
    for (int i = 0; i < 100; i++)
        numbers[i] = (float)i;
    write_tensors(tensor("x", DP_F32, SHAPE(100, 1), numbers), tensor("y", DP_I64, SHAPE(100), none));
    dp_data_config config = file_config();
    config.seed = seed;
    config.valid_split = share;
    open_ok(&config);
    memset(held, 0, 100 * sizeof *held);
    dp_dataset *const parts[] = {train, valid};
    for (int part = 0; part < 2; part++) {
        float before = -1;
        for (int64_t i = 0; i < dp_dataset_info_of(parts[part])->samples; i++) {
            ck_assert(dp_dataset_read(parts[part], i, &x, &label, NULL) == DP_OK);
            ck_assert(!seen[(int)x]); /* each sample in one part, once */
            seen[(int)x] = true;
            held[(int)x] = part == 1;
            ck_assert(x > before); /* in the order of the file */
            before = x;
        }
    }
    for (int i = 0; i < 100; i++)
        ck_assert(seen[i]);
    dp_dataset_free(valid); /* the other order than elsewhere */
    ck_assert(dp_dataset_read(train, 0, &x, &label, NULL) == DP_OK);
    dp_dataset_free(train);
}

static int how_many(const bool held[100])
{
    int n = 0;
    for (int i = 0; i < 100; i++)
        n += held[i];
    return n;
}

START_TEST(the_share_is_a_seeded_permutation)
{
    bool a[100], b[100];
    split(0, 0.15, a);
    ck_assert_int_eq(how_many(a), 15);
    int in_front = 0;
    for (int i = 0; i < 50; i++)
        in_front += a[i];
    ck_assert(in_front > 1 && in_front < 14); /* not the file's end or beginning */
    split(0, 0.15, b);
    ck_assert_int_eq(memcmp(a, b, sizeof a), 0);
    split(1, 0.15, b);
    ck_assert_int_ne(memcmp(a, b, sizeof a), 0);
    split(0, 0.001, b); /* both parts have at least one */
    ck_assert_int_eq(how_many(b), 1);
    split(0, 0.9999, b);
    ck_assert_int_eq(how_many(b), 99);
    split(0, 0.5, b);
    ck_assert_int_eq(how_many(b), 50);
    for (int i = 0; i < 100; i++)
        ck_assert(b[i] || !a[i]); /* a larger share holds the smaller one */
}
END_TEST

START_TEST(shares_that_leave_nothing_are_refused)
{
    dp_data_config config = from("synthetic:1");
    open_fails(&config, DP_ERROR_USAGE, "use --valid-split 0");
    config.valid_split = 0;
    open_ok(&config);
    ck_assert_str_eq(info->description, "synthetic:1, 1 image 1x28x28, 10 classes");
    close_both();
    const double bad[] = {-0.1, 1, 1.5, NAN, INFINITY};
    for (int i = 0; i < 5; i++) {
        config.valid_split = bad[i];
        open_fails(&config, DP_ERROR_USAGE, "must be at least 0 and below 1");
    }
}
END_TEST

START_TEST(orders_are_permutations)
{
    enum { N = 1000 };
    int64_t a[N], b[N];
    bool seen[N] = {false};
    dp_order_of_epoch(a, N, 5, 0);
    for (int i = 0; i < N; i++) {
        ck_assert(a[i] >= 0 && a[i] < N && !seen[a[i]]);
        seen[a[i]] = true;
    }
    dp_order_of_epoch(b, N, 5, 0);
    ck_assert_int_eq(memcmp(a, b, sizeof a), 0);
    dp_order_of_epoch(b, N, 5, 1);
    ck_assert_int_ne(memcmp(a, b, sizeof a), 0);
    dp_order_of_epoch(b, N, 6, 0);
    ck_assert_int_ne(memcmp(a, b, sizeof a), 0);
    dp_order_of_epoch(b, N, 5, 1ll << 32); /* epochs do not wrap around */
    ck_assert_int_ne(memcmp(a, b, sizeof a), 0);
    dp_order_of_split(b, N, 5);
    ck_assert_int_ne(memcmp(a, b, sizeof a), 0);
    /* Each of the six orders of three comes up about as often. */
    int counts[27] = {0}, orders = 0;
    for (int epoch = 0; epoch < 6000; epoch++) {
        dp_order_of_epoch(a, 3, 0, epoch);
        counts[a[0] * 9 + a[1] * 3 + a[2]]++;
    }
    for (int i = 0; i < 27; i++) {
        orders += counts[i] > 0;
        ck_assert(counts[i] == 0 || (counts[i] > 850 && counts[i] < 1150));
    }
    ck_assert_int_eq(orders, 6);
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
    Suite *s = suite_create("dataset");
    TCase *t = tcase_create("dataset");
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
    tcase_add_test(t, features_with_labels);
    tcase_add_test(t, byte_images_of_several_channels);
    tcase_add_test(t, values_and_masks);
    tcase_add_test(t, tensors_that_are_no_data_are_refused);
    tcase_add_test(t, synthetic_data_is_standard_normal_around_its_classes);
    tcase_add_test(t, synthetic_data_follows_its_seed_and_shape);
    tcase_add_test(t, malformed_sources_are_usage_errors);
    tcase_add_test(t, impossible_synthetic_data_is_refused);
    tcase_add_test(t, the_share_is_a_seeded_permutation);
    tcase_add_test(t, shares_that_leave_nothing_are_refused);
    tcase_add_test(t, orders_are_permutations);
    tcase_add_test(t, long_names_are_shortened);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
