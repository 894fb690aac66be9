/* Matrix products by cuBLAS.
 *
 * The workspace is the caller's, so two products on two streams never share one, and the ledger knows of it.
 * cuBLAS gives the same bits again for the same product on the same device, as it uses no atomics unless
 * asked. */
#include <limits.h>

#include "internal.h"

/* cuBLAS needs the workspace to add up partial sums of a product whose k is split. By itself it would take 4
 * MiB on most GPUs and 32 MiB on Hopper, whatever the sizes; from 16 KiB on no product fails for lack of it
 * (both: cuBLAS documentation, cublasSetWorkspace). Here it gets room for a few results, so that small models
 * do not look large. */
enum { PARTIAL_SUMS = 4, SMALLEST = 64 << 10, LARGEST = 4 << 20 };

bool dp_cuda_gemm_fits(int64_t size)
{
    return size > 0 && size <= INT_MAX;
}

size_t dp_cuda_gemm_workspace(int64_t m, int64_t n)
{
    if (m * n >= (int64_t)(LARGEST / sizeof(float) / PARTIAL_SUMS)) /* no overflow: both fit an int */
        return LARGEST;
    size_t bytes = dp_cuda_round_up((size_t)(m * n) * sizeof(float) * PARTIAL_SUMS);
    return bytes > SMALLEST ? bytes : SMALLEST;
}

dp_status dp_cuda_gemm_open(dp_device *device, dp_error *err)
{
    dp_cuda_device *d = dp_cuda_state(device);
    const dp_cuda_backend *b = device->backend->state;
    if (d->blas)
        return DP_OK;
    DP_CUBLAS_TRY(d->label, err, cublasCreate(&d->blas));
    /* The default keeps float32 inputs whole; TF32 has to be asked for. */
    DP_CUBLAS_TRY(
        d->label, err,
        cublasSetMathMode(d->blas, b->allow_tf32 ? CUBLAS_TF32_TENSOR_OP_MATH : CUBLAS_DEFAULT_MATH));
    return DP_OK;
}

dp_status dp_cuda_gemm_run(dp_device *device, cudaStream_t stream, const dp_cuda_gemm *g, void *workspace,
                           dp_error *err)
{
    dp_cuda_device *d = dp_cuda_state(device);
    static const float one = 1;
    /* Setting the stream takes the workspace away, so it comes first. */
    DP_CUBLAS_TRY(d->label, err, cublasSetStream(d->blas, stream));
    DP_CUBLAS_TRY(d->label, err, cublasSetWorkspace(d->blas, workspace, dp_cuda_gemm_workspace(g->m, g->n)));
    DP_CUBLAS_TRY(d->label, err,
                  cublasSgemm(d->blas, g->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                              g->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, (int)g->m, (int)g->n, (int)g->k,
                              &one, g->a, (int)g->row_a, g->b, (int)g->row_b, &g->beta, g->c, (int)g->row_c));
    return DP_OK;
}
