/* Matrix products by cuBLAS.
 *
 * The workspace is the caller's, so two products on two streams never share one, and the ledger knows of it.
 * cuBLAS gives the same bits again for the same product on the same device, as it uses no atomics unless
 * asked. */
#include <limits.h>

#include "internal.h"

/* What cuBLAS takes by itself, by its documentation. */
enum { WORKSPACE = 4 << 20, WORKSPACE_HOPPER = 32 << 20 };

bool dp_cuda_gemm_fits(int64_t size)
{
    return size > 0 && size <= INT_MAX;
}

size_t dp_cuda_gemm_workspace(const dp_device *device)
{
    return dp_cuda_state(device)->capability >= 90 ? WORKSPACE_HOPPER : WORKSPACE;
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
    DP_CUBLAS_TRY(d->label, err, cublasSetWorkspace(d->blas, workspace, dp_cuda_gemm_workspace(device)));
    DP_CUBLAS_TRY(d->label, err,
                  cublasSgemm(d->blas, g->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                              g->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N, (int)g->m, (int)g->n, (int)g->k,
                              &one, g->a, (int)g->row_a, g->b, (int)g->row_b, &g->beta, g->c, (int)g->row_c));
    return DP_OK;
}
