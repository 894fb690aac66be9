/* What is asked of every case. A use runs in the thread of one device and stops at the first failure, which
 * it describes in message. */
#ifndef DP_TESTS_OPS_USES_H
#define DP_TESTS_OPS_USES_H

#include <stdio.h>

#include "runner.h"

enum { USE_MESSAGE = 2560 };

typedef bool use(dp_device *device, char *message);

/* Outputs and gradients of the correctness table against the reference; the forward pass alone; and the same
 * bits from two runs. */
use use_operations, use_inference, use_repeats;
use use_losses, use_updates, use_not_a_number;

/* The reference itself by central finite differences, on the smaller cases. Needs no device (NULL). */
use use_finite_differences;

/* Runs a use on each of `count` devices at once, each in a thread of its own that enters the device. */
bool use_on_devices(dp_backend *backend, int count, use *function, char *message);

/* For the uses themselves: writes message and returns false; compares with a reference, to 1e-5 of its
 * largest value. */
__attribute__((format(printf, 2, 3))) bool use_failed(char *message, const char *format, ...);
bool close_enough(const float *got, const double *wanted, int64_t count, const char *what, char *message);

/* Prints, for every speed case, milliseconds and GFLOP/s of each operation forward and backward, and for the
 * correctness table which cases the backend has. Returns false after a failure. */
bool print_speed(dp_device *device, FILE *to);
bool print_support(dp_device *device, FILE *to);

#endif
