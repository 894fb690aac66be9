/* Winograd's kernels for the order blocked by 16. */
#define LANES        16
#define CHANNEL_ROWS 8 /* channels in the registers of a gradient's product */
#define KERNELS      dp_winograd_kernels_16
#include "cpu/winograd_lanes.h"
