// The used part of cuDNN's graph API: handles, descriptors as stores of attributes, and execution plans that
// are one convolution each.
#include "cudnn_internal.h"

#include <cstdio>

using namespace emulation;

struct cudnnContext {
    Gpu *gpu; // current when the handle was made
    cudaStream_t stream = nullptr;
};

// All descriptors that the program holds, by the address it knows them under.
static auto *all_descriptors = new std::map<void *, DescriptorPointer>;
static Mutex descriptors_mutex;

static DescriptorPointer find(cudnnBackendDescriptor_t address)
{
    Guard guard(descriptors_mutex);
    auto found = all_descriptors->find(address);
    return found == all_descriptors->end() ? nullptr : found->second;
}

static bool fault(const char *function, cudnnStatus_t *status)
{
    int code;
    bool injected = injected_fault(function, &code);
    if (injected)
        *status = refuse((cudnnStatus_t)code, "an injected fault");
    return injected;
}

// A handle must be used while its GPU is the current one.
static void check_handle(const char *function, cudnnHandle_t handle)
{
    if (!handle)
        emulation_fail("%s without a handle", function);
    if (current_gpu() != handle->gpu)
        emulation_fail("%s: the handle belongs to GPU %d, but GPU %d is current", function,
                       handle->gpu->ordinal, current_gpu() ? current_gpu()->ordinal : -1);
}

// ---- what can be asked of a descriptor

// Gives each of the program's empty configurations one engine, in the order of preference.
static cudnnStatus_t get_heuristics(const Descriptor &heuristics, int64_t requested, int64_t *count,
                                    void *elements)
{
    int mode = heuristics.value<int>(CUDNN_ATTR_ENGINEHEUR_MODE, -1);
    DescriptorPointer graph = heuristics.child(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
    std::vector<Engine> engines = engines_for(kind_of_graph(*graph), mode == CUDNN_HEUR_MODE_FALLBACK);
    *count = (int64_t)engines.size();
    if (requested <= 0 || !elements)
        return CUDNN_STATUS_SUCCESS;
    if (*count > requested)
        *count = requested;
    auto *addresses = static_cast<cudnnBackendDescriptor_t *>(elements);
    for (size_t i = 0; i < (size_t)*count; i++) {
        DescriptorPointer config = find(addresses[i]);
        if (!config || config->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
            return refuse(CUDNN_STATUS_BAD_PARAM, "heuristics fill engine configuration descriptors only");
        auto engine = std::make_shared<Descriptor>();
        engine->type = CUDNN_BACKEND_ENGINE_DESCRIPTOR;
        engine->attributes[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] =
            heuristics.attributes.at(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        engine->engine = engines[i];
        engine->finalized = true;
        Attribute &holder = config->attributes[CUDNN_ATTR_ENGINECFG_ENGINE];
        holder.count = 1;
        holder.descriptors = {engine};
        config->finalized = true;
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_engine(const Descriptor &config, int64_t requested, int64_t *count, void *elements)
{
    *count = 1;
    if (requested < 1 || !elements)
        return CUDNN_STATUS_SUCCESS;
    DescriptorPointer out = find(*static_cast<cudnnBackendDescriptor_t *>(elements));
    if (!out || out->type != CUDNN_BACKEND_ENGINE_DESCRIPTOR)
        return refuse(CUDNN_STATUS_BAD_PARAM, "an engine descriptor is needed to receive the engine");
    DescriptorPointer engine = config.child(CUDNN_ATTR_ENGINECFG_ENGINE);
    out->attributes = engine->attributes;
    out->engine = engine->engine;
    out->finalized = true;
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_notes(const Engine &engine, int64_t requested, int64_t *count, void *elements)
{
    std::vector<cudnnBackendNumericalNote_t> notes;
    if (engine.arithmetic == Arithmetic::tf32) {
        notes.push_back(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
        notes.push_back(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS);
    }
    if (engine.arithmetic == Arithmetic::unordered)
        notes.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
    *count = (int64_t)notes.size();
    for (size_t i = 0; elements && i < notes.size() && (int64_t)i < requested; i++)
        static_cast<cudnnBackendNumericalNote_t *>(elements)[i] = notes[i];
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t get_number(int64_t number, int64_t requested, int64_t *count, void *elements)
{
    *count = 1;
    if (requested > 0 && elements)
        memcpy(elements, &number, sizeof number);
    return CUDNN_STATUS_SUCCESS;
}

// ---- execution

// The pointers of x, w and y from a variant pack.
static cudnnStatus_t find_operands(const Convolution &conv, const Descriptor &pack, float *pointers[3])
{
    auto ids = pack.values<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    auto addresses = pack.values<void *>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    const Tensor4 *tensors[3] = {&conv.x, &conv.w, &conv.y};
    for (int t = 0; t < 3; t++) {
        pointers[t] = nullptr;
        for (size_t i = 0; i < ids.size(); i++)
            if (ids[i] == tensors[t]->uid)
                pointers[t] = static_cast<float *>(addresses[i]);
        if (!pointers[t])
            return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the variant pack lacks a tensor");
        if ((uintptr_t)pointers[t] % (uintptr_t)tensors[t]->alignment != 0)
            return refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER,
                          "a pointer is not aligned as its tensor's descriptor says");
    }
    return CUDNN_STATUS_SUCCESS;
}

static cudnnStatus_t execute(cudnnHandle_t handle, const Descriptor &plan, const Descriptor &pack)
{
    DescriptorPointer engine =
        plan.child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->child(CUDNN_ATTR_ENGINECFG_ENGINE);
    DescriptorPointer graph = engine->child(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
    Convolution conv = convolution_of(*graph->child(CUDNN_ATTR_OPERATIONGRAPH_OPS));
    float *pointers[3];
    cudnnStatus_t status = find_operands(conv, pack, pointers);
    if (status != CUDNN_STATUS_SUCCESS)
        return status;
    void *workspace = pack.value<void *>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
    size_t workspace_bytes = (size_t)engine->engine.workspace_bytes;
    if (workspace_bytes > 0 && !workspace)
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the plan needs a workspace");
    Arithmetic arithmetic = engine->engine.arithmetic;
    Gpu *gpu = handle->gpu;
    float *x = pointers[0], *w = pointers[1], *y = pointers[2];
    enqueue(handle->stream, [=] {
        if (workspace_bytes > 0) { // all of it, so that whoever shares it is noticed
            check_operand("cuDNN convolution (workspace)", gpu, workspace, workspace_bytes, Access::write);
            memset(workspace, 0xee, workspace_bytes);
        }
        float *const operands[3] = {x, w, y};
        run_convolution(conv, arithmetic, gpu, operands);
    });
    return CUDNN_STATUS_SUCCESS;
}

extern "C" {

cudnnStatus_t cudnnCreate(cudnnHandle_t *out)
{
    cudnnStatus_t status;
    if (fault(__func__, &status))
        return status;
    Gpu *gpu;
    if (enter("cudnnCreate (context)", &gpu) != cudaSuccess)
        return refuse(CUDNN_STATUS_NOT_INITIALIZED, "CUDA cannot be used");
    *out = new cudnnContext{gpu};
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    cudnnStatus_t status;
    if (fault(__func__, &status))
        return status;
    check_handle(__func__, handle);
    delete handle;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    cudnnStatus_t status;
    if (fault(__func__, &status))
        return status;
    check_handle(__func__, handle);
    check_stream(__func__, stream);
    if (stream_gpu(stream) != handle->gpu)
        return refuse(CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH,
                      "the stream belongs to another device than the handle");
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

size_t cudnnGetVersion(void)
{
    return CUDNN_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
    switch (CUDNN_STATUS_CATEGORY(status)) {
    case 0:
        return "CUDNN_STATUS_SUCCESS";
    case 1000:
        return "CUDNN_STATUS_NOT_INITIALIZED";
    case 2000:
        return "CUDNN_STATUS_BAD_PARAM";
    case 3000:
        return "CUDNN_STATUS_NOT_SUPPORTED";
    case 4000:
        return "CUDNN_STATUS_INTERNAL_ERROR";
    case 5000:
        return "CUDNN_STATUS_EXECUTION_FAILED";
    default:
        return "CUDNN_UNKNOWN_STATUS";
    }
}

void cudnnGetLastErrorString(char *message, size_t capacity)
{
    snprintf(message, capacity, "%s", last_refusal());
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    cudnnStatus_t status;
    if (fault(__func__, &status))
        return status;
    if (!known_descriptor(type))
        return refuse(CUDNN_STATUS_NOT_SUPPORTED, "a descriptor of this type is not emulated");
    auto descriptor = std::make_shared<Descriptor>();
    descriptor->type = type;
    Guard guard(descriptors_mutex);
    (*all_descriptors)[descriptor.get()] = descriptor;
    *out = descriptor.get();
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t address)
{
    cudnnStatus_t status;
    if (fault(__func__, &status))
        return status;
    DescriptorPointer descriptor = find(address);
    if (!descriptor)
        emulation_fail("%s of a descriptor that does not exist", __func__);
    descriptor->destroyed = true;
    Guard guard(descriptors_mutex);
    all_descriptors->erase(address);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t address)
{
    cudnnStatus_t status;
    if (fault(__func__, &status))
        return status;
    DescriptorPointer descriptor = find(address);
    if (!descriptor)
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no such descriptor");
    status = check_complete(descriptor.get());
    descriptor->finalized = status == CUDNN_STATUS_SUCCESS;
    return status;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t address, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *elements)
{
    cudnnStatus_t status;
    if (fault(__func__, &status))
        return status;
    DescriptorPointer descriptor = find(address);
    if (!descriptor || !elements)
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no descriptor or no elements");
    if (descriptor->finalized)
        return refuse(CUDNN_STATUS_BAD_PARAM, "the descriptor is finalized already");
    Rule rule;
    if (!find_rule(descriptor->type, name, &rule))
        return refuse(CUDNN_STATUS_NOT_SUPPORTED,
                      "the descriptor has no such attribute, or it is not emulated");
    if (rule.type != type)
        return refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "the attribute has another type");
    if (count < 1 || count > rule.most)
        return refuse(CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND, "the attribute cannot have so many elements");
    Attribute attribute;
    attribute.count = count;
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
        DescriptorPointer child = find(*static_cast<const cudnnBackendDescriptor_t *>(elements));
        if (!child)
            return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the attribute's descriptor does not exist");
        attribute.descriptors = {child};
    } else {
        auto *first = static_cast<const char *>(elements);
        attribute.bytes.assign(first, first + (size_t)count * bytes_of(type));
    }
    descriptor->attributes[name] = std::move(attribute);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const address,
                                       cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t requested, int64_t *count, void *elements)
{
    cudnnStatus_t status;
    if (fault(__func__, &status))
        return status;
    DescriptorPointer descriptor = find(address);
    if (!descriptor)
        return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "no such descriptor");
    if (!descriptor->finalized)
        return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "the descriptor is not finalized");
    int64_t ignored;
    count = count ? count : &ignored;
    const struct {
        cudnnBackendDescriptorType_t descriptor;
        cudnnBackendAttributeName_t name;
        cudnnBackendAttributeType_t type;
    } readable[] = {
        {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR},
        {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR},
        {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE},
        {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE},
        {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64},
        {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64},
    };
    for (const auto &entry : readable) {
        if (entry.descriptor != descriptor->type || entry.name != name)
            continue;
        if (entry.type != type)
            return refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "the attribute has another type");
        switch (name) {
        case CUDNN_ATTR_ENGINEHEUR_RESULTS:
            return get_heuristics(*descriptor, requested, count, elements);
        case CUDNN_ATTR_ENGINECFG_ENGINE:
            return get_engine(*descriptor, requested, count, elements);
        case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
            return get_notes(descriptor->engine, requested, count, elements);
        case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
            return get_number(descriptor->engine.index, requested, count, elements);
        case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
            return get_number(descriptor->child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)
                                  ->child(CUDNN_ATTR_ENGINECFG_ENGINE)
                                  ->engine.workspace_bytes,
                              requested, count, elements);
        default: // behaviour notes: none
            *count = 0;
            return CUDNN_STATUS_SUCCESS;
        }
    }
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "reading this attribute is not emulated");
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_address,
                                  cudnnBackendDescriptor_t pack_address)
{
    cudnnStatus_t status;
    if (fault(__func__, &status))
        return status;
    check_handle(__func__, handle);
    check_stream(__func__, handle->stream);
    DescriptorPointer plan = find(plan_address), pack = find(pack_address);
    if (!plan || plan->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || !pack ||
        pack->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)
        return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
                      "an execution plan and a variant pack are needed");
    if (!plan->finalized || !pack->finalized)
        return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "the plan or the variant pack is not finalized");
    return execute(handle, *plan, *pack);
}

} // extern "C"
