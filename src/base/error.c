#include "base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

dp_status dp_fail(dp_error *err, dp_status status, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
        err->status = status;
        err->number = 0;
    }
    return status;
}

void dp_error_prefix(dp_error *err, const char *format, ...)
{
    if (!err)
        return;
    char prefix[256], old[sizeof err->message];
    va_list args;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    memcpy(old, err->message, sizeof old);
    size_t used = (size_t)snprintf(err->message, sizeof err->message, "%s: ", prefix);
    snprintf(err->message + used, sizeof err->message - used, "%.*s", (int)(sizeof err->message - used - 1),
             old);
}

void dp_error_one_line(dp_error *err)
{
    if (!err)
        return;
    for (char *c = err->message; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
}

const char *dp_version(void)
{
    return DP_VERSION;
}
