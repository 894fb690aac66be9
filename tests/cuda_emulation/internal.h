// What the files of the emulation share. Nothing outside this folder includes it.
#pragma once

#include "private_lock.h"

#define __DEVICE_LAUNCH_PARAMETERS_H__
#include <cuda_runtime.h>

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

struct CUstream_st;
struct CUevent_st;

extern "C" {
// Ends the process with exit status 86 after one line on stderr: for what CUDA leaves undefined, and for what
// this emulation refuses by policy. What CUDA answers with an error code gets that error code instead.
void emulation_fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
// How often a context has been created on a physical GPU; 0 if it was never touched.
int emulation_context_count(int physical_gpu);
}

namespace emulation
{

constexpr int max_gpus = 8;
constexpr int failure_status = 86;
constexpr size_t arena_bytes = 64ull << 30; // addresses of a GPU; never used twice, so there must be plenty

// ---- settings.cpp: the environment variables, read once

enum class Link { good, hangs, corrupts, fails, absent };

struct Settings {
    int gpus = 0;
    std::vector<int> visible; // physical numbers in the order that the process sees
    uint64_t memory[max_gpus];
    int multiprocessors[max_gpus];
    Link link[max_gpus][max_gpus];
    uint64_t seed = 0;
    uint64_t max_delay_us = 0;
    std::string report_path;
    std::string waits_path;
    std::set<std::string> skipped_waits; // places in callers
};

const Settings &settings();
std::string uuid_text(int physical);
cudaUUID_t uuid_bytes(int physical);

// A small generator (splitmix64): the same seed gives the same sequence everywhere.
uint64_t next_random(uint64_t *state);

// ---- faults.cpp

// Counts a call of `function`; true if DPTRAIN_EMULATED_FAULT wants this one to fail with *code.
bool injected_fault(const char *function, int *code);

// ---- runtime.cpp

struct Allocation {
    size_t bytes; // as asked for
    bool live;
    char *pages; // first page; the page behind page_bytes is a guard
    size_t page_bytes;
};

using AllocationMap = std::map<uintptr_t, Allocation>;

// A GPU that the process sees. Guarded by runtime().mutex, but for the constants.
struct Gpu {
    int ordinal, physical;
    char *arena; // reserved addresses; constant
    size_t arena_used = 0;
    uint64_t bytes_in_use = 0, peak_bytes = 0;
    AllocationMap allocations;
    bool peer_enabled[max_gpus] = {}; // by ordinal: kernels of this GPU may read that one's memory
    bool has_context = false;
    cudaError_t sticky = cudaSuccess;
    std::set<CUstream_st *> streams;
};

// Figures of a physical GPU for the report.
struct Figures {
    int contexts = 0;
    uint64_t allocations = 0, live_allocations = 0, peak_bytes = 0, kernels = 0, copies = 0, peer_copies = 0;
    uint64_t direct_copies = 0, peers_enabled = 0; // over a link; one way each
};

struct Runtime {
    Mutex mutex;
    std::vector<std::unique_ptr<Gpu>> gpus;
    Figures figures[max_gpus]; // by physical number
    AllocationMap host_blocks; // pinned
    std::set<CUevent_st *> events;
    uint64_t streams_created = 0;
    std::set<std::string> wait_callers;               // seen so far, where they are asked for
    std::map<const void *, int> dynamic_shared_limit; // by kernel, where raised
};

// The one instance, made at first use and never destroyed: stream threads may outlive main.
Runtime &runtime();

// Begins an API call. On success *gpu is the calling thread's current GPU, with a context. `function` is the
// name for fault injection. An error is to be returned as it is.
cudaError_t enter(const char *function, Gpu **gpu);
// The same for calls that create no context and need no current GPU.
cudaError_t enter_without_context(const char *function);
// Remembers an error for cudaGetLastError and returns it.
cudaError_t record(cudaError_t error);
Gpu *current_gpu();
// Creates the GPU's context if it has none. With the mutex held.
void make_context(Gpu *gpu);
bool valid_ordinal(int ordinal);

// ---- memory.cpp

struct Location {
    enum Kind { device, pinned, pageable } kind;
    Gpu *gpu;    // device
    bool inside; // the whole range lies in one live allocation; true for pageable memory
};

Location locate(const void *address, size_t bytes);
// Whether kernels of `gpu` may access memory of `owner`.
bool accessible(const Gpu *gpu, const Gpu *owner);
// Fails unless a kernel of `gpu` may access the range, and announces the access to the checkers.
enum class Access { read, write };
void check_operand(const char *what, Gpu *gpu, const void *address, size_t bytes, Access access);
// Catches accesses to guard pages and freed memory; with a stack of its own also where a CUDA thread has used
// up its stack (null: no longer).
void install_fault_handler();
void use_alternate_stack(void *stack, size_t bytes);
void free_all(Gpu *gpu);
void check_canaries_of_live_allocations();

// ---- streams.cpp

// Completion of one record or synchronisation. Shared by the stream that completes it and all that wait.
struct Ticket {
    bool done = false;
    double milliseconds = 0; // of the monotonic clock
    Condition completed;
};

// Fails if the stream is the default stream or not alive. `function` names the caller.
void check_stream(const char *function, cudaStream_t stream);
Gpu *stream_gpu(cudaStream_t stream);
void enqueue(cudaStream_t stream, std::function<void()> work);
// Blocks until all that was enqueued before has run.
void synchronize(cudaStream_t stream);
void synchronize_all(Gpu *gpu);
void discard_streams_and_events(Gpu *gpu);

// ---- waits.cpp

// For the CUDA functions that wait, with their __builtin_return_address(0): writes down who calls, where that
// is asked for; true if this wait is to be left out.
bool skips_wait(const void *caller);

// ---- executor.cpp

struct Grid {
    dim3 grid, block;
    size_t shared_bytes;
    void (*run)(void *closure);
    void *closure;
    const char *kernel; // name
    Gpu *gpu;
};

void run_grid(const Grid &grid);
// Whether the address lies on the stack that the calling thread's kernel runs on.
bool on_running_stack(const void *address);
// At the end of a stream's thread.
void discard_executor();
// What the calling thread runs, for reports: "kernel k, block (1,0,0), thread (5,0,0)" or "no kernel".
const char *describe_position();
// What the executor of the calling thread keeps at the address (a guard page of its own), or null.
const char *fault_in_executor(const void *address);

// ---- what a checker that is linked in (checker/) hears of; null in other programs

extern "C" {
// Memory written by a copy (source null: by a fill or a library).
void emulation_on_copy(void *destination, const void *source, size_t bytes) __attribute__((weak));
// A library reads memory.
void emulation_on_library_read(const char *what, const void *source, size_t bytes) __attribute__((weak));
// The calling thread begins a grid, or has ended the one it ran (null).
void emulation_on_kernel(const emulation::Grid *grid) __attribute__((weak));
// The grid goes on with this block.
void emulation_on_block(uint64_t block) __attribute__((weak));
// All threads of the block have come to a barrier.
void emulation_on_barrier() __attribute__((weak));
// These lanes of the warp have met in a __syncwarp.
void emulation_on_syncwarp(int warp, unsigned mask) __attribute__((weak));
}

// ---- report.cpp

void write_report_at_exit();

} // namespace emulation
