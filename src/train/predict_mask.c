/* Masks: a picture is seen in parts of the model's size, which overlap by a quarter; where they do, their
 * probabilities are averaged, the more weight the further from a part's rim. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "train/predict.h"

/* ---- parts ---- */

static int64_t part_count(int64_t length, int64_t part)
{
    int64_t stride = part - part / 4;
    return length <= part ? 1 : (length - part + stride - 1) / stride + 1;
}

/* Parts are spread evenly from one end to the other. */
static int64_t part_start(int64_t length, int64_t part, int64_t index)
{
    int64_t count = part_count(length, part);
    return count == 1 ? 0 : index * (length - part) / (count - 1);
}

/* Beyond its rim a picture goes on mirrored. */
static int64_t mirror(int64_t i, int64_t n)
{
    i %= 2 * n;
    return i < n ? i : 2 * n - 1 - i;
}

static void cut_out(const dp_predictor *p, const dp_image *image, int64_t x, int64_t y, float *out)
{
    for (int64_t c = 0; c < p->channels; c++)
        for (int64_t i = 0; i < p->height; i++) {
            const unsigned char *row =
                image->pixels + mirror(y + i, image->height) * image->width * image->channels;
            for (int64_t k = 0; k < p->width; k++)
                *out++ = row[mirror(x + k, image->width) * image->channels + (image->channels == 3 ? c : 0)];
        }
}

/* ---- a picture ---- */

void dp_open_picture_free(dp_open_picture *picture)
{
    dp_image_clear(&picture->image);
    dp_free(picture->sum);
    dp_free(picture->weight);
    dp_free(picture);
}

void dp_mask_drop_open(dp_predictor *predictor)
{
    while (predictor->open) {
        dp_open_picture *picture = predictor->open;
        predictor->open = picture->next;
        dp_open_picture_free(picture);
    }
}

static void end_picture(dp_predictor *p, dp_open_picture *picture)
{
    dp_open_picture **at = &p->open;
    while (*at != picture)
        at = &(*at)->next;
    *at = picture->next;
}

static dp_status open_picture(dp_predictor *p, const dp_named_picture *name, dp_image *image,
                              dp_open_picture **out, dp_error *err)
{
    dp_status status = dp_calloc(1, sizeof **out, "a picture", out, err);
    if (status != DP_OK) {
        dp_image_clear(image);
        return status;
    }
    dp_open_picture *o = *out;
    o->next = p->open;
    p->open = o;
    o->name = name;
    o->image = *image;
    *image = (dp_image){0};
    bool whole = p->config->resize;
    o->height = whole || o->image.height < p->height ? p->height : o->image.height;
    o->width = whole || o->image.width < p->width ? p->width : o->image.width;
    size_t pixels = (size_t)(o->height * o->width);
    DP_TRY(dp_calloc(pixels, sizeof *o->sum, "a mask", &o->sum, err));
    return dp_calloc(pixels, sizeof *o->weight, "a mask", &o->weight, err);
}

static dp_status push_part(dp_predictor *p, dp_open_picture *o, int64_t x, int64_t y, const dp_image *seen,
                           dp_error *err)
{
    float *slot = dp_predict_slot(p);
    if (p->config->resize) {
        dp_view all = dp_view_of_all(seen);
        DP_TRY(dp_resize_bilinear(seen, &all, p->height, p->width, (int)p->channels, slot, err));
    } else {
        cut_out(p, seen, x, y, slot);
    }
    dp_predict_normalize(p, slot);
    return dp_predict_push(p, (dp_part){.picture = o, .x = x, .y = y}, err);
}

/* Once its last part is pushed, the picture may be gone. */
static dp_status push_parts(dp_predictor *p, dp_open_picture *o, const dp_image *seen, dp_error *err)
{
    const int64_t height = o->height, width = o->width;
    int64_t rows = part_count(height, p->height), columns = part_count(width, p->width);
    o->missing = rows * columns;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < columns; k++)
            DP_TRY(
                push_part(p, o, part_start(width, p->width, k), part_start(height, p->height, i), seen, err));
    return DP_OK;
}

static dp_status copy_grey(const dp_image *image, const char *path, dp_image *out, dp_error *err)
{
    DP_TRY(dp_image_take(out, image->width, image->height, image->channels, path, err));
    memcpy(out->pixels, image->pixels, (size_t)(image->width * image->height * image->channels));
    dp_image_to_grey(out);
    return DP_OK;
}

dp_status dp_predict_mask(dp_predictor *p, const dp_named_picture *name, dp_image *image, dp_error *err)
{
    dp_open_picture *o;
    DP_TRY(open_picture(p, name, image, &o, err));
    if (p->channels == 3 || o->image.channels == 1) {
        const dp_image seen = o->image; /* its pixels are there until the last part is pushed */
        return push_parts(p, o, &seen, err);
    }
    dp_image grey;
    DP_TRY(copy_grey(&o->image, name->path, &grey, err));
    dp_status status = push_parts(p, o, &grey, err);
    dp_image_clear(&grey);
    return status;
}

/* ---- results ---- */

static float rim_distance(int64_t i, int64_t n)
{
    return (float)(i + 1 < n - i ? i + 1 : n - i);
}

dp_status dp_mask_take(dp_predictor *p, const dp_part *part, const float *logits, dp_error *err)
{
    dp_open_picture *o = part->picture;
    for (int64_t y = 0; y < p->height; y++)
        for (int64_t x = 0; x < p->width; x++) {
            float weight = rim_distance(x, p->width) * rim_distance(y, p->height), logit = *logits++;
            if (!isfinite(logit))
                return dp_fail(err, DP_ERROR_NONFINITE, "the output for '%s' is not finite", o->name->path);
            int64_t at = (part->y + y) * o->width + part->x + x;
            o->sum[at] += weight / (1 + expf(-logit));
            o->weight[at] += weight;
        }
    if (--o->missing > 0)
        return DP_OK;
    end_picture(p, o);
    return dp_mask_writer_add(p->writer, o, err);
}
