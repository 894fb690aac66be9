#include "io/image.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"

typedef dp_status (*read_format)(const unsigned char *bytes, size_t size, const char *path,
                                 dp_image_header *header, dp_image *image, dp_error *err);

static read_format format_of(const unsigned char *bytes, size_t size)
{
    static const unsigned char jpeg[] = {0xff, 0xd8, 0xff},
                               png[] = {0x89, 'P', 'N', 'G', '\r', '\n', 26, '\n'};
    if (size >= sizeof jpeg && memcmp(bytes, jpeg, sizeof jpeg) == 0)
        return dp_jpeg_read;
    if (size >= sizeof png && memcmp(bytes, png, sizeof png) == 0)
        return dp_png_read;
    return NULL;
}

static dp_status read_any(const void *bytes, size_t size, const char *path, dp_image_header *header,
                          dp_image *image, dp_error *err)
{
    read_format read = format_of(bytes, size);
    if (!read)
        return dp_fail(err, DP_ERROR_IO, "cannot read '%s': it is %s", path,
                       size ? "neither a JPEG nor a PNG file" : "empty");
    return read(bytes, size, path, header, image, err);
}

bool dp_image_has_name(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot &&
           (strcasecmp(dot, ".jpg") == 0 || strcasecmp(dot, ".jpeg") == 0 || strcasecmp(dot, ".png") == 0);
}

dp_status dp_image_take(dp_image *image, int64_t width, int64_t height, int channels, const char *path,
                        dp_error *err)
{
    if (width < 1 || height < 1 || width > DP_IMAGE_MAX_SIDE || height > DP_IMAGE_MAX_SIDE ||
        width * height > DP_IMAGE_MAX_PIXELS)
        return dp_fail(
            err, DP_ERROR_IO,
            "cannot read '%s': an image of %lldx%lld is beyond the limit of %d a side and %d million "
            "pixels",
            path, (long long)height, (long long)width, DP_IMAGE_MAX_SIDE, DP_IMAGE_MAX_PIXELS / 1000000);
    if (!image)
        return DP_OK;
    *image = (dp_image){.width = width, .height = height, .channels = channels};
    return dp_aligned_alloc((size_t)(width * height * channels), "an image", &image->pixels, err);
}

void dp_image_clear(dp_image *image)
{
    dp_free(image->pixels);
    *image = (dp_image){0};
}

void dp_image_to_grey(dp_image *image)
{
    if (image->channels == 1)
        return;
    for (int64_t i = 0; i < image->width * image->height; i++) {
        const unsigned char *rgb = image->pixels + 3 * i;
        image->pixels[i] = (unsigned char)((299 * rgb[0] + 587 * rgb[1] + 114 * rgb[2] + 500) / 1000);
    }
    image->channels = 1;
}

/* ---- orientation ---- */

/* TIFF 6.0, section 2: the block starts with its byte order, 42, and where the first directory is; a
 * directory is a count and entries of 12 bytes: tag, type, count, value. Orientation is tag 0x112, one SHORT.
 */
int dp_exif_orientation(const unsigned char *tiff, size_t size)
{
    if (size < 8 || (memcmp(tiff, "II*\0", 4) != 0 && memcmp(tiff, "MM\0*", 4) != 0))
        return 1;
    bool little = tiff[0] == 'I';
#define SHORT(p) (little ? (p)[0] | (p)[1] << 8 : (p)[0] << 8 | (p)[1])
    uint32_t at = little ? (uint32_t)SHORT(tiff + 4) | (uint32_t)SHORT(tiff + 6) << 16
                         : (uint32_t)SHORT(tiff + 4) << 16 | (uint32_t)SHORT(tiff + 6);
    if (at > size - 2)
        return 1;
    int entries = SHORT(tiff + at);
    const unsigned char *entry = tiff + at + 2;
    for (int i = 0; i < entries && (size_t)(entry - tiff) + 12 <= size; i++, entry += 12) {
        int value = SHORT(entry + 8);
        if (SHORT(entry) == 0x112 && SHORT(entry + 2) == 3)
            return value >= 1 && value <= 8 ? value : 1;
    }
#undef SHORT
    return 1;
}

/* Where the pixel (x, y) of the upright picture lies in the stored one (EXIF 2.3, 4.6.4: orientation tells
 * which edge of the scene the first row and the first column are). */
static int64_t stored_at(const dp_image *stored, int orientation, int64_t x, int64_t y)
{
    int64_t w = stored->width, h = stored->height;
    switch (orientation) {
    case 2:
        return y * w + (w - 1 - x);
    case 3:
        return (h - 1 - y) * w + (w - 1 - x);
    case 4:
        return (h - 1 - y) * w + x;
    case 5:
        return x * w + y;
    case 6:
        return (h - 1 - x) * w + y;
    case 7:
        return (h - 1 - x) * w + (w - 1 - y);
    case 8:
        return x * w + (w - 1 - y);
    default:
        return y * w + x;
    }
}

static dp_status turn(dp_image *image, int orientation, const char *path, dp_error *err)
{
    dp_image upright;
    bool swap = orientation >= 5;
    if (orientation == 1)
        return DP_OK;
    DP_TRY(dp_image_take(&upright, swap ? image->height : image->width, swap ? image->width : image->height,
                         image->channels, path, err));
    unsigned char *to = upright.pixels;
    for (int64_t y = 0; y < upright.height; y++)
        for (int64_t x = 0; x < upright.width; x++, to += image->channels)
            memcpy(to, image->pixels + stored_at(image, orientation, x, y) * image->channels,
                   (size_t)image->channels);
    dp_image_clear(image);
    *image = upright;
    return DP_OK;
}

/* ---- reading ---- */

dp_status dp_image_size(const void *bytes, size_t size, const char *path, int64_t *width, int64_t *height,
                        dp_error *err)
{
    dp_image_header header;
    DP_TRY(read_any(bytes, size, path, &header, NULL, err));
    bool swap = header.orientation >= 5;
    *width = swap ? header.height : header.width;
    *height = swap ? header.width : header.height;
    return DP_OK;
}

dp_status dp_image_decode(const void *bytes, size_t size, const char *path, dp_image *out, dp_error *err)
{
    dp_image_header header;
    *out = (dp_image){0};
    dp_status status = read_any(bytes, size, path, &header, out, err);
    if (status == DP_OK)
        status = turn(out, header.orientation, path, err);
    if (status != DP_OK)
        dp_image_clear(out);
    return status;
}
