/* For test programs that run on any backend; their argument names it:
 *
 *     test_engine         on CPU devices
 *     test_engine cuda    on CUDA devices, by the libdptrain_cuda.so that lies beside the program
 */
#ifndef BACKEND_H
#define BACKEND_H

#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "dptrain/context.h"

static dp_backend_kind backend = DP_BACKEND_CPU;

/* One of two texts. */
static inline const char *on(const char *cpu, const char *cuda)
{
    return backend == DP_BACKEND_CPU ? cpu : cuda;
}

/* Runs the program's tests and returns its exit status. */
static inline int run_tests(int argc, char **argv, Suite *suite)
{
    SRunner *r = srunner_create(suite);
    int failed = 1;
    if (argc == 2 && strcmp(argv[1], "cuda") == 0)
        backend = DP_BACKEND_CUDA;
    if (argc == 1 || backend == DP_BACKEND_CUDA) {
        srunner_run_all(r, CK_NORMAL);
        failed = srunner_ntests_failed(r);
    }
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
