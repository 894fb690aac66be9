/* How a failure travels: describe it once where it happens, pass the status up, clean up on the way. */
#ifndef DP_BASE_ERROR_H
#define DP_BASE_ERROR_H

#include "dptrain/status.h"

/* Writes the message (err may be NULL) and returns status, so that `return dp_fail(...)` is one line. */
__attribute__((format(printf, 3, 4))) dp_status dp_fail(dp_error *err, dp_status status, const char *format,
                                                        ...);

/* Puts "prefix: " before the message that is already there; used to add where it happened. */
__attribute__((format(printf, 2, 3))) void dp_error_prefix(dp_error *err, const char *format, ...);

/* Names come from files: the message stays one line of printable text whatever they held. */
void dp_error_one_line(dp_error *err);

/* Returns the status of a failing call from the current function. */
#define DP_TRY(call)                       \
    do {                                   \
        dp_status dp_try_status_ = (call); \
        if (dp_try_status_ != DP_OK)       \
            return dp_try_status_;         \
    } while (0)

#endif
