/* Whether a device's kernels may read another's memory.
 *
 * Access is enabled one way and only for pairs that ask: every enabled pair costs mappings, and a GPU has
 * room for eight. */
#include "internal.h"

bool dp_cuda_peer_readable(dp_device *device, dp_device *peer)
{
    dp_cuda_device *d = dp_cuda_state(device);
    int other = dp_cuda_state(peer)->physical;
    if (other == d->physical) /* enabling access to oneself is an error */
        return true;
    if (d->peers[other] == DP_CUDA_NOT_ASKED) {
        int can = 0;
        cudaError_t code = cudaDeviceCanAccessPeer(&can, d->physical, other);
        if (code == cudaSuccess && can)
            code = cudaDeviceEnablePeerAccess(other, 0);
        bool readable = can && (code == cudaSuccess || code == cudaErrorPeerAccessAlreadyEnabled);
        if (code != cudaSuccess)
            cudaGetLastError(); /* answered: "too many peers" or "already enabled" is no failure to report
                                   later */
        d->peers[other] = readable ? DP_CUDA_READABLE : DP_CUDA_NOT_READABLE;
    }
    return d->peers[other] == DP_CUDA_READABLE;
}
