/* A tool as profilers are: named in NVTX_INJECTION64_PATH it is loaded by the first NVTX call of a program,
 * takes over the functions it wants, and appends a line for each call to the file named in NVTX_RECORD:
 *
 *     THREAD push NAME | THREAD pop | THREAD names thread NAME | THREAD names stream NAME
 *
 * See "Injection" in the documentation of NVTX v3, and nvtx3/nvtxDetail/nvtxTypes.h for the tables. */
#include <fcntl.h>
#include <nvtx3/nvToolsExtCudaRt.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int file = -1;

/* One write a line, so that lines of two threads do not mix. */
static void record(const char *what, const char *name)
{
    char line[256];
    int length = snprintf(line, sizeof line, "%d %s%s\n", (int)gettid(), what, name);
    if (length < 0 || length >= (int)sizeof line || write(file, line, (size_t)length) != length)
        _exit(86); /* a record with gaps would prove nothing */
}

static int NVTX_API push(const char *name)
{
    record("push ", name);
    return 0;
}

static int NVTX_API pop(void)
{
    record("pop", "");
    return 0;
}

static void NVTX_API name_thread(uint32_t thread, const char *name)
{
    if (thread == (uint32_t)gettid())
        record("names thread ", name);
}

static void NVTX_API name_stream(cudaStream_t stream, const char *name)
{
    (void)stream;
    record("names stream ", name);
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    const char *path = getenv("NVTX_RECORD");
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable core, cuda;
    unsigned int core_size, cuda_size;
    if (!path || !callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &core, &core_size) ||
        !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CUDART, &cuda, &cuda_size) ||
        core_size <= NVTX_CBID_CORE_NameOsThreadA || cuda_size <= NVTX_CBID_CUDART_NameCudaStreamA)
        return 0;
    file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0)
        return 0;
    *core[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)push;
    *core[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
    *core[NVTX_CBID_CORE_NameOsThreadA] = (NvtxFunctionPointer)name_thread;
    *cuda[NVTX_CBID_CUDART_NameCudaStreamA] = (NvtxFunctionPointer)name_stream;
    return 1;
}
