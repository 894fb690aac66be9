/* Pictures from files on the command line: training on them, what is wrong with them, their masks and labels.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/file.h"
#include "pictures.h"

void write_pair(const char *image_path, const char *mask_path, int height, int width, int n)
{
    dp_image image, mask;
    ck_assert(dp_image_take(&image, width, height, 3, image_path, NULL) == DP_OK);
    ck_assert(dp_image_take(&mask, width, height, 1, image_path, NULL) == DP_OK);
    int cx = (n * 7 + 10) % width, cy = (n * 5 + 8) % height;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            bool in = (x - cx) * (x - cx) + (y - cy) * (y - cy) < 36;
            mask.pixels[y * width + x] = in ? 255 : 0;
            for (int c = 0; c < 3; c++)
                image.pixels[(y * width + x) * 3 + c] =
                    (unsigned char)(40 + (x * 3 + y * 5 + c + n) % 30 + (in ? 150 : 0));
        }
    ck_assert(dp_png_write(image_path, &image, NULL) == DP_OK);
    if (mask_path)
        ck_assert(dp_png_write(mask_path, &mask, NULL) == DP_OK);
    dp_image_clear(&image);
    dp_image_clear(&mask);
}

void write_masks(int count)
{
    ck_assert(dp_make_directories("data/images", NULL) == DP_OK);
    ck_assert(dp_make_directories("data/masks", NULL) == DP_OK);
    for (int i = 0; i < count; i++) {
        char image[64], mask[64];
        snprintf(image, sizeof image, "data/images/p%02d.png", i);
        snprintf(mask, sizeof mask, "data/masks/p%02d.png", i);
        write_pair(image, mask, SIDE, SIDE, i);
    }
}

dp_image read_picture(const char *path)
{
    void *bytes;
    size_t size;
    dp_image image;
    dp_error err;
    ck_assert_msg(dp_file_read(path, &bytes, &size, &err) == DP_OK, "%s", err.message);
    ck_assert_msg(dp_image_decode(bytes, size, path, &image, &err) == DP_OK, "%s", err.message);
    dp_free(bytes);
    return image;
}

START_TEST(a_u_net_learns_masks_and_predicts_them)
{
    write_masks(48);
    const run *r =
        dptrain(SMALL_UNET " --data_dir data --pos-weight auto --augment hflip --n-epoch 12 --num-workers 3");
    assert_succeeds(r);
    double iou, f1;
    ck_assert_int_eq(sscanf(last_line(r->out), "validation IoU %lf, F1 %lf", &iou, &f1), 2);
    ck_assert_double_gt(f1, 0.5);
    ck_assert_double_eq_tol(f1, 2 * iou / (1 + iou), 2e-3); /* of the same counts */
    assert_contains(r->err, "segmentation:data, 41 images 3x32x32, masks");
    assert_contains(r->err, "positive terms times ");
    assert_contains(r->err, "  IoU 0.");
    json_t *epochs = read_log("model/log.jsonl", "epoch");
    ck_assert_double_eq_tol(number_of(at(epochs, -1), "valid_iou"), iou, 5.1e-4);
    ck_assert_double_eq_tol(number_of(at(epochs, -1), "valid_f1"), f1, 5.1e-4);
    ck_assert_ptr_null(json_object_get(at(epochs, 0), "valid_accuracy"));

    r = dptrain("eval --init model/model_epoch_11.safetensors --data-dir data --json --logical-devices 3");
    assert_succeeds(r);
    json_t *json = parse_json(r->out);
    ck_assert_str_eq(string_of(json, "part"), "validation");
    ck_assert_double_eq_tol(number_of(json, "iou"), number_of(at(epochs, -1), "valid_iou"), 1e-3);
    ck_assert_double_eq_tol(number_of(json, "f1"), number_of(at(epochs, -1), "valid_f1"), 1e-3);
    json_decref(json);
    json_decref(epochs);

    /* Larger than the model's size, smaller, and neither square nor even. */
    ck_assert(dp_make_directories("new", NULL) == DP_OK);
    write_pair("new/large.png", "truth.png", 75, 61, 3);
    write_pair("new/small.png", NULL, 20, 17, 1);
    r = dptrain(
        "predict --init model/model_epoch_11.safetensors --data new -o found --overlay --batch-size 5 "
        "--logical-devices 2");
    assert_succeeds(r);
    assert_contains(r->out, "new/large.png: ");
    assert_contains(r->out, "found/small.png");
    dp_image truth = read_picture("truth.png"), mask = read_picture("found/large.png"),
             overlay = read_picture("found/large_overlay.png"), large = read_picture("new/large.png");
    ck_assert(mask.width == 61 && mask.height == 75 && mask.channels == 1);
    ck_assert(overlay.width == 61 && overlay.height == 75 && overlay.channels == 3);
    int same = 0, marked = 0;
    for (int i = 0; i < 61 * 75; i++) {
        ck_assert(mask.pixels[i] == 0 || mask.pixels[i] == 255);
        same += mask.pixels[i] == truth.pixels[i];
        marked += mask.pixels[i] == 255;
        bool tinted = memcmp(overlay.pixels + 3 * i, large.pixels + 3 * i, 3) != 0;
        ck_assert_int_eq(tinted, mask.pixels[i] == 255);
    }
    ck_assert_int_gt(marked, 20);
    ck_assert_int_gt(same, 61 * 75 * 93 / 100);
    dp_image small = read_picture("found/small.png");
    ck_assert(small.width == 17 && small.height == 20);
    dp_image_clear(&small);
    dp_image_clear(&truth);
    dp_image_clear(&mask);
    dp_image_clear(&overlay);
    dp_image_clear(&large);

    /* Of the model's own size, parts or none: the same mask, whatever the devices and batches. */
    assert_succeeds(dptrain("predict --init model/model_epoch_11.safetensors --data data/images/p00.png "
                            "data/images/p01.png --output a --quiet"));
    assert_succeeds(
        dptrain("predict --init model/model_epoch_11.safetensors --data data --output b --resize --quiet "
                "--batch-size 1 --logical-devices 1"));
    assert_same_file("a/p00.png", "b/p00.png");
    assert_same_file("a/p01.png", "b/p01.png");
    ck_assert(file_exists("b/p47.png") && !file_exists("b/p48.png") && !file_exists("a/p02.png"));
}
END_TEST

START_TEST(bad_files_end_the_run_before_it_starts)
{
    write_masks(6);
    ck_assert_int_eq(remove("data/masks/p03.png"), 0);
    FILE *f = fopen("data/images/p04.png", "wb");
    ck_assert_ptr_nonnull(f);
    fclose(f);
    assert_fails(dptrain(SMALL_UNET " --data-dir data --n-epoch 1"), 1,
                 "2 files cannot be used: 'data/images/p03.png' has no mask of its stem; cannot read "
                 "'data/images/p04.png': it is empty");
    ck_assert(!file_exists("model/log.jsonl"));
    const run *r =
        dptrain(SMALL_UNET " --data-dir data --n-epoch 1 --skip-bad --batch-size 2 --valid-split 0");
    assert_succeeds(r);
    assert_contains(r->err, "note: left out: 'data/images/p03.png' has no mask");
    assert_contains(r->err, "note: 2 files left out");
    assert_contains(r->err, "4 images 3x32x32");
    assert_fails(dptrain("predict --init model/model_best.safetensors --data data --output found"), 1,
                 "1 file cannot be used: cannot read 'data/images/p04.png': it is empty");
    ck_assert(!file_exists("found"));
    r = dptrain("predict --init model/model_best.safetensors --data data --output found --skip-bad");
    assert_succeeds(r);
    assert_contains(r->err, "1 file left out");
    ck_assert(file_exists("found/p03.png") && !file_exists("found/p04.png"));
}
END_TEST

/* A common mistake: masks of class numbers, 0 and 1. */
START_TEST(masks_that_are_all_but_black_are_told)
{
    write_masks(20);
    const run *r = dptrain(SMALL_UNET " --data-dir data --max-steps 1 --quiet --model-dir white");
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "");
    r = dptrain("train --device cpu --data-dir data --size 32x32 --batch-size 4 --max-steps 1 --quiet "
                "--model-dir lenet");
    assert_succeeds(r);
    assert_contains(r->err, "warning: the model is lenet, as no other is named");
    for (int i = 0; i < 20; i++) {
        char path[64];
        snprintf(path, sizeof path, "data/masks/p%02d.png", i);
        dp_image mask = read_picture(path);
        for (int p = 0; p < SIDE * SIDE; p++)
            mask.pixels[p] = mask.pixels[p] > 0;
        ck_assert(dp_png_write(path, &mask, NULL) == DP_OK);
        dp_image_clear(&mask);
    }
    static const char said[] = "warning: nothing is marked in the first 16 masks: the brightest pixel is 1 "
                               "of 255, and above half of "
                               "that counts; masks of 0 and 1 are to be scaled to 0 and 255\n";
    r = dptrain(SMALL_UNET " --data-dir data --max-steps 1 --quiet");
    assert_succeeds(r);
    assert_contains(r->err, said);
    assert_contains(last_line(r->out), "IoU 1.000, F1 1.000"); /* nothing marked, nothing found */
    r = dptrain("eval --init model/model_best.safetensors --data-dir data --valid-split 0");
    assert_succeeds(r);
    assert_contains(r->err, said);
}
END_TEST

static bool page_has(const char *text)
{
    void *page;
    size_t size;
    ck_assert(dp_file_read("page.html", &page, &size, NULL) == DP_OK);
    bool found = memmem(page, size, text, strlen(text)) != NULL;
    dp_free(page);
    return found;
}

/* Also where all of them are the same. */
START_TEST(scores_are_plotted_from_0_to_100_percent)
{
    static const char *const values[] = {"0.0", "1.0"};
    write_masks(12);
    assert_succeeds(dptrain(SMALL_UNET " --data-dir data --n-epoch 2 --quiet"));
    for (int i = 0; i < 2; i++) {
        char command[128];
        snprintf(command, sizeof command,
                 "sed -i -E 's/\"valid_(iou|f1)\": *[0-9.e-]+/\"valid_\\1\":%s/g' %s", values[i],
                 "model/log.jsonl");
        ck_assert_int_eq(system(command), 0);
        assert_succeeds(dptrain("report model -o page.html"));
        ck_assert(page_has(i ? ">100 %</text>" : ">0 %</text>"));
        ck_assert(page_has(i ? ">90 %</text>" : ">1 %</text>"));
        ck_assert(!page_has("\">-") && !page_has(">105 %") && !page_has(">102 %"));
    }
}
END_TEST

START_TEST(masks_never_take_a_picture_s_place)
{
    write_masks(4);
    assert_succeeds(dptrain(SMALL_UNET " --data-dir data --n-epoch 1 --batch-size 4 --valid-split 0"));
    assert_fails(dptrain(PREDICT "--data data/images --output data/images"), 2, "name another folder");
    assert_fails(dptrain(PREDICT "--data data/images --output data/masks"), 2,
                 "masks could be written over it");
    static const char *const outputs[] = {"save", "log", "trace", "report"};
    for (int i = 0; i < 4; i++)
        assert_fails(dptrain(SMALL_UNET " --data-dir data --%s data/%s/p00.png --model-dir other", outputs[i],
                             i % 2 ? "masks" : "images"),
                     2, "would be written over data");
    ck_assert(!file_exists("other"));
    ck_assert(dp_make_directories("more", NULL) == DP_OK);
    write_pair("more/p00.png", NULL, SIDE, SIDE, 0);
    assert_fails(dptrain(PREDICT "--data data/images/p00.png more/p00.png --output found"), 2,
                 "'data/images/p00.png' and 'more/p00.png' would have the same mask, 'p00.png'");
    assert_fails(dptrain(PREDICT "--data data"), 2, "--output FOLDER is needed");
    assert_fails(dptrain(PREDICT "--output found"), 2, "--data PATH");
    assert_fails(dptrain("predict --data data --output found"), 2, "--init FILE");
    assert_fails(dptrain(PREDICT "--data nowhere.jpg --output found"), 1, "nowhere.jpg");
    ck_assert(dp_make_directories("empty", NULL) == DP_OK);
    assert_fails(dptrain(PREDICT "--data empty --output found"), 1, "'empty' holds no pictures");
    assert_fails(dptrain(PREDICT "--data data --output more/p00.png"), 1, "more/p00.png");
}
END_TEST

/* Dark, or light, all over. */
static void write_plain(const char *path, int width, bool light)
{
    dp_image image;
    ck_assert(dp_image_take(&image, width, 24, 3, path, NULL) == DP_OK);
    for (int64_t p = 0; p < image.width * image.height * 3; p++)
        image.pixels[p] = (unsigned char)((light ? 180 : 40) + p * 7 % 40);
    ck_assert(dp_png_write(path, &image, NULL) == DP_OK);
    dp_image_clear(&image);
}

/* A checkpoint that tells dark from light is there, and labels.csv, what it says of the pictures. */
static void class_folders_say_the_truth(void)
{
    const run *r = dptrain(PREDICT "--data images:pictures --output judged.csv --quiet");
    assert_succeeds(r);
    ck_assert_str_eq(r->out, "accuracy 100.00 %\n");
    ck_assert_str_eq(r->err, "");
    assert_same_file("labels.csv", "judged.csv");
    r = dptrain(PREDICT "--data images:pictures"); /* a CSV on stdout is nothing else */
    assert_succeeds(r);
    assert_contains(r->err, "accuracy 100.00 %\n");
    ck_assert_ptr_null(strstr(r->out, "accuracy"));
    r = dptrain(PREDICT "--data images:pictures/dark --output judged.csv"); /* nobody knows their class */
    assert_succeeds(r);
    ck_assert_str_eq(r->out, "");
    /* The second class is the first folder here: names count. One of its four is wrong. */
    ck_assert(dp_make_directories("others/light", NULL) == DP_OK);
    for (int i = 0; i < 4; i++) {
        char path[64];
        snprintf(path, sizeof path, "others/light/%d.png", i);
        write_plain(path, 20, i != 2);
    }
    r = dptrain(PREDICT "--data images:others --output judged.csv --batch-size 3");
    assert_succeeds(r);
    ck_assert_str_eq(r->out, "accuracy 75.00 %\n");
    ck_assert(dp_make_directories("others/odd", NULL) == DP_OK);
    assert_fails(dptrain(PREDICT "--data images:others --output judged.csv"), 2,
                 "'others/odd' is none of the model's classes ('dark', ...)");
    assert_fails(dptrain(PREDICT "--data images: --output judged.csv"), 2, "images:DIR");
    assert_fails(dptrain(PREDICT "--data images:nowhere --output judged.csv"), 1, "nowhere");
}

/* A model whose classes have no names goes by the order of the folders, if they are as many. */
START_TEST(classes_without_names_are_told_by_their_order)
{
    ck_assert(dp_make_directories("pictures/b", NULL) == DP_OK);
    ck_assert(dp_make_directories("pictures/a", NULL) == DP_OK);
    write_plain("pictures/a/0.png", 20, false);
    write_plain("pictures/b/1.png", 20, true);
#define NAMELESS \
    "train --model mlp --hidden 4 --data synthetic:32 --n-epoch 1 --overwrite --resume never --num-classes "
    assert_succeeds(dptrain(NAMELESS "3"));
    assert_fails(dptrain(PREDICT "--data images:pictures --output labels.csv"), 2,
                 "'pictures' has 2 class folders, the model 3 classes");
    assert_succeeds(dptrain(NAMELESS "2"));
    const run *r = dptrain(PREDICT "--data images:pictures");
    assert_succeeds(r);
    int a, b;
    double pa, pb;
    ck_assert_int_eq(sscanf(r->out,
                            "file,label,probability\npictures/a/0.png,%d,%lf\npictures/b/1.png,%d,%lf\n", &a,
                            &pa, &b, &pb),
                     4);
    char line[32];
    snprintf(line, sizeof line, "accuracy %d.00 %%\n", 50 * ((a == 0) + (b == 1)));
    assert_contains(r->err, line);
}
END_TEST

START_TEST(a_folder_per_class_is_learnt_and_labelled)
{
    static const char *const classes[] = {"dark", "light"};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 12; i++) {
            char path[64];
            snprintf(path, sizeof path, "pictures/%s", classes[k]);
            ck_assert(dp_make_directories(path, NULL) == DP_OK);
            snprintf(path, sizeof path, "pictures/%s/%d,a.png", classes[k], i);
            write_plain(path, 20 + i, k);
        }
    assert_fails(dptrain("train --model lenet --data images:pictures"), 2, "--size HxW");
    const run *r =
        dptrain("train --model mlp --hidden 8 --data images:pictures --size 8x8 --batch-size 6 --lr 0.05 "
                "--n-epoch 6 --valid-split 0.25");
    assert_succeeds(r);
    assert_contains(r->err, "images 3x8x8, 2 classes");
    ck_assert_str_eq(last_line(r->out), "validation accuracy 100.0 %");
    assert_succeeds(
        dptrain("predict --init model/model_best.safetensors --data pictures --output labels.csv"));
    assert_fails(dptrain("predict --init model/model_best.safetensors --data pictures --output "
                         "model/model_best.safetensors"),
                 2, "would be written over the file of --init");
    assert_fails(
        dptrain("predict --init model/model_best.safetensors --data pictures --output pictures/%s/1,a.png",
                classes[0]),
        2, "would be written over a picture");
    r = dptrain("predict --init model/model_best.safetensors --data pictures");
    assert_succeeds(r);
    FILE *f = fopen("labels.csv", "r");
    ck_assert_ptr_nonnull(f);
    char line[256];
    ck_assert_ptr_nonnull(fgets(line, sizeof line, f));
    ck_assert_str_eq(line, "file,label,probability,class\n");
    for (int i = 0; i < 24; i++) {
        char name[128];
        int label;
        double probability;
        char class[16];
        ck_assert_ptr_nonnull(fgets(line, sizeof line, f));
        ck_assert_int_eq(sscanf(line, "\"%127[^\"]\",%d,%lf,%15s", name, &label, &probability, class), 4);
        ck_assert_str_eq(class, classes[label]);
        ck_assert_int_eq(label, strstr(name, "light") != NULL);
        ck_assert(probability > 0.5 && probability <= 1);
        assert_contains(r->out, line);
    }
    ck_assert_ptr_null(fgets(line, sizeof line, f));
    fclose(f);
    assert_fails(dptrain("predict --init model/model_best.safetensors --data pictures --overlay"), 2,
                 "an overlay is for masks");
    class_folders_say_the_truth();
}
END_TEST

/* Also run under ThreadSanitizer, which then sees each thread of a device's team. */
START_TEST(devices_have_several_threads)
{
    write_masks(10);
    assert_succeeds(
        dptrain("train --model-type vgg16 --width 2 --filters 2 --data-dir data --n-epoch 1 --batch-size 4 "
                "--valid-split 0.2 --logical-devices 2 --threads-per-device 2 --num-workers 2"));
    assert_succeeds(
        dptrain(PREDICT "--data data/images --output found --logical-devices 2 --threads-per-device 2"));
    assert_succeeds(
        dptrain(PREDICT "--data data/images --output one --logical-devices 1 --threads-per-device 1"));
    ck_assert(file_exists("one/p09.png"));
    for (int i = 0; i < 10; i++) {
        char found[64], one[64];
        snprintf(found, sizeof found, "found/p%02d.png", i);
        snprintf(one, sizeof one, "one/p%02d.png", i);
        assert_same_file(found, one);
    }
}
END_TEST

/* What is seen of a picture is a function of seed, epoch and sample: of no thread, and of no interruption. */
START_TEST(an_augmented_run_continues_to_the_same_bits)
{
#define AUGMENTED SMALL_UNET " --data-dir data --quiet --batch-size 4 --augment "
    write_masks(14);
    assert_succeeds(dptrain(AUGMENTED "hflip,vflip,crop --n-epoch 2 --model-dir whole --num-workers 1"));
    assert_succeeds(dptrain(AUGMENTED "hflip,vflip,crop --max-steps 4 --num-workers 4"));
    assert_fails(dptrain(AUGMENTED "hflip --n-epoch 2"), 2, "augmentation: hflip,vflip,crop then, hflip now");
    assert_fails(dptrain(AUGMENTED "none --n-epoch 2"), 2,
                 "augmentation: hflip,vflip,crop then, not set now");
    assert_succeeds(dptrain(AUGMENTED "crop,vflip,hflip --n-epoch 2 --num-workers 3"));
    assert_same_file("whole/model_epoch_1.safetensors", "model/model_epoch_1.safetensors");
}
END_TEST

START_TEST(options_for_pictures_are_for_pictures)
{
    assert_fails(dptrain("train --data synthetic:64 --augment hflip"), 2, "--augment is for pictures");
    assert_fails(dptrain("train --data synthetic:64 --skip-bad"), 2, "--skip-bad is for pictures");
    assert_fails(dptrain("train --data-dir data --augment hflip,turn"), 2, "hflip, vflip and crop");
    assert_fails(dptrain("train --data-dir data --data synthetic:64"), 2, "exclude each other");
    assert_fails(dptrain("train --data-dir="), 2, "--data-dir");
    assert_fails(dptrain("train --data synthetic:64 --model mlp --pos-weight auto"), 2,
                 "--pos-weight is for");
    assert_fails(dptrain("train --model-type vgg16 --data-dir nowhere"), 1, "nowhere/images");
    ck_assert(dp_make_directories("data/images", NULL) == DP_OK);
    ck_assert(dp_make_directories("data/masks", NULL) == DP_OK);
    assert_fails(dptrain("train --model-type vgg16 --data-dir data"), 1, "holds no pictures");
    assert_fails(dptrain("train --model-type vgg16 --data data"), 2, "did you mean 'segmentation:data'?");
    /* Masks without a mark have no weight. */
    unsigned char black[32 * 32 * 3] = {0};
    ck_assert(dp_png_write("data/images/a.png", &(dp_image){32, 32, 3, black}, NULL) == DP_OK);
    ck_assert(dp_png_write("data/masks/a.png", &(dp_image){32, 32, 1, black}, NULL) == DP_OK);
    assert_fails(dptrain(SMALL_UNET " --data-dir data --valid-split 0 --batch-size 1 --pos-weight auto"), 2,
                 "no pixel of the training masks is marked");
}
END_TEST

/* The command of the tutorial that the project follows, its underscores included; a thinner model and fewer
 * epochs, which a test has time for. */
START_TEST(the_tutorial_s_command_line_works)
{
    write_masks(12);
    const run *r = dptrain(
        "train --model-type vgg16 --data_dir data --model_dir model --n_epoch 10 --lr 0.001 --momentum "
        "0.9 --weight_decay 1e-4 --batch_size 4 --num_workers 4 --print_freq 20 --width 4 --filters 2 "
        "--n_epoch 2");
    assert_succeeds(r);
    assert_contains(r->err, "sgd, lr 0.001, momentum 0.9, weight decay 0.0001, 2 epochs of 3 batches");
    assert_contains(last_line(r->out), "validation IoU ");
    ck_assert(file_exists("model/model_epoch_1.safetensors") && file_exists("model/model_best.safetensors"));
    r = dptrain(
        "train --model-type vgg16 --data_dir data --model_dir model --n_epoch 2 --lr 0.001 --batch_size 4 "
        "--width 4 --filters 2");
    assert_succeeds(r); /* finished: the figures are still known */
    assert_contains(last_line(r->out), "validation IoU ");
}
END_TEST

Suite *pictures_suite(void)
{
    Suite *s = suite_create("pictures");
    TCase *c = tcase_create("pictures");
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, a_u_net_learns_masks_and_predicts_them);
    tcase_add_test(c, bad_files_end_the_run_before_it_starts);
    tcase_add_test(c, masks_that_are_all_but_black_are_told);
    tcase_add_test(c, scores_are_plotted_from_0_to_100_percent);
    tcase_add_test(c, masks_never_take_a_picture_s_place);
    tcase_add_test(c, a_folder_per_class_is_learnt_and_labelled);
    tcase_add_test(c, classes_without_names_are_told_by_their_order);
    tcase_add_test(c, an_augmented_run_continues_to_the_same_bits);
    tcase_add_test(c, options_for_pictures_are_for_pictures);
    tcase_add_test(c, the_tutorial_s_command_line_works);
    suite_add_tcase(s, c);
    suite_add_tcase(s, predict_case());
    c = tcase_create("teams");
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, devices_have_several_threads);
    suite_add_tcase(s, c);
    return s;
}
