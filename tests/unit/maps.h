/* Feature maps in the layouts of the CPU backend, for its tests. */
#ifndef DP_TEST_MAPS_H
#define DP_TEST_MAPS_H

#include <check.h>
#include <string.h>

#include "base/memory.h"
#include "cpu/layout.h"

static inline void *room(size_t bytes)
{
    dp_error err = {0};
    void *p;
    ck_assert_msg(dp_aligned_alloc(bytes ? bytes : 64, "a test", &p, &err) == DP_OK, "%s", err.message);
    memset(p, 0xff, bytes ? bytes : 64); /* NaN */
    return p;
}

static inline float *values(int64_t count, int seed, float offset)
{
    float *x = room((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)((i * 7919 + seed * 104729) % 2003) / 1001.5f - 1 + offset;
    return x;
}

static inline float *in_layout(const dp_shape *shape, int tag, const float *plain)
{
    float *x = room(dp_cpu_layout(shape, tag).bytes);
    dp_cpu_from_plain(1, shape, tag, plain, x);
    return x;
}

static inline float *in_plain(const dp_shape *shape, int tag, const float *x)
{
    float *plain = room(dp_cpu_layout(shape, DP_CPU_PLAIN).bytes);
    dp_cpu_to_plain(1, shape, tag, x, plain);
    return plain;
}

/* Values that only fill a block are zero: the next operation relies on it. */
static inline void check_padding(const dp_shape *shape, int tag, const float *x)
{
    int block = dp_cpu_block(tag), nonzero = 0;
    int64_t blocks = (shape->dim[1] + block - 1) / block, pixels = shape->dim[2] * shape->dim[3];
    for (int64_t n = 0; n < shape->dim[0] && block > 1; n++)
        for (int64_t p = 0; p < pixels; p++)
            for (int64_t c = shape->dim[1]; c < blocks * block; c++)
                nonzero += x[((n * blocks + c / block) * pixels + p) * block + c % block] != 0;
    ck_assert_int_eq(nonzero, 0);
}

#endif
