/* Which devices reach each other's memory directly.
 *
 * Access is enabled one way and only for pairs that ask: every enabled pair costs mappings, and a GPU has
 * room for eight. Copies between two GPUs without access go through pinned memory of the driver
 * (CUDA C++ Programming Guide, "Peer-to-Peer Memory Copy"), so a pair that must not be trusted needs no other
 * code than not to be enabled. */
#include "internal.h"

/* Makes no context. */
bool dp_cuda_peer_possible(dp_device *device, dp_device *peer)
{
    int here = dp_cuda_state(device)->physical, there = dp_cuda_state(peer)->physical, can = 0;
    if (here == there)
        return false;
    if (cudaDeviceCanAccessPeer(&can, here, there) == cudaSuccess)
        return can;
    cudaGetLastError();
    return false;
}

bool dp_cuda_peer_readable(dp_device *device, dp_device *peer)
{
    dp_cuda_device *d = dp_cuda_state(device);
    int other = dp_cuda_state(peer)->physical;
    if (other == d->physical) /* enabling access to oneself is an error */
        return true;
    if (device->staged >> peer->id & 1)
        return false;
    if (d->peers[other] == DP_CUDA_NOT_ASKED) {
        bool readable = dp_cuda_peer_possible(device, peer);
        if (readable) {
            cudaError_t code = cudaDeviceEnablePeerAccess(other, 0);
            readable = code == cudaSuccess || code == cudaErrorPeerAccessAlreadyEnabled;
            if (code != cudaSuccess)
                cudaGetLastError(); /* answered: "too many peers" or "already enabled" is no failure to report
                                       later */
        }
        d->peers[other] = readable ? DP_CUDA_READABLE : DP_CUDA_NOT_READABLE;
    }
    return d->peers[other] == DP_CUDA_READABLE;
}
