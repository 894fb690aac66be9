/* Status codes and error messages. UNSTABLE: may change in any version.
 *
 *     #include <dptrain/model.h>
 *     #include <stdio.h>
 *
 *     int main(void)
 *     {
 *         dp_error err = {0};
 *         dp_model *model;
 *         if (dp_model_create("mine", &model, &err) != DP_OK) {
 *             fprintf(stderr, "error: %s\n", err.message);
 *             return 1;
 *         }
 *         dp_model_free(model);
 *         return 0;
 *     }
 *
 * Every function that can fail returns a dp_status and describes the failure in the caller's dp_error (which
 * may be NULL). Nothing is global: two threads with two dp_error objects never meet. */
#ifndef DPTRAIN_STATUS_H
#define DPTRAIN_STATUS_H

#define DP_VERSION "0.1.0" /* of these headers; dp_version says which library runs */

/* What lies between these is what the shared library exports, for C and for C++. */
#ifdef __cplusplus
#define DP_BEGIN_DECLARATIONS \
    extern "C" {              \
    _Pragma("GCC visibility push(default)")
#define DP_END_DECLARATIONS       \
    _Pragma("GCC visibility pop") \
    }
#else
#define DP_BEGIN_DECLARATIONS _Pragma("GCC visibility push(default)")
#define DP_END_DECLARATIONS   _Pragma("GCC visibility pop")
#endif

DP_BEGIN_DECLARATIONS

typedef enum dp_status {
    DP_OK = 0,
    DP_ERROR_IO,        /* a file or directory that is missing, unreadable, corrupt, full or failing */
    DP_ERROR_MEMORY,    /* out of host or device memory */
    DP_ERROR_DEVICE,    /* a device that is missing or failing */
    DP_ERROR_USAGE,     /* an argument that is wrong whatever the disk holds */
    DP_ERROR_MISMATCH,  /* a sound file that does not fit the model or the data */
    DP_ERROR_NONFINITE, /* a loss or a gradient that is not finite */
    DP_ERROR_ABORTED,   /* stopped because another thread failed first; never what a caller sees */
    DP_ERROR_INTERNAL,  /* a broken promise inside the library: a bug worth reporting */
} dp_status;

typedef struct dp_error {
    dp_status status;
    int number;         /* errno, where the system could not open, read or write a file; else 0 */
    char message[2048]; /* one line, without a trailing newline: what, where, what to do */
} dp_error;

const char *dp_version(void); /* "0.1.0" */

DP_END_DECLARATIONS

#endif
