/* JPEG by libjpeg(-turbo). Its way of failing is to call error_exit, which must not return: a longjmp leads
 * back here. Everything that a jump could skip is owned by structures that outlive the frame it leaves. */
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>

#include <jerror.h>

#include "io/image.h"

/* Progressive files are decoded from a copy of their coefficients: a limit on scans keeps small files from
 * costing minutes (libjpeg-turbo's own djpeg -maxscans is for the same). */
enum { MAX_SCANS = 500 };

typedef struct reader {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf failed;
    char message[JMSG_LENGTH_MAX];
    dp_image *image;
    dp_image_header *header;
    const char *path;
    dp_error *err;
    dp_status status; /* of what is not libjpeg's */
} reader;

static void give_up(j_common_ptr common)
{
    reader *r = common->client_data;
    common->err->format_message(common, r->message);
    longjmp(r->failed, 1);
}

/* libjpeg goes on after damage and makes pixels up; only what cannot have changed one is let pass. */
static void on_message(j_common_ptr common, int level)
{
    int code = common->err->msg_code;
    if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_ADOBE_XFORM && code != JWRN_JFIF_MAJOR)
        give_up(common);
}

static void print_nothing(j_common_ptr common)
{
    (void)common;
}

static void check_scans(j_common_ptr common)
{
    reader *r = common->client_data;
    if (r->jpeg.input_scan_number > MAX_SCANS) {
        snprintf(r->message, sizeof r->message, "it has more than %d scans", MAX_SCANS);
        longjmp(r->failed, 1);
    }
}

/* ---- the source: all bytes are there; to ask for more is to have reached the end too early ---- */

static void source_begins_or_ends(j_decompress_ptr jpeg)
{
    (void)jpeg;
}

static boolean source_is_empty(j_decompress_ptr jpeg)
{
    reader *r = jpeg->client_data;
    snprintf(r->message, sizeof r->message, "the file is cut off");
    longjmp(r->failed, 1);
}

static void source_skips(j_decompress_ptr jpeg, long count)
{
    struct jpeg_source_mgr *s = jpeg->src;
    if (count <= 0)
        return;
    if ((size_t)count > s->bytes_in_buffer)
        source_is_empty(jpeg);
    s->next_input_byte += count;
    s->bytes_in_buffer -= (size_t)count;
}

/* ---- reading ---- */

static int orientation_of(const struct jpeg_decompress_struct *jpeg)
{
    static const char mark[] = "Exif\0"; /* and the literal's own NUL: six bytes */
    for (jpeg_saved_marker_ptr m = jpeg->marker_list; m; m = m->next)
        if (m->marker == JPEG_APP0 + 1 && m->data_length > sizeof mark &&
            memcmp(m->data, mark, sizeof mark) == 0)
            return dp_exif_orientation(m->data + sizeof mark, m->data_length - sizeof mark);
    return 1;
}

/* Some cameras write a little after the end: only its absence from the last bytes is a cut. */
static bool has_end(const unsigned char *bytes, size_t size)
{
    const unsigned char end[] = {0xff, JPEG_EOI};
    size_t tail = size < 65536 ? size : 65536;
    return memmem(bytes + size - tail, tail, end, sizeof end) != NULL;
}

/* Anything that fails in here jumps to try_all. */
static void read_pixels(reader *r)
{
    struct jpeg_decompress_struct *jpeg = &r->jpeg;
    jpeg_start_decompress(jpeg);
    size_t row_bytes = (size_t)r->image->width * (size_t)r->image->channels;
    while (jpeg->output_scanline < jpeg->output_height) {
        JSAMPROW row = r->image->pixels + jpeg->output_scanline * row_bytes;
        jpeg_read_scanlines(jpeg, &row, 1);
    }
    jpeg_finish_decompress(jpeg);
}

static void read_all(reader *r)
{
    struct jpeg_decompress_struct *jpeg = &r->jpeg;
    jpeg_create_decompress(jpeg);
    jpeg->client_data = r;
    jpeg->src = &r->source;
    jpeg->progress = &r->progress;
    jpeg_save_markers(jpeg, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(jpeg, TRUE);
    if (jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK) {
        snprintf(r->message, sizeof r->message, "its colours are CMYK; grey and RGB are read");
        longjmp(r->failed, 1);
    }
    bool grey = jpeg->jpeg_color_space == JCS_GRAYSCALE;
    *r->header = (dp_image_header){jpeg->image_width, jpeg->image_height, orientation_of(jpeg)};
    r->status = dp_image_take(r->image, r->header->width, r->header->height, grey ? 1 : 3, r->path, r->err);
    if (r->status != DP_OK || !r->image)
        return;
    jpeg->out_color_space = grey ? JCS_GRAYSCALE : JCS_RGB;
    read_pixels(r);
}

static void try_all(reader *r)
{
    if (setjmp(r->failed) == 0)
        read_all(r);
    else
        r->status = dp_fail(r->err, DP_ERROR_IO, "cannot read '%s': %s", r->path, r->message);
}

dp_status dp_jpeg_read(const unsigned char *bytes, size_t size, const char *path, dp_image_header *header,
                       dp_image *image, dp_error *err)
{
    reader r = {.image = image, .header = header, .path = path, .err = err};
    if (!has_end(bytes, size))
        return dp_fail(err, DP_ERROR_IO, "cannot read '%s': the file is cut off", path);
    r.jpeg.err = jpeg_std_error(&r.errors);
    r.jpeg.client_data = &r;
    r.errors.error_exit = give_up;
    r.errors.emit_message = on_message;
    r.errors.output_message = print_nothing;
    r.progress.progress_monitor = check_scans;
    r.source = (struct jpeg_source_mgr){.next_input_byte = bytes,
                                        .bytes_in_buffer = size,
                                        .init_source = source_begins_or_ends,
                                        .fill_input_buffer = source_is_empty,
                                        .skip_input_data = source_skips,
                                        .resync_to_restart = jpeg_resync_to_restart,
                                        .term_source = source_begins_or_ends};
    try_all(&r);
    jpeg_destroy_decompress(&r.jpeg);
    return r.status;
}
