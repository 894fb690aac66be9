/* Winograd's kernels for the order blocked by 8, with tiles of 4x4 inputs. */
#define LANES   8
#define SIDE    4
#define KERNELS dp_winograd_8_side4
#include "cpu/winograd_lanes.h"
