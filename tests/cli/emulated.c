/* The program on emulated GPUs (build/emulated/dptrain): devices, the start-up table, warnings, failures.
 * The folder named in EMULATED_TOOLS holds what stands in for NVML and for a profiler. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "emulated.h"

static char tools[PATH_MAX];

bool emulated_tools_found(const char *folder)
{
    return realpath(folder, tools) != NULL;
}

const char *emulated_tools(void)
{
    return tools;
}

void machine(const char *gpus)
{
    ck_assert_int_eq(setenv("DPTRAIN_EMULATED_GPUS", gpus, 1), 0);
}

static void use_nvml(void)
{
    ck_assert_int_eq(setenv("LD_LIBRARY_PATH", tools, 1), 0);
}

json_t *list_devices(const char *options)
{
    const run *r = dptrain("devices --device cuda --json %s", options);
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "");
    json_t *json = json_loads(r->out, 0, NULL);
    ck_assert_msg(json != NULL, "no JSON: %s", r->out);
    return json;
}

static const json_t *device(const json_t *list, int k)
{
    return at(json_object_get(list, "devices"), k);
}

const json_t *find_link(const json_t *list, const char *from, const char *to)
{
    const json_t *links = json_object_get(list, "links");
    for (size_t i = 0; i < json_array_size(links); i++) {
        const json_t *l = json_array_get(links, i);
        if (strcmp(string_of(l, "from"), from) == 0 && strcmp(string_of(l, "to"), to) == 0)
            return l;
    }
    ck_abort_msg("no link from %s to %s", from, to);
    return NULL;
}

/* ---- dptrain devices ---- */

START_TEST(every_gpu_and_every_link_is_listed)
{
    char gpus[4], label[16];
    int n = _i;
    snprintf(gpus, sizeof gpus, "%d", n);
    machine(gpus);
    json_t *list = list_devices("");
    ck_assert_str_eq(string_of(list, "backend"), "cuda");
    ck_assert_uint_eq(json_array_size(json_object_get(list, "devices")), (size_t)n);
    ck_assert_uint_eq(json_array_size(json_object_get(list, "links")), (size_t)(n * (n - 1)));
    for (int k = 0; k < n; k++) {
        const json_t *d = device(list, k);
        snprintf(label, sizeof label, "cuda:%d", k);
        ck_assert_str_eq(string_of(d, "device"), label);
        ck_assert_int_eq((int)number_of(d, "id"), k);
        ck_assert_uint_eq(strlen(string_of(d, "uuid")), 40);
        ck_assert_uint_eq(strlen(string_of(d, "bus_id")), strlen("00000000:1B:00.0"));
        ck_assert(number_of(d, "memory_bytes") == 4.0 * (1 << 30));
        ck_assert_int_eq((int)number_of(d, "multiprocessors"), 8);
        ck_assert(json_is_null(json_object_get(d, "free_memory_bytes"))); /* no driver, no NVML */
        ck_assert(json_is_false(json_object_get(d, "shares_hardware")));
    }
    for (int i = 0; i < n * (n - 1); i++) {
        const json_t *l = at(json_object_get(list, "links"), i);
        ck_assert_str_ne(string_of(l, "from"), string_of(l, "to"));
        ck_assert(json_is_false(json_object_get(l, "same_hardware")));
        ck_assert(json_is_true(json_object_get(l, "peer_access")));
        ck_assert(json_is_true(json_object_get(l, "intact")));
        ck_assert(number_of(l, "gb_per_second") > 0);
    }
    json_decref(list);
}
END_TEST

START_TEST(the_table_is_for_people)
{
    machine("3");
    setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
    setenv("DPTRAIN_EMULATED_PEER", "none:0-2", 1);
    const run *r = dptrain("devices");
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "using CUDA devices: a GPU is usable\n");
    assert_contains(r->out, "\ncuda:0   Emulated GPU 2 (times prove nothing)");
    assert_contains(r->out, "\ncuda:1   Emulated GPU 0 (times prove nothing)");
    assert_contains(r->out, "PCI 00000000:1B:00.0, UUID GPU-");
    assert_contains(r->out, "unknown");
    assert_contains(r->out, "CUDA_VISIBLE_DEVICES is 2,0, CUDA_DEVICE_ORDER is not set\n");
    assert_contains(r->out, " no ");
    assert_lacks(r->out, "cuda:2");
    assert_lacks(r->out, " yes ");
    assert_lacks(r->out, "share hardware");
    assert_fits(r->out);
    machine("1");
    unsetenv("CUDA_VISIBLE_DEVICES");
    r = dptrain("devices --logical-devices 2 --device cuda");
    assert_succeeds(r);
    assert_contains(r->out, "share hardware");
    r = dptrain("devices");
    assert_succeeds(r);
    assert_contains(r->out, "one device: there are no links");
}
END_TEST

START_TEST(links_are_as_the_hardware_has_them)
{
    machine("4");
    setenv("DPTRAIN_EMULATED_PEER", "none:0-1,corrupt:2-3", 1);
    json_t *list = list_devices("--logical-devices 5");
    ck_assert(json_is_false(json_object_get(find_link(list, "cuda:0", "cuda:1"), "peer_access")));
    ck_assert(json_is_false(json_object_get(find_link(list, "cuda:1", "cuda:4"), "peer_access")));
    ck_assert(json_is_true(json_object_get(find_link(list, "cuda:0", "cuda:1"), "intact")));
    ck_assert(json_is_true(json_object_get(find_link(list, "cuda:0", "cuda:2"), "peer_access")));
    ck_assert(json_is_false(json_object_get(find_link(list, "cuda:3", "cuda:2"), "intact")));
    ck_assert(json_is_true(json_object_get(find_link(list, "cuda:0", "cuda:4"), "same_hardware")));
    ck_assert(json_is_true(json_object_get(device(list, 4), "shares_hardware")));
    ck_assert(json_is_false(json_object_get(device(list, 1), "shares_hardware")));
    json_decref(list);
    const run *r = dptrain("devices");
    assert_succeeds(r);
    assert_contains(r->out, "damaged: what arrived is not what was sent");
}
END_TEST

/* The emulated NVML frees 1 GiB and a MiB for each unit of the UUID's first byte. */
START_TEST(free_memory_is_what_nvml_says)
{
    machine("4");
    setenv("CUDA_VISIBLE_DEVICES", "3,1", 1); /* NVML's numbers are other ones */
    use_nvml();
    json_t *list = list_devices("");
    for (int k = 0; k < 2; k++) {
        const char *uuid = string_of(device(list, k), "uuid");
        char first[3] = {uuid[4], uuid[5], 0};
        double wanted = (double)((1ull << 30) + (strtoull(first, NULL, 16) << 20));
        ck_assert(number_of(device(list, k), "free_memory_bytes") == wanted);
    }
    ck_assert(number_of(device(list, 0), "free_memory_bytes") !=
              number_of(device(list, 1), "free_memory_bytes"));
    json_decref(list);
}
END_TEST

void read_figure(const char *name, int values[8])
{
    json_error_t error;
    FILE *f = fopen("report", "r");
    ck_assert_ptr_nonnull(f);
    for (int i = 0; i < 8; i++)
        values[i] = -1;
    for (json_t *line; (line = json_loadf(f, JSON_DISABLE_EOF_CHECK, &error)) != NULL; json_decref(line))
        values[(int)number_of(line, "gpu")] = (int)number_of(line, name);
    fclose(f);
    unlink("report");
}

static void count_contexts(int contexts[8])
{
    read_figure("contexts", contexts);
}

START_TEST(only_gpus_that_are_shown_get_a_context)
{
    int contexts[8];
    machine("4");
    setenv("DPTRAIN_EMULATED_REPORT", "report", 1);
    assert_succeeds(dptrain("devices --logical-devices 2"));
    count_contexts(contexts);
    ck_assert_int_eq(contexts[0], 1);
    ck_assert_int_eq(contexts[1], 1);
    ck_assert_int_eq(contexts[2], 0);
    ck_assert_int_eq(contexts[3], 0);
    setenv("CUDA_VISIBLE_DEVICES", "3,2", 1);
    assert_succeeds(dptrain("devices --json"));
    count_contexts(contexts);
    ck_assert_int_eq(contexts[0], 0);
    ck_assert_int_eq(contexts[1], 0);
    ck_assert_int_eq(contexts[2], 1);
    ck_assert_int_eq(contexts[3], 1);
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_succeeds(dptrain("train " SMALL "--device-ids 1,3"));
    count_contexts(contexts);
    ck_assert_int_eq(contexts[0], 0);
    ck_assert_int_eq(contexts[1], 1);
    ck_assert_int_eq(contexts[2], 0);
    ck_assert_int_eq(contexts[3], 1);
}
END_TEST

static const struct {
    const char *fault, *text;
} faults[] = {
    {"cudaMalloc:2:2", "cuda:0: 16777216 bytes for staging: "},
    {"cudaSetDevice:2:46", "cuda:1: cudaSetDevice: "},
    {"cudaStreamCreateWithFlags:3:2", "cuda:0: cudaStreamCreateWithFlags: "},
    {"cudaEventCreateWithFlags:2:2", "cuda:0: cudaEventCreateWithFlags: "},
    {"cudaMemcpyPeerAsync:1:700", "cuda:0: cudaMemcpyPeerAsync: "},
    {"cudaEventElapsedTime:2:999", "cuda:1: cudaEventElapsedTime: "},
};

/* Three devices are visible, two are used; the emulation's times say nothing, its memory does. */
/* A model of each kind: plain layers, convolutions, normalisation and shortcuts, a mask. */
START_TEST(bench_measures_models_of_every_kind)
{
    static const char *const models[] = {"linear", "lenet", "resnet18_cifar --width 2 --size 8x8",
                                         "unet16 --width 2 --filters 2 --size 32x32"};
    machine("2");
    const run *r =
        dptrain("bench --device cuda --steps 1 --batch-sizes 4 --json b.json --model %s", models[_i]);
    assert_succeeds(r);
    assert_fits(r->out);
    assert_contains(r->out, "the times prove nothing");
    json_t *b = read_json("b.json");
    const json_t *row = at(json_object_get(b, "rows"), 0);
    ck_assert_str_eq(string_of(b, "device"), "cuda");
    ck_assert(number_of(json_object_get(row, "single"), "ms_per_step") > 0);
    ck_assert(number_of(json_object_get(row, "parallel"), "ms_per_step") > 0);
    json_decref(b);
}
END_TEST

START_TEST(bench_uses_its_own_gpus_alone)
{
    int contexts[8];
    machine("3");
    setenv("DPTRAIN_EMULATED_REPORT", "report", 1);
    const run *r = dptrain("bench --device cuda --device-ids 2,1 --model mlp --hidden 16 --num-classes 100 "
                           "--batch-sizes 6 --steps 1 --json b.json");
    assert_succeeds(r);
    assert_contains(r->out, "the times prove nothing");
    count_contexts(contexts);
    ck_assert_int_eq(contexts[0], 0);
    json_t *b = read_json("b.json");
    ck_assert_str_eq(string_of(b, "device"), "cuda");
    ck_assert(json_is_true(json_object_get(b, "times_prove_nothing")));
    const json_t *all = json_object_get(at(json_object_get(b, "rows"), 0), "parallel"), *phase_ms;
    double sum = 0;
    const char *key;
    json_t *value;
    phase_ms = json_object_get(all, "phase_ms");
    json_object_foreach((json_t *)phase_ms, key, value) sum += json_number_value(value);
    ck_assert_double_eq_tol(sum, number_of(all, "ms_per_step"), 1e-5 * sum);
    const json_t *first = at(json_object_get(all, "devices"), 0);
    ck_assert_str_eq(string_of(first, "device"), "cuda:2");
    ck_assert(number_of(json_object_get(first, "peak_bytes"), "gathered_outputs") >= 6 * 100 * 4);
    json_decref(b);
}
END_TEST

START_TEST(lessons_are_taught_by_gpus_too)
{
    static const char *const lines[] = {
        "loss-average", "imbalance --model mlp --hidden 8 --batch-size 4 --steps 1", "device-ids"};
    machine("2");
    const run *r = dptrain("explain %s --device cuda --json", lines[_i]);
    assert_succeeds(r);
    json_t *l = parse_json(r->out);
    const json_t *rows = json_object_get(l, "rows");
    for (size_t i = 0; i < json_array_size(rows); i++) {
        bool odd = strcmp(string_of(at(rows, (int)i), "loss_mode"), "replica") == 0 &&
                   number_of(at(rows, (int)i), "devices") == 2;
        ck_assert_double_eq_tol(number_of(at(rows, (int)i), "loss"), odd ? 0.525 : 1.3 / 3, 1e-6);
    }
    ck_assert_int_gt((int)strlen(string_of(l, "verdict")), 20);
    json_decref(l);
}
END_TEST

START_TEST(a_failing_device_is_named)
{
    machine("2");
    setenv("DPTRAIN_EMULATED_FAULT", faults[_i].fault, 1);
    const run *r = dptrain("devices --device cuda");
    assert_fails(r, 1, faults[_i].text);
    ck_assert_str_eq(r->out, "");
}
END_TEST

/* ---- what a failing GPU leaves behind ---- */

#define WIDE                                                                                         \
    "train --device cuda --model mlp --hidden 16 --data synthetic:4000 --valid-split 0 --n-epoch 1 " \
    "--overwrite "

START_TEST(out_of_memory_names_the_purpose_and_a_batch_that_fits)
{
    machine("2");
    setenv("DPTRAIN_EMULATED_MEMORY", "8000000", 1);
    const run *r = dptrain(WIDE "--batch-size 4000 --quiet");
    assert_fails(r, 1, "cuda:");
    assert_contains(r->err, " bytes for ");
    assert_contains(r->err, "cudaErrorMemoryAllocation");
    const char *suggestion = strstr(r->err, "; the largest --batch-size that fits is ");
    ck_assert_msg(suggestion != NULL, "%s", r->err);
    int batch = atoi(strstr(suggestion, "is ") + 3);
    ck_assert_int_gt(batch, 0);
    ck_assert_int_lt(batch, 4000);
    assert_succeeds(dptrain(WIDE "--max-steps 1 --batch-size %d --quiet", batch));
    assert_fails(dptrain(WIDE "--max-steps 1 --batch-size %d --quiet", batch + batch / 5 + 2), 1,
                 " bytes for ");
    setenv("DPTRAIN_EMULATED_MEMORY", "100000", 1);
    assert_fails(dptrain(WIDE "--batch-size 4000 --quiet"), 1, "no --batch-size would fit");
}
END_TEST

/* A GPU that fails for good in the second epoch: the checkpoint of the first one stays, whole, and the run
 * continues from it to the weights that it would have had. */
START_TEST(a_failing_gpu_costs_no_checkpoint)
{
    static const char *const broken[] = {"cudaLaunchKernelExC:100+:719", "cudaMemcpyPeerAsync:40+:700",
                                         "cudaStreamWaitEvent:130+:999", "cudaEventRecord:200+:999"};
    static const char train[] = "train --device cuda --model mlp --hidden 16 --data synthetic:64 --n-epoch 4 "
                                "--batch-size 16 --quiet ";
    machine("2");
    assert_succeeds(dptrain("%s --model-dir whole --save expected", train));
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        char directory[32];
        snprintf(directory, sizeof directory, "m%zu", i);
        setenv("DPTRAIN_EMULATED_FAULT", broken[i], 1);
        const run *r = dptrain("%s --p2p on --model-dir %s", train, directory);
        assert_fails(r, 1, "cuda:");
        unsetenv("DPTRAIN_EMULATED_FAULT");
        r = dptrain("eval --device cuda --data synthetic:64 --init %s/model_epoch_0.safetensors", directory);
        assert_succeeds(r);
        assert_succeeds(dptrain("%s --model-dir %s --save continued", train, directory));
        assert_same_file("continued", "expected");
    }
}
END_TEST

/* TF32 rounds what float32 does not. */
START_TEST(a_run_keeps_its_precision)
{
    static const char train[] = "train --device cuda --model mlp --hidden 16 --data synthetic:32 --n-epoch 2 "
                                "--quiet";
    machine("1");
    assert_succeeds(dptrain("%s --max-steps 1 --precision tf32", train));
    assert_fails(dptrain("%s", train), 2, "precision: tf32 then, not set now; give it the same settings");
    assert_fails(dptrain("%s --precision fp32", train), 2, "precision: tf32 then, ");
    assert_succeeds(dptrain("%s --precision tf32", train));
}
END_TEST

/* ---- at the start of a run ---- */

static void assert_start_table(const run *r)
{
    assert_succeeds(r);
    assert_contains(r->err, "  cuda:0   Emulated GPU 1 (times prove nothing), 8 SMs, 4.3 GB of memory (1.");
    assert_contains(r->err,
                    " GB free), 00000000:2B:00.0, GPU-1f213219-1b16-4d58-84a9-ddae508a21b1, primary\n");
    assert_contains(r->err, "  cuda:1   Emulated GPU 0");
    assert_contains(r->err, "  CUDA_VISIBLE_DEVICES is 1,0, CUDA_DEVICE_ORDER is PCI_BUS_ID\n");
}

START_TEST(train_and_eval_show_their_devices)
{
    machine("2");
    use_nvml();
    setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 1);
    assert_start_table(dptrain("train " SMALL "--save w"));
    assert_start_table(dptrain("eval --device cuda --init w --data synthetic:64"));
    const run *r = dptrain("train " SMALL "--quiet");
    assert_succeeds(r);
    ck_assert_str_eq(r->err, "");
}
END_TEST

static const struct {
    const char *memory, *multiprocessors, *options;
    int weak, strong; /* -1: no warning */
} machines[] = {
    {"24000000000,12000000000", "80", "", 1, 0},
    {"12000000000,24000000000", "80", "", 0, 1},
    {"24000000000,18000000000", "80", "", -1, -1}, /* exactly 0.75 */
    {"24000000000", "80,40", "", 1, 0},
    {"24000000000", "80,60", "", -1, -1},
    {"24000000000", "80,59", "", 1, 0},
    {"24000000000,12000000000,24000000000,12000000000", "40,80,80", "--device-ids 2,3,1,0", 3,
     2}, /* memory first */
    {"24000000000,12000000000,24000000000,12000000000", "80", "--device-ids 0,2", -1, -1},
    {"24000000000,12000000000", "80", "--device-ids 1", -1, -1},
    {"24000000000,12000000000", "80", "--quiet", -1, -1},
};

START_TEST(unlike_gpus_are_warned_of_as_pytorch_does)
{
    static const char warning[] =
        "warning: There is an imbalance between your GPUs. You may want to exclude GPU ";
    machine("4");
    setenv("DPTRAIN_EMULATED_MEMORY", machines[_i].memory, 1);
    setenv("DPTRAIN_EMULATED_SMS", machines[_i].multiprocessors, 1);
    const char *ids = strstr(machines[_i].options, "ids") ? "" : "--device-ids 0,1";
    const run *r = dptrain("train " SMALL "--save w %s %s", ids, machines[_i].options);
    assert_succeeds(r);
    char text[512];
    snprintf(text, sizeof text,
             "%s%d which has less than 75%% of the memory or cores of GPU %d. You can do so ", warning,
             machines[_i].weak, machines[_i].strong);
    if (machines[_i].weak < 0) {
        assert_lacks(r->err, "imbalance");
        return;
    }
    assert_contains(r->err, text);
    r = dptrain("eval --device cuda --init w --data synthetic:64 %s %s", ids, machines[_i].options);
    assert_succeeds(r);
    assert_contains(r->err, text);
}
END_TEST

Suite *emulated_suite(void)
{
    Suite *s = suite_create("emulated GPUs");
    TCase *c = tcase_create("emulated");
    tcase_set_timeout(c, 60);
    tcase_add_checked_fixture(c, harness_enter, harness_leave);
    tcase_add_loop_test(c, every_gpu_and_every_link_is_listed, 1, 9);
    tcase_add_test(c, the_table_is_for_people);
    tcase_add_test(c, links_are_as_the_hardware_has_them);
    tcase_add_test(c, free_memory_is_what_nvml_says);
    tcase_add_test(c, only_gpus_that_are_shown_get_a_context);
    tcase_add_loop_test(c, bench_measures_models_of_every_kind, 0, 4);
    tcase_add_test(c, bench_uses_its_own_gpus_alone);
    tcase_add_loop_test(c, lessons_are_taught_by_gpus_too, 0, 3);
    tcase_add_loop_test(c, a_failing_device_is_named, 0, sizeof faults / sizeof *faults);
    tcase_add_test(c, out_of_memory_names_the_purpose_and_a_batch_that_fits);
    tcase_add_test(c, a_failing_gpu_costs_no_checkpoint);
    tcase_add_test(c, a_run_keeps_its_precision);
    tcase_add_test(c, train_and_eval_show_their_devices);
    tcase_add_loop_test(c, unlike_gpus_are_warned_of_as_pytorch_does, 0, sizeof machines / sizeof *machines);
    suite_add_tcase(s, c);
    suite_add_tcase(s, emulated_links_case());
    suite_add_tcase(s, emulated_profiler_case());
    return s;
}
