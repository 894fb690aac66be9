#include "io/resize.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

dp_view dp_view_of_all(const dp_image *image)
{
    return (dp_view){.width = image->width, .height = image->height};
}

/* Which source pixels make up each of `count` target pixels: weight[i * most + k] of pixel first[i] + k. */
typedef struct taps {
    int64_t count, most;
    int64_t *first, *used;
    float *weight;
} taps;

static void free_taps(taps *t)
{
    dp_free(t->first);
    dp_free(t->used);
    dp_free(t->weight);
}

/* A triangle around the target's middle, as wide as a target pixel is in the source, at least a source pixel
 * (Pillow's documentation, "Filters": BILINEAR has a support of one output pixel when shrinking). */
static void weigh(taps *t, int64_t i, double scale, int64_t from)
{
    double width = scale > 1 ? scale : 1, middle = ((double)i + 0.5) * scale, sum = 0;
    int64_t low = (int64_t)(middle - width + 0.5), high = (int64_t)(middle + width + 0.5);
    low = low < 0 ? 0 : low;
    high = high > from ? from : high;
    float *weight = t->weight + i * t->most;
    t->first[i] = low;
    t->used[i] = high - low;
    for (int64_t k = 0; k < high - low; k++) {
        double w = 1 - fabs((double)(low + k) + 0.5 - middle) / width;
        weight[k] = (float)(w > 0 ? w : 0);
        sum += w > 0 ? w : 0;
    }
    for (int64_t k = 0; k < high - low; k++)
        weight[k] = (float)(weight[k] / sum);
}

static dp_status make_taps(int64_t from, int64_t to, taps *t, dp_error *err)
{
    double scale = (double)from / (double)to;
    *t = (taps){.count = to, .most = 2 * (int64_t)ceil(scale > 1 ? scale : 1) + 1};
    DP_TRY(dp_calloc((size_t)to, sizeof *t->first, "a resized image", &t->first, err));
    DP_TRY(dp_calloc((size_t)to, sizeof *t->used, "a resized image", &t->used, err));
    DP_TRY(dp_calloc((size_t)(to * t->most), sizeof *t->weight, "a resized image", &t->weight, err));
    for (int64_t i = 0; i < to; i++)
        weigh(t, i, scale, from);
    return DP_OK;
}

typedef struct resizing {
    const dp_image *image;
    const dp_view *view;
    int64_t height, width;
    taps across, down;
    float *narrow; /* [view->height][width][image's channels]: resized across only */
} resizing;

static void resize_row(const resizing *r, int64_t y, float *out)
{
    const int channels = r->image->channels;
    const unsigned char *row =
        r->image->pixels + ((r->view->y + y) * r->image->width + r->view->x) * channels;
    for (int64_t i = 0; i < r->width; i++) {
        const float *weight = r->across.weight + i * r->across.most;
        const unsigned char *pixel = row + r->across.first[i] * channels;
        float sum[3] = {0};
        for (int64_t k = 0; k < r->across.used[i]; k++, pixel += channels)
            for (int c = 0; c < channels; c++)
                sum[c] += weight[k] * pixel[c];
        memcpy(out + i * channels, sum, (size_t)channels * sizeof *out);
    }
}

static void write_row(const resizing *r, int64_t i, const float *row, int channels, float *out)
{
    const int have = r->image->channels;
    int64_t y = r->view->vflip ? r->height - 1 - i : i;
    for (int c = 0; c < channels; c++) {
        float *to = out + (c * r->height + y) * r->width;
        const float *from = row + (have == 3 ? c : 0);
        for (int64_t x = 0; x < r->width; x++)
            to[r->view->hflip ? r->width - 1 - x : x] = from[x * have];
    }
}

static void resize(const resizing *r, float *row, int channels, float *out)
{
    const int64_t row_elements = r->width * r->image->channels;
    for (int64_t y = 0; y < r->view->height; y++)
        resize_row(r, y, r->narrow + y * row_elements);
    for (int64_t i = 0; i < r->height; i++) {
        const float *weight = r->down.weight + i * r->down.most;
        memset(row, 0, (size_t)row_elements * sizeof *row);
        for (int64_t k = 0; k < r->down.used[i]; k++) {
            const float *from = r->narrow + (r->down.first[i] + k) * row_elements;
            for (int64_t e = 0; e < row_elements; e++)
                row[e] += weight[k] * from[e];
        }
        write_row(r, i, row, channels, out);
    }
}

/* Most pictures of a data set have its size already. */
static void copy(const resizing *r, float *row, int channels, float *out)
{
    const int64_t row_elements = r->width * r->image->channels;
    for (int64_t i = 0; i < r->height; i++) {
        const unsigned char *from =
            r->image->pixels + ((r->view->y + i) * r->image->width + r->view->x) * r->image->channels;
        for (int64_t e = 0; e < row_elements; e++)
            row[e] = from[e];
        write_row(r, i, row, channels, out);
    }
}

dp_status dp_resize_bilinear(const dp_image *image, const dp_view *view, int64_t height, int64_t width,
                             int channels, float *out, dp_error *err)
{
    resizing r = {.image = image, .view = view, .height = height, .width = width};
    const size_t row_bytes = (size_t)(width * image->channels) * sizeof(float);
    bool same = view->height == height && view->width == width;
    float *row;
    DP_TRY(dp_aligned_alloc(row_bytes, "a resized image", &row, err));
    dp_status status = DP_OK;
    if (same) {
        copy(&r, row, channels, out);
    } else if ((status = make_taps(view->width, width, &r.across, err)) == DP_OK &&
               (status = make_taps(view->height, height, &r.down, err)) == DP_OK &&
               (status = dp_aligned_alloc((size_t)view->height * row_bytes, "a resized image", &r.narrow,
                                          err)) == DP_OK) {
        resize(&r, row, channels, out);
    }
    free_taps(&r.across);
    free_taps(&r.down);
    dp_free(r.narrow);
    dp_free(row);
    return status;
}

void dp_resize_nearest(const dp_image *image, const dp_view *view, int64_t height, int64_t width, float *out)
{
    for (int64_t i = 0; i < height; i++) {
        int64_t y = view->y + (int64_t)(((double)i + 0.5) * (double)view->height / (double)height);
        float *to = out + (view->vflip ? height - 1 - i : i) * width;
        for (int64_t k = 0; k < width; k++) {
            int64_t x = view->x + (int64_t)(((double)k + 0.5) * (double)view->width / (double)width);
            to[view->hflip ? width - 1 - k : k] = image->pixels[y * image->width + x];
        }
    }
}
