/* Masks of many pictures: decoded ahead, on several devices, written behind them; of any size; and those that
 * cannot be. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/file.h"
#include "pictures.h"

/* Flips a bit of a PNG's last data: its header and its end stay whole. */
static void damage(const char *path)
{
    FILE *f = fopen(path, "r+b");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fseek(f, -20, SEEK_END), 0);
    int byte = fgetc(f);
    ck_assert_int_eq(fseek(f, -20, SEEK_END), 0);
    ck_assert_int_eq(fputc(byte ^ 1, f), byte ^ 1);
    ck_assert_int_eq(fclose(f), 0);
}

START_TEST(pictures_decoded_ahead_are_predicted_in_their_order)
{
    static const char *const workers[] = {"1", "2", "16"};
    write_masks(24);
    for (int i = 0; i < 24; i += 5) { /* of one part, of several */
        char path[64], mask[64];
        snprintf(path, sizeof path, "data/images/p%02d.png", i);
        snprintf(mask, sizeof mask, "data/masks/p%02d.png", i);
        write_pair(path, mask, SIDE + 3 * i, SIDE + i, i);
    }
    assert_succeeds(
        dptrain(SMALL_UNET " --data-dir data --n-epoch 1 --batch-size 4 --valid-split 0 --size 32x32"));
    for (int w = 0; w < 3; w++) {
        const run *r = dptrain(PREDICT "--data data/images --output found%s --num-workers %s --batch-size %d "
                                       "--quiet --logical-devices 2",
                               w == 0 ? "" : workers[w], workers[w], 7 - w);
        assert_succeeds(r);
        const char *at = r->out;
        for (int i = 0; i < 24; i++) {
            char path[64], other[64];
            snprintf(path, sizeof path, "found/p%02d.png", i);
            snprintf(other, sizeof other, "found%s/p%02d.png", workers[w], i);
            if (w > 0)
                assert_same_file(path, other);
            snprintf(path, sizeof path, "data/images/p%02d.png: ", i);
            at = strstr(at, path);
            ck_assert_msg(at != NULL, "'%s' is not in its place: %s", path, r->out);
        }
        ck_assert_str_eq(r->err, "");
    }
    assert_succeeds(dptrain(PREDICT "--data segmentation:data --output paired --quiet"));
    assert_same_file("found/p20.png", "paired/p20.png");
    assert_fails(dptrain(PREDICT "--data segmentation:data --output data/masks"), 2, "written over it");
    assert_fails(dptrain(PREDICT "--data segmentation:new --output paired"), 1, "new/images");
    assert_fails(dptrain(PREDICT "--data data/images --output found --num-workers 0"), 2, "--num-workers");
}
END_TEST

/* Masks are written behind the devices, by several threads: the first in order that cannot be is the error,
 * and of those before it every one is there and told of. */
START_TEST(the_first_mask_that_cannot_be_written_is_named)
{
    static const char *const options[] = {"--num-workers 1 --batch-size 1", "--num-workers 4 --batch-size 3",
                                          "--num-workers 8 --batch-size 24 --overlay"};
    write_masks(24);
    assert_succeeds(dptrain(SMALL_UNET " --data-dir data --n-epoch 1 --valid-split 0"));
    for (int o = 0; o < 3; o++) {
        char folder[64], path[160];
        snprintf(folder, sizeof folder, "found%d", o);
        for (int i = 7; i < 24; i += 6) {
            snprintf(path, sizeof path, "%s/p%02d%s.png", folder, i, o == 2 ? "_overlay" : "");
            ck_assert(dp_make_directories(path, NULL) == DP_OK);
        }
        const run *r = dptrain(PREDICT "--data data/images -o %s --quiet %s", folder, options[o]);
        ck_assert_int_eq(r->code, 1);
        snprintf(path, sizeof path, "cannot write '%s/p07%s.png': it is a directory\n", folder,
                 o == 2 ? "_overlay" : "");
        assert_contains(r->err, path);
        ck_assert_ptr_eq(strchr(r->err, '\n'), r->err + strlen(r->err) - 1);
        for (int i = 0; i < 24; i++) {
            snprintf(path, sizeof path, "%s/p%02d.png", folder, i);
            ck_assert_int_eq(strstr(r->out, path) != NULL, i < 7);
            ck_assert(i >= 7 || file_exists(path));
        }
    }
}
END_TEST

/* Headers are looked at beforehand, so these come to light in the middle: the others are predicted all the
 * same, and then each of these is named. */
START_TEST(damaged_pixels_cost_no_other_picture)
{
    write_masks(24);
    assert_succeeds(dptrain(SMALL_UNET " --data-dir data --n-epoch 1 --valid-split 0"));
    damage("data/images/p00.png");
    damage("data/images/p11.png");
    damage("data/images/p23.png");
    for (int skip = 0; skip < 2; skip++) {
        const char *folder = skip ? "skipped" : "late";
        const run *r = dptrain(PREDICT "--data data/images --output %s --num-workers 4 --batch-size 2%s",
                               folder, skip ? " --skip-bad" : "");
        if (skip) {
            assert_succeeds(r);
            assert_contains(r->err, "note: left out: cannot read 'data/images/p00.png'");
            assert_contains(r->err, "note: left out: cannot read 'data/images/p23.png'");
            assert_contains(r->err, "note: 3 files left out\n");
        } else {
            ck_assert_int_eq(r->code, 1);
            assert_contains(r->err,
                            "dptrain: error: 3 files cannot be used: cannot read 'data/images/p00.png'");
            assert_contains(r->err, "; cannot read 'data/images/p11.png'");
            assert_contains(r->err, "; cannot read 'data/images/p23.png'");
        }
        for (int i = 0; i < 24; i++) {
            char mask[64];
            snprintf(mask, sizeof mask, "%s/p%02d.png", folder, i);
            ck_assert_int_eq(file_exists(mask), i != 0 && i != 11 && i != 23);
            ck_assert_int_eq(strstr(r->out, mask) != NULL, file_exists(mask));
        }
    }
    /* Nor does it cost labels, in a file or on stdout. */
    assert_succeeds(dptrain("train --model mlp --hidden 4 --data synthetic:32 --n-epoch 1 --model-dir labels "
                            "--num-classes 2"));
    const run *r = dptrain("predict --init labels/model_best.safetensors --data data/images --quiet");
    ck_assert_int_eq(r->code, 1);
    char *labels = strdup(r->out);
    r = dptrain("predict --init labels/model_best.safetensors --data data/images --quiet -o labels.csv");
    assert_fails(r, 1, "3 files cannot be used: ");
    void *bytes;
    size_t size;
    ck_assert(dp_file_read("labels.csv", &bytes, &size, NULL) == DP_OK);
    ck_assert(size == strlen(labels) && memcmp(bytes, labels, size) == 0);
    r = dptrain("predict --init labels/model_best.safetensors --data data/images --quiet -o /dev/full");
    assert_fails(r, 1, "3 files cannot be used: ");
    assert_contains(r->err, "; cannot write --output '/dev/full'");
    int lines = 0;
    for (const char *at = labels; (at = strchr(at, '\n')); at++)
        lines++;
    ck_assert_int_eq(lines, 1 + 21);
    dp_free(bytes);
    free(labels);
}
END_TEST

/* What the help of --pos-weight auto says, from the masks' files: (1 - p) / p, p the mean share of marked
 * pixels. */
static double weight_of_masks(int count)
{
    double p = 0;
    for (int i = 0; i < count; i++) {
        char path[64];
        snprintf(path, sizeof path, "data/masks/p%02d.png", i);
        dp_image mask = read_picture(path);
        int marked = 0;
        for (int k = 0; k < mask.width * mask.height; k++)
            marked += mask.pixels[k] > 127;
        p += (double)marked / (double)(mask.width * mask.height) / count;
        dp_image_clear(&mask);
    }
    return (1 - p) / p;
}

/* From one pixel to many parts in a row; grey ones too. Whatever the devices, the masks are the same. */
START_TEST(a_picture_of_any_size_has_a_mask_of_its_size)
{
    static const int sizes[][2] = {{1, 1}, {17, 33}, {3, 500}, {500, 3}, {31, 32}, {33, 32}, {1, 200}};
    char weight[64];
    write_masks(8);
    const run *r = dptrain(SMALL_UNET " --data-dir data --n-epoch 3 --valid-split 0 --pos-weight auto");
    assert_succeeds(r);
    snprintf(weight, sizeof weight, ", positive terms times %.4g", weight_of_masks(8));
    assert_contains(r->err, weight);
    ck_assert(dp_make_directories("odd", NULL) == DP_OK);
    for (int i = 0; i < 7; i++) {
        char path[64];
        snprintf(path, sizeof path, "odd/%d.png", i);
        write_pair(path, i == 6 ? "odd/grey.png" : NULL, sizes[i][0], sizes[i][1], i);
    }
    for (int n = 1; n <= 4; n++)
        assert_succeeds(
            dptrain(PREDICT "--data odd -o found%d --overlay --quiet --logical-devices %d --batch-size %d", n,
                    n, 3 + n));
    for (int i = 0; i < 8; i++) {
        char one[64], path[64];
        snprintf(one, sizeof one, i < 7 ? "found1/%d.png" : "found1/grey.png", i);
        dp_image mask = read_picture(one);
        ck_assert_int_eq(mask.height, sizes[i < 7 ? i : 6][0]);
        ck_assert_int_eq(mask.width, sizes[i < 7 ? i : 6][1]);
        dp_image_clear(&mask);
        for (int n = 2; n <= 4; n++) {
            snprintf(path, sizeof path, i < 7 ? "found%d/%d.png" : "found%d/grey.png", n, i);
            assert_same_file(one, path);
        }
    }
    dp_image overlay = read_picture("found1/3_overlay.png");
    ck_assert(overlay.height == 500 && overlay.width == 3 && overlay.channels == 3);
    dp_image_clear(&overlay);
}
END_TEST

/* All pictures of a folder are bad: left out, they leave nothing to do, which is well. */
START_TEST(a_folder_without_a_sound_picture_has_no_masks)
{
    write_masks(4);
    assert_succeeds(dptrain(SMALL_UNET " --data-dir data --n-epoch 1 --valid-split 0"));
    ck_assert(dp_make_directories("bad", NULL) == DP_OK);
    FILE *f = fopen("bad/p00.png", "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fclose(f), 0);
    assert_fails(dptrain(PREDICT "--data bad -o found"), 1,
                 "1 file cannot be used: cannot read 'bad/p00.png'");
    const run *r = dptrain(PREDICT "--data bad -o found --skip-bad");
    assert_succeeds(r);
    assert_contains(r->err, "note: 1 file left out");
    ck_assert_str_eq(r->out, "");
    ck_assert(!file_exists("found/p00.png"));
}
END_TEST

TCase *predict_case(void)
{
    TCase *c = tcase_create("predict");
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, pictures_decoded_ahead_are_predicted_in_their_order);
    tcase_add_test(c, a_picture_of_any_size_has_a_mask_of_its_size);
    tcase_add_test(c, the_first_mask_that_cannot_be_written_is_named);
    tcase_add_test(c, damaged_pixels_cost_no_other_picture);
    tcase_add_test(c, a_folder_without_a_sound_picture_has_no_masks);
    return c;
}
