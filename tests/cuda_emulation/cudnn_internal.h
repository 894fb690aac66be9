// Between the descriptors of cuDNN's graph API (cudnn.cpp) and what runs behind them (convolution.cpp).
#pragma once

#include "internal.h"

#include <cstring>
#include <cudnn.h>

namespace emulation
{

enum class ConvolutionKind { forward, backward_data, backward_filter };

struct Tensor4 {
    int64_t dims[4], strides[4]; // elements
    int64_t uid, alignment;      // alignment in bytes
};

// x: [N, C, H, W], w: [K, C/groups, R, S], y: [N, K, P, Q]; which of them is the output depends on the kind.
struct Convolution {
    ConvolutionKind kind;
    Tensor4 x, w, y;
    int64_t padding[2], stride[2], dilation[2];
    float alpha, beta;
};

enum class Arithmetic {
    exact,    // sums in double, in a fixed order
    tf32,     // inputs rounded to 10 bits of mantissa, as tensor cores do
    unordered // sums in float in an order that changes from call to call
};

// An engine of the emulated heuristics. It exists to be chosen or filtered out, so its flaws are real:
// whoever takes one marked as using tensor cores or as not deterministic gets such results.
struct Engine {
    int64_t index;
    Arithmetic arithmetic;
    bool plan_fails; // cuDNN lists engines whose plans then do not finalize
    int64_t workspace_bytes;
};

// In the order of preference.
std::vector<Engine> engines_for(ConvolutionKind kind, bool fallback);
const Engine *engine_with_index(ConvolutionKind kind, int64_t index);

// The tensor that is written, and its place among x, w, y.
int output_place(ConvolutionKind kind);
void run_convolution(const Convolution &convolution, Arithmetic arithmetic, Gpu *gpu,
                     float *const pointers[3]);

// ---- descriptors (cudnn_descriptors.cpp)

struct Descriptor;
using DescriptorPointer = std::shared_ptr<Descriptor>;

struct Attribute {
    int64_t count = 0;
    std::vector<char> bytes;
    std::vector<DescriptorPointer> descriptors; // if it holds descriptors
};

struct Descriptor {
    cudnnBackendDescriptorType_t type;
    bool finalized = false, destroyed = false;
    std::map<int, Attribute> attributes;
    Engine engine = {}; // of an engine descriptor, once known

    bool has(int name) const
    {
        return attributes.count(name) > 0;
    }
    template <class T> std::vector<T> values(int name) const
    {
        auto found = attributes.find(name);
        if (found == attributes.end())
            return {};
        std::vector<T> out((size_t)found->second.count);
        memcpy(out.data(), found->second.bytes.data(), out.size() * sizeof(T));
        return out;
    }
    template <class T> T value(int name, T otherwise) const
    {
        auto all = values<T>(name);
        return all.empty() ? otherwise : all[0];
    }
    // Whether cuDNN keeps a descriptor alive that others refer to is not documented: it must not be destroyed
    // before them.
    DescriptorPointer child(int name) const
    {
        auto found = attributes.find(name);
        if (found == attributes.end() || found->second.descriptors.empty())
            return nullptr;
        const DescriptorPointer &first = found->second.descriptors[0];
        if (first->destroyed)
            emulation_fail(
                "a cuDNN descriptor (type %d) is used after one that it refers to (type %d) was destroyed",
                (int)type, (int)first->type);
        return first;
    }
};

// Keeps the text for cudnnGetLastErrorString and returns the status.
cudnnStatus_t refuse(cudnnStatus_t status, const char *message);
const char *last_refusal();

// The type and largest number of elements of an attribute.
struct Rule {
    cudnnBackendDescriptorType_t descriptor;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t most;
};

// False if the descriptor has no such attribute here.
bool find_rule(cudnnBackendDescriptorType_t descriptor, cudnnBackendAttributeName_t name, Rule *out);
size_t bytes_of(cudnnBackendAttributeType_t type);
bool known_descriptor(cudnnBackendDescriptorType_t type);

// Checks a descriptor's attributes against each other; does not mark it as finalized.
cudnnStatus_t check_complete(Descriptor *descriptor);
ConvolutionKind kind_of_graph(const Descriptor &graph);
Convolution convolution_of(const Descriptor &operation);

} // namespace emulation
