/* The CPU backend: each device is a host thread with its own share of the cores and its own memory. */
#ifndef DP_CPU_CPU_H
#define DP_CPU_CPU_H

#include "device/device.h"

/* Opens `devices` CPU devices of `threads_per_device` threads each (0: usable cores / devices, at least 1).
 * Owner: the caller, who closes it with backend->call->close. */
dp_status dp_cpu_backend_open(int devices, int threads_per_device, dp_backend **out, dp_error *err);

#endif
