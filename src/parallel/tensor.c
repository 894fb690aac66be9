/* Dense tensors seen along one dimension. */
#include "parallel/tensor.h"

#include <stdio.h>
#include <string.h>

dp_status dp_host_tensor_check(const dp_host_tensor *t, const char *what, dp_error *err)
{
    if (t->rank < 0 || t->rank > DP_HOST_TENSOR_MAX_RANK)
        return dp_fail(err, DP_ERROR_USAGE, "%s has rank %d: 0 to %d are possible", what, t->rank,
                       DP_HOST_TENSOR_MAX_RANK);
    if (t->element_bytes == 0)
        return dp_fail(err, DP_ERROR_USAGE, "%s has elements of 0 bytes", what);
    /* The product without its zeros, so that [0, huge] is refused too: strides are made of it. */
    size_t bytes = t->element_bytes;
    for (int i = 0; i < t->rank; i++) {
        char shape[128];
        if (t->shape[i] < 0 ||
            (t->shape[i] > 0 && __builtin_mul_overflow(bytes, (size_t)t->shape[i], &bytes)))
            return dp_fail(err, DP_ERROR_USAGE, "%s cannot have shape %s", what,
                           dp_host_tensor_format_shape(t, shape, sizeof shape));
    }
    return DP_OK;
}

dp_status dp_host_tensor_dim(const dp_host_tensor *t, int dim, int *out, dp_error *err)
{
    if (dim < -t->rank || dim >= t->rank) /* PyTorch's words */
        return dp_fail(err, DP_ERROR_USAGE,
                       "Dimension out of range (expected to be in range of [%d, %d], but got %d)", -t->rank,
                       t->rank - 1, dim);
    *out = dim < 0 ? dim + t->rank : dim;
    return DP_OK;
}

dp_extent dp_host_tensor_extent(const dp_host_tensor *t, int dim)
{
    dp_extent e = {1, t->element_bytes};
    for (int i = 0; i < dim; i++)
        e.before *= (size_t)t->shape[i];
    for (int i = dim + 1; i < t->rank; i++)
        e.after *= (size_t)t->shape[i];
    return e;
}

void dp_host_tensor_copy_chunk(const dp_host_tensor *whole, const dp_host_tensor *chunk, int dim,
                               int64_t first, bool into_whole)
{
    dp_extent e = dp_host_tensor_extent(chunk, dim);
    size_t row = (size_t)chunk->shape[dim] * e.after, stride = (size_t)whole->shape[dim] * e.after;
    if (row == 0)
        return;
    for (size_t i = 0; i < e.before; i++) {
        char *in_whole = (char *)whole->data + i * stride + (size_t)first * e.after;
        char *in_chunk = (char *)chunk->data + i * row;
        memcpy(into_whole ? in_whole : in_chunk, into_whole ? in_chunk : in_whole, row);
    }
}

char *dp_host_tensor_format_shape(const dp_host_tensor *t, char *buffer, size_t size)
{
    size_t used = (size_t)snprintf(buffer, size, "[");
    for (int i = 0; i < t->rank && used < size; i++)
        used += (size_t)snprintf(buffer + used, size - used, "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    if (used < size)
        snprintf(buffer + used, size - used, "]");
    return buffer;
}
