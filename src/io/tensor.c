#include "io/tensor.h"

#include <string.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[DP_DTYPES] = {
    [DP_F32] = {"F32", 4}, [DP_F64] = {"F64", 8},   [DP_F16] = {"F16", 2}, [DP_BF16] = {"BF16", 2},
    [DP_I64] = {"I64", 8}, [DP_I32] = {"I32", 4},   [DP_I16] = {"I16", 2}, [DP_I8] = {"I8", 1},
    [DP_U8] = {"U8", 1},   [DP_BOOL] = {"BOOL", 1},
};

size_t dp_dtype_size(dp_dtype dtype)
{
    return dtypes[dtype].size;
}

const char *dp_dtype_name(dp_dtype dtype)
{
    return dtypes[dtype].name;
}

bool dp_tensor_measure(dp_tensor *tensor)
{
    int64_t elements = 1, bytes;
    for (int d = 0; d < tensor->rank; d++) {
        if (tensor->shape[d] < 0 || __builtin_mul_overflow(elements, tensor->shape[d], &elements))
            return false;
    }
    if (__builtin_mul_overflow(elements, (int64_t)dp_dtype_size(tensor->dtype), &bytes))
        return false;
    tensor->elements = elements;
    tensor->bytes = (size_t)bytes;
    return true;
}

/* ---- elements ---- */

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float half_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = half >> 10 & 0x1f, fraction = half & 0x3ff;
    if (exponent == 0) { /* zero and subnormals: fraction * 2^-24 */
        float magnitude = (float)fraction * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    if (exponent == 31) /* infinity, NaN */
        return from_bits(sign | 0x7f800000u | fraction << 13);
    return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

/* Elements may lie at any address, hence the copies. */
#define ELEMENT(type, variable) \
    type variable;              \
    memcpy(&variable, (const char *)tensor->data + (size_t)i * sizeof variable, sizeof variable)

float dp_tensor_float(const dp_tensor *tensor, int64_t i)
{
    switch (tensor->dtype) {
    case DP_F32: {
        ELEMENT(float, value);
        return value;
    }
    case DP_F64: {
        ELEMENT(double, value);
        return (float)value;
    }
    case DP_F16: {
        ELEMENT(uint16_t, value);
        return half_to_float(value);
    }
    case DP_BF16: {
        ELEMENT(uint16_t, value);
        return from_bits((uint32_t)value << 16);
    }
    default:
        return (float)dp_tensor_int(tensor, i);
    }
}

int64_t dp_tensor_int(const dp_tensor *tensor, int64_t i)
{
    switch (tensor->dtype) {
    case DP_I64: {
        ELEMENT(int64_t, value);
        return value;
    }
    case DP_I32: {
        ELEMENT(int32_t, value);
        return value;
    }
    case DP_I16: {
        ELEMENT(int16_t, value);
        return value;
    }
    case DP_I8: {
        ELEMENT(int8_t, value);
        return value;
    }
    case DP_U8: {
        ELEMENT(uint8_t, value);
        return value;
    }
    case DP_BOOL: {
        ELEMENT(uint8_t, value);
        return value != 0;
    }
    default:
        return 0; /* not an integer tensor: the caller's mistake */
    }
}

dp_status dp_tensor_contents(const dp_tensor *tensors, int index, const dp_tensor_source *source,
                             const void **data, dp_error *err)
{
    *data = tensors[index].data;
    return *data || !source ? DP_OK : source->fetch(source->user, index, data, err);
}
