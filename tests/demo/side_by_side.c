/* side_by_side OUT.png COLUMNS PICTURE...: pictures of one size in rows of COLUMNS, with gaps between them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/file.h"
#include "io/image.h"

enum { GAP = 6 };

static dp_status read_picture(const char *path, dp_image *out, dp_error *err)
{
    void *bytes;
    size_t size;
    DP_TRY(dp_file_read(path, &bytes, &size, err));
    dp_status status = dp_image_decode(bytes, size, path, out, err);
    dp_free(bytes);
    return status;
}

/* Copies a picture into the sheet, grey as RGB; what does not fit its cell is left out. */
static void paste(const dp_image *picture, int64_t left, int64_t top, int64_t width, int64_t height,
                  dp_image *sheet)
{
    for (int64_t y = 0; y < height && y < picture->height; y++)
        for (int64_t x = 0; x < width && x < picture->width; x++)
            for (int c = 0; c < 3; c++)
                sheet->pixels[((top + y) * sheet->width + left + x) * 3 + c] =
                    picture->pixels[(y * picture->width + x) * picture->channels +
                                    (picture->channels == 3 ? c : 0)];
}

/* The first picture's size is that of the cells. */
static dp_status make_sheet(int count, int columns, char **paths, dp_image *sheet, dp_error *err)
{
    int rows = (count + columns - 1) / columns;
    int64_t width = 0, height = 0;
    for (int i = 0; i < count; i++) {
        dp_image picture;
        DP_TRY(read_picture(paths[i], &picture, err));
        dp_status status = DP_OK;
        if (i == 0) {
            width = picture.width, height = picture.height;
            status = dp_image_take(sheet, columns * (width + GAP) - GAP, rows * (height + GAP) - GAP, 3,
                                   paths[0], err);
            if (status == DP_OK)
                memset(sheet->pixels, 255, (size_t)(sheet->width * sheet->height * 3));
        }
        if (status == DP_OK)
            paste(&picture, i % columns * (width + GAP), i / columns * (height + GAP), width, height, sheet);
        dp_image_clear(&picture);
        DP_TRY(status);
    }
    return DP_OK;
}

int main(int argc, char **argv)
{
    dp_image sheet = {0};
    dp_error err;
    int columns = argc > 3 ? atoi(argv[2]) : 0;
    if (columns < 1) {
        fprintf(stderr, "usage: side_by_side OUT.png COLUMNS PICTURE...\n");
        return 2;
    }
    dp_status status = make_sheet(argc - 3, columns, argv + 3, &sheet, &err);
    if (status == DP_OK)
        status = dp_png_write(argv[1], &sheet, &err);
    if (status != DP_OK)
        fprintf(stderr, "side_by_side: %s\n", err.message);
    dp_image_clear(&sheet);
    return status != DP_OK;
}
