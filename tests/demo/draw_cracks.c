/* draw_cracks DIR COUNT SIDE SEED: draws a data set for crack segmentation, DIR/images/NAME.jpg of textured
 * pavement and DIR/masks/NAME.png of its cracks. A function of its arguments alone. Made for `make
 * demo-segmentation` and the tests: everything in it, stones, stains, shadows, painted lines and cracks,
 * comes from the random numbers below. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "base/rng.h"
#include "io/file.h"
#include "io/image.h"

enum { MAX_SIDE = 1024, QUALITY = 92 };

typedef struct drawing {
    uint64_t seed;
    uint32_t picture;
    uint64_t drawn; /* random numbers so far */
    int side;
    float light[MAX_SIDE * MAX_SIDE]; /* 0..255 */
    float crack[MAX_SIDE * MAX_SIDE]; /* how much of the pixel is crack */
} drawing;

static float uniform(drawing *d, float low, float high)
{
    return low + (high - low) * dp_rng_uniform(d->seed, DP_RNG_TEST, d->picture, 0, d->drawn++);
}

static float clamp(float v, float low, float high)
{
    return v < low ? low : v > high ? high : v;
}

/* ---- pavement ---- */

/* Value noise: random heights on a grid, joined smoothly. */
static void add_noise(drawing *d, int cell, float strength)
{
    int points = d->side / cell + 2;
    uint64_t base = d->drawn;
    d->drawn += (uint64_t)points * (uint64_t)points;
#define HEIGHT(i, k) \
    (2 * dp_rng_uniform(d->seed, DP_RNG_TEST, d->picture, 0, base + (uint64_t)((i)*points + (k))) - 1)
    for (int y = 0; y < d->side; y++)
        for (int x = 0; x < d->side; x++) {
            int i = y / cell, k = x / cell;
            float v = (float)(y % cell) / (float)cell, u = (float)(x % cell) / (float)cell;
            v = v * v * (3 - 2 * v), u = u * u * (3 - 2 * u);
            float top = HEIGHT(i, k) * (1 - u) + HEIGHT(i, k + 1) * u;
            float bottom = HEIGHT(i + 1, k) * (1 - u) + HEIGHT(i + 1, k + 1) * u;
            d->light[y * d->side + x] += strength * (top * (1 - v) + bottom * v);
        }
#undef HEIGHT
}

/* Everything within the radius becomes lighter or darker, softly at the rim. */
static void add_spot(drawing *d, float cx, float cy, float radius, float strength)
{
    int x0 = (int)clamp(cx - radius - 1, 0, (float)d->side),
        x1 = (int)clamp(cx + radius + 2, 0, (float)d->side);
    int y0 = (int)clamp(cy - radius - 1, 0, (float)d->side),
        y1 = (int)clamp(cy + radius + 2, 0, (float)d->side);
    for (int y = y0; y < y1; y++)
        for (int x = x0; x < x1; x++) {
            float distance = hypotf((float)x - cx, (float)y - cy);
            d->light[y * d->side + x] += strength * clamp(radius + 0.5f - distance, 0, 1);
        }
}

static void draw_pavement(drawing *d)
{
    const float side = (float)d->side;
    float base = uniform(d, 100, 165), slope_x = uniform(d, -25, 25), slope_y = uniform(d, -25, 25);
    for (int i = 0; i < d->side * d->side; i++)
        d->light[i] = base + slope_x * ((float)(i % d->side) / side - 0.5f) +
                      slope_y * ((float)(i / d->side) / side - 0.5f);
    add_noise(d, d->side / 3 + 1, 16);
    add_noise(d, 11, 7);
    add_noise(d, 4, 8);
    for (int i = 0; i < d->side * d->side / 60; i++) /* stones, and holes between them */
        add_spot(d, uniform(d, 0, side), uniform(d, 0, side), uniform(d, 0.6f, 2.2f), uniform(d, -20, 25));
    for (int i = 0; i < 3; i++) /* stains */
        add_spot(d, uniform(d, 0, side), uniform(d, 0, side), uniform(d, 4, 14), uniform(d, -22, 12));
    if (uniform(d, 0, 1) < 0.2f) { /* a painted line */
        float at = uniform(d, 0, side), width = uniform(d, 6, 12), tilt = uniform(d, -0.5f, 0.5f);
        for (int i = 0; i < d->side * d->side; i++)
            if (fabsf((float)(i % d->side) - at - tilt * (float)(i / d->side)) < width)
                d->light[i] = 0.35f * d->light[i] + 140;
    }
}

/* ---- cracks ---- */

static void stamp(drawing *d, float cx, float cy, float radius)
{
    int x0 = (int)clamp(cx - radius - 1, 0, (float)d->side),
        x1 = (int)clamp(cx + radius + 2, 0, (float)d->side);
    int y0 = (int)clamp(cy - radius - 1, 0, (float)d->side),
        y1 = (int)clamp(cy + radius + 2, 0, (float)d->side);
    for (int y = y0; y < y1; y++)
        for (int x = x0; x < x1; x++) {
            float *here = &d->crack[y * d->side + x];
            float covered = clamp(radius + 0.5f - hypotf((float)x - cx, (float)y - cy), 0, 1);
            *here = covered > *here ? covered : *here;
        }
}

/* A walk that keeps its direction, more or less, with branches thinner than itself. */
static void grow(drawing *d, float x, float y, float direction, float radius, float length, int depth)
{
    float turn = 0;
    for (float gone = 0; gone < length; gone += 0.5f) {
        turn = 0.8f * turn + uniform(d, -0.09f, 0.09f);
        direction += turn * 0.5f + (gone > 0 && uniform(d, 0, 1) < 0.03f ? uniform(d, -0.8f, 0.8f) : 0);
        x += 0.5f * cosf(direction);
        y += 0.5f * sinf(direction);
        if (x < -4 || y < -4 || x > (float)d->side + 4 || y > (float)d->side + 4)
            return;
        stamp(d, x, y, radius * uniform(d, 0.75f, 1.2f));
        if (depth > 0 && uniform(d, 0, 1) < 0.006f)
            grow(d, x, y, direction + (uniform(d, 0, 1) < 0.5f ? 1 : -1) * uniform(d, 0.5f, 1.2f),
                 0.75f * radius, 0.4f * length, depth - 1);
    }
}

static void draw_cracks(drawing *d)
{
    const float side = (float)d->side;
    memset(d->crack, 0, sizeof d->crack);
    int cracks = uniform(d, 0, 1) < 0.08f ? 0 : 1 + (uniform(d, 0, 1) < 0.35f);
    for (int i = 0; i < cracks; i++) {
        float angle = uniform(d, 0, 6.2832f);
        float x = side / 2 - 0.45f * side * cosf(angle) + uniform(d, -0.2f, 0.2f) * side;
        float y = side / 2 - 0.45f * side * sinf(angle) + uniform(d, -0.2f, 0.2f) * side;
        grow(d, x, y, angle + uniform(d, -0.4f, 0.4f), uniform(d, 1.2f, 2.6f), uniform(d, 0.6f, 1.3f) * side,
             2);
    }
    float depth = uniform(d, 45, 80);
    for (int i = 0; i < d->side * d->side; i++)
        d->light[i] -= depth * d->crack[i] * uniform(d, 0.8f, 1.1f);
}

/* ---- files ---- */

static unsigned char byte_of(float v)
{
    return (unsigned char)(clamp(v, 0, 255) + 0.5f);
}

/* libjpeg ends the program itself if it fails: that is enough here. */
static bool write_jpeg(const char *path, const dp_image *image)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return false;
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_stdio_dest(&jpeg, file);
    jpeg.image_width = (JDIMENSION)image->width;
    jpeg.image_height = (JDIMENSION)image->height;
    jpeg.input_components = 3;
    jpeg.in_color_space = JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, QUALITY, TRUE);
    jpeg_start_compress(&jpeg, TRUE);
    while (jpeg.next_scanline < jpeg.image_height) {
        JSAMPROW row = image->pixels + (size_t)jpeg.next_scanline * (size_t)image->width * 3;
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    return fclose(file) == 0;
}

static bool write_pair(drawing *d, const char *folder)
{
    static unsigned char rgb[MAX_SIDE * MAX_SIDE * 3], grey[MAX_SIDE * MAX_SIDE];
    float tint[3];
    char path[4096];
    for (int c = 0; c < 3; c++)
        tint[c] = uniform(d, -7, 7);
    for (int i = 0; i < d->side * d->side; i++) {
        float grain = uniform(d, -9, 9);
        for (int c = 0; c < 3; c++)
            rgb[3 * i + c] = byte_of(d->light[i] + tint[c] + grain);
        grey[i] = d->crack[i] > 0.5f ? 255 : 0;
    }
    const dp_image picture = {d->side, d->side, 3, rgb}, mask = {d->side, d->side, 1, grey};
    snprintf(path, sizeof path, "%s/images/pavement_%04u.jpg", folder, d->picture);
    if (!write_jpeg(path, &picture)) {
        fprintf(stderr, "draw_cracks: cannot write '%s': %s\n", path, strerror(errno));
        return false;
    }
    snprintf(path, sizeof path, "%s/masks/pavement_%04u.png", folder, d->picture);
    dp_error err;
    if (dp_png_write(path, &mask, &err) == DP_OK)
        return true;
    fprintf(stderr, "draw_cracks: %s\n", err.message);
    return false;
}

static bool make_folders(const char *folder)
{
    static const char *const parts[] = {"images", "masks"};
    for (int i = 0; i < 2; i++) {
        char path[4096];
        dp_error err;
        snprintf(path, sizeof path, "%s/%s", folder, parts[i]);
        if (dp_make_directories(path, &err) != DP_OK) {
            fprintf(stderr, "draw_cracks: %s\n", err.message);
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    static drawing d;
    int count = argc == 5 ? atoi(argv[2]) : 0;
    d.side = argc == 5 ? atoi(argv[3]) : 0;
    if (count < 1 || d.side < 16 || d.side > MAX_SIDE) {
        fprintf(stderr, "usage: draw_cracks DIR COUNT SIDE SEED, with SIDE from 16 to %d\n", MAX_SIDE);
        return 2;
    }
    d.seed = strtoull(argv[4], NULL, 10);
    if (!make_folders(argv[1]))
        return 1;
    for (int i = 0; i < count; i++) {
        d.picture = (uint32_t)i;
        d.drawn = 0;
        draw_pavement(&d);
        draw_cracks(&d);
        if (!write_pair(&d, argv[1]))
            return 1;
    }
    return 0;
}
