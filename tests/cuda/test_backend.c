/* The CUDA backend's devices, memory and messages. Linked with the emulation, all of it: several GPUs and
 * failing calls can be ordered there alone. Linked with the real runtime, what holds on any machine with a
 * GPU. Each test is a process of its own, so each may set up its own machine. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/thread.h"
#include "cuda/cuda.h"

static dp_backend *open_gpus(const char *gpus, int logical)
{
    dp_error err = {0};
    dp_backend *backend;
    const dp_cuda_config config = {.logical_devices = logical};
    setenv("DPTRAIN_EMULATED_GPUS", gpus, 1);
    ck_assert_msg(dp_cuda_backend_open(&config, &backend, &err) == DP_OK, "%s", err.message);
    return backend;
}

/* ---- opening ---- */

START_TEST(no_gpu_is_said_in_one_line)
{
    dp_error err = {0};
    dp_backend *backend = (dp_backend *)&err;
    const dp_cuda_config config = {0};
    unsetenv("DPTRAIN_EMULATED_GPUS");
    ck_assert_int_eq(dp_cuda_backend_open(&config, &backend, &err), DP_ERROR_DEVICE);
    ck_assert_ptr_null(backend);
    ck_assert_msg(strncmp(err.message, "no usable GPU: ", 15) == 0, "%s", err.message);
    ck_assert_ptr_null(strchr(err.message, '\n'));
}
END_TEST

START_TEST(impossible_numbers_of_devices)
{
    dp_error err = {0};
    dp_backend *backend;
    setenv("DPTRAIN_EMULATED_GPUS", "1", 1);
    ck_assert_int_eq(dp_cuda_backend_open(&(dp_cuda_config){.logical_devices = -1}, &backend, &err),
                     DP_ERROR_USAGE);
    ck_assert_int_eq(
        dp_cuda_backend_open(&(dp_cuda_config){.logical_devices = DP_MAX_DEVICES + 1}, &backend, &err),
        DP_ERROR_USAGE);
}
END_TEST

START_TEST(devices_are_dealt_round_robin)
{
    dp_backend *backend = open_gpus("3", 5);
    ck_assert_int_eq(backend->device_count, 5);
    for (int i = 0; i < 5; i++) {
        const dp_device_properties *p = &backend->devices[i].properties;
        ck_assert_int_eq(backend->devices[i].id, i);
        ck_assert_int_eq(p->physical, i % 3);
        ck_assert_int_eq(p->shares_hardware, i % 3 < 2); /* GPU 2 has one device */
        ck_assert_str_ne(p->name, "");
        ck_assert_uint_gt(p->memory_bytes, 0);
        ck_assert_int_gt(p->multiprocessors, 0);
        unsigned domain, bus, slot;
        int end = 0;
        ck_assert_int_eq(sscanf(p->bus_id, "%8x:%2x:%2x.0%n", &domain, &bus, &slot, &end), 3);
        ck_assert_uint_eq((size_t)end, strlen(p->bus_id));
        ck_assert_uint_eq(strlen(p->uuid), strlen("GPU-00000000-0000-0000-0000-000000000000"));
        ck_assert_str_eq(p->uuid, backend->devices[i % 3].properties.uuid);
    }
    ck_assert_str_ne(backend->devices[0].properties.uuid, backend->devices[1].properties.uuid);
    backend->call->close(backend);
    backend = open_gpus("3", 0);
    ck_assert_int_eq(backend->device_count, 3);
    ck_assert(!backend->devices[0].properties.shares_hardware);
    backend->call->close(backend);
}
END_TEST

/* ---- which GPUs get a context ---- */

typedef struct visit {
    dp_device *device;
    bool good;
    dp_error err;
} visit;

static void *enter_and_pin(void *argument)
{
    visit *v = argument;
    dp_backend *backend = v->device->backend;
    void *host;
    float *memory;
    v->good = dp_device_enter(v->device, &v->err) == DP_OK &&
              dp_memory_alloc(v->device, DP_MEM_INPUTS, 100, &memory, &v->err) == DP_OK &&
              backend->call->host_alloc(backend, 100, &host, &v->err) == DP_OK;
    if (v->good) {
        backend->call->host_free(backend, host);
        /* The device's own thread must still be on its GPU. */
        dp_memory_free(v->device, DP_MEM_INPUTS, 100, memory);
        v->good = dp_memory_alloc(v->device, DP_MEM_INPUTS, 100, &memory, &v->err) == DP_OK;
        dp_memory_free(v->device, DP_MEM_INPUTS, 100, memory);
    }
    dp_device_leave(v->device);
    return NULL;
}

static void visit_device(dp_device *device)
{
    visit v = {.device = device};
    pthread_t thread;
    dp_error err = {0};
    ck_assert_int_eq(dp_thread_start(&thread, "visit", enter_and_pin, &v, &err), DP_OK);
    pthread_join(thread, NULL);
    ck_assert_msg(v.good, "%s", v.err.message);
}

/* Uses GPUs 2 and 3 of four, and pinned memory from a thread that has no GPU, before and after. */
static void use_last_two_gpus(void)
{
    dp_error err = {0};
    dp_backend *backend = open_gpus("4", 0);
    void *early, *late;
    ck_assert_int_eq(backend->call->host_alloc(backend, 1000, &early, &err), DP_OK);
    memset(early, 1, 1000);
    visit_device(&backend->devices[2]);
    visit_device(&backend->devices[3]);
    ck_assert_int_eq(backend->call->host_alloc(backend, 1000, &late, &err), DP_OK);
    memset(late, 1, 1000);
    ck_assert_uint_eq((uintptr_t)early % 64, 0);
    ck_assert_uint_eq((uintptr_t)late % 64, 0);
    backend->call->host_free(backend, early);
    backend->call->host_free(backend, late);
    backend->call->host_free(backend, NULL);
    backend->call->close(backend);
}

START_TEST(other_gpus_get_no_context)
{
    char path[] = "/tmp/dptrain-report-XXXXXX", line[512];
    int file = mkstemp(path), contexts[4] = {-1, -1, -1, -1};
    ck_assert_int_ge(file, 0);
    close(file);
    setenv("DPTRAIN_EMULATED_REPORT", path, 1);
    pid_t child = fork(); /* the report is written when a process ends */
    if (child == 0) {
        use_last_two_gpus();
        exit(EXIT_SUCCESS);
    }
    int status = 1;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    while (fgets(line, sizeof line, f)) {
        int process, gpu, count;
        ck_assert_int_eq(
            sscanf(line, "{\"process\": %d, \"gpu\": %d, \"contexts\": %d", &process, &gpu, &count), 3);
        if (process == child && gpu >= 0 && gpu < 4)
            contexts[gpu] = count;
    }
    fclose(f);
    unlink(path);
    ck_assert_int_eq(contexts[0], 0);
    ck_assert_int_eq(contexts[1], 0);
    ck_assert_int_eq(contexts[2], 1);
    ck_assert_int_eq(contexts[3], 1);
}
END_TEST

/* ---- peers ---- */

START_TEST(peers_as_the_hardware_has_them)
{
    setenv("DPTRAIN_EMULATED_PEER", "none:0-2", 1);
    dp_error err = {0};
    dp_backend *backend = open_gpus("3", 4);
    dp_device *d = backend->devices;
    ck_assert_int_eq(dp_device_enter(&d[0], &err), DP_OK);
    for (int twice = 0; twice < 2; twice++) {
        ck_assert(backend->call->peer_readable(&d[0], &d[0]));
        ck_assert(backend->call->peer_readable(&d[0], &d[1]));
        ck_assert(!backend->call->peer_readable(&d[0], &d[2]));
        ck_assert(backend->call->peer_readable(&d[0], &d[3])); /* on the same GPU */
    }
    /* A second device of the GPU finds access enabled already. */
    ck_assert_int_eq(dp_device_enter(&d[3], &err), DP_OK);
    ck_assert(backend->call->peer_readable(&d[3], &d[1]));
    dp_stream stream;
    float *memory;
    ck_assert_int_eq(dp_stream_create(&d[3], "after", &stream, &err), DP_OK);
    ck_assert_int_eq(dp_memory_alloc(&d[3], DP_MEM_INPUTS, 64, &memory, &err), DP_OK);
    ck_assert_int_eq(dp_fill_zero(&stream, memory, 64, &err), DP_OK);
    ck_assert_int_eq(dp_stream_synchronize(&stream, &err), DP_OK);
    dp_memory_free(&d[3], DP_MEM_INPUTS, 64, memory);
    dp_stream_destroy(&stream);
    dp_device_leave(&d[3]);
    dp_device_leave(&d[0]);
    backend->call->close(backend);
}
END_TEST

/* ---- messages ---- */

static dp_status make_op(dp_device *device, dp_op_kind kind, dp_error *err)
{
    dp_op_desc desc = {.kind = kind, .inputs = 1, .params = 2, .stride = {1, 1}, .kernel = {3, 3}};
    desc.in[0] = kind == DP_OP_CONV2D ? (dp_shape){4, {2, 3, 8, 8}} : (dp_shape){2, {2, 8}};
    desc.out = kind == DP_OP_CONV2D ? (dp_shape){4, {2, 4, 6, 6}} : (dp_shape){2, {2, 4}};
    dp_op_request request = {.desc = &desc, .training = true, .param_gradient = {true, true}};
    dp_op op;
    DP_TRY(device->backend->call->op_create(device, &request, &op, err));
    device->backend->call->op_destroy(device, &op);
    return DP_OK;
}

static dp_status touch_everything(dp_device *device, dp_error *err)
{
    dp_stream stream;
    dp_event event;
    float *memory;
    void *host;
    DP_TRY(dp_device_enter(device, err));
    DP_TRY(dp_stream_create(device, "stream", &stream, err));
    DP_TRY(dp_event_create(device, &event, err));
    DP_TRY(dp_event_record(&event, &stream, err));
    DP_TRY(dp_memory_alloc(device, DP_MEM_INPUTS, 123, &memory, err));
    DP_TRY(device->backend->call->host_alloc(device->backend, 77, &host, err));
    DP_TRY(dp_fill_zero(&stream, memory, 64, err));
    DP_TRY(make_op(device, DP_OP_LINEAR, err));
    return make_op(device, DP_OP_CONV2D, err);
}

static const struct {
    const char *fault;
    dp_status status;
    const char *message;
} faults[] = {
    {"cudaSetDevice:1:46", DP_ERROR_DEVICE, "cuda:1: cudaSetDevice: cudaErrorDevicesUnavailable ("},
    {"cudaStreamCreateWithFlags:1:2", DP_ERROR_MEMORY,
     "cuda:1: cudaStreamCreateWithFlags: cudaErrorMemoryAllocation ("},
    {"cudaEventCreateWithFlags:1:999", DP_ERROR_DEVICE,
     "cuda:1: cudaEventCreateWithFlags: cudaErrorUnknown ("},
    {"cudaEventRecord:1:700", DP_ERROR_DEVICE, "cuda:1: cudaEventRecord: cudaErrorIllegalAddress ("},
    {"cudaMalloc:1:2", DP_ERROR_MEMORY,
     "cuda:1: 123 bytes for inputs: cuda:1: cudaMalloc of 123 bytes: cudaErrorMemoryAllocation ("},
    {"cudaHostAlloc:1:2", DP_ERROR_MEMORY,
     "pinned host memory: cudaHostAlloc of 77 bytes: cudaErrorMemoryAllocation ("},
    {"cudaMemsetAsync:1:1", DP_ERROR_DEVICE, "cuda:1: cudaMemsetAsync: cudaErrorInvalidValue ("},
    {"cublasCreate_v2:1:3", DP_ERROR_MEMORY, "cuda:1: cublasCreate: CUBLAS_STATUS_ALLOC_FAILED ("},
    {"cudnnCreate:1:1001", DP_ERROR_DEVICE, "cuda:1: cudnnCreate: CUDNN_STATUS_NOT_INITIALIZED (1001): "},
    {"cudnnBackendFinalize:1:4003", DP_ERROR_MEMORY,
     "cuda:1: a tensor's cudnnBackendFinalize: CUDNN_STATUS_INTERNAL_ERROR"},
};

enum { FAULTS = sizeof faults / sizeof *faults };

START_TEST(failures_name_device_call_and_reason)
{
    dp_error err = {0};
    setenv("DPTRAIN_EMULATED_FAULT", faults[_i].fault, 1);
    dp_backend *backend = open_gpus("2", 0);
    ck_assert_int_eq(touch_everything(&backend->devices[1], &err), faults[_i].status);
    ck_assert_msg(strncmp(err.message, faults[_i].message, strlen(faults[_i].message)) == 0, "%s",
                  err.message);
    ck_assert_ptr_null(strchr(err.message, '\n'));
}
END_TEST

START_TEST(nothing_fails_without_faults)
{
    dp_error err = {0};
    dp_backend *backend = open_gpus("2", 0);
    ck_assert_msg(touch_everything(&backend->devices[1], &err) == DP_OK, "%s", err.message);
}
END_TEST

/* An engine that cannot be planned is passed over, and so is a mode of the heuristics without advice. */
START_TEST(planning_goes_on_after_refusals)
{
    dp_error err = {0};
    /* finalized for a forward plan: three tensors, convolution, operation, graph, heuristics, a plan */
    setenv("DPTRAIN_EMULATED_FAULT", _i == 0 ? "cudnnBackendFinalize:7:3000" : "cudnnBackendFinalize:8:3000",
           1);
    dp_backend *backend = open_gpus("1", 0);
    ck_assert_int_eq(dp_device_enter(&backend->devices[0], &err), DP_OK);
    ck_assert_msg(make_op(&backend->devices[0], DP_OP_CONV2D, &err) == DP_OK, "%s", err.message);
    dp_device_leave(&backend->devices[0]);
    backend->call->close(backend);
}
END_TEST

/* ---- on any machine with a GPU, emulated or not ---- */

START_TEST(devices_of_this_machine)
{
    dp_backend *backend = open_gpus("2", 0);
    int gpus = backend->device_count;
    ck_assert_int_ge(gpus, 1);
    backend->call->close(backend);
    backend = open_gpus("2", gpus + 1);
    ck_assert_int_eq(backend->device_count, gpus + 1);
    for (int i = 0; i <= gpus; i++) {
        const dp_device_properties *p = &backend->devices[i].properties;
        unsigned domain, bus, slot;
        uint64_t available;
        ck_assert_str_ne(p->name, "");
        ck_assert_int_eq(sscanf(p->bus_id, "%8x:%2x:%2x.0", &domain, &bus, &slot), 3);
        ck_assert_uint_eq(strlen(p->uuid), strlen("GPU-00000000-0000-0000-0000-000000000000"));
        ck_assert_int_eq(p->physical, i % gpus);
        ck_assert_int_gt(p->multiprocessors, 0);
        if (backend->call->free_bytes(&backend->devices[i], &available))
            ck_assert_uint_le(available, p->memory_bytes);
    }
    ck_assert_str_eq(backend->devices[0].properties.uuid, backend->devices[gpus].properties.uuid);
    visit_device(&backend->devices[gpus]);
    backend->call->close(backend);
}
END_TEST

START_TEST(every_kind_of_call_works)
{
    dp_error err = {0};
    dp_backend *backend = open_gpus("2", 2);
    ck_assert_msg(touch_everything(&backend->devices[1], &err) == DP_OK, "%s", err.message);
}
END_TEST

enum { WORDS = 1 << 20 };

/* Host memory to one device, by the other back to the host; timed on the way. */
static dp_status carry(dp_device *from, dp_device *to, uint32_t *host, dp_error *err)
{
    const size_t bytes = WORDS * sizeof *host;
    dp_stream stream;
    dp_event start, end;
    uint32_t *sent, *received;
    double seconds;
    DP_TRY(dp_device_enter(from, err));
    DP_TRY(dp_memory_alloc(from, DP_MEM_INPUTS, bytes, &sent, err));
    DP_TRY(dp_stream_create(from, "send", &stream, err));
    DP_TRY(dp_copy(&stream, from, sent, NULL, host, bytes, err));
    DP_TRY(dp_stream_synchronize(&stream, err));
    memset(host, 0, bytes);
    DP_TRY(dp_device_enter(to, err));
    DP_TRY(dp_memory_alloc(to, DP_MEM_INPUTS, bytes, &received, err));
    DP_TRY(dp_stream_create(to, "receive", &stream, err));
    DP_TRY(dp_event_create(to, &start, err));
    DP_TRY(dp_event_create(to, &end, err));
    to->backend->call->peer_readable(to, from);
    DP_TRY(dp_event_record(&start, &stream, err));
    DP_TRY(dp_copy(&stream, to, received, from, sent, bytes, err));
    DP_TRY(dp_event_record(&end, &stream, err));
    DP_TRY(dp_copy(&stream, NULL, host, to, received, bytes, err));
    DP_TRY(dp_stream_synchronize(&stream, err));
    DP_TRY(dp_event_elapsed(&start, &end, &seconds, err));
    return seconds >= 0 ? DP_OK : dp_fail(err, DP_ERROR_INTERNAL, "a copy took %g s", seconds);
}

START_TEST(what_devices_send_arrives)
{
    dp_error err = {0};
    dp_backend *backend = open_gpus("2", 0);
    int gpus = backend->device_count;
    backend->call->close(backend);
    backend = open_gpus("2", gpus + 1); /* the last one is on the GPU of the first */
    uint32_t *host = malloc(WORDS * sizeof *host);
    ck_assert_ptr_nonnull(host);
    for (int to = 1; to <= gpus; to++) {
        for (uint32_t i = 0; i < WORDS; i++)
            host[i] = i * 2654435761u + (uint32_t)to;
        ck_assert_msg(carry(&backend->devices[0], &backend->devices[to], host, &err) == DP_OK, "%s",
                      err.message);
        for (uint32_t i = 0; i < WORDS; i++)
            ck_assert_uint_eq(host[i], i * 2654435761u + (uint32_t)to);
    }
    free(host);
}
END_TEST

/* There in the emulation alone. */
int emulation_context_count(int physical_gpu) __attribute__((weak));

static void add_emulated_tests(Suite *s)
{
    TCase *t = tcase_create("emulated machines");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, no_gpu_is_said_in_one_line);
    tcase_add_test(t, devices_are_dealt_round_robin);
    tcase_add_test(t, other_gpus_get_no_context);
    tcase_add_test(t, peers_as_the_hardware_has_them);
    tcase_add_loop_test(t, failures_name_device_call_and_reason, 0, FAULTS);
    tcase_add_test(t, nothing_fails_without_faults);
    tcase_add_loop_test(t, planning_goes_on_after_refusals, 0, 2);
    suite_add_tcase(s, t);
}

int main(void)
{
    Suite *s = suite_create("CUDA backend");
    TCase *t = tcase_create("any machine");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, impossible_numbers_of_devices);
    tcase_add_test(t, devices_of_this_machine);
    tcase_add_test(t, every_kind_of_call_works);
    tcase_add_test(t, what_devices_send_arrives);
    suite_add_tcase(s, t);
    if (emulation_context_count)
        add_emulated_tests(s);
    SRunner *runner = srunner_create(s);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
