/* Winograd's kernels for the order blocked by 8, with tiles of 6x6 inputs. */
#define LANES   8
#define SIDE    6
#define KERNELS dp_winograd_8_side6
#include "cpu/winograd_lanes.h"
