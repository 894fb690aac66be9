/* cuBLAS and cuDNN against naive sums in double, and what they refuse. */
#include "support.h"

#include <cublas_v2.h>
#include <cudnn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CUBLAS_OK(call) ck_assert_int_eq((int)(call), CUBLAS_STATUS_SUCCESS)
#define CUDNN_OK(call)  ck_assert_int_eq((int)(call), CUDNN_STATUS_SUCCESS)

static float value(int i)
{
    return sinf((float)i * 0.7f) + 0.1f;
}

static float *filled(cudaStream_t stream, float *host, size_t n, int first)
{
    float *device = device_floats(n);
    for (size_t i = 0; i < n; i++)
        host[i] = value(first + (int)i);
    to_device(stream, device, host, n);
    return device;
}

/* ---- cuBLAS */

enum { M = 5, NN = 4, K = 7, LEADING = 9, SIZE = LEADING * LEADING };

START_TEST(gemm)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    float a[SIZE], b[SIZE], c[SIZE], out[SIZE];
    float *da = filled(stream, a, SIZE, 0), *db = filled(stream, b, SIZE, 1000),
          *dc = filled(stream, c, SIZE, 2000);
    bool ta = _i & 1, tb = _i & 2;
    float alpha = 1.5f, beta = _i & 4 ? 0.5f : 0.0f;
    cublasHandle_t handle;
    CUBLAS_OK(cublasCreate(&handle));
    CUBLAS_OK(cublasSetStream(handle, stream));
    CUBLAS_OK(cublasSetWorkspace(handle, device_floats(1024), 4096));
    CUBLAS_OK(cublasSgemm(handle, ta ? CUBLAS_OP_T : CUBLAS_OP_N, tb ? CUBLAS_OP_T : CUBLAS_OP_N, M, NN, K,
                          &alpha, da, LEADING, db, LEADING, &beta, dc, LEADING));
    to_host(stream, out, dc, SIZE);
    for (int j = 0; j < LEADING; j++)
        for (int i = 0; i < LEADING; i++) {
            double sum = 0;
            for (int k = 0; k < K && i < M && j < NN; k++)
                sum += (double)(ta ? a[k + i * LEADING] : a[i + k * LEADING]) *
                       (double)(tb ? b[j + k * LEADING] : b[k + j * LEADING]);
            bool inside = i < M && j < NN;
            double expected = inside ? alpha * sum + beta * c[i + j * LEADING] : c[i + j * LEADING];
            ck_assert_float_eq_tol(out[i + j * LEADING], (float)expected, 1e-5f);
        }
    CUBLAS_OK(cublasDestroy(handle));
}
END_TEST

static void gemm_past_end(void)
{
    use_gpus("1");
    cudaStream_t stream = make_stream(0);
    cublasHandle_t handle;
    cublasCreate(&handle);
    cublasSetStream(handle, stream);
    float one = 1, zero = 0, *x = device_floats(63), *y = device_floats(64);
    cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, x, 8, y, 8, &zero, y, 8);
    cudaStreamSynchronize(stream);
}

static void gemm_with_other_device(void)
{
    use_gpus("2");
    cudaStream_t stream = make_stream(0);
    cublasHandle_t handle;
    cublasCreate(&handle);
    cublasSetStream(handle, stream);
    float one = 1, zero = 0, *x = device_floats(64);
    cudaSetDevice(1);
    cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, x, 8, x, 8, &zero, x, 8);
}

static void gemm_of_other_memory(void)
{
    use_gpus("2");
    cudaSetDevice(1);
    float one = 1, zero = 0, *x = device_floats(64);
    cudaStream_t stream = make_stream(0);
    cublasHandle_t handle;
    cublasCreate(&handle);
    cublasSetStream(handle, stream);
    cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, x, 8, x, 8, &zero, x, 8);
    cudaStreamSynchronize(stream);
}

START_TEST(gemm_is_checked)
{
    expect_failure(gemm_past_end, "do not lie in one live allocation");
    expect_failure(gemm_with_other_device, "the handle belongs to GPU 0, but GPU 1 is current");
    expect_failure(gemm_of_other_memory, "memory of GPU 1, without peer access");
    use_gpus("1");
    set("DPTRAIN_EMULATED_FAULT", "cublasSgemm_v2:2:13,cublasCreate_v2:2:3");
    cudaStream_t stream = make_stream(0);
    float one = 1, zero = 0, *x = device_floats(64), *y = device_floats(64);
    cublasHandle_t handle, second;
    CUBLAS_OK(cublasCreate(&handle));
    ck_assert_int_eq(cublasCreate(&second), CUBLAS_STATUS_ALLOC_FAILED);
    CUBLAS_OK(cublasSetStream(handle, stream));
    ck_assert_int_eq(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, x, 7, x, 8, &zero, y, 8),
                     CUBLAS_STATUS_INVALID_VALUE);
    ck_assert_int_eq(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 8, 8, 8, &one, x, 8, x, 8, &zero, y, 8),
                     CUBLAS_STATUS_EXECUTION_FAILED);
    ck_assert_str_eq(cublasGetStatusName(CUBLAS_STATUS_EXECUTION_FAILED), "CUBLAS_STATUS_EXECUTION_FAILED");
}
END_TEST

/* ---- cuDNN */

typedef cudnnBackendDescriptor_t descriptor;

/* A convolution of groups, padding, stride and dilation that differ in height and width. */
enum { BATCH = 3, C = 4, H = 9, W = 7, OUT = 6, GROUPS = 2, R = 3, S = 2, P = 4, Q = 7 };
static const int64_t x_dims[4] = {BATCH, C, H, W}, w_dims[4] = {OUT, C / GROUPS, R, S},
                     y_dims[4] = {BATCH, OUT, P, Q};
static const int64_t padding[2] = {1, 1}, stride[2] = {2, 1}, dilation[2] = {2, 2};

static descriptor make(cudnnBackendDescriptorType_t type)
{
    descriptor out = NULL;
    CUDNN_OK(cudnnBackendCreateDescriptor(type, &out));
    return out;
}

static void put(descriptor of, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t n,
                const void *values)
{
    CUDNN_OK(cudnnBackendSetAttribute(of, name, type, n, values));
}

/* Strides in elements: plain, or channels last. */
static void strides_of(const int64_t dims[4], bool channels_last, int64_t out[4])
{
    out[3] = channels_last ? dims[1] : 1;
    out[2] = out[3] * dims[3];
    out[1] = channels_last ? 1 : dims[2] * dims[3];
    out[0] = dims[1] * dims[2] * dims[3];
}

static descriptor make_tensor(int64_t id, const int64_t dims[4], bool channels_last)
{
    descriptor out = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    int64_t strides[4], alignment = 16;
    strides_of(dims, channels_last, strides);
    put(out, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    put(out, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, dims);
    put(out, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    put(out, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    put(out, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    CUDNN_OK(cudnnBackendFinalize(out));
    return out;
}

static const struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t x, w, y, convolution, alpha, beta;
} kinds[3] = {
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA}};

static descriptor make_convolution(void)
{
    descriptor out = make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    int64_t two = 2;
    put(out, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    put(out, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    put(out, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &two);
    put(out, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, padding);
    put(out, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, padding);
    put(out, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, stride);
    put(out, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilation);
    CUDNN_OK(cudnnBackendFinalize(out));
    return out;
}

/* The operation's graph; the operation's own finalization must give `status`. */
static descriptor make_graph(int kind, const int64_t y[4], bool channels_last, float beta,
                             cudnnStatus_t status)
{
    descriptor operation = make(kinds[kind].type), graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    descriptor tensors[3] = {make_tensor(1, x_dims, channels_last), make_tensor(2, w_dims, channels_last),
                             make_tensor(3, y, channels_last)};
    descriptor convolution = make_convolution();
    float alpha = 2;
    put(operation, kinds[kind].x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &tensors[0]);
    put(operation, kinds[kind].w, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &tensors[1]);
    put(operation, kinds[kind].y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &tensors[2]);
    put(operation, kinds[kind].convolution, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &convolution);
    put(operation, kinds[kind].alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
    put(operation, kinds[kind].beta, CUDNN_TYPE_FLOAT, 1, &beta);
    ck_assert_int_eq(cudnnBackendFinalize(operation), status);
    if (status != CUDNN_STATUS_SUCCESS)
        return NULL;
    put(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operation);
    CUDNN_OK(cudnnBackendFinalize(graph));
    return graph;
}

enum wish { EXACT, WITH_WORKSPACE, TENSOR_CORE, NONDETERMINISTIC };

/* The first engine whose notes and workspace are as wished. *refused counts plans that do not finalize. */
static descriptor choose_plan(descriptor graph, enum wish wish, int64_t *workspace, int *refused)
{
    descriptor heuristics = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR), configs[16];
    descriptor properties = make(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    int64_t count = 0, got = 0, n = 0;
    int32_t device = 0;
    put(properties, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &device);
    CUDNN_OK(cudnnBackendFinalize(properties));
    put(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
    put(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    put(heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &properties);
    CUDNN_OK(cudnnBackendFinalize(heuristics));
    CUDNN_OK(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, NULL));
    ck_assert(count >= 4 && count <= 16);
    for (int i = 0; i < count; i++)
        configs[i] = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    CUDNN_OK(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &got, configs));
    ck_assert_int_eq(got, count);
    for (int i = 0; i < got; i++) {
        descriptor engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR),
                   plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
        CUDNN_OK(cudnnBackendGetAttribute(configs[i], CUDNN_ATTR_ENGINECFG_ENGINE,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &n, &engine));
        CUDNN_OK(cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                                          CUDNN_NUMERICAL_NOTE_TYPE_COUNT, &n, notes));
        bool tensor_core = false, nondeterministic = false;
        for (int k = 0; k < n; k++) {
            tensor_core |= notes[k] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
            nondeterministic |= notes[k] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
        }
        put(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &configs[i]);
        put(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &properties);
        if (cudnnBackendFinalize(plan) != CUDNN_STATUS_SUCCESS) {
            ++*refused;
            continue;
        }
        CUDNN_OK(cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                          &n, workspace));
        if (tensor_core == (wish == TENSOR_CORE) && nondeterministic == (wish == NONDETERMINISTIC) &&
            (wish > WITH_WORKSPACE || (*workspace > 0) == (wish == WITH_WORKSPACE)))
            return plan;
    }
    ck_abort_msg("no engine as wished");
    return NULL;
}

static descriptor pack_of(void *x, void *w, void *y, void *workspace)
{
    descriptor pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    int64_t ids[3] = {1, 2, 3};
    void *pointers[3] = {x, w, y};
    put(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids);
    put(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers);
    if (workspace)
        put(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    CUDNN_OK(cudnnBackendFinalize(pack));
    return pack;
}

enum {
    X_SIZE = BATCH * C * H * W,
    W_SIZE = OUT * (C / GROUPS) * R * S,
    Y_SIZE = BATCH * OUT * P * Q,
    MOST = 1000
};
static float host[3][MOST];
static const int sizes[3] = {X_SIZE, W_SIZE, Y_SIZE};

static int64_t at(const int64_t strides[4], int64_t a, int64_t b, int64_t c, int64_t d)
{
    return a * strides[0] + b * strides[1] + c * strides[2] + d * strides[3];
}

/* What one of the three should be, from host[] as it lies in memory. */
static void reference(int kind, bool channels_last, float beta, double *out)
{
    int64_t xs[4], ws[4], ys[4];
    int place = kind == 0 ? 2 : kind == 1 ? 0 : 1;
    strides_of(x_dims, channels_last, xs);
    strides_of(w_dims, channels_last, ws);
    strides_of(y_dims, channels_last, ys);
    for (int i = 0; i < sizes[place]; i++)
        out[i] = beta * host[place][i];
    for (int n = 0; n < BATCH; n++)
        for (int k = 0; k < OUT; k++)
            for (int p = 0; p < P; p++)
                for (int q = 0; q < Q; q++)
                    for (int c = 0; c < C / GROUPS; c++)
                        for (int r = 0; r < R; r++)
                            for (int s = 0; s < S; s++) {
                                int64_t h = p * stride[0] - padding[0] + r * dilation[0];
                                int64_t w = q * stride[1] - padding[1] + s * dilation[1];
                                if (h < 0 || h >= H || w < 0 || w >= W)
                                    continue;
                                int channel = k / (OUT / GROUPS) * (C / GROUPS) + c;
                                int64_t i[3] = {at(xs, n, channel, h, w), at(ws, k, c, r, s),
                                                at(ys, n, k, p, q)};
                                int a = place == 0 ? 1 : 0, b = place == 2 ? 1 : 2;
                                out[i[place]] += 2.0 * (double)host[a][i[a]] * (double)host[b][i[b]];
                            }
}

/* Runs one convolution and gives the largest difference from the reference. */
static double convolve(int kind, bool channels_last, float beta, enum wish wish, float *result)
{
    cudaStream_t s = make_stream(0);
    cudnnHandle_t handle;
    CUDNN_OK(cudnnCreate(&handle));
    CUDNN_OK(cudnnSetStream(handle, s));
    float *device[3];
    for (int i = 0; i < 3; i++)
        device[i] = filled(s, host[i], (size_t)sizes[i], 1000 * i);
    int place = kind == 0 ? 2 : kind == 1 ? 0 : 1, refused = 0;
    static double expected[MOST];
    reference(kind, channels_last, beta, expected);
    int64_t workspace = 0;
    descriptor plan = choose_plan(make_graph(kind, y_dims, channels_last, beta, CUDNN_STATUS_SUCCESS), wish,
                                  &workspace, &refused);
    void *memory = workspace ? device_floats((size_t)workspace / 4) : NULL;
    CUDNN_OK(cudnnBackendExecute(handle, plan, pack_of(device[0], device[1], device[2], memory)));
    to_host(s, result, device[place], (size_t)sizes[place]);
    double worst = 0;
    for (int i = 0; i < sizes[place]; i++)
        worst = fmax(worst, fabs(result[i] - expected[i]));
    CUDNN_OK(cudnnDestroy(handle));
    if (wish == EXACT)
        ck_assert_int_eq(refused, 1);
    return worst;
}

START_TEST(convolutions)
{
    use_gpus("1");
    float result[MOST];
    for (int kind = 0; kind < 3; kind++) {
        ck_assert_double_lt(convolve(kind, _i & 1, _i & 2 ? 0.5f : 0, EXACT, result), 1e-5);
        ck_assert_double_lt(convolve(kind, _i & 1, _i & 2 ? 0.5f : 0, WITH_WORKSPACE, result), 1e-5);
    }
}
END_TEST

/* Engines to be filtered out do what their notes say. */
START_TEST(engines_have_their_flaws)
{
    use_gpus("1");
    float first[MOST], second[MOST];
    double error = convolve(0, false, 0, TENSOR_CORE, first);
    ck_assert(error > 1e-4 && error < 1e-1);
    ck_assert_double_lt(convolve(2, false, 0, NONDETERMINISTIC, first), 1e-3);
    convolve(2, false, 0, NONDETERMINISTIC, second);
    ck_assert_int_ne(memcmp(first, second, sizeof(float) * W_SIZE), 0);
    convolve(2, false, 0, EXACT, first);
    convolve(2, false, 0, EXACT, second);
    ck_assert_int_eq(memcmp(first, second, sizeof(float) * W_SIZE), 0);
}
END_TEST

START_TEST(cudnn_refuses)
{
    use_gpus("2");
    char text[256] = "";
    int64_t wrong[4] = {BATCH, OUT, P + 1, Q}, n = 0, workspace = 0;
    int refused = 0;
    make_graph(0, wrong, false, 0, CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
    cudnnGetLastErrorString(text, sizeof text);
    ck_assert_str_eq(text, "the output size does not fit the convolution");

    descriptor tensor = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    ck_assert_int_eq(cudnnBackendSetAttribute(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_FLOAT, 1, &n),
                     CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
    ck_assert_int_eq(CUDNN_STATUS_CATEGORY(cudnnBackendFinalize(tensor)), CUDNN_STATUS_BAD_PARAM);

    cudaStream_t zero = make_stream(0);
    float *memory = device_floats(MOST);
    cudnnHandle_t handle;
    CUDNN_OK(cudnnCreate(&handle));
    descriptor plan = choose_plan(make_graph(0, y_dims, false, 0, CUDNN_STATUS_SUCCESS), WITH_WORKSPACE,
                                  &workspace, &refused);
    CUDNN_OK(cudnnSetStream(handle, zero));
    ck_assert_int_eq(cudnnBackendExecute(handle, plan, pack_of(memory, memory, memory, NULL)),
                     CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    ck_assert_int_eq(cudnnBackendExecute(handle, plan, pack_of(memory + 1, memory, memory, memory)),
                     CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
    cudaStream_t one = make_stream(1);
    CUDA_OK(cudaSetDevice(0));
    ck_assert_int_eq(cudnnSetStream(handle, one), CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH);
    ck_assert_uint_eq(cudnnGetVersion(), CUDNN_VERSION);
}
END_TEST

static void small_workspace(void)
{
    use_gpus("1");
    cudaStream_t s = make_stream(0);
    cudnnHandle_t handle;
    cudnnCreate(&handle);
    cudnnSetStream(handle, s);
    int64_t workspace = 0;
    int refused = 0;
    descriptor plan = choose_plan(make_graph(0, y_dims, false, 0, CUDNN_STATUS_SUCCESS), WITH_WORKSPACE,
                                  &workspace, &refused);
    void *memory = device_floats((size_t)workspace / 4 - 1);
    cudnnBackendExecute(handle, plan,
                        pack_of(device_floats(X_SIZE), device_floats(W_SIZE), device_floats(Y_SIZE), memory));
    cudaStreamSynchronize(s);
}

static void destroyed_graph(void)
{
    use_gpus("1");
    cudaStream_t s = make_stream(0);
    cudnnHandle_t handle;
    cudnnCreate(&handle);
    cudnnSetStream(handle, s);
    int64_t workspace = 0;
    int refused = 0;
    descriptor graph = make_graph(0, y_dims, false, 0, CUDNN_STATUS_SUCCESS);
    descriptor plan = choose_plan(graph, EXACT, &workspace, &refused);
    cudnnBackendDestroyDescriptor(graph);
    cudnnBackendExecute(handle, plan,
                        pack_of(device_floats(X_SIZE), device_floats(W_SIZE), device_floats(Y_SIZE), NULL));
}

START_TEST(cudnn_is_checked)
{
    expect_failure(small_workspace, "cuDNN convolution (workspace) on GPU 0 writes 12800 bytes");
    expect_failure(destroyed_graph, "after one that it refers to");
}
END_TEST

TCase *library_tests(void)
{
    TCase *tests = tcase_create("libraries");
    tcase_set_timeout(tests, 60);
    tcase_add_loop_test(tests, gemm, 0, 8);
    tcase_add_test(tests, gemm_is_checked);
    tcase_add_loop_test(tests, convolutions, 0, 4);
    tcase_add_test(tests, engines_have_their_flaws);
    tcase_add_test(tests, cudnn_refuses);
    tcase_add_test(tests, cudnn_is_checked);
    return tests;
}
