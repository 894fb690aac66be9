/* The ways in which the CPU backend keeps activations [N, C, H, W]. */
#ifndef DP_CPU_LAYOUT_H
#define DP_CPU_LAYOUT_H

#include "device/device.h"

/* Tags of dp_layout. In the blocked orders 8 or 16 channels lie together: [N, ceil(C/8), H, W, 8]. Channels
 * that only fill the last block are zero, always: every op writes them. */
enum { DP_CPU_PLAIN = DP_LAYOUT_PLAIN, DP_CPU_NHWC, DP_CPU_BLOCKED8, DP_CPU_BLOCKED16, DP_CPU_LAYOUTS };

/* 8, 16, or 1 for the orders without blocks. */
int dp_cpu_block(int tag);

/* The layout of a float32 tensor under a tag (PLAIN for any rank, the others for rank 4). */
dp_layout dp_cpu_layout(const dp_shape *shape, int tag);

/* Any layout seen as [groups, H, W, inner], where `inner` values lie together: plain N*C and 1, channels last
 * N and C, blocked N*blocks and 8 or 16. */
typedef struct dp_cpu_grouped {
    int64_t groups, height, width, inner;
} dp_cpu_grouped;

dp_cpu_grouped dp_cpu_group(const dp_shape *shape, int tag);

/* Copies from a layout to plain, and from plain to a layout. */
void dp_cpu_to_plain(int threads, const dp_shape *shape, int tag, const float *source, float *destination);
void dp_cpu_from_plain(int threads, const dp_shape *shape, int tag, const float *source, float *destination);

/* Copies between two layouts one of which is plain. */
void dp_cpu_between(int threads, const dp_shape *shape, int from, int to, const float *source,
                    float *destination);

/* From any layout to another. scratch: dp_cpu_conversion_bytes, 0 where no plain step between is needed. */
size_t dp_cpu_conversion_bytes(const dp_shape *shape, int from, int to);
void dp_cpu_convert(int threads, const dp_shape *shape, int from, int to, const float *source,
                    float *destination, float *scratch);

#endif
