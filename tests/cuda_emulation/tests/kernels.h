/* Launchers of the test kernels; each returns what cudaLaunchKernelEx returned. */
#ifndef KERNELS_H
#define KERNELS_H

#include <cuda_runtime_api.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y[i] = a * x[i] + y[i] */
cudaError_t launch_axpy(cudaStream_t stream, float a, const float *x, float *y, size_t n);
/* y[i] += sources[0][i] + sources[1][i]: pointers inside a structure */
cudaError_t launch_add_two(cudaStream_t stream, const float *first, const float *second, float *y, size_t n);
/* out[b] = sum of what block b of `blocks` visits; static shared memory and barriers in a loop */
cudaError_t launch_block_sum(cudaStream_t stream, const float *x, float *out, size_t n, unsigned blocks);
/* Softmax of each row, a warp to a row, with shuffles. */
cudaError_t launch_softmax(cudaStream_t stream, const float *x, float *y, int rows, int columns);
/* counts[v[i]]++; dynamic shared memory and atomics */
cudaError_t launch_histogram(cudaStream_t stream, const int *values, int *counts, int n, int bins);
/* out[0..3]: ballot of even lanes, any, all, and how many threads of 64 are at least 40 (a counting barrier);
 * out[4..35]: each lane's value of the lane before it */
cudaError_t launch_votes(cudaStream_t stream, int *out);
/* indices[flat index of the thread] = flat index, by blockIdx, blockDim, threadIdx in three dimensions */
cudaError_t launch_indices(cudaStream_t stream, dim3 grid, dim3 block, int *indices);
/* A single thread reads x[index]. */
cudaError_t launch_read(cudaStream_t stream, const float *x, long index, float *out);
/* Spins for about `microseconds` and then writes value. */
cudaError_t launch_slow_write(cudaStream_t stream, float *x, float value, int microseconds);

/* Holds the stream up until *go, in pinned memory, is not zero. */
cudaError_t launch_hold(cudaStream_t stream, const volatile int *go);

/* Wrong on purpose. */
cudaError_t launch_divergent_barrier(cudaStream_t stream);
cudaError_t launch_missing_lane(cudaStream_t stream);
cudaError_t launch_shared_overrun(cudaStream_t stream);
/* Any grid and dynamic shared memory, for the limits. */
cudaError_t launch_nothing(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes);
cudaError_t allow_shared(int bytes); /* raises launch_nothing's limit */

#ifdef __cplusplus
}
#endif

#endif
