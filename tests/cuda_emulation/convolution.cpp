// The engines of the emulated cuDNN and their arithmetic.
#include "cudnn_internal.h"

#include <cmath>
#include <cstring>

namespace emulation
{

std::vector<Engine> engines_for(ConvolutionKind kind, bool fallback)
{
    if (fallback)
        return {{40, Arithmetic::exact, false, 0}};
    std::vector<Engine> engines = {
        {10, Arithmetic::tf32, false, 65536},
        {11, Arithmetic::exact, true, 0},
        {13, Arithmetic::exact, false, 12800},
        {14, Arithmetic::exact, false, 0},
    };
    // In cuDNN too, forward convolutions are always deterministic.
    if (kind != ConvolutionKind::forward)
        engines.insert(engines.begin() + 2, {12, Arithmetic::unordered, false, 4096});
    return engines;
}

const Engine *engine_with_index(ConvolutionKind kind, int64_t index)
{
    static __thread Engine found;
    for (bool fallback : {false, true})
        for (const Engine &engine : engines_for(kind, fallback))
            if (engine.index == index) {
                found = engine;
                return &found;
            }
    return nullptr;
}

int output_place(ConvolutionKind kind)
{
    return kind == ConvolutionKind::forward ? 2 : kind == ConvolutionKind::backward_data ? 0 : 1;
}

static float round_to_tf32(float value)
{
    if (!std::isfinite(value))
        return value;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x1000) & ~0x1fffu;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

static int64_t elements(const Tensor4 &tensor)
{
    return tensor.dims[0] * tensor.dims[1] * tensor.dims[2] * tensor.dims[3];
}

static int64_t offset(const Tensor4 &tensor, const int64_t at[4])
{
    int64_t sum = 0;
    for (int i = 0; i < 4; i++)
        sum += at[i] * tensor.strides[i];
    return sum;
}

template <class Visit> static void for_each_index(const Tensor4 &tensor, Visit visit)
{
    int64_t at[4], flat = 0;
    for (at[0] = 0; at[0] < tensor.dims[0]; at[0]++)
        for (at[1] = 0; at[1] < tensor.dims[1]; at[1]++)
            for (at[2] = 0; at[2] < tensor.dims[2]; at[2]++)
                for (at[3] = 0; at[3] < tensor.dims[3]; at[3]++)
                    visit(flat++, offset(tensor, at));
}

// Row-major copy, whatever the strides.
static std::vector<float> gather(const Tensor4 &tensor, const float *memory, Arithmetic arithmetic)
{
    std::vector<float> out((size_t)elements(tensor));
    for_each_index(tensor, [&](int64_t flat, int64_t place) {
        float value = memory[place];
        out[(size_t)flat] = arithmetic == Arithmetic::tf32 ? round_to_tf32(value) : value;
    });
    return out;
}

// Positions `o` of the output for which o * stride + shift lies in [0, size): [*first, *last).
static void valid_range(int64_t outputs, int64_t stride, int64_t shift, int64_t size, int64_t *first,
                        int64_t *last)
{
    *first = shift < 0 ? (-shift + stride - 1) / stride : 0;
    *last = shift >= size ? 0 : (size - 1 - shift) / stride + 1;
    if (*last > outputs)
        *last = outputs;
}

// Adds up all products of one sample: one of x, w, y is a sum, the others are factors.
template <class Sum>
static void convolve_sample(const Convolution &conv, int64_t n, Sum *sum, const float *x, const float *w,
                            const float *y)
{
    const int64_t *X = conv.x.dims, *W = conv.w.dims, *Y = conv.y.dims;
    int64_t per_group = W[0] / (X[1] / W[1]); // outputs of a group
    for (int64_t k = 0; k < W[0]; k++)
        for (int64_t c = 0; c < W[1]; c++)
            for (int64_t r = 0; r < W[2]; r++)
                for (int64_t s = 0; s < W[3]; s++) {
                    int64_t weight = ((k * W[1] + c) * W[2] + r) * W[3] + s;
                    int64_t channel = k / per_group * W[1] + c;
                    int64_t down = r * conv.dilation[0] - conv.padding[0];
                    int64_t right = s * conv.dilation[1] - conv.padding[1];
                    int64_t p, p_end, q_begin, q_end;
                    valid_range(Y[2], conv.stride[0], down, X[2], &p, &p_end);
                    valid_range(Y[3], conv.stride[1], right, X[3], &q_begin, &q_end);
                    Sum filter_sum = 0;
                    for (; p < p_end; p++) {
                        int64_t out = ((n * Y[1] + k) * Y[2] + p) * Y[3];
                        int64_t in = ((n * X[1] + channel) * X[2] + p * conv.stride[0] + down) * X[3] + right;
                        int64_t step = conv.stride[1];
                        if (conv.kind == ConvolutionKind::forward)
                            for (int64_t q = q_begin; q < q_end; q++)
                                sum[out + q] += (Sum)w[weight] * x[in + q * step];
                        else if (conv.kind == ConvolutionKind::backward_data)
                            for (int64_t q = q_begin; q < q_end; q++)
                                sum[in + q * step] += (Sum)w[weight] * y[out + q];
                        else
                            for (int64_t q = q_begin; q < q_end; q++)
                                filter_sum += (Sum)x[in + q * step] * y[out + q];
                    }
                    if (conv.kind == ConvolutionKind::backward_filter)
                        sum[weight] += filter_sum;
                }
}

template <class Sum>
static void convolve(const Convolution &conv, Arithmetic arithmetic, float *const pointers[3], bool backwards)
{
    const Tensor4 *tensors[3] = {&conv.x, &conv.w, &conv.y};
    int out = output_place(conv.kind);
    std::vector<float> in[3];
    for (int i = 0; i < 3; i++)
        if (i != out)
            in[i] = gather(*tensors[i], pointers[i], arithmetic);
    std::vector<Sum> sum((size_t)elements(*tensors[out]));
    int64_t samples = conv.y.dims[0];
    for (int64_t n = 0; n < samples; n++)
        convolve_sample(conv, backwards ? samples - 1 - n : n, sum.data(), in[0].data(), in[1].data(),
                        in[2].data());
    for_each_index(*tensors[out], [&](int64_t flat, int64_t place) {
        float *to = pointers[out] + place;
        double old = conv.beta != 0 ? (double)conv.beta * *to : 0.0;
        *to = (float)(conv.alpha * (double)sum[(size_t)flat] + old);
    });
}

static void check_tensor(const Tensor4 &tensor, Gpu *gpu, const float *memory, Access access)
{
    int64_t last = 0;
    for (int i = 0; i < 4; i++)
        last += (tensor.dims[i] - 1) * tensor.strides[i];
    if (last + 1 == elements(tensor)) {
        check_operand("cuDNN convolution", gpu, memory, sizeof(float) * (size_t)(last + 1), access);
        return;
    }
    // Gaps between the elements may belong to others.
    for_each_index(tensor, [&](int64_t, int64_t place) {
        check_operand("cuDNN convolution", gpu, memory + place, sizeof(float), access);
    });
}

void run_convolution(const Convolution &conv, Arithmetic arithmetic, Gpu *gpu, float *const pointers[3])
{
    const Tensor4 *tensors[3] = {&conv.x, &conv.w, &conv.y};
    int out = output_place(conv.kind);
    for (int i = 0; i < 3; i++) {
        if (i != out || conv.beta != 0)
            check_tensor(*tensors[i], gpu, pointers[i], Access::read);
        if (i == out)
            check_tensor(*tensors[i], gpu, pointers[i], Access::write);
    }
    static std::atomic<unsigned> unordered_calls{0};
    if (arithmetic == Arithmetic::unordered)
        convolve<float>(conv, arithmetic, pointers, ++unordered_calls % 2 == 0);
    else
        convolve<double>(conv, arithmetic, pointers, false);
}

} // namespace emulation
