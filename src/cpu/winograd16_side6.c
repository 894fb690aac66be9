/* Winograd's kernels for the order blocked by 16, with tiles of 6x6 inputs. */
#define LANES   16
#define SIDE    6
#define KERNELS dp_winograd_16_side6
#include "cpu/winograd_lanes.h"
