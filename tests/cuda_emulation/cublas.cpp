// The used part of cuBLAS on the CPU, in stream order: handles and single-precision GEMM.
#include "internal.h"

#include <cstring>
#include <cublas_v2.h>

using namespace emulation;

struct cublasContext {
    Gpu *gpu; // current when the handle was made
    cudaStream_t stream = nullptr;
    cublasMath_t math = CUBLAS_DEFAULT_MATH;
    void *workspace = nullptr;
    size_t workspace_bytes = 0;
};

// A handle must be used while its GPU is the current one.
static void check_handle(const char *function, cublasHandle_t handle)
{
    if (!handle)
        emulation_fail("%s without a handle", function);
    if (current_gpu() != handle->gpu)
        emulation_fail("%s: the handle belongs to GPU %d, but GPU %d is current", function,
                       handle->gpu->ordinal, current_gpu() ? current_gpu()->ordinal : -1);
}

static bool fault(const char *function, cublasStatus_t *status)
{
    int code;
    bool injected = injected_fault(function, &code);
    if (injected)
        *status = (cublasStatus_t)code;
    return injected;
}

// A column-major matrix as it lies in memory.
struct Matrix {
    const float *at;
    int rows, columns, leading;
};

static void check_matrix(Gpu *gpu, const Matrix &matrix, Access access)
{
    if (matrix.rows == matrix.leading) {
        check_operand("cublasSgemm", gpu, matrix.at,
                      sizeof(float) * (size_t)matrix.rows * (size_t)matrix.columns, access);
        return;
    }
    for (int column = 0; column < matrix.columns; column++)
        check_operand("cublasSgemm", gpu, matrix.at + (size_t)column * (size_t)matrix.leading,
                      sizeof(float) * (size_t)matrix.rows, access);
}

// The matrix, or its transpose, without gaps between its columns.
static std::vector<float> packed(const Matrix &matrix, bool transpose)
{
    std::vector<float> out((size_t)matrix.rows * (size_t)matrix.columns);
    for (int column = 0; column < matrix.columns; column++)
        for (int row = 0; row < matrix.rows; row++) {
            size_t to = transpose ? (size_t)row * (size_t)matrix.columns + (size_t)column
                                  : (size_t)column * (size_t)matrix.rows + (size_t)row;
            out[to] = matrix.at[(size_t)column * (size_t)matrix.leading + (size_t)row];
        }
    return out;
}

struct Gemm {
    Matrix a, b, c;
    bool transpose_a, transpose_b;
    int m, n, k;
    float alpha, beta;
    Gpu *gpu;
    void *workspace;
    size_t workspace_bytes;
};

// Sums in double, in the order of k. The workspace is overwritten, so that two streams that share it are
// noticed.
static void run_gemm(const Gemm &gemm)
{
    if (gemm.workspace_bytes > 0) {
        size_t used = gemm.workspace_bytes < 4096 ? gemm.workspace_bytes : 4096;
        check_operand("cublasSgemm (workspace)", gemm.gpu, gemm.workspace, used, Access::write);
        memset(gemm.workspace, 0xee, used);
    }
    if (gemm.k > 0) {
        check_matrix(gemm.gpu, gemm.a, Access::read);
        check_matrix(gemm.gpu, gemm.b, Access::read);
    }
    if (gemm.beta != 0)
        check_matrix(gemm.gpu, gemm.c, Access::read);
    check_matrix(gemm.gpu, gemm.c, Access::write);

    size_t m = (size_t)gemm.m, k = (size_t)gemm.k;
    std::vector<float> a = packed(gemm.a, gemm.transpose_a), b = packed(gemm.b, gemm.transpose_b);
    std::vector<double> sum(m);
    for (size_t j = 0; j < (size_t)gemm.n; j++) {
        std::fill(sum.begin(), sum.end(), 0.0);
        for (size_t l = 0; l < k; l++) {
            double factor = b[j * k + l];
            for (size_t i = 0; i < m; i++)
                sum[i] += a[l * m + i] * factor;
        }
        float *out = const_cast<float *>(gemm.c.at) + j * (size_t)gemm.c.leading;
        for (size_t i = 0; i < m; i++)
            out[i] = (float)(gemm.alpha * sum[i] + (gemm.beta != 0 ? (double)gemm.beta * out[i] : 0.0));
    }
}

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t *out)
{
    cublasStatus_t status;
    if (fault(__func__, &status))
        return status;
    Gpu *gpu;
    if (enter("cublasCreate_v2 (context)", &gpu) != cudaSuccess)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *out = new cublasContext{gpu};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    cublasStatus_t status;
    if (fault(__func__, &status))
        return status;
    check_handle(__func__, handle);
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    cublasStatus_t status;
    if (fault(__func__, &status))
        return status;
    check_handle(__func__, handle);
    check_stream(__func__, stream);
    if (stream_gpu(stream) != handle->gpu)
        emulation_fail("%s: a stream of GPU %d for a handle of GPU %d", __func__, stream_gpu(stream)->ordinal,
                       handle->gpu->ordinal);
    handle->stream = stream;
    // As cuBLAS: a new stream means the handle's own workspace again.
    handle->workspace = nullptr;
    handle->workspace_bytes = 0;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes)
{
    cublasStatus_t status;
    if (fault(__func__, &status))
        return status;
    check_handle(__func__, handle);
    if ((uintptr_t)workspace % 256 != 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    Location location = locate(workspace, bytes);
    if (bytes > 0 && (location.gpu != handle->gpu || !location.inside))
        emulation_fail("%s: %zu bytes at %p do not lie in one live allocation of GPU %d", __func__, bytes,
                       workspace, handle->gpu->ordinal);
    handle->workspace = workspace;
    handle->workspace_bytes = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    cublasStatus_t status;
    if (fault(__func__, &status))
        return status;
    check_handle(__func__, handle);
    handle->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                              int m, int n, int k, const float *alpha, const float *A, int lda,
                              const float *B, int ldb, const float *beta, float *C, int ldc)
{
    cublasStatus_t status;
    if (fault(__func__, &status))
        return status;
    check_handle(__func__, handle);
    check_stream(__func__, handle->stream);
    bool ta = transa != CUBLAS_OP_N, tb = transb != CUBLAS_OP_N;
    Matrix a = {A, ta ? k : m, ta ? m : k, lda}, b = {B, tb ? n : k, tb ? k : n, ldb}, c = {C, m, n, ldc};
    for (const Matrix *matrix : {&a, &b, &c})
        if (matrix->rows < 0 || matrix->columns < 0 || matrix->leading < 1 || matrix->leading < matrix->rows)
            return CUBLAS_STATUS_INVALID_VALUE;
    if (!alpha || !beta)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (m == 0 || n == 0)
        return CUBLAS_STATUS_SUCCESS;
    if (locate(alpha, sizeof *alpha).gpu || locate(beta, sizeof *beta).gpu)
        emulation_fail("%s: alpha and beta are read on the host (CUBLAS_POINTER_MODE_HOST)", __func__);
    Gemm gemm = {
        a, b, c, ta, tb, m, n, k, *alpha, *beta, handle->gpu, handle->workspace, handle->workspace_bytes};
    enqueue(handle->stream, [gemm] { run_gemm(gemm); });
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasGetStatusName(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_ARCH_MISMATCH:
        return "CUBLAS_STATUS_ARCH_MISMATCH";
    case CUBLAS_STATUS_MAPPING_ERROR:
        return "CUBLAS_STATUS_MAPPING_ERROR";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "CUBLAS_STATUS_INTERNAL_ERROR";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "CUBLAS_STATUS_NOT_SUPPORTED";
    default:
        return "CUBLAS_STATUS_UNKNOWN";
    }
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "the operation completed successfully";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_INTERNAL_ERROR:
        return "an internal operation failed";
    default:
        return cublasGetStatusName(status);
    }
}

} // extern "C"
