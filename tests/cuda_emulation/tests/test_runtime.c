/* Devices, settings, contexts, fault injection. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

START_TEST(no_gpu_unless_asked_for)
{
    for (int i = 0; i < 2; i++) {
        use_gpus("0");
        if (i == 1)
            unsetenv("DPTRAIN_EMULATED_GPUS");
        int count = -7;
        CUDA_IS(cudaGetDeviceCount(&count), cudaErrorNoDevice);
        ck_assert_int_eq(count, -7);
        CUDA_IS(cudaSetDevice(0), cudaErrorNoDevice);
        CUDA_IS(cudaGetLastError(), cudaErrorNoDevice);
        CUDA_IS(cudaGetLastError(), cudaSuccess);
    }
}
END_TEST

START_TEST(settings_per_gpu)
{
    use_gpus("3");
    set("DPTRAIN_EMULATED_MEMORY", "1000000,2000000");
    set("DPTRAIN_EMULATED_SMS", "4,2");
    static const size_t memory[3] = {1000000, 2000000, 2000000};
    static const int multiprocessors[3] = {4, 2, 2};
    int count = 0;
    CUDA_OK(cudaGetDeviceCount(&count));
    ck_assert_int_eq(count, 3);
    for (int device = 0; device < 3; device++) {
        struct cudaDeviceProp properties;
        CUDA_OK(cudaGetDeviceProperties(&properties, device));
        ck_assert_uint_eq(properties.totalGlobalMem, memory[device]);
        ck_assert_int_eq(properties.multiProcessorCount, multiprocessors[device]);
        int value = 0;
        CUDA_OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, device));
        ck_assert_int_eq(value, multiprocessors[device]);
        size_t free_bytes = 0, total_bytes = 0;
        CUDA_OK(cudaSetDevice(device));
        CUDA_OK(cudaMemGetInfo(&free_bytes, &total_bytes));
        ck_assert_uint_eq(free_bytes, memory[device]);
        ck_assert_uint_eq(total_bytes, memory[device]);
    }
    struct cudaDeviceProp properties;
    CUDA_IS(cudaGetDeviceProperties(&properties, 3), cudaErrorInvalidDevice);
    CUDA_IS(cudaSetDevice(-1), cudaErrorInvalidDevice);
    int version = 0;
    CUDA_OK(cudaRuntimeGetVersion(&version));
    ck_assert_int_eq(version, CUDART_VERSION);
}
END_TEST

static void bus_id(int device, char text[16])
{
    CUDA_OK(cudaDeviceGetPCIBusId(text, 16, device));
}

/* Bus ids and UUIDs stay with the hardware when the numbers change. The whole run is in a child per setting.
 */
static char buses[4][16];
static struct cudaDeviceProp seen[4];
static const char *visible;
static int expected[4], expected_count;

static void check_visible(void)
{
    set("CUDA_VISIBLE_DEVICES", visible);
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != (expected_count ? cudaSuccess : cudaErrorNoDevice) || count != expected_count) {
        fprintf(stderr, "%d devices, error %d", count, error);
        exit(1);
    }
    for (int device = 0; device < count; device++) {
        char bus[16];
        struct cudaDeviceProp properties;
        if (cudaDeviceGetPCIBusId(bus, sizeof bus, device) || cudaGetDeviceProperties(&properties, device) ||
            strcmp(bus, buses[expected[device]]) != 0 ||
            memcmp(&properties.uuid, &seen[expected[device]].uuid, sizeof properties.uuid) != 0) {
            fprintf(stderr, "device %d is another GPU than expected", device);
            exit(1);
        }
    }
}

static void expect_visible(const char *setting, int count, const int *physical)
{
    char text[256];
    visible = setting;
    expected_count = count;
    for (int i = 0; i < count; i++)
        expected[i] = physical[i];
    int status = outcome_of(check_visible, 20, text, sizeof text);
    ck_assert_msg(status == 0, "CUDA_VISIBLE_DEVICES=%s: %s", setting, text);
}

/* Filled in a child, because what follows forks before CUDA is used. */
static int table_pipe;

static void write_table(void)
{
    for (int device = 0; device < 4; device++) {
        bus_id(device, buses[device]);
        CUDA_OK(cudaGetDeviceProperties(&seen[device], device));
    }
    if (write(table_pipe, buses, sizeof buses) < 0 || write(table_pipe, seen, sizeof seen) < 0)
        exit(1);
}

START_TEST(visible_devices_renumber)
{
    char text[256];
    int ends[2];
    use_gpus("4");
    ck_assert_int_eq(pipe(ends), 0);
    table_pipe = ends[1];
    ck_assert_int_eq(outcome_of(write_table, 20, text, sizeof text), 0);
    ck_assert_int_eq(read(ends[0], buses, sizeof buses), (int)sizeof buses);
    ck_assert_int_eq(read(ends[0], seen, sizeof seen), (int)sizeof seen);
    ck_assert_str_ne(buses[0], buses[1]);

    expect_visible("2,0", 2, (const int[]){2, 0});
    expect_visible("3", 1, (const int[]){3});
    expect_visible("1,9,2", 1, (const int[]){1}); /* ends at the first that does not exist */
    expect_visible("", 0, NULL);
    expect_visible("-1", 0, NULL);
    char uuid[64] = "GPU-";
    for (int i = 0; i < 4; i++)
        sprintf(uuid + strlen(uuid), "%02x", (unsigned char)seen[1].uuid.bytes[i]);
    expect_visible(uuid, 1, (const int[]){1});
}
END_TEST

static void nine_gpus(void)
{
    use_gpus("9");
    int count;
    cudaGetDeviceCount(&count);
}

static void wrong_fault(void)
{
    use_gpus("1");
    set("DPTRAIN_EMULATED_FAULT", "cudaMalloc:zwei:2");
    void *memory;
    cudaMalloc(&memory, 4);
}

static void wrong_link(void)
{
    use_gpus("2");
    set("DPTRAIN_EMULATED_PEER", "hangs:0-1");
    int count;
    cudaGetDeviceCount(&count);
}

START_TEST(wrong_settings_are_refused)
{
    expect_failure(nine_gpus, "DPTRAIN_EMULATED_GPUS=9");
    expect_failure(wrong_fault, "DPTRAIN_EMULATED_FAULT=cudaMalloc:zwei:2");
    expect_failure(wrong_link, "DPTRAIN_EMULATED_PEER=hangs:0-1");
}
END_TEST

START_TEST(contexts_are_counted)
{
    use_gpus("4");
    int count = 0, can = 0;
    struct cudaDeviceProp properties;
    CUDA_OK(cudaGetDeviceCount(&count));
    CUDA_OK(cudaGetDeviceProperties(&properties, 1));
    CUDA_OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    for (int gpu = 0; gpu < 4; gpu++)
        ck_assert_int_eq(emulation_context_count(gpu), 0);
    CUDA_OK(cudaSetDevice(2));
    CUDA_OK(cudaSetDevice(2));
    ck_assert_int_eq(emulation_context_count(0), 0);
    ck_assert_int_eq(emulation_context_count(2), 1);
    CUDA_OK(cudaDeviceEnablePeerAccess(3, 0)); /* needs a context on both */
    ck_assert_int_eq(emulation_context_count(3), 1);
    CUDA_OK(cudaDeviceReset());
    device_floats(1);
    ck_assert_int_eq(emulation_context_count(2), 2);
}
END_TEST

/* The classic: a new host thread that does not select its device works on device 0. */
START_TEST(stray_context)
{
    use_gpus("2");
    void *memory = NULL;
    CUDA_OK(cudaHostAlloc(&memory, 100, cudaHostAllocPortable));
    ck_assert_int_eq(emulation_context_count(0), 1);
    ck_assert_int_eq(emulation_context_count(1), 0);
}
END_TEST

static void leave_report(void)
{
    cudaStream_t stream = make_stream(1);
    float *a = device_floats(1000), *b = device_floats(10);
    CUDA_OK(cudaMemsetAsync(a, 0, 4000, stream));
    CUDA_OK(launch_axpy(stream, 1, a, a, 1000));
    float host[10];
    to_host(stream, host, a, 10);
    CUDA_OK(cudaFree(b));
}

START_TEST(report_at_exit)
{
    char path[] = P_tmpdir "/emulation_report_XXXXXX", text[2048];
    int file = mkstemp(path);
    ck_assert_int_ge(file, 0);
    use_gpus("3");
    set("CUDA_VISIBLE_DEVICES", "2,1");
    set("DPTRAIN_EMULATED_REPORT", path);
    ck_assert_int_eq(outcome_of(leave_report, 20, text, sizeof text), 0);
    ssize_t length = read(file, text, sizeof text - 1);
    ck_assert_int_gt(length, 0);
    text[length] = 0;
    unlink(path);
    ck_assert_ptr_nonnull(strstr(text, "\"gpu\": 0, \"contexts\": 0,"));
    ck_assert_ptr_nonnull(strstr(text,
                                 "\"gpu\": 1, \"contexts\": 1, \"allocations\": 2, \"live_allocations\": 1, "
                                 "\"peak_bytes\": 4352, \"kernels\": 1, \"copies\": 1, \"peer_copies\": 0, "
                                 "\"direct_copies\": 0, \"peers_enabled\": 0}"));
    ck_assert_ptr_nonnull(strstr(text, "\"gpu\": 2, \"contexts\": 0,"));
}
END_TEST

START_TEST(faults_hit_the_call_that_was_named)
{
    use_gpus("1");
    set("DPTRAIN_EMULATED_FAULT", "cudaMalloc:2:2,cudaEventCreateWithFlags:1:46,cudaHostAlloc:2+:2");
    void *memory = NULL;
    cudaEvent_t event;
    CUDA_OK(cudaMalloc(&memory, 10));
    CUDA_IS(cudaMalloc(&memory, 10), cudaErrorMemoryAllocation);
    CUDA_IS(cudaGetLastError(), cudaErrorMemoryAllocation);
    CUDA_OK(cudaMalloc(&memory, 10));
    CUDA_IS(cudaEventCreateWithFlags(&event, 0), cudaErrorDevicesUnavailable);
    CUDA_OK(cudaEventCreateWithFlags(&event, 0));
    CUDA_OK(cudaHostAlloc(&memory, 10, 0));
    CUDA_IS(cudaHostAlloc(&memory, 10, 0), cudaErrorMemoryAllocation);
    CUDA_IS(cudaHostAlloc(&memory, 10, 0), cudaErrorMemoryAllocation);
}
END_TEST

START_TEST(fatal_faults_stay)
{
    use_gpus("2");
    set("DPTRAIN_EMULATED_FAULT", "cudaLaunchKernelExC:2:719");
    cudaStream_t stream = make_stream(1);
    float *x = device_floats(10);
    CUDA_OK(launch_axpy(stream, 1, x, x, 10));
    CUDA_IS(launch_axpy(stream, 1, x, x, 10), cudaErrorLaunchFailure);
    CUDA_IS(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
    CUDA_IS(cudaFree(x), cudaErrorLaunchFailure);
    CUDA_OK(cudaSetDevice(0)); /* the other GPU is well */
    device_floats(10);
}
END_TEST

START_TEST(errors_have_names)
{
    ck_assert_str_eq(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
    ck_assert_str_eq(cudaGetErrorString(cudaErrorIllegalAddress), "an illegal memory access was encountered");
    ck_assert_str_eq(cudaGetErrorString(cudaSuccess), "no error");
    ck_assert_str_eq(cudaGetErrorName((cudaError_t)12345), "unrecognized error code");
}
END_TEST

START_TEST(a_forked_child_cannot_go_on)
{
    use_gpus("1");
    device_floats(10);
    pid_t child = fork();
    if (child == 0) {
        void *memory;
        _exit(cudaMalloc(&memory, 10) == cudaErrorInitializationError ? 0 : 1);
    }
    int status = -1;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
}
END_TEST

TCase *runtime_tests(void)
{
    TCase *tests = tcase_create("runtime");
    tcase_set_timeout(tests, 60);
    tcase_add_test(tests, no_gpu_unless_asked_for);
    tcase_add_test(tests, settings_per_gpu);
    tcase_add_test(tests, visible_devices_renumber);
    tcase_add_test(tests, wrong_settings_are_refused);
    tcase_add_test(tests, contexts_are_counted);
    tcase_add_test(tests, stray_context);
    tcase_add_test(tests, report_at_exit);
    tcase_add_test(tests, faults_hit_the_call_that_was_named);
    tcase_add_test(tests, fatal_faults_stay);
    tcase_add_test(tests, errors_have_names);
    tcase_add_test(tests, a_forked_child_cannot_go_on);
    return tests;
}
