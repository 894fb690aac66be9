/* Parts of images in other sizes. */
#ifndef DP_IO_RESIZE_H
#define DP_IO_RESIZE_H

#include "io/image.h"

/* What is seen of an image: a box within it, perhaps mirrored. */
typedef struct dp_view {
    int64_t x, y, width, height;
    bool hflip, vflip;
} dp_view;

dp_view dp_view_of_all(const dp_image *image);

/* The view in height x width, as planes out[channels][height][width] of values 0..255; channels is 3 (a grey
 * image is repeated) or 1 (of a grey image). Bilinear with a filter that widens when the image shrinks, as
 * PIL's resize and torchvision's antialias=True do, without PIL's rounding between the two directions.
 * DP_ERROR_MEMORY is the only error. */
dp_status dp_resize_bilinear(const dp_image *image, const dp_view *view, int64_t height, int64_t width,
                             int channels, float *out, dp_error *err);
/* The view of a grey image in height x width, values 0..255: the pixel under the middle of each (PIL's
 * NEAREST). */
void dp_resize_nearest(const dp_image *image, const dp_view *view, int64_t height, int64_t width, float *out);

#endif
