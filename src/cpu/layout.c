/* Layouts of activations and the copies between them. */
#include "cpu/layout.h"

#include <string.h>

#include "cpu/clones.h"
#include "cpu/internal.h"

int dp_cpu_block(int tag)
{
    return tag == DP_CPU_BLOCKED8 ? 8 : tag == DP_CPU_BLOCKED16 ? 16 : 1;
}

dp_cpu_grouped dp_cpu_group(const dp_shape *shape, int tag)
{
    if (shape->rank != 4)
        return (dp_cpu_grouped){shape->dim[0], 1, 1, dp_shape_sample_elements(shape)};
    int64_t n = shape->dim[0], c = shape->dim[1], h = shape->dim[2], w = shape->dim[3];
    int block = dp_cpu_block(tag);
    if (tag == DP_CPU_NHWC)
        return (dp_cpu_grouped){n, h, w, c};
    return (dp_cpu_grouped){n * ((c + block - 1) / block), h, w, block};
}

dp_layout dp_cpu_layout(const dp_shape *shape, int tag)
{
    dp_cpu_grouped g = dp_cpu_group(shape, tag);
    return (dp_layout){tag, (size_t)(g.groups * g.height * g.width * g.inner) * sizeof(float)};
}

typedef struct conversion {
    int64_t channels, pixels, blocks, inner;
    const float *source;
    float *destination;
} conversion;

/* The pixels of a block are taken in tiles that fit the first cache, so that both sides touch whole lines. */
enum { TILE = 32 };

DP_INLINE void tile_to_plain(const float *restrict source, float *restrict destination, int64_t channels,
                             int64_t pixels, int64_t inner, int64_t count)
{
    for (int64_t c = 0; c < channels; c++)
        for (int64_t p = 0; p < count; p++)
            destination[c * pixels + p] = source[p * inner + c];
}

DP_CLONES static void to_plain_range(const void *context, int64_t begin, int64_t end)
{
    const conversion *v = context;
    for (int64_t group = begin; group < end; group++) {
        int64_t n = group / v->blocks, first = group % v->blocks * v->inner;
        int64_t channels = v->channels - first < v->inner ? v->channels - first : v->inner;
        const float *source = v->source + group * v->pixels * v->inner;
        float *destination = v->destination + (n * v->channels + first) * v->pixels;
        for (int64_t p = 0; p < v->pixels; p += TILE) {
            int64_t count = v->pixels - p < TILE ? v->pixels - p : TILE;
            if (v->inner == 8 && channels == 8)
                tile_to_plain(source + p * 8, destination + p, 8, v->pixels, 8, count);
            else
                tile_to_plain(source + p * v->inner, destination + p, channels, v->pixels, v->inner, count);
        }
    }
}

DP_INLINE void tile_from_plain(const float *restrict source, float *restrict destination, int64_t channels,
                               int64_t pixels, int64_t inner, int64_t count)
{
    for (int64_t p = 0; p < count; p++) {
        for (int64_t c = 0; c < channels; c++)
            destination[p * inner + c] = source[c * pixels + p];
        for (int64_t c = channels; c < inner; c++)
            destination[p * inner + c] = 0;
    }
}

DP_CLONES static void from_plain_range(const void *context, int64_t begin, int64_t end)
{
    const conversion *v = context;
    for (int64_t group = begin; group < end; group++) {
        int64_t n = group / v->blocks, first = group % v->blocks * v->inner;
        int64_t channels = v->channels - first < v->inner ? v->channels - first : v->inner;
        const float *source = v->source + (n * v->channels + first) * v->pixels;
        float *destination = v->destination + group * v->pixels * v->inner;
        for (int64_t p = 0; p < v->pixels; p += TILE) {
            int64_t count = v->pixels - p < TILE ? v->pixels - p : TILE;
            if (v->inner == 8 && channels == 8)
                tile_from_plain(source + p, destination + p * 8, 8, v->pixels, 8, count);
            else
                tile_from_plain(source + p, destination + p * v->inner, channels, v->pixels, v->inner, count);
        }
    }
}

static void convert(int threads, const dp_shape *shape, int tag, const float *source, float *destination,
                    void (*range)(const void *, int64_t, int64_t))
{
    if (tag == DP_CPU_PLAIN || shape->rank != 4) {
        memcpy(destination, source, (size_t)dp_shape_elements(shape) * sizeof(float));
        return;
    }
    dp_cpu_grouped g = dp_cpu_group(shape, tag);
    conversion v = {.channels = shape->dim[1],
                    .pixels = g.height * g.width,
                    .blocks = shape->dim[0] ? g.groups / shape->dim[0] : 1,
                    .inner = g.inner,
                    .source = source,
                    .destination = destination};
    dp_cpu_for(threads, g.groups, 1, range, &v);
}

void dp_cpu_to_plain(int threads, const dp_shape *shape, int tag, const float *source, float *destination)
{
    convert(threads, shape, tag, source, destination, to_plain_range);
}

void dp_cpu_from_plain(int threads, const dp_shape *shape, int tag, const float *source, float *destination)
{
    convert(threads, shape, tag, source, destination, from_plain_range);
}

void dp_cpu_between(int threads, const dp_shape *shape, int from, int to, const float *source,
                    float *destination)
{
    if (to == DP_CPU_PLAIN)
        dp_cpu_to_plain(threads, shape, from, source, destination);
    else
        dp_cpu_from_plain(threads, shape, to, source, destination);
}

size_t dp_cpu_conversion_bytes(const dp_shape *shape, int from, int to)
{
    bool through_plain = from != to && from != DP_CPU_PLAIN && to != DP_CPU_PLAIN;
    return through_plain ? dp_cpu_layout(shape, DP_CPU_PLAIN).bytes : 0;
}

void dp_cpu_convert(int threads, const dp_shape *shape, int from, int to, const float *source,
                    float *destination, float *scratch)
{
    if (from == DP_CPU_PLAIN || to == DP_CPU_PLAIN) {
        dp_cpu_between(threads, shape, from, to, source, destination);
        return;
    }
    dp_cpu_to_plain(threads, shape, from, source, scratch);
    dp_cpu_from_plain(threads, shape, to, scratch, destination);
}
