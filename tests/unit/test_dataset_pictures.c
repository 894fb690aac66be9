/* segmentation:DIR and images:DIR: pairs, labels, sizes, bad files, augmentation. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <jpeglib.h> /* wants FILE */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "dptrain/data.h"
#include "io/image.h"
#include "scratch.h"

enum { H = 6, W = 8 };

static dp_error err;
static char source[600], notes[4096];

static void take_note(void *user, const char *text)
{
    (void)user;
    snprintf(notes + strlen(notes), sizeof notes - strlen(notes), "%s\n", text);
}

static void make_folder(const char *name)
{
    ck_assert_int_eq(mkdir(scratch(name), 0777), 0);
}

/* A picture whose red is 20 x + y, with green `mark` and blue 0; a mask that is white where x < 3 and y < 2.
 */
static void write_picture(const char *name, int h, int w, int mark)
{
    unsigned char pixels[32 * 32 * 3];
    for (int i = 0; i < h * w; i++) {
        pixels[3 * i] = (unsigned char)(20 * (i % w) + i / w);
        pixels[3 * i + 1] = (unsigned char)mark;
        pixels[3 * i + 2] = 0;
    }
    const dp_image image = {w, h, 3, pixels};
    ck_assert_msg(dp_png_write(scratch(name), &image, &err) == DP_OK, "%s", err.message);
}

static void write_mask(const char *name, int h, int w)
{
    unsigned char pixels[32 * 32];
    for (int i = 0; i < h * w; i++)
        pixels[i] = i % w < 3 && i / w < 2 ? 255 : 0;
    const dp_image image = {w, h, 1, pixels};
    ck_assert_msg(dp_png_write(scratch(name), &image, &err) == DP_OK, "%s", err.message);
}

static void write_pairs(int count)
{
    make_folder("images");
    make_folder("masks");
    for (int i = 0; i < count; i++) {
        char name[64];
        snprintf(name, sizeof name, "images/p%02d.png", i);
        write_picture(name, H, W, i);
        snprintf(name, sizeof name, "masks/p%02d.png", i);
        write_mask(name, H, W);
    }
}

static dp_data_config config_of(const char *kind)
{
    dp_data_config config = dp_data_defaults();
    snprintf(source, sizeof source, "%s:%s", kind, scratch_directory);
    config.source = source;
    config.valid_split = 0;
    config.no_validation = true;
    /* x is then value / 255 */
    config.normalize_set = true;
    config.normalize_channels = 1;
    config.std[0] = 1;
    config.note = take_note;
    notes[0] = 0;
    return config;
}

static dp_dataset *open_ok(const dp_data_config *config)
{
    dp_dataset *train, *valid;
    dp_status status = dp_data_open(config, &train, &valid, &err);
    ck_assert_msg(status == DP_OK, "%s", err.message);
    dp_dataset_free(valid);
    return train;
}

static void expect_refused(const dp_data_config *config, dp_status wanted, const char *text)
{
    dp_dataset *train, *valid;
    ck_assert_int_eq(dp_data_open(config, &train, &valid, &err), wanted);
    ck_assert_msg(strstr(err.message, text) != NULL, "%s", err.message);
}

START_TEST(pictures_and_masks_are_paired_by_stem)
{
    write_pairs(3);
    ck_assert_int_eq(rename(scratch("masks/p01.png"), scratch("masks/p01.PNG")), 0);
    scratch_write("images/notes.txt", "no picture", 10);
    scratch_write("masks/.hidden.png", "none", 4);
    const dp_data_config config = config_of("segmentation");
    dp_dataset *set = open_ok(&config);
    const dp_dataset_info *d = dp_dataset_info_of(set);
    ck_assert_int_eq(d->samples, 3);
    ck_assert(d->rank == 3 && d->shape[0] == 3 && d->shape[1] == H && d->shape[2] == W);
    ck_assert_int_eq(d->target, DP_TARGET_MASK);
    ck_assert_int_eq(d->target_elements, H * W);
    ck_assert_ptr_nonnull(strstr(d->description, "3 images 3x6x8, masks"));
    ck_assert_int_eq(d->named_classes, 0);
    for (int i = 0; i < 3; i++) {
        float x[3 * H * W], mask[H * W];
        ck_assert_int_eq(dp_dataset_read(set, i, 0, x, mask, &err), DP_OK);
        for (int p = 0; p < H * W; p++) {
            ck_assert_float_eq(x[p], (float)(20 * (p % W) + p / W) / 255);
            ck_assert_float_eq(x[H * W + p], (float)i / 255);
            ck_assert_float_eq(x[2 * H * W + p], 0);
            ck_assert_float_eq(mask[p], p % W < 3 && p / W < 2);
        }
        /* Either may be left out. */
        memset(x, 0, sizeof x);
        ck_assert_int_eq(dp_dataset_read(set, i, 0, x, NULL, &err), DP_OK);
        ck_assert_float_eq(x[1], 20.0f / 255);
        ck_assert_int_eq(dp_dataset_read(set, i, 0, NULL, mask, &err), DP_OK);
    }
    double share;
    ck_assert_int_eq(dp_dataset_positive_share(set, 2, &share, &err), DP_OK);
    ck_assert_double_eq_tol(share, 6.0 / (H * W), 1e-12);
    dp_dataset_free(set);
}
END_TEST

START_TEST(imagenet_s_numbers_normalise_unless_others_are_given)
{
    write_pairs(1);
    dp_data_config config = config_of("segmentation");
    config.normalize_set = false;
    dp_dataset *set = open_ok(&config);
    const dp_dataset_info *d = dp_dataset_info_of(set);
    float x[3 * H * W];
    ck_assert_int_eq(d->normalize_channels, 3);
    ck_assert_int_eq(dp_dataset_read(set, 0, 0, x, NULL, &err), DP_OK);
    ck_assert_float_eq_tol(x[1], (20.0f / 255 - 0.485f) / 0.229f, 1e-6f);
    ck_assert_float_eq_tol(x[H * W], (0 - 0.456f) / 0.224f, 1e-6f);
    ck_assert_float_eq_tol(x[2 * H * W], (0 - 0.406f) / 0.225f, 1e-6f);
    dp_dataset_free(set);
}
END_TEST

START_TEST(held_out_pictures_are_a_seeded_share)
{
    write_pairs(20);
    dp_data_config config = config_of("segmentation");
    config.no_validation = false;
    config.valid_split = 0.15;
    int held[2][3];
    for (int run = 0; run < 2; run++) {
        dp_dataset *train, *valid;
        ck_assert_int_eq(dp_data_open(&config, &train, &valid, &err), DP_OK);
        ck_assert_int_eq(dp_dataset_info_of(train)->samples, 17);
        ck_assert_int_eq(dp_dataset_info_of(valid)->samples, 3);
        for (int i = 0; i < 3; i++) {
            float x[3 * H * W];
            ck_assert_int_eq(dp_dataset_read(valid, i, 0, x, NULL, &err), DP_OK);
            held[run][i] = (int)lrintf(x[H * W] * 255); /* the picture's number */
        }
        dp_dataset_free(train);
        dp_dataset_free(valid);
    }
    ck_assert_mem_eq(held[0], held[1], sizeof held[0]);
}
END_TEST

START_TEST(pictures_of_several_sizes_need_one)
{
    write_pairs(2);
    write_picture("images/big.png", 2 * H, 2 * W, 7);
    write_mask("masks/big.png", 2 * H, 2 * W);
    dp_data_config config = config_of("segmentation");
    expect_refused(&config, DP_ERROR_USAGE, "--size HxW");
    config.size[0] = H;
    config.size[1] = W;
    dp_dataset *set = open_ok(&config);
    float x[3 * H * W], mask[H * W];
    ck_assert_int_eq(dp_dataset_info_of(set)->samples, 3);
    ck_assert_int_eq(dp_dataset_read(set, 0, 0, x, mask, &err), DP_OK); /* big */
    ck_assert_float_eq_tol(x[H * W + 5], 7.0f / 255, 1e-6f);
    for (int p = 0; p < H * W; p++) /* the pixel (2 x + 1, 2 y + 1) */
        ck_assert_float_eq(mask[p], 2 * (p % W) + 1 < 3 && 2 * (p / W) + 1 < 2);
    dp_dataset_free(set);
}
END_TEST

START_TEST(bad_files_are_named_and_counted)
{
    static const char *const reasons[] = {"images/alone.png' has no mask", "masks/orphan.png' has no image",
                                          "images/broken.png': the file is cut off",
                                          "images/other.png' is 3x3, but its mask",
                                          "images/old.bmp' is neither JPEG nor PNG"};
    write_pairs(4);
    write_picture("images/alone.png", H, W, 0);
    write_mask("masks/orphan.png", H, W);
    scratch_write("images/broken.png", "\x89PNG\r\n\x1a\n and no more", 20);
    write_mask("masks/broken.png", H, W);
    write_picture("images/other.png", 3, 3, 0);
    write_mask("masks/other.png", H, W);
    scratch_write("images/old.bmp", "BM", 2);
    dp_data_config config = config_of("segmentation");
    expect_refused(&config, DP_ERROR_IO, "5 files cannot be used: ");
    for (int i = 0; i < 5; i++)
        ck_assert_msg(strstr(err.message, reasons[i]) != NULL, "%s: %s", reasons[i], err.message);
    ck_assert_ptr_null(strstr(err.message, "p01"));
    ck_assert_str_eq(notes, "");

    config.skip_bad = true;
    dp_dataset *set = open_ok(&config);
    ck_assert_int_eq(dp_dataset_info_of(set)->samples, 4);
    for (int i = 0; i < 5; i++)
        ck_assert_msg(strstr(notes, reasons[i]) != NULL, "%s: %s", reasons[i], notes);
    ck_assert_ptr_nonnull(strstr(notes, "5 files left out"));
    dp_dataset_free(set);
}
END_TEST

/* Flips a bit of a file, `back` bytes before its end. */
static void damage(const char *name, long back)
{
    FILE *f = fopen(scratch(name), "r+b");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fseek(f, -back, SEEK_END), 0);
    int byte = fgetc(f);
    ck_assert_int_ne(byte, EOF);
    ck_assert_int_eq(fseek(f, -back, SEEK_END), 0);
    ck_assert_int_eq(fputc(byte ^ 1, f), byte ^ 1);
    ck_assert_int_eq(fclose(f), 0);
}

/* A PNG ends with IDAT's data, its CRC (4 bytes) and IEND (12): header and end of these files are whole. */
START_TEST(damage_behind_the_header_is_found_before_training)
{
    write_pairs(40);
    damage("images/p03.png", 16 + 10);
    damage("masks/p21.png", 13);
    damage("images/p39.png", 16);
    dp_data_config config = config_of("segmentation");
    expect_refused(&config, DP_ERROR_IO, "3 files cannot be used: ");
    const char *first = strstr(err.message, "images/p03.png"), *second = strstr(err.message, "masks/p21.png"),
               *third = strstr(err.message, "images/p39.png");
    ck_assert_msg(first && second && third && first < second && second < third, "%s", err.message);
    config.skip_bad = true;
    dp_dataset *set = open_ok(&config);
    ck_assert_int_eq(dp_dataset_info_of(set)->samples, 37);
    float x[3 * H * W], mask[H * W];
    for (int i = 0; i < 37; i++) {
        ck_assert_int_eq(dp_dataset_read(set, i, 0, x, mask, &err), DP_OK);
        int mark = i + (i >= 3) + (i >= 20); /* without 3, 21 and 39 */
        ck_assert_float_eq_tol(x[H * W], (float)mark / 255, 1e-6f);
    }
    dp_dataset_free(set);
}
END_TEST

/* A photograph as JPEG, `size` bytes. Owner: the caller, by free. */
static unsigned char *make_jpeg(unsigned long *size)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    unsigned char *bytes = NULL;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    *size = 0;
    jpeg_mem_dest(&jpeg, &bytes, size);
    jpeg.image_width = jpeg.image_height = 32;
    jpeg.input_components = 3;
    jpeg.in_color_space = JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_start_compress(&jpeg, TRUE);
    while (jpeg.next_scanline < 32) {
        unsigned char row[3 * 32], *rows = row;
        for (int i = 0; i < 3 * 32; i++)
            row[i] = (unsigned char)(i * i * 31 + (int)jpeg.next_scanline * i * 17);
        jpeg_write_scanlines(&jpeg, &rows, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    return bytes;
}

/* Cut off in its scan; and the same with the mark of the end behind the cut, as a broken transfer that was
 * repaired leaves it: header and end of that file are sound. */
START_TEST(a_jpeg_that_is_cut_off_is_a_bad_file)
{
    unsigned long size;
    unsigned char *bytes = make_jpeg(&size);
    make_folder("class");
    scratch_write("class/a.jpg", bytes, size);
    scratch_write("class/b.jpg", bytes, size * 3 / 4);
    bytes[size / 2] = 0xff;
    bytes[size / 2 + 1] = 0xd9;
    scratch_write("class/c.jpg", bytes, size / 2 + 2);
    scratch_write("class/d.jpg", bytes, 3);
    free(bytes);
    dp_data_config config = config_of("images");
    expect_refused(&config, DP_ERROR_IO, "3 files cannot be used: ");
    ck_assert_ptr_null(strstr(err.message, "class/a.jpg"));
    ck_assert_ptr_nonnull(strstr(err.message, "class/b.jpg': the file is cut off"));
    ck_assert_ptr_nonnull(strstr(err.message, "class/c.jpg': "));
    ck_assert_ptr_nonnull(strstr(err.message, "class/d.jpg': "));
    config.skip_bad = true;
    dp_dataset *set = open_ok(&config);
    static float x[3 * 32 * 32];
    ck_assert_int_eq(dp_dataset_info_of(set)->samples, 1);
    ck_assert_int_eq(dp_dataset_read(set, 0, 0, x, NULL, &err), DP_OK);
    ck_assert_ptr_nonnull(strstr(notes, "3 files left out"));
    dp_dataset_free(set);
}
END_TEST

START_TEST(one_stem_is_one_picture)
{
    write_pairs(2);
    write_picture("images/p00.jpeg", H, W, 0);
    dp_data_config config = config_of("segmentation");
    expect_refused(&config, DP_ERROR_IO, "1 file cannot be used: ");
    ck_assert_ptr_nonnull(strstr(err.message, "has the same stem as"));
}
END_TEST

START_TEST(many_bad_files_are_one_line)
{
    make_folder("images");
    make_folder("masks");
    for (int i = 0; i < 40; i++) {
        char name[64];
        snprintf(name, sizeof name, "images/p%02d.png", i);
        write_picture(name, H, W, i);
    }
    dp_data_config config = config_of("segmentation");
    expect_refused(&config, DP_ERROR_IO, "40 files cannot be used: ");
    const char *end = strstr(err.message, "; and 35 more");
    ck_assert_msg(end && strcmp(end, "; and 35 more") == 0, "%s", err.message); /* without them is nothing */
    config.skip_bad = true;
    expect_refused(&config, DP_ERROR_IO, "holds no pictures");
    config.skip_bad = false;
    write_mask("masks/p00.png", H, W);
    expect_refused(&config, DP_ERROR_IO, "39 files cannot be used: ");
    ck_assert_ptr_nonnull(strstr(err.message, "; and 34 more (--skip-bad goes on without them)"));
}
END_TEST

START_TEST(missing_folders_are_named)
{
    dp_data_config config = config_of("segmentation");
    expect_refused(&config, DP_ERROR_IO, "images': No such file");
    config.source = "segmentation";
    expect_refused(&config, DP_ERROR_USAGE, "segmentation:DIR");
    config.source = "images:";
    expect_refused(&config, DP_ERROR_USAGE, "images:DIR");
    config = config_of("images");
    expect_refused(&config, DP_ERROR_IO, "holds no folders");
    make_folder("cats");
    expect_refused(&config, DP_ERROR_IO, "cats' holds no pictures");
}
END_TEST

START_TEST(a_picture_that_breaks_later_is_named_when_it_is_read)
{
    float x[3 * H * W];
    write_pairs(2);
    const dp_data_config config = config_of("segmentation");
    dp_dataset *set = open_ok(&config);
    scratch_write("images/p01.png", "nothing", 7);
    ck_assert_int_eq(dp_dataset_read(set, 1, 0, x, NULL, &err), DP_ERROR_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "images/p01.png"));
    double share;
    ck_assert_int_eq(remove(scratch("masks/p00.png")), 0);
    ck_assert_int_eq(dp_dataset_positive_share(set, 2, &share, &err), DP_ERROR_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "masks/p00.png"));
    dp_dataset_free(set);
}
END_TEST

START_TEST(a_picture_that_changes_its_size_later_is_an_error)
{
    float x[3 * H * W], mask[H * W];
    write_pairs(2);
    const dp_data_config config = config_of("segmentation");
    dp_dataset *set = open_ok(&config);
    write_picture("images/p01.png", H, W, 9);
    ck_assert_msg(dp_dataset_read(set, 1, 0, x, mask, &err) == DP_OK, "%s", err.message);
    write_picture("images/p01.png", W, H, 9);
    ck_assert_int_eq(dp_dataset_read(set, 1, 0, x, mask, &err), DP_ERROR_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "images/p01.png' has changed: it is 8x6 now and was 6x8"));
    write_mask("masks/p00.png", H, W + 1);
    ck_assert_int_eq(dp_dataset_read(set, 0, 0, x, mask, &err), DP_ERROR_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "masks/p00.png' has changed: it is 6x9 now and was 6x8"));
    dp_dataset_free(set);
}
END_TEST

START_TEST(a_folder_is_a_class)
{
    static const char *const folders[] = {"dogs", "cats", "eels"}; /* classes are in the order of names */
    static const int labels[] = {1, 0, 2};
    for (int i = 0; i < 3; i++) {
        char name[64];
        make_folder(folders[i]);
        for (int k = 0; k < 2; k++) {
            snprintf(name, sizeof name, "%s/%d.png", folders[i], k);
            write_picture(name, H, W, labels[i]);
        }
    }
    dp_data_config config = config_of("images");
    dp_dataset *set = open_ok(&config);
    const dp_dataset_info *d = dp_dataset_info_of(set);
    ck_assert(d->samples == 6 && d->classes == 3 && d->target == DP_TARGET_LABELS);
    ck_assert_int_eq(d->named_classes, 3);
    for (int i = 0; i < 3; i++)
        ck_assert_str_eq(d->class_names[labels[i]], folders[i]);
    for (int i = 0; i < 6; i++) {
        float x[3 * H * W];
        int32_t label;
        ck_assert_int_eq(dp_dataset_read(set, i, 0, x, &label, &err), DP_OK);
        ck_assert_int_eq(label, i / 2);
        ck_assert_float_eq(x[H * W], (float)label / 255);
    }
    double share;
    ck_assert_int_eq(dp_dataset_positive_share(set, 1, &share, &err), DP_ERROR_USAGE);
    dp_dataset_free(set);
    config.classes = 2;
    expect_refused(&config, DP_ERROR_MISMATCH, "there are 2 classes");
    config.classes = 0;
    make_folder("\xff"); /* a name that no checkpoint can hold */
    write_picture("\xff/0.png", H, W, 3);
    set = open_ok(&config);
    d = dp_dataset_info_of(set);
    ck_assert(d->classes == 4 && d->named_classes == 0 && !d->class_names);
    dp_dataset_free(set);
}
END_TEST

/* What is seen of the picture can be told from its red channel, and the mask has to agree with it. */
START_TEST(augmentation_is_a_function_of_seed_epoch_and_sample)
{
    write_pairs(8);
    dp_data_config config = config_of("segmentation");
    config.augment = DP_AUGMENT_HFLIP | DP_AUGMENT_VFLIP;
    dp_dataset *set[3];
    for (int i = 0; i < 3; i++) {
        config.seed = i == 2;
        set[i] = open_ok(&config);
    }
    int flips[4] = {0}, changed = 0, other_seed = 0;
    for (int epoch = 0; epoch < 4; epoch++)
        for (int s = 0; s < 8; s++) {
            float x[3][3 * H * W], mask[H * W];
            ck_assert_int_eq(dp_dataset_read(set[0], s, epoch, x[0], mask, &err), DP_OK);
            ck_assert_int_eq(dp_dataset_read(set[1], s, epoch, x[1], NULL, &err), DP_OK);
            ck_assert_mem_eq(x[0], x[1], sizeof x[0]);
            ck_assert_int_eq(dp_dataset_read(set[2], s, epoch, x[1], NULL, &err), DP_OK);
            other_seed += memcmp(x[0], x[1], sizeof x[0]) != 0;
            ck_assert_int_eq(dp_dataset_read(set[0], s, 0, x[2], NULL, &err), DP_OK);
            changed += memcmp(x[0], x[2], sizeof x[0]) != 0;
            int hflip = x[0][0] * 255 >= 20 * (W - 1), vflip = lrintf(x[0][0] * 255) % 20 == H - 1;
            flips[2 * vflip + hflip]++;
            for (int p = 0; p < H * W; p++) {
                int red = (int)lrintf(x[0][p] * 255), px = red / 20, py = red % 20;
                ck_assert_int_eq(px, hflip ? W - 1 - p % W : p % W);
                ck_assert_int_eq(py, vflip ? H - 1 - p / W : p / W);
                ck_assert_float_eq(mask[p], px < 3 && py < 2);
            }
        }
    for (int i = 0; i < 4; i++)
        ck_assert_int_gt(flips[i], 0);
    ck_assert_int_gt(changed, 0);
    ck_assert_int_gt(other_seed, 0);
    for (int i = 0; i < 3; i++)
        dp_dataset_free(set[i]);
}
END_TEST

START_TEST(a_crop_is_a_part_of_70_to_100_percent_and_the_mask_s_too)
{
    make_folder("images");
    make_folder("masks");
    unsigned char pixels[32 * 32 * 3], grey[32 * 32];
    for (int i = 0; i < 32 * 32; i++) {
        pixels[3 * i] = (unsigned char)(i % 32 * 8);
        pixels[3 * i + 1] = (unsigned char)(i / 32 * 8);
        pixels[3 * i + 2] = 0;
        grey[i] = i % 32 < 16 ? 255 : 0;
    }
    ck_assert_int_eq(dp_png_write(scratch("images/a.png"), &(dp_image){32, 32, 3, pixels}, &err), DP_OK);
    ck_assert_int_eq(dp_png_write(scratch("masks/a.png"), &(dp_image){32, 32, 1, grey}, &err), DP_OK);
    dp_data_config config = config_of("segmentation");
    config.augment = DP_AUGMENT_CROP;
    dp_dataset *set = open_ok(&config);
    float least = 1e9f, most = 0;
    for (int epoch = 0; epoch < 40; epoch++) {
        static float x[3 * 32 * 32], mask[32 * 32];
        ck_assert_int_eq(dp_dataset_read(set, 0, epoch, x, mask, &err), DP_OK);
        float side = (x[31] - x[0]) * 255 / 8 + 1; /* pixels that are seen, but for the rim's halves */
        least = side < least ? side : least;
        most = side > most ? side : most;
        for (int p = 0; p < 32 * 32; p++) /* the mask's edge is where the picture's red is half */
            if (fabsf(x[p] * 255 - 124) > 10)
                ck_assert_float_eq(mask[p], x[p] * 255 < 124);
    }
    ck_assert(least > 21 && least < 26 && most > 28 && most < 32.5f);
    dp_dataset_free(set);
}
END_TEST

START_TEST(held_out_pictures_are_not_augmented)
{
    write_pairs(20);
    dp_data_config config = config_of("segmentation");
    config.no_validation = false;
    config.valid_split = 0.5;
    config.augment = DP_AUGMENT_HFLIP;
    dp_dataset *train, *valid;
    ck_assert_int_eq(dp_data_open(&config, &train, &valid, &err), DP_OK);
    float x[3 * H * W];
    for (int i = 0; i < 10; i++)
        for (int epoch = 0; epoch < 3; epoch++) {
            ck_assert_int_eq(dp_dataset_read(valid, i, epoch, x, NULL, &err), DP_OK);
            ck_assert_float_eq(x[0], 0);
        }
    ck_assert_uint_eq(dp_dataset_info_of(train)->augment, DP_AUGMENT_HFLIP);
    ck_assert_uint_eq(dp_dataset_info_of(valid)->augment, 0);
    dp_dataset_free(train);
    dp_dataset_free(valid);
}
END_TEST

START_TEST(a_loader_gives_each_epoch_its_own_pictures)
{
    write_pairs(8);
    dp_data_config config = config_of("segmentation");
    config.augment = DP_AUGMENT_HFLIP | DP_AUGMENT_VFLIP | DP_AUGMENT_CROP;
    dp_dataset *set = open_ok(&config);
    const dp_loader_config lc = {.dataset = set, .batch_size = 4, .workers = 3};
    dp_loader *loader;
    ck_assert_int_eq(dp_loader_create(&lc, &loader, &err), DP_OK);
    for (int epoch = 0; epoch < 3; epoch++) {
        ck_assert_int_eq(dp_loader_start(loader, epoch, 0, &err), DP_OK);
        for (int b = 0; b < 2; b++) {
            const dp_batch *batch;
            ck_assert_int_eq(dp_loader_next(loader, &batch, &err), DP_OK);
            for (int i = 0; i < 4; i++) {
                float x[3 * H * W], mask[H * W];
                ck_assert_int_eq(dp_dataset_read(set, 4 * b + i, epoch, x, mask, &err), DP_OK);
                ck_assert_mem_eq(x, batch->x + i * 3 * H * W, sizeof x);
                ck_assert_mem_eq(mask, (const float *)batch->y + i * H * W, sizeof mask);
            }
            dp_loader_release(loader, batch);
        }
    }
    dp_loader_free(loader);
    dp_dataset_free(set);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pictures");
    TCase *tests = tcase_create("pictures");
    tcase_add_checked_fixture(tests, scratch_make, scratch_remove);
    tcase_add_test(tests, pictures_and_masks_are_paired_by_stem);
    tcase_add_test(tests, imagenet_s_numbers_normalise_unless_others_are_given);
    tcase_add_test(tests, held_out_pictures_are_a_seeded_share);
    tcase_add_test(tests, pictures_of_several_sizes_need_one);
    tcase_add_test(tests, bad_files_are_named_and_counted);
    tcase_add_test(tests, damage_behind_the_header_is_found_before_training);
    tcase_add_test(tests, a_jpeg_that_is_cut_off_is_a_bad_file);
    tcase_add_test(tests, one_stem_is_one_picture);
    tcase_add_test(tests, many_bad_files_are_one_line);
    tcase_add_test(tests, missing_folders_are_named);
    tcase_add_test(tests, a_picture_that_breaks_later_is_named_when_it_is_read);
    tcase_add_test(tests, a_picture_that_changes_its_size_later_is_an_error);
    tcase_add_test(tests, a_folder_is_a_class);
    tcase_add_test(tests, augmentation_is_a_function_of_seed_epoch_and_sample);
    tcase_add_test(tests, a_crop_is_a_part_of_70_to_100_percent_and_the_mask_s_too);
    tcase_add_test(tests, held_out_pictures_are_not_augmented);
    tcase_add_test(tests, a_loader_gives_each_epoch_its_own_pictures);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
