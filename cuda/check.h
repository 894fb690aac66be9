/* How failures of CUDA, cuBLAS and cuDNN become a dp_status and one line. */
#ifndef DP_CUDA_CHECK_H
#define DP_CUDA_CHECK_H

#include <cublas_v2.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include "base/error.h"

/* "cuda:1: cudaMalloc of 123 bytes: cudaErrorMemoryAllocation (out of memory)". `label` is the device's name;
 * `call` is the failed call, cut at its first parenthesis. DP_ERROR_MEMORY where memory ran out, else
 * DP_ERROR_DEVICE. */
dp_status dp_cuda_fail(dp_error *err, const char *label, const char *call, cudaError_t code);
dp_status dp_cublas_fail(dp_error *err, const char *label, const char *call, cublasStatus_t code);
dp_status dp_cudnn_fail(dp_error *err, const char *label, const char *call, cudnnStatus_t code);

/* Returns from the current function when the call fails. */
#define DP_CUDA_TRY(label, err, call)                             \
    do {                                                          \
        cudaError_t dp_code_ = (call);                            \
        if (dp_code_ != cudaSuccess)                              \
            return dp_cuda_fail((err), (label), #call, dp_code_); \
    } while (0)

#define DP_CUBLAS_TRY(label, err, call)                             \
    do {                                                            \
        cublasStatus_t dp_code_ = (call);                           \
        if (dp_code_ != CUBLAS_STATUS_SUCCESS)                      \
            return dp_cublas_fail((err), (label), #call, dp_code_); \
    } while (0)

#define DP_CUDNN_TRY(label, err, call)                             \
    do {                                                           \
        cudnnStatus_t dp_code_ = (call);                           \
        if (dp_code_ != CUDNN_STATUS_SUCCESS)                      \
            return dp_cudnn_fail((err), (label), #call, dp_code_); \
    } while (0)

#endif
