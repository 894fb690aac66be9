/* Kernels with one mistake each, and the nearest ones without. */
#ifndef MISTAKES_H
#define MISTAKES_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum mistake {
    NONE,             /* y[i] = x[i]; 128 threads in 2 blocks */
    WRITE_PAST,       /* y[128] */
    READ_BEFORE,      /* x[-1] */
    UNALIGNED_FOUR,   /* a float4 at x + 1 */
    SHARED_UNWRITTEN, /* shared memory that only the first block's threads write */
    SHARED_RACE,      /* a neighbour's word, with no barrier */
    SHARED_ORDERED,   /* the same, with one */
    SHUFFLE_RACE,     /* a neighbour's word in the warp, with a shuffle between */
    SYNCWARP_ORDERED, /* the same, with __syncwarp */
    SYNCWARP_RACE,    /* the same, but of another warp */
    SHARED_BYTES,     /* each thread its own byte */
    DYNAMIC_PAST,     /* float 25 of 100 bytes */
    BLOCKS_WRITE,     /* all blocks write y[0] */
    BLOCKS_READ,      /* a block reads what another one writes */
    BLOCKS_BYTES,     /* all blocks write bytes of one word, each its own */
    BLOCKS_ATOMIC,    /* all blocks add to y[0] */
    ATOMIC_AND_PLAIN, /* and one reads it */
    GLOBAL_RACE,      /* a neighbour's word of y, with no barrier */
    STRIDED           /* y[i] = x[8 * i] */
} mistake;

/* x and y are hidden in a structure. */
cudaError_t launch_mistake(cudaStream_t stream, mistake which, const float *x, float *y);

#ifdef __cplusplus
}
#endif

#endif
