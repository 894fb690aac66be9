/* What surrounds a product of feature maps that oneDNN cannot finish itself: bias and ReLU. */
#ifndef DP_CPU_BIAS_H
#define DP_CPU_BIAS_H

#include <stdbool.h>

#include "device/device.h"

/* y [N, C, H, W] in a layout of cpu/layout.h: y = y + bias, then max(0, y) with relu. bias [C] may be NULL.
 */
void dp_cpu_add_bias(int threads, const dp_shape *shape, int tag, const float *bias, bool relu, float *y);

/* dy = 0 where y <= 0, in place (y NULL: no ReLU); bias_gradient [C] (may be NULL) = or += the sums of dy by
 * channel, in an order that does not depend on threads. */
void dp_cpu_bias_gradient(int threads, const dp_shape *shape, int tag, const float *y, float *dy,
                          float *bias_gradient, bool accumulate);

#endif
