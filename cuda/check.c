#include "check.h"

#include <stdbool.h>
#include <string.h>

static int name_length(const char *call)
{
    return (int)strcspn(call, "(");
}

dp_status dp_cuda_fail(dp_error *err, const char *label, const char *call, cudaError_t code)
{
    cudaGetLastError(); /* so that a later call does not report this failure again */
    return dp_fail(err, code == cudaErrorMemoryAllocation ? DP_ERROR_MEMORY : DP_ERROR_DEVICE,
                   "%s: %.*s: %s (%s)", label, name_length(call), call, cudaGetErrorName(code),
                   cudaGetErrorString(code));
}

dp_status dp_cublas_fail(dp_error *err, const char *label, const char *call, cublasStatus_t code)
{
    return dp_fail(err, code == CUBLAS_STATUS_ALLOC_FAILED ? DP_ERROR_MEMORY : DP_ERROR_DEVICE,
                   "%s: %.*s: %s (%s)", label, name_length(call), call, cublasGetStatusName(code),
                   cublasGetStatusString(code));
}

dp_status dp_cudnn_fail(dp_error *err, const char *label, const char *call, cudnnStatus_t code)
{
    /* What cuDNN says of its last failure is several lines long. */
    char detail[512] = "";
    cudnnGetLastErrorString(detail, sizeof detail);
    for (char *p = detail; *p; p++)
        if (*p == '\n' || *p == '\r')
            *p = p[1] ? ';' : '\0';
    bool memory = code == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
                  code == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
    return dp_fail(err, memory ? DP_ERROR_MEMORY : DP_ERROR_DEVICE, "%s: %.*s: %s (%d)%s%s", label,
                   name_length(call), call, cudnnGetErrorString(code), (int)code, *detail ? ": " : "",
                   detail);
}
