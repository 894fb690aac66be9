/* Winograd's kernels for the order blocked by 16, with tiles of 4x4 inputs. */
#define LANES   16
#define SIDE    4
#define KERNELS dp_winograd_16_side4
#include "cpu/winograd_lanes.h"
