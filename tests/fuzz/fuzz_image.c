/* The readers of JPEG and PNG: the header alone, then all pixels. */
#include "io/image.h"
#include "tests/fuzz/fuzz.h"

/* A few bytes can stand for a large picture: correct, but too slow to be fuzzed. */
enum { MOST_PIXELS = 1 << 18 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int64_t width, height;
    dp_error err = {0};
    dp_status status = dp_image_size(data, size, "input", &width, &height, &err);
    fuzz_check(status, &err);
    if (status == DP_OK && width * height > MOST_PIXELS)
        return 0;
    dp_image image;
    err = (dp_error){0};
    status = dp_image_decode(data, size, "input", &image, &err);
    fuzz_check(status, &err);
    volatile uint8_t seen = 0;
    for (int64_t i = 0; status == DP_OK && i < image.width * image.height * image.channels; i++)
        seen = image.pixels[i];
    (void)seen;
    dp_image_clear(&image);
    return 0;
}
