/* Every CUDA, cuBLAS and cuDNN function that a run of the engine calls, failing at its n-th call: the run
 * ends with an error that names the device, the call and, in a step, the phase; or, where the failure does
 * not matter, with the same weights as without it. Nothing may hang, crash or stay allocated.
 *
 *     test_faults_cuda_emulated [all]
 *
 * A sample of the calls of each function, or all of them. Each case is a process of its own: the emulation
 * counts the calls of a process. Ends with "N passed, N failed, 0 skipped". */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/cuda.h"
#include "dptrain/engine.h"
#include "parallel/context.h"
#include "parallel/engine.h"

extern unsigned long emulation_faults_injected(void);
extern void emulation_for_each_function(void (*each)(void *user, const char *name, unsigned long calls),
                                        void *user);

enum {
    GPUS = 2,
    BATCH = 3, /* 2 and 1: two plans */
    BUCKETS = 2,
    PIXELS = 28 * 28,
    CLASSES = 10,
    MAX_FUNCTIONS = 96,
    MAX_NAME = 64,
    SECONDS = 60, /* longer than any run, also on a machine with other work */
    /* Codes of the libraries that leave the GPU usable. */
    UNKNOWN_ERROR = 999,
    EXECUTION_FAILED = 13
};

/* What a run came to. */
typedef struct outcome {
    dp_status status;
    char message[sizeof((dp_error *)0)->message];
    bool in_step;         /* that failed */
    unsigned long faults; /* injected */
    uint64_t weights;     /* a hash of them */
    uint64_t leaked;      /* bytes of device memory that the ledgers still hold */
} outcome;

/* ---- the run ---- */

static uint64_t hash(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ at[i]) * 1099511628211u;
    return h;
}

static dp_status train(dp_engine *engine, int64_t elements, outcome *out, dp_error *err)
{
    static float x[BATCH * PIXELS];
    static const int32_t labels[BATCH] = {3, 1, 4};
    dp_step_result result;
    for (int i = 0; i < BATCH * PIXELS; i++)
        x[i] = (float)(i % 17) / 17;
    const dp_host_batch batch = {BATCH, x, labels};
    DP_TRY(dp_engine_plan(engine, BATCH, true, err));
    DP_TRY(dp_engine_plan(engine, BATCH, false, err));
    out->in_step = true;
    for (int i = 0; i < 2; i++) {
        const dp_step step = {.batch = batch, .lr = 0.1, .update = i == 1, .loss_scale = 0.5};
        DP_TRY(dp_engine_train(engine, &step, &result, err));
    }
    DP_TRY(dp_engine_evaluate(engine, &batch, &result, err));
    out->in_step = false;
    float *weights = calloc((size_t)elements, sizeof *weights);
    dp_status status = dp_engine_get_weights(engine, weights, err);
    out->weights = hash(weights, (size_t)elements * sizeof *weights);
    free(weights);
    return status;
}

static dp_status run_engine(dp_context *context, const dp_model *model, outcome *out, dp_error *err)
{
    dp_engine_config config = dp_engine_defaults();
    config.device_ids = (int[]){0, 1};
    config.device_count = GPUS;
    config.output_device = 1;
    dp_engine *engine;
    DP_TRY(dp_engine_create(context, model, &config, &engine, err));
    int64_t elements = dp_model_elements(model);
    float *weights = calloc((size_t)elements, sizeof *weights);
    dp_model_init_weights(model, 1, weights);
    dp_status status = dp_engine_set_weights(engine, weights, err);
    if (engine->arena.bucket_count != BUCKETS)
        status = dp_fail(err, DP_ERROR_INTERNAL, "%d buckets", engine->arena.bucket_count);
    if (status == DP_OK)
        status = train(engine, elements, out, err);
    free(weights);
    dp_engine_free(engine);
    return status;
}

static dp_status run(outcome *out, dp_error *err)
{
    const dp_model_config mc = {
        .name = "lenet", .input_rank = 3, .input_shape = {1, 28, 28}, .outputs = CLASSES};
    dp_context context = {0};
    dp_model *model;
    DP_TRY(dp_model_build(&mc, &model, err));
    dp_status status = dp_cuda_backend_open(&(dp_cuda_config){0}, &context.backend, err);
    if (status == DP_OK) {
        status = run_engine(&context, model, out, err);
        for (int k = 0; k < GPUS; k++)
            out->leaked += atomic_load(&context.backend->devices[k].ledger.total);
        context.backend->call->close(context.backend);
    }
    dp_model_free(model);
    return status;
}

/* ---- a process for each case ---- */

typedef struct function {
    char name[MAX_NAME];
    unsigned long calls;
} function;

typedef struct list {
    function functions[MAX_FUNCTIONS];
    int count;
} list;

static void note(void *user, const char *name, unsigned long calls)
{
    list *l = user;
    if (l->count == MAX_FUNCTIONS)
        return;
    function *f = &l->functions[l->count++];
    snprintf(f->name, sizeof f->name, "%s", name);
    f->calls = calls;
}

static void write_all(int file, const void *data, size_t bytes)
{
    for (const char *at = data; bytes > 0;) {
        ssize_t written = write(file, at, bytes);
        if (written <= 0)
            exit(EXIT_FAILURE);
        at += written;
        bytes -= (size_t)written;
    }
}

static bool read_all(int file, void *data, size_t bytes)
{
    for (char *at = data; bytes > 0;) {
        ssize_t got = read(file, at, bytes);
        if (got <= 0)
            return false;
        at += got;
        bytes -= (size_t)got;
    }
    return true;
}

static void child(const char *fault, int file, bool wants_list)
{
    outcome out = {0};
    dp_error err = {0};
    list l = {0};
    alarm(SECONDS);
    setenv("DPTRAIN_EMULATED_FAULT", fault, 1);
    out.status = run(&out, &err);
    memcpy(out.message, err.message, sizeof out.message);
    out.faults = emulation_faults_injected();
    write_all(file, &out, sizeof out);
    if (wants_list) {
        emulation_for_each_function(note, &l);
        write_all(file, &l, sizeof l);
    }
    exit(EXIT_SUCCESS); /* with the emulation's own checks of memory */
}

/* False: the process crashed or hung, or left memory behind; *how is its status. */
static bool run_case(const char *fault, outcome *out, list *functions, int *how)
{
    int ends[2];
    memset(out, 0, sizeof *out);
    if (pipe(ends) != 0)
        exit(EXIT_FAILURE);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        child(fault, ends[1], functions != NULL);
    }
    close(ends[1]);
    bool whole = pid > 0 && read_all(ends[0], out, sizeof *out) &&
                 (!functions || read_all(ends[0], functions, sizeof *functions));
    close(ends[0]);
    return waitpid(pid, how, 0) == pid && whole && WIFEXITED(*how) && WEXITSTATUS(*how) == 0;
}

/* ---- verdicts ---- */

/* The linker's names of cuBLAS functions end in _v2; "NAME (context)" is where NAME makes a context. A launch
 * is named by what launches the kernel, dp_NAME; no GPUs are no use, whatever said so. */
static bool names_call(const char *message, const char *function)
{
    char name[MAX_NAME];
    snprintf(name, sizeof name, "%s",
             strcmp(function, "cudaLaunchKernelExC") == 0  ? "dp_"
             : strcmp(function, "cudaGetDeviceCount") == 0 ? "no usable GPU"
                                                           : function);
    if (strstr(name, " ("))
        *strstr(name, " (") = 0;
    if (strstr(name, "_v2"))
        *strstr(name, "_v2") = 0;
    return strstr(message, name) != NULL;
}

/* "broadcast: ...", "cuda:0, reduce: ..." */
static bool names_phase(const char *message)
{
    for (int p = 0; p < DP_PHASES; p++) {
        char phase[32];
        snprintf(phase, sizeof phase, "%s: ", dp_phase_name((dp_phase)p));
        if (strstr(message, phase))
            return true;
    }
    return false;
}

/* Whether another run may do without the n-th of so many calls. A primary that finds a bucket's gradients
 * ready before its own backward pass has ended sums them there; else its compute stream waits for each
 * replica's (dp_finish_reduce), between two marks of the clock, which are timed afterwards. */
static bool may_be_spared(const function *f, unsigned long n)
{
    static const char *const spared[] = {"cudaStreamWaitEvent", "cudaEventRecord", "cudaEventElapsedTime"};
    for (size_t i = 0; i < sizeof spared / sizeof *spared; i++)
        if (strcmp(f->name, spared[i]) == 0)
            return n + 2 * GPUS * BUCKETS > f->calls;
    return false;
}

/* What is wrong with this end of a run in which the n-th call of a function was to fail; NULL: nothing. */
static const char *judge(const outcome *o, const outcome *without, const function *f, unsigned long n)
{
    if (o->faults == 0 && (o->status != DP_OK || !may_be_spared(f, n)))
        return "the fault was not met";
    if (o->leaked)
        return "device memory was not given back";
    if (o->status == DP_OK)
        return o->weights == without->weights ? NULL : "it passed unseen, and the weights are others";
    if (!strstr(o->message, "cuda:") && !strstr(o->message, "pinned host memory") &&
        !strstr(o->message, "no usable GPU"))
        return "the message names no device";
    if (!names_call(o->message, f->name))
        return "the message does not name the call";
    if (strchr(o->message, '\n'))
        return "the message is not one line";
    return o->in_step && !names_phase(o->message) ? "the message names no phase" : NULL;
}

static int code_of(const char *function)
{
    return strncmp(function, "cublas", 6) == 0                                             ? EXECUTION_FAILED
           : strncmp(function, "cudnn", 5) == 0                                            ? 5000
           : strcmp(function, "cudaMalloc") == 0 || strcmp(function, "cudaHostAlloc") == 0 ? 2
                                                                                           : UNKNOWN_ERROR;
}

/* Of few calls all, of many the first, the last and some between. */
static bool is_sampled(unsigned long call, unsigned long calls)
{
    enum { SAMPLES = 2 };
    unsigned long stride = (calls + SAMPLES - 1) / SAMPLES;
    return call == calls || (call - 1) % stride == 0;
}

int main(int argc, char **argv)
{
    bool all = argc > 1 && strcmp(argv[1], "all") == 0;
    static list functions;
    outcome without, out;
    int how, passed = 0, failed = 0;
    setenv("DPTRAIN_EMULATED_GPUS", "2", 1);
    if (!run_case("", &without, &functions, &how) || without.status != DP_OK) {
        printf("without a fault: %s\n0 passed, 1 failed, 0 skipped\n", without.message);
        return EXIT_FAILURE;
    }
    for (int f = 0; f < functions.count; f++) {
        const function *at = &functions.functions[f];
        int unharmed = 0, cases = 0;
        for (unsigned long n = 1; n <= at->calls; n++) {
            char fault[MAX_NAME + 64];
            if (!all && !is_sampled(n, at->calls))
                continue;
            snprintf(fault, sizeof fault, "%s:%lu:%d", at->name, n, code_of(at->name));
            const char *wrong = run_case(fault, &out, NULL, &how)              ? judge(&out, &without, at, n)
                                : WIFSIGNALED(how) && WTERMSIG(how) == SIGALRM ? "it hangs"
                                                                               : "it crashed";
            cases += out.faults > 0;
            unharmed += out.faults > 0 && out.status == DP_OK;
            passed += !wrong;
            failed += wrong != NULL;
            if (wrong)
                printf("%s: %s (%s)\n", fault, wrong, out.message);
        }
        printf("%-40s %5lu calls, %5d made to fail, %5d of these did no harm\n", at->name, at->calls, cases,
               unharmed);
    }
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed || !passed ? EXIT_FAILURE : EXIT_SUCCESS;
}
