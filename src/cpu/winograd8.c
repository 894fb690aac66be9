/* Winograd's kernels for the order blocked by 8. */
#define LANES        8
#define CHANNEL_ROWS 4 /* channels in the registers of a gradient's product */
#define KERNELS      dp_winograd_kernels_8
#include "cpu/winograd_lanes.h"
