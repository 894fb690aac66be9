/* PNG by libpng. It fails by longjmp, as libjpeg does (jpeg.c). */
#include <stdio.h>
#include <string.h>

#include <png.h>

#include "base/memory.h"
#include "io/file.h"
#include "io/image.h"

typedef struct reader {
    png_structp png;
    png_infop info;
    const unsigned char *next;
    size_t left;
    unsigned char **rows;
    char message[128];
    dp_image *image;
    dp_image_header *header;
    const char *path;
    dp_error *err;
    dp_status status; /* of what is not libpng's */
} reader;

static void give_up(png_structp png, png_const_charp text)
{
    reader *r = png_get_error_ptr(png);
    snprintf(r->message, sizeof r->message, "%s", text);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void take_bytes(png_structp png, png_bytep out, size_t count)
{
    reader *r = png_get_io_ptr(png);
    if (count > r->left)
        png_error(png, "the file is cut off");
    memcpy(out, r->next, count);
    r->next += count;
    r->left -= count;
}

static int orientation_of(reader *r)
{
#ifdef PNG_eXIf_SUPPORTED
    png_bytep exif;
    png_uint_32 size;
    if (png_get_eXIf_1(r->png, r->info, &size, &exif) == PNG_INFO_eXIf)
        return dp_exif_orientation(exif, size);
#endif
    return 1;
}

/* Chunks follow each other by their lengths (PNG specification, 5.3) up to IEND. */
static bool has_end(const unsigned char *bytes, size_t size)
{
    for (size_t at = 8; size >= 12 && at <= size - 12;) {
        size_t length = (size_t)bytes[at] << 24 | (size_t)bytes[at + 1] << 16 | (size_t)bytes[at + 2] << 8 |
                        bytes[at + 3];
        if (memcmp(bytes + at + 4, "IEND", 4) == 0)
            return true;
        at += 12 + length;
    }
    return false;
}

/* Eight bits of grey or RGB, whatever the file has. */
static void set_transforms(reader *r, int type, int depth)
{
    if (depth == 16)
        png_set_scale_16(r->png);
    if (type == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(r->png);
    if (type == PNG_COLOR_TYPE_GRAY && depth < 8)
        png_set_expand_gray_1_2_4_to_8(r->png);
    png_set_strip_alpha(r->png);
    png_set_interlace_handling(r->png);
    png_read_update_info(r->png, r->info);
}

/* Anything that fails in here jumps to try_all. */
static void read_all(reader *r)
{
    png_uint_32 width, height;
    int depth, type;
    png_read_info(r->png, r->info);
    png_get_IHDR(r->png, r->info, &width, &height, &depth, &type, NULL, NULL, NULL);
    bool colour = type & PNG_COLOR_MASK_COLOR;
    *r->header = (dp_image_header){width, height, orientation_of(r)};
    r->status = dp_image_take(r->image, width, height, colour ? 3 : 1, r->path, r->err);
    if (r->status != DP_OK || !r->image)
        return;
    set_transforms(r, type, depth);
    size_t row_bytes = png_get_rowbytes(r->png, r->info);
    if (row_bytes != (size_t)width * (colour ? 3 : 1))
        png_error(r->png, "its pixels are of an unknown kind");
    r->status = dp_calloc(height, sizeof *r->rows, "rows of an image", &r->rows, r->err);
    if (r->status != DP_OK)
        return;
    for (size_t y = 0; y < height; y++)
        r->rows[y] = r->image->pixels + y * row_bytes;
    png_read_image(r->png, r->rows);
    png_read_end(r->png, NULL);
}

static void try_all(reader *r)
{
    if (setjmp(png_jmpbuf(r->png)) == 0)
        read_all(r);
    else
        r->status = dp_fail(r->err, DP_ERROR_IO, "cannot read '%s': %s", r->path, r->message);
}

static dp_status no_memory(dp_error *err)
{
    return dp_fail(err, DP_ERROR_MEMORY, "out of memory for libpng");
}

dp_status dp_png_read(const unsigned char *bytes, size_t size, const char *path, dp_image_header *header,
                      dp_image *image, dp_error *err)
{
    reader r = {.next = bytes, .left = size, .image = image, .header = header, .path = path, .err = err};
    if (!has_end(bytes, size))
        return dp_fail(err, DP_ERROR_IO, "cannot read '%s': the file is cut off", path);
    r.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, give_up, on_warning);
    r.info = r.png ? png_create_info_struct(r.png) : NULL;
    if (!r.info) {
        png_destroy_read_struct(&r.png, NULL, NULL);
        return no_memory(err);
    }
    png_set_read_fn(r.png, &r, take_bytes);
    png_set_user_limits(r.png, 0x7fffffff, 0x7fffffff); /* ours are stricter, and say so */
    png_set_chunk_malloc_max(r.png, 1 << 23);
    png_set_chunk_cache_max(r.png, 128);
    try_all(&r);
    dp_free(r.rows);
    png_destroy_read_struct(&r.png, &r.info, NULL);
    return r.status;
}

/* ---- writing ---- */

typedef struct writer {
    dp_atomic_file *file;
    dp_error *err;
    dp_status status; /* of the file */
    char message[128];
} writer;

static void write_fails(png_structp png, png_const_charp text)
{
    writer *w = png_get_error_ptr(png);
    snprintf(w->message, sizeof w->message, "%s", text);
    png_longjmp(png, 1);
}

static void give_bytes(png_structp png, png_bytep bytes, size_t count)
{
    writer *w = png_get_io_ptr(png);
    w->status = dp_atomic_write(w->file, bytes, count, w->err);
    if (w->status != DP_OK)
        png_error(png, "the file cannot be written");
}

static void flush_nothing(png_structp png)
{
    (void)png;
}

static void write_all(png_structp png, png_infop info, const dp_image *image)
{
    png_set_IHDR(png, info, (png_uint_32)image->width, (png_uint_32)image->height, 8,
                 image->channels == 3 ? PNG_COLOR_TYPE_RGB : PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(png, info);
    for (int64_t y = 0; y < image->height; y++)
        png_write_row(png, image->pixels + y * image->width * image->channels);
    png_write_end(png, info);
}

static void try_write(writer *w, png_structp png, png_infop info, const char *path, const dp_image *image)
{
    if (setjmp(png_jmpbuf(png)) == 0)
        write_all(png, info, image);
    else if (w->status == DP_OK)
        w->status = dp_fail(w->err, DP_ERROR_IO, "cannot write '%s': %s", path, w->message);
}

static dp_status encode(writer *w, const char *path, const dp_image *image)
{
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, w, write_fails, on_warning);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info) {
        png_destroy_write_struct(&png, NULL);
        return no_memory(w->err);
    }
    png_set_write_fn(png, w, give_bytes, flush_nothing);
    try_write(w, png, info, path, image);
    png_destroy_write_struct(&png, &info);
    return w->status;
}

dp_status dp_png_write(const char *path, const dp_image *image, dp_error *err)
{
    writer w = {.err = err};
    DP_TRY(dp_atomic_open(path, &w.file, err));
    dp_status status = encode(&w, path, image);
    if (status != DP_OK) {
        dp_atomic_abandon(w.file);
        return status;
    }
    return dp_atomic_commit(w.file, err);
}
