#include "data/pictures.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/rng.h"
#include "base/thread.h"
#include "io/file.h"
#include "io/resize.h"

/* Each holds one decoded picture at a time. */
enum { CHECKING_THREADS = 16 };

const char *const dp_augment_names[] = {"hflip", "vflip", "crop", NULL};

void dp_pictures_free(dp_pictures *pictures)
{
    if (!pictures)
        return;
    for (int64_t i = 0; i < pictures->count; i++) {
        dp_free(pictures->list[i].image);
        dp_free(pictures->list[i].mask);
    }
    dp_free(pictures->list);
    dp_free(pictures);
}

dp_status dp_pictures_add(dp_pictures *pictures, const char *image, const char *mask, int32_t label,
                          dp_error *err)
{
    if (pictures->count == pictures->room) {
        int64_t room = 2 * pictures->room + 64;
        DP_TRY(dp_realloc(&pictures->list, (size_t)room, sizeof *pictures->list, "a list of pictures", err));
        pictures->room = room;
    }
    dp_picture *p = &pictures->list[pictures->count++];
    *p = (dp_picture){.label = label};
    DP_TRY(dp_strdup(image, &p->image, err));
    return mask ? dp_strdup(mask, &p->mask, err) : DP_OK;
}

/* ---- looking at the files before training ---- */

static dp_status decode(const char *path, dp_image *image, dp_error *err)
{
    void *bytes;
    size_t size;
    DP_TRY(dp_file_read(path, &bytes, &size, err));
    dp_status status = dp_image_decode(bytes, size, path, image, err);
    dp_free(bytes);
    return status;
}

/* What came of one sample's files. */
typedef struct verdict {
    dp_status status;
    char *reason; /* NULL where status is DP_OK; owned */
} verdict;

typedef struct check {
    const dp_pictures *pictures;
    verdict *verdicts; /* by sample; each is written by the one thread that took the sample */
    _Atomic int64_t next;
} check;

static dp_status size_of(const char *path, int64_t *width, int64_t *height, dp_error *err)
{
    dp_image image;
    DP_TRY(decode(path, &image, err));
    *width = image.width;
    *height = image.height;
    dp_image_clear(&image);
    return DP_OK;
}

static dp_status check_files(dp_picture *p, dp_error *err)
{
    int64_t width, height;
    DP_TRY(size_of(p->image, &p->width, &p->height, err));
    if (!p->mask)
        return DP_OK;
    DP_TRY(size_of(p->mask, &width, &height, err));
    if (width != p->width || height != p->height)
        return dp_fail(err, DP_ERROR_IO, "'%s' is %lldx%lld, but its mask '%s' %lldx%lld", p->image,
                       (long long)p->height, (long long)p->width, p->mask, (long long)height,
                       (long long)width);
    return DP_OK;
}

static void *check_some(void *argument)
{
    check *c = argument;
    int64_t i;
    while ((i = atomic_fetch_add(&c->next, 1)) < c->pictures->count) {
        verdict *v = &c->verdicts[i];
        dp_error reason, ignored;
        v->status = check_files(&c->pictures->list[i], &reason);
        if (v->status != DP_OK && dp_strdup(reason.message, &v->reason, &ignored) != DP_OK)
            v->status = DP_ERROR_MEMORY;
    }
    return NULL;
}

/* Decodes every picture once, on the cores there are; the caller's thread is one of those that do. */
static dp_status check_all(check *c, dp_error *err)
{
    pthread_t threads[CHECKING_THREADS - 1];
    int started = 0, wanted = dp_usable_cores() - 1;
    dp_status status = DP_OK;
    while (status == DP_OK && started < wanted && started < CHECKING_THREADS - 1 &&
           started + 1 < c->pictures->count) {
        status = dp_thread_start(&threads[started], "dp-check", check_some, c, err);
        started += status == DP_OK;
    }
    if (status == DP_OK)
        check_some(c);
    else
        atomic_store(&c->next, c->pictures->count); /* nothing more to do for those that run */
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    return status;
}

/* *good: whether the sample can be used; failures other than a bad file are passed on. */
static dp_status judge(const verdict *v, dp_bad_files *bad, bool *good, dp_error *err)
{
    *good = v->status == DP_OK;
    if (*good)
        return DP_OK;
    const char *reason = v->reason ? v->reason : "no memory to look at a picture";
    return v->status == DP_ERROR_IO ? dp_bad_file(bad, err, "%s", reason)
                                    : dp_fail(err, v->status, "%s", reason);
}

static dp_status keep_good(dp_pictures *pictures, const verdict *verdicts, dp_bad_files *bad, dp_error *err)
{
    int64_t kept = 0;
    dp_status status = DP_OK;
    for (int64_t i = 0; i < pictures->count; i++) {
        dp_picture *p = &pictures->list[i], swapped = *p;
        bool good = false;
        if (status == DP_OK)
            status = judge(&verdicts[i], bad, &good, err);
        *p = pictures->list[kept];
        pictures->list[kept] = swapped;
        kept += good || status != DP_OK;
    }
    /* What is bad has gathered at the end. */
    for (int64_t i = kept; i < pictures->count; i++) {
        dp_free(pictures->list[i].image);
        dp_free(pictures->list[i].mask);
    }
    pictures->count = kept;
    return status;
}

static dp_status check_and_keep(dp_pictures *pictures, dp_bad_files *bad, dp_error *err)
{
    check c = {.pictures = pictures};
    int64_t count = pictures->count;
    DP_TRY(dp_calloc((size_t)count + 1, sizeof *c.verdicts, "a list of pictures", &c.verdicts, err));
    dp_status status = check_all(&c, err);
    if (status == DP_OK)
        status = keep_good(pictures, c.verdicts, bad, err);
    for (int64_t i = 0; i < count; i++)
        dp_free(c.verdicts[i].reason);
    dp_free(c.verdicts);
    return status;
}

/* One size for all samples: what was asked for, or that of the pictures. */
static dp_status settle_size(const dp_pictures *pictures, const dp_data_config *config, int64_t shape[3],
                             dp_error *err)
{
    const dp_picture *first = &pictures->list[0];
    shape[0] = 3;
    shape[1] = config->size[0];
    shape[2] = config->size[1];
    if (shape[1] > 0)
        return DP_OK;
    for (int64_t i = 1; i < pictures->count; i++) {
        const dp_picture *p = &pictures->list[i];
        if (p->width != first->width || p->height != first->height)
            return dp_fail(
                err, DP_ERROR_USAGE,
                "'%s' is %lldx%lld, '%s' %lldx%lld: to train on pictures of several sizes give one by "
                "--size HxW",
                first->image, (long long)first->height, (long long)first->width, p->image,
                (long long)p->height, (long long)p->width);
    }
    shape[1] = first->height;
    shape[2] = first->width;
    return DP_OK;
}

/* ---- reading a sample ---- */

/* What the augmentation of (seed, epoch, sample) shows of the picture; all of it where epoch is below 0. */
static dp_view choose_view(const dp_pictures *pictures, int64_t index, int64_t epoch, const dp_image *image)
{
    dp_view view = dp_view_of_all(image);
    if (epoch < 0 || !pictures->augment)
        return view;
    float u[5];
    for (int i = 0; i < 5; i++)
        u[i] = dp_rng_uniform(pictures->seed, DP_RNG_AUGMENT, (uint32_t)epoch, (uint32_t)index, (uint64_t)i);
    view.hflip = pictures->augment & DP_AUGMENT_HFLIP && u[0] < 0.5f;
    view.vflip = pictures->augment & DP_AUGMENT_VFLIP && u[1] < 0.5f;
    if (pictures->augment & DP_AUGMENT_CROP) {
        float side = 0.7f + 0.3f * u[2];
        view.width = (int64_t)ceilf((float)image->width * side);
        view.height = (int64_t)ceilf((float)image->height * side);
        view.x = (int64_t)((float)(image->width - view.width + 1) * u[3]);
        view.y = (int64_t)((float)(image->height - view.height + 1) * u[4]);
    }
    return view;
}

/* What has another size than the check saw would be stretched, and a mask no longer lie on its picture. */
static dp_status decode_as_checked(const dp_picture *p, const char *path, dp_image *image, dp_error *err)
{
    DP_TRY(decode(path, image, err));
    if (image->width == p->width && image->height == p->height)
        return DP_OK;
    dp_status status =
        dp_fail(err, DP_ERROR_IO, "'%s' has changed: it is %lldx%lld now and was %lldx%lld", path,
                (long long)image->height, (long long)image->width, (long long)p->height, (long long)p->width);
    dp_image_clear(image);
    return status;
}

static dp_status read_image(const dp_storage *storage, int64_t index, int64_t epoch, float *x, dp_error *err)
{
    dp_image image;
    const dp_pictures *pictures = storage->pictures;
    DP_TRY(decode_as_checked(&pictures->list[index], pictures->list[index].image, &image, err));
    dp_view view = choose_view(pictures, index, epoch, &image);
    dp_status status = dp_resize_bilinear(&image, &view, storage->shape[1], storage->shape[2],
                                          (int)storage->shape[0], x, err);
    dp_image_clear(&image);
    if (status == DP_OK) {
        for (int64_t e = 0; e < storage->elements; e++)
            x[e] /= 255.0f;
        dp_storage_normalize_floats(storage, x);
    }
    return status;
}

static dp_status read_mask(const dp_storage *storage, int64_t index, int64_t epoch, float *mask,
                           dp_error *err)
{
    dp_image image;
    const dp_pictures *pictures = storage->pictures;
    DP_TRY(decode_as_checked(&pictures->list[index], pictures->list[index].mask, &image, err));
    dp_image_to_grey(&image);
    dp_view view = choose_view(pictures, index, epoch, &image);
    dp_resize_nearest(&image, &view, storage->shape[1], storage->shape[2], mask);
    dp_image_clear(&image);
    for (int64_t e = 0; e < storage->target_elements; e++)
        mask[e] /= 255.0f;
    return DP_OK;
}

static dp_status read_picture(const dp_storage *storage, int64_t index, int64_t epoch, float *x, void *target,
                              dp_error *err)
{
    if (x)
        DP_TRY(read_image(storage, index, epoch, x, err));
    if (!target)
        return DP_OK;
    if (storage->target == DP_TARGET_MASK)
        return read_mask(storage, index, epoch, target, err);
    memcpy(target, &storage->labels[index], sizeof *storage->labels);
    return DP_OK;
}

dp_status dp_pictures_check(dp_pictures *pictures, const dp_data_config *config, const char *source,
                            dp_bad_files *bad, dp_storage *storage, dp_error *err)
{
    int64_t shape[3];
    DP_TRY(check_and_keep(pictures, bad, err));
    DP_TRY(dp_bad_files_settle(bad, pictures->count, config->skip_bad, config->note, config->note_user, err));
    if (pictures->count == 0)
        return dp_fail(err, DP_ERROR_IO, "'%s' holds no pictures (.jpg, .jpeg or .png) that can be used",
                       source);
    if (pictures->count > INT32_MAX)
        return dp_fail(err, DP_ERROR_MISMATCH, "'%s' holds more than %d pictures", source, INT32_MAX);
    DP_TRY(settle_size(pictures, config, shape, err));
    pictures->augment = config->augment;
    pictures->seed = config->seed;
    storage->samples = pictures->count;
    storage->read = read_picture;
    return dp_storage_set_shape(storage, 3, shape, source, err);
}
