// Descriptors of cuDNN's graph API: what attributes there are, and what makes a descriptor complete.
#include "cudnn_internal.h"

#include <algorithm>
#include <cstdio>
#include <string>

namespace emulation
{

// Not an array: thread-local memory of libraries that are loaded late is short.
static thread_local std::string last_message;

cudnnStatus_t refuse(cudnnStatus_t status, const char *message)
{
    last_message = message;
    return status;
}

const char *last_refusal()
{
    return last_message.c_str();
}

// ---- which attributes there are

// clang-format off
static const Rule rules[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 8},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 8},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 6},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 6},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 6},
    {CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 6},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 64},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 64},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1},
    {CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1},
    {CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, 1},
    {CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, 1 << 20},
};

// The attributes of the three convolutions, in the order x, w, y, convolution, alpha, beta.
struct OperationAttributes {
    cudnnBackendDescriptorType_t descriptor;
    ConvolutionKind kind;
    cudnnBackendAttributeName_t tensor[3], convolution, alpha, beta;
};

static const OperationAttributes operations[] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, ConvolutionKind::forward,
     {CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y},
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, ConvolutionKind::backward_data,
     {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY},
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, ConvolutionKind::backward_filter,
     {CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY},
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};
// clang-format on

static const OperationAttributes *operation_of(cudnnBackendDescriptorType_t type)
{
    for (const OperationAttributes &operation : operations)
        if (operation.descriptor == type)
            return &operation;
    return nullptr;
}

// The type and largest count of an attribute; false if the descriptor has no such attribute here.
bool find_rule(cudnnBackendDescriptorType_t descriptor, cudnnBackendAttributeName_t name, Rule *out)
{
    for (const Rule &rule : rules)
        if (rule.descriptor == descriptor && rule.name == name) {
            *out = rule;
            return true;
        }
    const OperationAttributes *operation = operation_of(descriptor);
    if (!operation)
        return false;
    *out = {descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1};
    if (name == operation->alpha || name == operation->beta)
        out->type = CUDNN_TYPE_FLOAT;
    return out->type == CUDNN_TYPE_FLOAT || name == operation->convolution || name == operation->tensor[0] ||
           name == operation->tensor[1] || name == operation->tensor[2];
}

size_t bytes_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_HANDLE:
        return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
        return 1;
    default: // enums, float, int32
        return 4;
    }
}

// ---- finalizing

static cudnnStatus_t finalize_tensor(const Descriptor &tensor)
{
    for (int required : {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_ATTR_TENSOR_STRIDES,
                         CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT})
        if (!tensor.has(required))
            return refuse(CUDNN_STATUS_BAD_PARAM,
                          "a tensor lacks data type, dimensions, strides, id or alignment");
    if (tensor.value<int>(CUDNN_ATTR_TENSOR_DATA_TYPE, -1) != CUDNN_DATA_FLOAT)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "only float32 tensors are emulated");
    if (tensor.value<char>(CUDNN_ATTR_TENSOR_IS_VIRTUAL, 0))
        return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "virtual tensors are not emulated");
    auto dims = tensor.values<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    auto strides = tensor.values<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    if (dims.size() != 4 || strides.size() != 4)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "only tensors of rank 4 are emulated");
    for (size_t i = 0; i < 4; i++)
        if (dims[i] <= 0 || strides[i] <= 0)
            return refuse(CUDNN_STATUS_BAD_PARAM, "a dimension or stride of a tensor is not positive");
    int64_t alignment = tensor.value<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0);
    if (alignment <= 0 || (alignment & (alignment - 1)))
        return refuse(CUDNN_STATUS_BAD_PARAM, "the alignment of a tensor is not a power of two");
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_convolution(const Descriptor &convolution)
{
    for (int required : {CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES,
                         CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS})
        if (convolution.values<int64_t>(required).size() != 2)
            return refuse(CUDNN_STATUS_BAD_PARAM, "a convolution needs two paddings, strides and dilations");
    if (convolution.value<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 0) != 2)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "only two spatial dimensions are emulated");
    if (convolution.value<int>(CUDNN_ATTR_CONVOLUTION_CONV_MODE, -1) != CUDNN_CROSS_CORRELATION)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "only cross-correlation is emulated");
    if (convolution.value<int>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, -1) != CUDNN_DATA_FLOAT)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "only float32 arithmetic is emulated");
    return CUDNN_STATUS_SUCCESS;
}

static Tensor4 tensor_of(const Descriptor &descriptor)
{
    Tensor4 tensor;
    auto dims = descriptor.values<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
    auto strides = descriptor.values<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    std::copy(dims.begin(), dims.end(), tensor.dims);
    std::copy(strides.begin(), strides.end(), tensor.strides);
    tensor.uid = descriptor.value<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
    tensor.alignment = descriptor.value<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1);
    return tensor;
}

// Of a finalized operation, or one whose parts are known to be finalized.
Convolution convolution_of(const Descriptor &operation)
{
    const OperationAttributes *names = operation_of(operation.type);
    Convolution out = {};
    out.kind = names->kind;
    out.x = tensor_of(*operation.child(names->tensor[0]));
    out.w = tensor_of(*operation.child(names->tensor[1]));
    out.y = tensor_of(*operation.child(names->tensor[2]));
    DescriptorPointer convolution = operation.child(names->convolution);
    auto padding = convolution->values<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
    auto stride = convolution->values<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
    auto dilation = convolution->values<int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS);
    for (size_t i = 0; i < 2; i++) {
        out.padding[i] = padding[i];
        out.stride[i] = stride[i];
        out.dilation[i] = dilation[i];
    }
    out.alpha = operation.value<float>(names->alpha, 1.0f);
    out.beta = operation.value<float>(names->beta, 0.0f);
    return out;
}

static cudnnStatus_t finalize_operation(const Descriptor &operation, const OperationAttributes &names)
{
    for (int name : {names.tensor[0], names.tensor[1], names.tensor[2], names.convolution}) {
        DescriptorPointer child = operation.child(name);
        if (!child || !child->finalized)
            return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "an operand is missing or not finalized");
    }
    Convolution conv = convolution_of(operation);
    auto post = operation.child(names.convolution)->values<int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
    const int64_t *x = conv.x.dims, *w = conv.w.dims, *y = conv.y.dims;
    if (x[0] != y[0] || w[0] != y[1] || x[1] % w[1] != 0 || w[0] % (x[1] / w[1]) != 0)
        return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "the tensors' batches or channels do not match");
    for (int i = 0; i < 2; i++) {
        int64_t filter = conv.dilation[i] * (w[2 + i] - 1) + 1;
        int64_t room = x[2 + i] + conv.padding[i] + post[(size_t)i] - filter;
        if (conv.stride[i] <= 0 || conv.dilation[i] <= 0 || conv.padding[i] < 0)
            return refuse(CUDNN_STATUS_BAD_PARAM, "a stride, dilation or padding is out of range");
        if (room < 0 || y[2 + i] != room / conv.stride[i] + 1)
            return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH,
                          "the output size does not fit the convolution");
    }
    return CUDNN_STATUS_SUCCESS;
}

// A finalized child of the given type, or null.
static DescriptorPointer finalized_child(const Descriptor &parent, int name)
{
    DescriptorPointer child = parent.child(name);
    return child && child->finalized ? child : nullptr;
}

static cudnnStatus_t finalize_graph(const Descriptor &graph)
{
    DescriptorPointer operation = finalized_child(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    if (!operation)
        return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "the operation is missing or not finalized");
    if (!operation_of(operation->type))
        return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                      "only graphs of one convolution are emulated");
    return CUDNN_STATUS_SUCCESS;
}

ConvolutionKind kind_of_graph(const Descriptor &graph)
{
    return operation_of(graph.child(CUDNN_ATTR_OPERATIONGRAPH_OPS)->type)->kind;
}

static cudnnStatus_t finalize_engine(Descriptor *engine)
{
    DescriptorPointer graph = finalized_child(*engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
    if (!graph)
        return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "the engine's graph is missing or not finalized");
    const Engine *found =
        engine_with_index(kind_of_graph(*graph), engine->value<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, -1));
    if (!found)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "no engine of this index for the graph");
    engine->engine = *found;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t finalize_plan(const Descriptor &plan)
{
    DescriptorPointer config = finalized_child(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    if (!config)
        return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                      "the plan's engine configuration is not finalized");
    if (!plan.has(CUDNN_ATTR_EXECUTION_PLAN_HANDLE) &&
        !finalized_child(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP))
        return refuse(CUDNN_STATUS_BAD_PARAM, "the plan has neither a handle nor device properties");
    if (config->child(CUDNN_ATTR_ENGINECFG_ENGINE)->engine.plan_fails)
        return refuse(CUDNN_STATUS_NOT_SUPPORTED,
                      "this engine does not support the operation (emulated refusal)");
    return CUDNN_STATUS_SUCCESS;
}

bool known_descriptor(cudnnBackendDescriptorType_t type)
{
    if (operation_of(type))
        return true;
    for (const Rule &rule : rules)
        if (rule.descriptor == type)
            return true;
    return false;
}

cudnnStatus_t check_complete(Descriptor *descriptor)
{
    if (const OperationAttributes *names = operation_of(descriptor->type))
        return finalize_operation(*descriptor, *names);
    switch (descriptor->type) {
    case CUDNN_BACKEND_TENSOR_DESCRIPTOR:
        return finalize_tensor(*descriptor);
    case CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR:
        return finalize_convolution(*descriptor);
    case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR:
        return finalize_graph(*descriptor);
    case CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR:
        if (!finalized_child(*descriptor, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH) ||
            !descriptor->has(CUDNN_ATTR_ENGINEHEUR_MODE))
            return refuse(CUDNN_STATUS_BAD_PARAM, "heuristics need a mode and a finalized graph");
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_BACKEND_ENGINE_DESCRIPTOR:
        return finalize_engine(descriptor);
    case CUDNN_BACKEND_ENGINECFG_DESCRIPTOR:
        if (!finalized_child(*descriptor, CUDNN_ATTR_ENGINECFG_ENGINE))
            return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                          "the configuration's engine is not finalized");
        return CUDNN_STATUS_SUCCESS;
    case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
        return finalize_plan(*descriptor);
    case CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR:
        if (descriptor->values<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS).size() !=
            descriptor->values<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS).size())
            return refuse(CUDNN_STATUS_BAD_PARAM, "a variant pack needs as many pointers as ids");
        return CUDNN_STATUS_SUCCESS;
    default:
        return CUDNN_STATUS_SUCCESS;
    }
}

} // namespace emulation
