/* The readers of JPEG and PNG against files that libjpeg and libpng write, and resizing against its
 * definition. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>
#include <png.h>
#include <zlib.h>

#include "io/image.h"
#include "io/resize.h"
#include "scratch.h"

static dp_error err;

/* ---- writing with the libraries ---- */

typedef struct bytes {
    unsigned char data[1 << 16];
    size_t size;
} bytes;

static void keep(png_structp png, png_bytep data, size_t size)
{
    bytes *b = png_get_io_ptr(png);
    ck_assert_uint_le(b->size + size, sizeof b->data);
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

static void flush(png_structp png)
{
    (void)png;
}

typedef struct png_kind {
    int type, depth, interlace;
    int orientation; /* 0: no EXIF */
    bool transparent_colour;
} png_kind;

/* `rows` holds height rows of row_bytes, as the format has them. */
static void write_png(bytes *out, int width, int height, png_kind kind, const unsigned char *rows,
                      size_t row_bytes)
{
    out->size = 0;
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    ck_assert(setjmp(png_jmpbuf(png)) == 0);
    png_set_write_fn(png, out, keep, flush);
    png_set_IHDR(png, info, (png_uint_32)width, (png_uint_32)height, kind.depth, kind.type, kind.interlace,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (kind.type == PNG_COLOR_TYPE_PALETTE) {
        png_color palette[4] = {{10, 20, 30}, {40, 50, 60}, {70, 80, 90}, {100, 110, 120}};
        png_byte alpha[4] = {255, 0, 128, 255};
        png_set_PLTE(png, info, palette, 4);
        png_set_tRNS(png, info, alpha, 4, NULL);
    }
    if (kind.transparent_colour) {
        png_color_16 colour = {.red = 1, .green = 2, .blue = 3, .gray = 1};
        png_set_tRNS(png, info, NULL, 0, &colour);
    }
    unsigned char exif[26] = {'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 1, 3, 0, 1, 0, 0, 0};
    exif[18] = (unsigned char)kind.orientation;
    if (kind.orientation)
        png_set_eXIf_1(png, info, sizeof exif, exif);
    png_write_info(png, info);
    unsigned char *row[16];
    for (int y = 0; y < height; y++)
        row[y] = (unsigned char *)rows + (size_t)y * row_bytes;
    png_write_image(png, row);
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
}

/* rgb is NULL for a grey picture. exif: APP1's contents. */
static void write_jpeg(bytes *out, int width, int height, const unsigned char *grey, const unsigned char *rgb,
                       const unsigned char *exif, size_t exif_size, bool progressive)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    unsigned char *memory = NULL;
    unsigned long size = 0;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &memory, &size);
    jpeg.image_width = (JDIMENSION)width;
    jpeg.image_height = (JDIMENSION)height;
    jpeg.input_components = rgb ? 3 : 1;
    jpeg.in_color_space = rgb ? JCS_RGB : JCS_GRAYSCALE;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, 100, TRUE);
    if (progressive)
        jpeg_simple_progression(&jpeg);
    jpeg_start_compress(&jpeg, TRUE);
    if (exif)
        jpeg_write_marker(&jpeg, JPEG_APP0 + 1, exif, (unsigned)exif_size);
    while (jpeg.next_scanline < jpeg.image_height) {
        JSAMPROW row = (unsigned char *)(rgb ? rgb + jpeg.next_scanline * (size_t)width * 3
                                             : grey + jpeg.next_scanline * (size_t)width);
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    ck_assert_uint_le(size, sizeof out->data);
    memcpy(out->data, memory, size);
    out->size = size;
    free(memory);
}

static dp_image decode(const bytes *b)
{
    dp_image image;
    int64_t width, height;
    dp_status status = dp_image_decode(b->data, b->size, "picture", &image, &err);
    ck_assert_msg(status == DP_OK, "%s", err.message);
    ck_assert_int_eq(dp_image_size(b->data, b->size, "picture", &width, &height, &err), DP_OK);
    ck_assert(width == image.width && height == image.height);
    return image;
}

static void expect_pixels(const bytes *b, int width, int height, int channels, const unsigned char *pixels)
{
    dp_image image = decode(b);
    ck_assert_int_eq(image.width, width);
    ck_assert_int_eq(image.height, height);
    ck_assert_int_eq(image.channels, channels);
    ck_assert_mem_eq(image.pixels, pixels, (size_t)(width * height * channels));
    dp_image_clear(&image);
}

/* ---- PNG ---- */

START_TEST(png_of_every_kind_is_eight_bits_of_grey_or_rgb)
{
    bytes b;
    const unsigned char grey[6] = {0, 50, 100, 150, 200, 255};
    const unsigned char rgb[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 250, 251, 252};
    write_png(&b, 3, 2, (png_kind){PNG_COLOR_TYPE_GRAY, 8, 0, 0, false}, grey, 3);
    expect_pixels(&b, 3, 2, 1, grey);
    write_png(&b, 2, 2, (png_kind){PNG_COLOR_TYPE_RGB, 8, 0, 0, false}, rgb, 6);
    expect_pixels(&b, 2, 2, 3, rgb);
    write_png(&b, 2, 2, (png_kind){PNG_COLOR_TYPE_RGB, 8, PNG_INTERLACE_ADAM7, 0, false}, rgb, 6);
    expect_pixels(&b, 2, 2, 3, rgb);

    const unsigned char rgba[8] = {1, 2, 3, 0, 4, 5, 6, 128}, grey_alpha[4] = {9, 0, 8, 77};
    write_png(&b, 2, 1, (png_kind){PNG_COLOR_TYPE_RGBA, 8, 0, 0, false}, rgba, 8);
    expect_pixels(&b, 2, 1, 3, (unsigned char[]){1, 2, 3, 4, 5, 6}); /* transparency is left out */
    write_png(&b, 2, 1, (png_kind){PNG_COLOR_TYPE_GRAY_ALPHA, 8, 0, 0, false}, grey_alpha, 4);
    expect_pixels(&b, 2, 1, 1, (unsigned char[]){9, 8});

    write_png(&b, 4, 1, (png_kind){PNG_COLOR_TYPE_PALETTE, 2, 0, 0, false}, (unsigned char[]){0x1b}, 1);
    expect_pixels(&b, 4, 1, 3, (unsigned char[]){10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120});
    write_png(&b, 8, 1, (png_kind){PNG_COLOR_TYPE_GRAY, 1, 0, 0, false}, (unsigned char[]){0xa1}, 1);
    expect_pixels(&b, 8, 1, 1, (unsigned char[]){255, 0, 255, 0, 0, 0, 0, 255});
    write_png(&b, 3, 1, (png_kind){PNG_COLOR_TYPE_GRAY, 8, 0, 0, true}, (unsigned char[]){0, 1, 2}, 3);
    expect_pixels(&b, 3, 1, 1, (unsigned char[]){0, 1, 2}); /* a transparent colour is a colour */

    /* 16 bits, rounded: 0x80ff / 257 = 128.5, 0x0180 / 257 = 1.49, 0xffff / 257 = 255 */
    const unsigned char deep[6] = {0x81, 0x00, 0x01, 0x80, 0xff, 0xff};
    write_png(&b, 3, 1, (png_kind){PNG_COLOR_TYPE_GRAY, 16, 0, 0, false}, deep, 6);
    expect_pixels(&b, 3, 1, 1, (unsigned char[]){128, 1, 255});
    const unsigned char deep_rgba[8] = {0x10, 0x10, 0x20, 0x20, 0x30, 0x30, 0, 0};
    write_png(&b, 1, 1, (png_kind){PNG_COLOR_TYPE_RGBA, 16, 0, 0, false}, deep_rgba, 8);
    expect_pixels(&b, 1, 1, 3, (unsigned char[]){0x10, 0x20, 0x30});
}
END_TEST

START_TEST(what_is_written_is_read_again)
{
    unsigned char pixels[3 * 5 * 3];
    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (unsigned char)(i * 5);
    for (int channels = 1; channels <= 3; channels += 2) {
        const dp_image image = {5, 3, channels, pixels};
        bytes b;
        ck_assert_int_eq(dp_png_write(scratch("a.png"), &image, &err), DP_OK);
        FILE *f = fopen(scratch("a.png"), "rb");
        ck_assert_ptr_nonnull(f);
        b.size = fread(b.data, 1, sizeof b.data, f);
        fclose(f);
        expect_pixels(&b, 5, 3, channels, pixels);
    }
    const dp_image image = {5, 3, 1, pixels};
    ck_assert_int_eq(dp_png_write(scratch("nowhere/a.png"), &image, &err), DP_ERROR_IO);
    ck_assert_ptr_nonnull(strstr(err.message, "nowhere/a.png"));
}
END_TEST

/* ---- orientation ---- */

/* A picture of 3 x 2 as a camera stores it: what the eight orientations make of
 *   1 2 3
 *   4 5 6 */
START_TEST(orientation_turns_the_picture)
{
    static const struct {
        int width, height;
        unsigned char pixels[6];
    } upright[9] = {
        [1] = {3, 2, {1, 2, 3, 4, 5, 6}}, [2] = {3, 2, {3, 2, 1, 6, 5, 4}}, [3] = {3, 2, {6, 5, 4, 3, 2, 1}},
        [4] = {3, 2, {4, 5, 6, 1, 2, 3}}, [5] = {2, 3, {1, 4, 2, 5, 3, 6}}, [6] = {2, 3, {4, 1, 5, 2, 6, 3}},
        [7] = {2, 3, {6, 3, 5, 2, 4, 1}}, [8] = {2, 3, {3, 6, 2, 5, 1, 4}},
    };
    for (int o = 1; o <= 8; o++) {
        bytes b;
        write_png(&b, 3, 2, (png_kind){PNG_COLOR_TYPE_GRAY, 8, 0, o, false}, upright[1].pixels, 3);
        expect_pixels(&b, upright[o].width, upright[o].height, 1, upright[o].pixels);
    }
}
END_TEST

START_TEST(a_camera_s_jpeg_is_turned)
{
    enum { WIDTH = 32, HEIGHT = 16 };
    /* EXIF as cameras write it, big-endian, with another tag before the orientation. */
    static const unsigned char exif[] = {'E', 'x', 'i', 'f', 0, 0, 'M', 'M', 0, 42, 0, 0, 0, 8, 0,
                                         2,   1,   0,   0,   3, 0, 0,   0,   1, 0,  9, 0, 0, 1, 0x12,
                                         0,   3,   0,   0,   0, 1, 0,   6,   0, 0,  0, 0, 0, 0};
    unsigned char grey[HEIGHT * WIDTH];
    for (int i = 0; i < HEIGHT * WIDTH; i++)
        grey[i] = i % WIDTH < WIDTH / 2 ? 30 : 220; /* dark left half: after a quarter turn, the top */
    bytes b;
    write_jpeg(&b, WIDTH, HEIGHT, grey, NULL, exif, sizeof exif, false);
    dp_image image = decode(&b);
    ck_assert(image.width == HEIGHT && image.height == WIDTH && image.channels == 1);
    for (int y = 0; y < WIDTH; y++)
        for (int x = 0; x < HEIGHT; x++)
            ck_assert_int_lt(abs(image.pixels[y * HEIGHT + x] - (y < WIDTH / 2 ? 30 : 220)), 3);
    dp_image_clear(&image);
    ck_assert_int_eq(dp_exif_orientation(exif + 6, sizeof exif - 6), 6);
    for (size_t cut = 0; cut < sizeof exif - 6 - 8;
         cut++) /* a block that ends before its value says nothing */
        ck_assert_int_eq(dp_exif_orientation(exif + 6, cut), 1);
}
END_TEST

/* ---- JPEG ---- */

START_TEST(jpeg_is_grey_or_rgb)
{
    enum { SIDE = 24 };
    unsigned char grey[SIDE * SIDE], rgb[SIDE * SIDE * 3];
    for (int i = 0; i < SIDE * SIDE; i++) {
        grey[i] = (unsigned char)(i % SIDE * 10);
        rgb[3 * i] = 200, rgb[3 * i + 1] = 100, rgb[3 * i + 2] = (unsigned char)(i / SIDE * 10);
    }
    for (int progressive = 0; progressive < 2; progressive++) {
        bytes b;
        write_jpeg(&b, SIDE, SIDE, grey, NULL, NULL, 0, progressive);
        dp_image image = decode(&b);
        ck_assert(image.width == SIDE && image.height == SIDE && image.channels == 1);
        for (int i = 0; i < SIDE * SIDE; i++)
            ck_assert_int_lt(abs(image.pixels[i] - grey[i]), 4);
        dp_image_clear(&image);
        write_jpeg(&b, SIDE, SIDE, NULL, rgb, NULL, 0, progressive);
        image = decode(&b);
        ck_assert(image.width == SIDE && image.height == SIDE && image.channels == 3);
        for (int i = 0; i < SIDE * SIDE * 3; i++)
            ck_assert_int_lt(abs(image.pixels[i] - rgb[i]), 12); /* colours are halved in size */
        dp_image_clear(&image);
    }
}
END_TEST

/* ---- what is refused ---- */

static void expect_refused(const unsigned char *data, size_t size, const char *text)
{
    dp_image image;
    int64_t width, height;
    dp_status status = dp_image_decode(data, size, "bad.png", &image, &err);
    ck_assert_msg(status == DP_ERROR_IO, "status %d", status);
    ck_assert_ptr_nonnull(strstr(err.message, "'bad.png'"));
    if (text)
        ck_assert_msg(strstr(err.message, text) != NULL, "%s", err.message);
    ck_assert_ptr_null(image.pixels);
    dp_image_size(data, size, "bad.png", &width, &height, &err); /* may not notice; must not crash */
}

START_TEST(other_bytes_are_no_picture)
{
    expect_refused((const unsigned char *)"", 0, "empty");
    expect_refused((const unsigned char *)"GIF89a", 6, "neither a JPEG nor a PNG");
}
END_TEST

START_TEST(a_file_that_is_cut_off_is_refused_wherever_it_ends)
{
    unsigned char grey[16 * 16];
    int64_t width, height;
    for (int i = 0; i < 256; i++)
        grey[i] = (unsigned char)(i * 37);
    bytes b[2];
    write_jpeg(&b[0], 16, 16, grey, NULL, NULL, 0, false);
    write_png(&b[1], 16, 16, (png_kind){PNG_COLOR_TYPE_GRAY, 8, 0, 0, false}, grey, 16);
    for (int i = 0; i < 2; i++)
        for (size_t size = 0; size < b[i].size; size++) { /* a PNG may lack its last checksum */
            expect_refused(b[i].data, size, NULL);
            ck_assert_int_eq(dp_image_size(b[i].data, size, "p", &width, &height, &err), DP_ERROR_IO);
        }
}
END_TEST

START_TEST(damage_in_the_middle_is_an_error)
{
    unsigned char grey[16 * 16];
    for (int i = 0; i < 256; i++)
        grey[i] = (unsigned char)(i * 37);
    bytes b;
    write_png(&b, 16, 16, (png_kind){PNG_COLOR_TYPE_GRAY, 8, 0, 0, false}, grey, 16);
    b.data[b.size / 2] ^= 0x40;
    expect_refused(b.data, b.size, NULL);
    /* A JPEG whose scan ends early, followed by the mark of the end. */
    write_jpeg(&b, 16, 16, grey, NULL, NULL, 0, false);
    memmove(b.data + b.size - 60, b.data + b.size - 2, 2);
    expect_refused(b.data, b.size - 58, NULL);
}
END_TEST

static void put32(unsigned char *at, uint32_t v)
{
    for (int i = 0; i < 4; i++)
        at[i] = (unsigned char)(v >> (24 - 8 * i));
}

START_TEST(a_header_that_promises_too_much_is_refused)
{
    unsigned char grey[64] = {0};
    bytes b;
    write_png(&b, 8, 8, (png_kind){PNG_COLOR_TYPE_GRAY, 8, 0, 0, false}, grey, 8);
    put32(b.data + 16, 65535);
    put32(b.data + 20, 65535);
    put32(b.data + 29, (uint32_t)crc32(0, b.data + 12, 17));
    expect_refused(b.data, b.size, "65535x65535 is beyond the limit");
    put32(b.data + 16, 0xffffffff); /* beyond the format's own limit */
    put32(b.data + 29, (uint32_t)crc32(0, b.data + 12, 17));
    expect_refused(b.data, b.size, NULL);

    write_jpeg(&b, 8, 8, grey, NULL, NULL, 0, false);
    for (size_t i = 0; i + 9 < b.size; i++)
        if (b.data[i] == 0xff && b.data[i + 1] == 0xc0) /* SOF0: length, precision, height, width */
            memset(b.data + i + 5, 0xff, 4);
    expect_refused(b.data, b.size, "65500"); /* libjpeg's own limit */
    write_jpeg(&b, 8, 8, grey, NULL, NULL, 0, false);
    for (size_t i = 0; i + 9 < b.size; i++)
        if (b.data[i] == 0xff && b.data[i + 1] == 0xc0)
            b.data[i + 5] = b.data[i + 7] = 0x7f;
    expect_refused(b.data, b.size, "beyond the limit");
}
END_TEST

/* ---- sizes ---- */

/* The filter's definition, one pixel at a time, in double. */
static double weight_of(double distance, double width)
{
    double w = 1 - fabs(distance) / width;
    return w > 0 ? w : 0;
}

static double resized(const dp_image *image, const dp_view *v, int64_t h, int64_t w, int c, int64_t y,
                      int64_t x)
{
    double sy = (double)v->height / (double)h, sx = (double)v->width / (double)w, sum = 0, weights = 0;
    double cy = ((double)y + 0.5) * sy, cx = ((double)x + 0.5) * sx;
    for (int64_t i = 0; i < v->height; i++)
        for (int64_t k = 0; k < v->width; k++) {
            double weight = weight_of((double)i + 0.5 - cy, sy > 1 ? sy : 1) *
                            weight_of((double)k + 0.5 - cx, sx > 1 ? sx : 1);
            weights += weight;
            sum += weight * image->pixels[((v->y + i) * image->width + v->x + k) * image->channels + c];
        }
    return sum / weights;
}

START_TEST(pictures_are_resized_by_the_definition)
{
    static const struct {
        int channels, h, w;
        dp_view view;
    } cases[] = {
        {3, 9, 13, {0, 0, 13, 9, false, false}},  /* as it is */
        {3, 4, 5, {0, 0, 13, 9, false, false}},   /* smaller */
        {3, 20, 17, {0, 0, 13, 9, false, false}}, /* larger */
        {1, 3, 30, {0, 0, 13, 9, true, false}},   /* both, mirrored */
        {3, 5, 5, {2, 1, 7, 8, true, true}},      /* a part */
        {1, 8, 7, {2, 1, 7, 8, false, true}},     /* a part as it is, upside down */
        {3, 1, 1, {0, 0, 13, 9, false, false}},
    };
    unsigned char pixels[9 * 13 * 3];
    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (unsigned char)(i * i * 31 % 251);
    for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
        const dp_image image = {13, 9, cases[n].channels, pixels};
        const dp_view *v = &cases[n].view;
        int h = cases[n].h, w = cases[n].w;
        float out[3 * 20 * 30];
        ck_assert_int_eq(dp_resize_bilinear(&image, v, h, w, 3, out, &err), DP_OK);
        for (int c = 0; c < 3; c++)
            for (int y = 0; y < h; y++)
                for (int x = 0; x < w; x++) {
                    double wanted = resized(&image, v, h, w, image.channels == 3 ? c : 0,
                                            v->vflip ? h - 1 - y : y, v->hflip ? w - 1 - x : x);
                    ck_assert_double_eq_tol((double)out[(c * h + y) * w + x], wanted, 1e-3);
                }
    }
}
END_TEST

START_TEST(masks_take_the_nearest_pixel)
{
    unsigned char pixels[4 * 6];
    for (int i = 0; i < 24; i++)
        pixels[i] = (unsigned char)i;
    const dp_image image = {6, 4, 1, pixels};
    dp_view view = dp_view_of_all(&image);
    float out[24];
    dp_resize_nearest(&image, &view, 2, 3, out); /* the middle of each 2 x 2 lies in its lower right pixel */
    for (int y = 0; y < 2; y++)
        for (int x = 0; x < 3; x++)
            ck_assert_float_eq(out[y * 3 + x], (float)((2 * y + 1) * 6 + 2 * x + 1));
    view.hflip = view.vflip = true;
    dp_resize_nearest(&image, &view, 4, 6, out);
    for (int i = 0; i < 24; i++)
        ck_assert_float_eq(out[i], (float)(23 - i));
    dp_resize_nearest(&image, &(dp_view){2, 1, 2, 2, false, false}, 4, 4, out);
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 4; x++)
            ck_assert_float_eq(out[y * 4 + x], (float)((1 + y / 2) * 6 + 2 + x / 2));
}
END_TEST

START_TEST(colours_have_a_brightness)
{
    unsigned char pixels[9] = {255, 0, 0, 0, 255, 0, 0, 0, 255};
    dp_image image = {3, 1, 3, pixels};
    dp_image_to_grey(&image);
    ck_assert_int_eq(image.channels, 1);
    ck_assert_int_eq(pixels[0], 76); /* 255 * 0.299, 0.587, 0.114 */
    ck_assert_int_eq(pixels[1], 150);
    ck_assert_int_eq(pixels[2], 29);
}
END_TEST

START_TEST(pictures_are_known_by_their_ending)
{
    ck_assert(dp_image_has_name("a.jpg") && dp_image_has_name("a.b.JPEG") && dp_image_has_name("x.Png"));
    ck_assert(!dp_image_has_name("jpg") && !dp_image_has_name("a.jpg.txt") && !dp_image_has_name("a.gif"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("image");
    TCase *tests = tcase_create("image");
    tcase_add_checked_fixture(tests, scratch_make, scratch_remove);
    tcase_add_test(tests, png_of_every_kind_is_eight_bits_of_grey_or_rgb);
    tcase_add_test(tests, what_is_written_is_read_again);
    tcase_add_test(tests, orientation_turns_the_picture);
    tcase_add_test(tests, a_camera_s_jpeg_is_turned);
    tcase_add_test(tests, jpeg_is_grey_or_rgb);
    tcase_add_test(tests, other_bytes_are_no_picture);
    tcase_add_test(tests, a_file_that_is_cut_off_is_refused_wherever_it_ends);
    tcase_add_test(tests, damage_in_the_middle_is_an_error);
    tcase_add_test(tests, a_header_that_promises_too_much_is_refused);
    tcase_add_test(tests, pictures_are_resized_by_the_definition);
    tcase_add_test(tests, masks_take_the_nearest_pixel);
    tcase_add_test(tests, colours_have_a_brightness);
    tcase_add_test(tests, pictures_are_known_by_their_ending);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
