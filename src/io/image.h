/* Photographs and masks: bytes of a JPEG or PNG file in, 8-bit pixels out. */
#ifndef DP_IO_IMAGE_H
#define DP_IO_IMAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum {
    /* The largest image that is read: what a header promises is checked before memory is taken for it. */
    DP_IMAGE_MAX_SIDE = 32768,
    DP_IMAGE_MAX_PIXELS = 1 << 27,
};

/* Rows from the top, channels interleaved. Grey, or RGB: palettes are resolved, 16 bits rounded to 8, and
 * transparency is left out (as PIL's convert("RGB") does). */
typedef struct dp_image {
    int64_t width, height;
    int channels;          /* 1 or 3 */
    unsigned char *pixels; /* height * width * channels; owned */
} dp_image;

/* The size that decoding gives (EXIF's orientation applied), from the header, after a look at whether the
 * file ends as such a file ends. `path` is for messages. Errors: DP_ERROR_IO for bytes that are no JPEG or
 * PNG, are cut off, corrupt, or of a kind that is not read, and for images beyond the limits above. */
dp_status dp_image_size(const void *bytes, size_t size, const char *path, int64_t *width, int64_t *height,
                        dp_error *err);
/* Decodes; EXIF's orientation is applied. The caller owns the image: dp_image_clear. Errors as above; also
 * DP_ERROR_MEMORY. */
dp_status dp_image_decode(const void *bytes, size_t size, const char *path, dp_image *out, dp_error *err);
void dp_image_clear(dp_image *image);

/* A file ending that this reads: .jpg, .jpeg or .png, in any case. */
bool dp_image_has_name(const char *name);

/* Brightness of an RGB image, in place: (299 R + 587 G + 114 B) / 1000 (ITU-R BT.601), as PIL's
 * convert("L"). A grey image is left as it is. */
void dp_image_to_grey(dp_image *image);

/* Writes 8-bit grey (channels 1) or RGB (3) as PNG, whole or not at all. */
dp_status dp_png_write(const char *path, const dp_image *image, dp_error *err);

/* ---- the formats; image.c chooses ---- */

/* Which way up a picture is: EXIF's orientation, 1 to 8; 5 to 8 swap width and height. */
typedef struct dp_image_header {
    int64_t width, height;
    int orientation;
} dp_image_header;

/* Both decode where image is not NULL; pixels are then as stored in the file, not yet turned. */
dp_status dp_jpeg_read(const unsigned char *bytes, size_t size, const char *path, dp_image_header *header,
                       dp_image *image, dp_error *err);
dp_status dp_png_read(const unsigned char *bytes, size_t size, const char *path, dp_image_header *header,
                      dp_image *image, dp_error *err);

/* DP_ERROR_IO for a size beyond the limits; else, if image is not NULL, takes memory for it. */
dp_status dp_image_take(dp_image *image, int64_t width, int64_t height, int channels, const char *path,
                        dp_error *err);
/* The orientation that a TIFF block (EXIF's data, without "Exif\0\0") gives; 1 if it gives none. */
int dp_exif_orientation(const unsigned char *tiff, size_t size);

#endif
