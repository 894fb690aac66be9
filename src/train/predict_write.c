/* Masks drawn and written behind the devices by threads (base/ahead.c), and told of in order. What waits to
 * be written is bounded by its number and by its pixels. */
#include <stdio.h>
#include <string.h>

#include "base/ahead.h"
#include "base/memory.h"
#include "train/predict.h"

/* Pixels of pictures and planes that may wait: about a quarter of a gigabyte. */
static const int64_t most_pixels = 32 << 20;

static const float half = 0.5f;

typedef struct job {
    dp_open_picture *picture; /* owned; NULL once it is written */
    const dp_named_picture *name;
    int64_t pixels;
    char *path; /* of the mask; owned */
    double marked;
} job;

struct dp_mask_writer {
    const dp_predictor *predictor;
    job *jobs; /* of picture i: jobs[i % room] */
    int64_t room;
    int64_t added, taken, pixels; /* pixels: of those that were added and not taken */
    bool failed;
    dp_ahead *ahead;
};

/* ---- a mask; on any thread ---- */

/* The plane's probability at a place of the picture: itself, or between its neighbours where it was resized.
 */
static float probability_at(const dp_predictor *p, const dp_open_picture *o, int64_t x, int64_t y)
{
    if (!p->config->resize)
        return o->sum[y * o->width + x];
    float fx = ((float)x + half) * (float)o->width / (float)o->image.width - half;
    float fy = ((float)y + half) * (float)o->height / (float)o->image.height - half;
    fx = fx < 0 ? 0 : fx > (float)(o->width - 1) ? (float)(o->width - 1) : fx;
    fy = fy < 0 ? 0 : fy > (float)(o->height - 1) ? (float)(o->height - 1) : fy;
    int64_t x0 = (int64_t)fx, y0 = (int64_t)fy, x1 = x0 + (x0 + 1 < o->width), y1 = y0 + (y0 + 1 < o->height);
    float u = fx - (float)x0, v = fy - (float)y0;
    const float *top = o->sum + y0 * o->width, *bottom = o->sum + y1 * o->width;
    return (1 - v) * ((1 - u) * top[x0] + u * top[x1]) + v * ((1 - u) * bottom[x0] + u * bottom[x1]);
}

static int64_t draw_mask(const dp_predictor *p, const dp_open_picture *o, dp_image *mask)
{
    int64_t marked = 0;
    for (int64_t y = 0; y < mask->height; y++)
        for (int64_t x = 0; x < mask->width; x++) {
            bool on = probability_at(p, o, x, y) > half;
            mask->pixels[y * mask->width + x] = on ? 255 : 0;
            marked += on;
        }
    return marked;
}

/* Marked pixels are two fifths of themselves and three fifths red. */
static void draw_overlay(const dp_image *image, const dp_image *mask, dp_image *out)
{
    for (int64_t i = 0; i < out->width * out->height; i++)
        for (int c = 0; c < 3; c++) {
            int v = image->pixels[i * image->channels + (image->channels == 3 ? c : 0)];
            out->pixels[3 * i + c] =
                (unsigned char)(mask->pixels[i] ? (2 * v + (c == 0 ? 3 * 255 : 0)) / 5 : v);
        }
}

static dp_status write_file(const char *folder, const char *stem, const char *ending, const dp_image *image,
                            char **path, dp_error *err)
{
    size_t size = strlen(folder) + strlen(stem) + strlen(ending) + 2;
    DP_TRY(dp_calloc(size, 1, "a file name", path, err));
    snprintf(*path, size, "%s/%s%s", folder, stem, ending);
    return dp_png_write(*path, image, err);
}

static dp_status write_overlay(const dp_predictor *p, const dp_open_picture *o, const dp_image *mask,
                               dp_error *err)
{
    dp_image overlay;
    char *path = NULL;
    DP_TRY(dp_image_take(&overlay, mask->width, mask->height, 3, o->name->path, err));
    draw_overlay(&o->image, mask, &overlay);
    dp_status status = write_file(p->config->folder, o->name->stem, "_overlay.png", &overlay, &path, err);
    dp_free(path);
    dp_image_clear(&overlay);
    return status;
}

static dp_status write_results(const dp_predictor *p, job *j, dp_error *err)
{
    const dp_open_picture *o = j->picture;
    dp_image mask;
    DP_TRY(dp_image_take(&mask, o->image.width, o->image.height, 1, o->name->path, err));
    for (int64_t i = 0; i < o->height * o->width; i++)
        o->sum[i] /= o->weight[i];
    j->marked = (double)draw_mask(p, o, &mask) / (double)(mask.width * mask.height);
    dp_status status = write_file(p->config->folder, o->name->stem, ".png", &mask, &j->path, err);
    if (status == DP_OK && p->config->overlay)
        status = write_overlay(p, o, &mask, err);
    dp_image_clear(&mask);
    return status;
}

static dp_status write_one(void *user, int thread, int64_t item, int64_t slot, dp_error *err)
{
    const dp_mask_writer *w = user;
    job *j = &w->jobs[item % w->room];
    (void)thread, (void)slot; /* jobs are kept from their adding on, slots from their beginning */
    dp_status status = write_results(w->predictor, j, err);
    dp_open_picture_free(j->picture);
    j->picture = NULL;
    return status;
}

/* ---- the devices' thread ---- */

static dp_status prepare(dp_mask_writer *w, int64_t count, dp_error *err)
{
    const dp_predict_config *c = w->predictor->config;
    int threads = c->workers < count ? c->workers : (int)count;
    /* A batch that waits, and a picture that each thread is at. */
    w->room = c->batch_size + threads;
    w->room = w->room < count ? w->room : count;
    DP_TRY(dp_calloc((size_t)w->room, sizeof *w->jobs, "masks to write", &w->jobs, err));
    const dp_ahead_config ahead = {.name = "dp-writer",
                                   .threads = threads,
                                   .slots = w->room + 1,
                                   .most_held = 1,
                                   .make = write_one,
                                   .user = w};
    return dp_ahead_create(&ahead, &w->ahead, err);
}

dp_status dp_mask_writer_create(const dp_predictor *predictor, int64_t count, dp_mask_writer **out,
                                dp_error *err)
{
    dp_mask_writer *w;
    *out = NULL;
    DP_TRY(dp_calloc(1, sizeof *w, "masks to write", &w, err));
    w->predictor = predictor;
    dp_status status = prepare(w, count, err);
    if (status != DP_OK) {
        dp_mask_writer_free(w);
        return status;
    }
    *out = w;
    return DP_OK;
}

void dp_mask_writer_free(dp_mask_writer *w)
{
    if (!w)
        return;
    dp_ahead_free(w->ahead);
    for (int64_t i = 0; w->jobs && i < w->room; i++) {
        if (w->jobs[i].picture)
            dp_open_picture_free(w->jobs[i].picture);
        dp_free(w->jobs[i].path);
    }
    dp_free(w->jobs);
    dp_free(w);
}

/* Waits for the first that was added to be written, and tells of it. */
static dp_status take_first(dp_mask_writer *w, dp_error *err)
{
    const dp_predict_config *c = w->predictor->config;
    job *j = &w->jobs[w->taken++ % w->room];
    int64_t slot;
    dp_status status = dp_ahead_next(w->ahead, &slot, err);
    w->pixels -= j->pixels;
    w->failed = status != DP_OK;
    if (status == DP_OK) {
        dp_ahead_release(w->ahead, slot);
        if (c->done)
            c->done(c->user,
                    &(dp_prediction){
                        .picture = j->name->path, .mask = j->path, .marked = j->marked, .truth = -1});
    }
    dp_free(j->path);
    *j = (job){0};
    return status;
}

dp_status dp_mask_writer_add(dp_mask_writer *w, dp_open_picture *o, dp_error *err)
{
    const int64_t pixels = o->height * o->width + o->image.height * o->image.width;
    w->jobs[w->added++ % w->room] = (job){.picture = o, .name = o->name, .pixels = pixels};
    w->pixels += pixels;
    dp_ahead_extend(w->ahead, w->added);
    /* What is written is told of; what is too much is waited for, so that there is room for the next one. */
    while (w->added - w->taken == w->room || w->pixels > most_pixels || dp_ahead_has_next(w->ahead))
        DP_TRY(take_first(w, err));
    return DP_OK;
}

dp_status dp_mask_writer_finish(dp_mask_writer *w, dp_error *err)
{
    while (!w->failed && w->taken < w->added)
        DP_TRY(take_first(w, err));
    return DP_OK;
}
