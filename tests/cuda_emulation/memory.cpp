// Device and pinned memory.
//
// Each GPU has a reserved range of addresses. A block takes whole pages of it, ends as near to a guard page
// as its 256-byte alignment allows, is filled with 0xFF (floats read as NaN) and is never given out again:
// after cudaFree its pages cannot be touched. The few bytes between the block and its pages' ends hold a
// pattern that is checked when the block is freed and at exit.
#include "internal.h"

#include <csignal>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>

namespace emulation
{

static const size_t page = 4096, alignment = 256;
static const unsigned char unwritten = 0xff, canary = 0xf5;

static size_t round_up(size_t value, size_t to)
{
    return (value + to - 1) / to * to;
}

// Pages for one block with a guard page behind it, readable and writable; returns the block's address.
static char *lay_out(char *pages, size_t bytes, Allocation *allocation)
{
    size_t rounded = round_up(bytes, alignment);
    allocation->bytes = bytes;
    allocation->live = true;
    allocation->pages = pages;
    allocation->page_bytes = round_up(rounded, page);
    return pages + (allocation->page_bytes - rounded);
}

static void fill_new_block(char *block, const Allocation &allocation)
{
    char *end = allocation.pages + allocation.page_bytes;
    memset(allocation.pages, canary, (size_t)(block - allocation.pages));
    memset(block, unwritten, allocation.bytes);
    memset(block + allocation.bytes, canary, (size_t)(end - block) - allocation.bytes);
}

static bool all_canary(const char *from, const char *to)
{
    for (; from < to; from++)
        if ((unsigned char)*from != canary)
            return false;
    return true;
}

static void check_canaries(uintptr_t address, const Allocation &allocation)
{
    const char *block = (const char *)address;
    if (!all_canary(block + allocation.bytes, allocation.pages + allocation.page_bytes))
        emulation_fail("a write past the end of the block of %zu bytes at %p", allocation.bytes,
                       (const void *)block);
    if (!all_canary(allocation.pages, block))
        emulation_fail("a write before the beginning of the block of %zu bytes at %p", allocation.bytes,
                       (const void *)block);
}

void check_canaries_of_live_allocations()
{
    Guard guard(runtime().mutex);
    for (const auto &gpu : runtime().gpus)
        for (const auto &[address, allocation] : gpu->allocations)
            if (allocation.live)
                check_canaries(address, allocation);
    for (const auto &[address, allocation] : runtime().host_blocks)
        if (allocation.live)
            check_canaries(address, allocation);
}

// The addresses stay reserved, so that whoever still uses the block is found.
static void revoke(Allocation *allocation)
{
    allocation->live = false;
    mprotect(allocation->pages, allocation->page_bytes, PROT_NONE);
    madvise(allocation->pages, allocation->page_bytes, MADV_DONTNEED);
}

static void free_device_block(Gpu *gpu, AllocationMap::iterator block)
{
    check_canaries(block->first, block->second);
    revoke(&block->second);
    gpu->bytes_in_use -= round_up(block->second.bytes, alignment);
    runtime().figures[gpu->physical].live_allocations--;
}

static size_t live_bytes_at(const AllocationMap &blocks, const void *address)
{
    auto block = blocks.find((uintptr_t)address);
    return block != blocks.end() && block->second.live ? block->second.bytes : 0;
}

// To TSan a block is written when it is freed: whatever is not ordered before that is a race.
static void announce_free(void *address)
{
    size_t bytes;
    {
        Guard guard(runtime().mutex);
        bytes = live_bytes_at(runtime().host_blocks, address);
        for (const auto &owner : runtime().gpus)
            bytes += live_bytes_at(owner->allocations, address);
    }
    announce_write(address, bytes);
}

void free_all(Gpu *gpu)
{
    Guard guard(runtime().mutex);
    for (auto block = gpu->allocations.begin(); block != gpu->allocations.end(); ++block)
        if (block->second.live)
            free_device_block(gpu, block);
}

// The block that begins at or before the address, or null.
static const AllocationMap::value_type *block_at(const AllocationMap &blocks, uintptr_t address)
{
    auto next = blocks.upper_bound(address);
    return next == blocks.begin() ? nullptr : &*--next;
}

static bool inside(const AllocationMap::value_type *block, uintptr_t address, size_t bytes)
{
    return block && block->second.live && address + bytes <= block->first + block->second.bytes;
}

static Gpu *owner_of(const void *address)
{
    for (const auto &gpu : runtime().gpus)
        if (address >= gpu->arena && address < gpu->arena + arena_bytes)
            return gpu.get();
    return nullptr;
}

Location locate(const void *address, size_t bytes)
{
    uintptr_t first = (uintptr_t)address;
    Gpu *gpu = owner_of(address);
    Guard guard(runtime().mutex);
    if (gpu)
        return {Location::device, gpu, inside(block_at(gpu->allocations, first), first, bytes)};
    const auto *block = block_at(runtime().host_blocks, first);
    if (block && first < block->first + block->second.bytes)
        return {Location::pinned, nullptr, inside(block, first, bytes)};
    return {Location::pageable, nullptr, true};
}

bool accessible(const Gpu *gpu, const Gpu *owner)
{
    Guard guard(runtime().mutex);
    return gpu == owner || gpu->peer_enabled[owner->ordinal];
}

void check_operand(const char *what, Gpu *gpu, const void *address, size_t bytes, Access access)
{
    Location location = locate(address, bytes);
    const char *use = access == Access::read ? "reads" : "writes";
    if (location.kind == Location::pageable)
        emulation_fail("%s on GPU %d %s %p, which is not memory of a GPU", what, gpu->ordinal, use, address);
    if (location.kind == Location::device && !accessible(gpu, location.gpu))
        emulation_fail("%s on GPU %d %s %p, memory of GPU %d, without peer access", what, gpu->ordinal, use,
                       address, location.gpu->ordinal);
    if (!location.inside)
        emulation_fail("%s on GPU %d %s %zu bytes at %p, which do not lie in one live allocation", what,
                       gpu->ordinal, use, bytes, address);
    if (access == Access::read) {
        announce_read(address, bytes);
        if (emulation_on_library_read)
            emulation_on_library_read(what, address, bytes);
        return;
    }
    announce_write(const_cast<void *>(address), bytes);
    if (emulation_on_copy)
        emulation_on_copy(const_cast<void *>(address), nullptr, bytes);
}

// ---- faults

// Tells what the address belonged to. The mutex may be held by the very thread that faulted.
static void explain_fault(const void *address)
{
    const Gpu *gpu = owner_of(address);
    bool locked = runtime().mutex.try_lock();
    const AllocationMap &blocks = gpu ? gpu->allocations : runtime().host_blocks;
    const auto *block = locked ? block_at(blocks, (uintptr_t)address) : nullptr;
    if (!gpu && (!block || (const char *)address >= block->second.pages + block->second.page_bytes + page)) {
        if (locked)
            runtime().mutex.unlock();
        return;
    }
    char memory[32] = "pinned memory";
    if (gpu)
        snprintf(memory, sizeof memory, "memory of GPU %d", gpu->ordinal);
    if (!block)
        emulation_fail("%s touched %p, %s that is not allocated", describe_position(), address, memory);
    if (!block->second.live)
        emulation_fail("%s touched %p, %s that has been freed (a block of %zu bytes)", describe_position(),
                       address, memory, block->second.bytes);
    emulation_fail("%s touched %p, %zu bytes past the end of a block of %zu bytes in %s", describe_position(),
                   address, (size_t)((uintptr_t)address - block->first - block->second.bytes),
                   block->second.bytes, memory);
}

static struct sigaction previous_action;

static void on_fault(int, siginfo_t *info, void *)
{
    explain_fault(info->si_addr);
    const char *region = fault_in_executor(info->si_addr);
    if (region)
        emulation_fail("%s touched %p: %s", describe_position(), info->si_addr, region);
    // Not ours: the instruction faults again, under whoever handled this before.
    sigaction(SIGSEGV, &previous_action, nullptr);
}

void install_fault_handler()
{
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, &previous_action);
}

void use_alternate_stack(void *memory, size_t bytes)
{
    stack_t stack = {};
    stack.ss_sp = memory;
    stack.ss_size = bytes;
    stack.ss_flags = memory ? 0 : SS_DISABLE;
    if (sigaltstack(&stack, nullptr) != 0)
        emulation_fail("no alternate signal stack");
}

} // namespace emulation

using namespace emulation;

extern "C" {

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    if (!out)
        return record(cudaErrorInvalidValue);
    *out = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    char *block;
    Allocation allocation;
    {
        Guard guard(runtime().mutex);
        uint64_t limit = settings().memory[gpu->physical];
        size_t rounded = round_up(bytes, alignment), page_bytes = round_up(rounded, page);
        if (bytes > limit || gpu->bytes_in_use + rounded > limit ||
            gpu->arena_used + page_bytes + page > arena_bytes)
            return record(cudaErrorMemoryAllocation);
        block = lay_out(gpu->arena + gpu->arena_used, bytes, &allocation);
        if (mprotect(allocation.pages, page_bytes, PROT_READ | PROT_WRITE) != 0)
            return record(cudaErrorMemoryAllocation);
        gpu->arena_used += page_bytes + page;
        gpu->bytes_in_use += rounded;
        gpu->allocations[(uintptr_t)block] = allocation;
        Figures &figures = runtime().figures[gpu->physical];
        figures.allocations++;
        figures.live_allocations++;
        if (figures.peak_bytes < gpu->bytes_in_use)
            figures.peak_bytes = gpu->bytes_in_use;
    }
    fill_new_block(block, allocation);
    *out = block;
    return cudaSuccess;
}

cudaError_t cudaFree(void *address)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess || !address)
        return error;
    announce_free(address);
    Guard guard(runtime().mutex);
    for (const auto &owner : runtime().gpus) {
        auto block = owner->allocations.find((uintptr_t)address);
        if (block != owner->allocations.end() && block->second.live) {
            free_device_block(owner.get(), block);
            return cudaSuccess;
        }
    }
    return record(cudaErrorInvalidValue);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    Guard guard(runtime().mutex);
    *total_bytes = settings().memory[gpu->physical];
    *free_bytes = *total_bytes - gpu->bytes_in_use;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess)
        return error;
    if (!out ||
        (flags & ~(unsigned)(cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined)))
        return record(cudaErrorInvalidValue);
    *out = nullptr;
    if (bytes == 0)
        return cudaSuccess;
    if (bytes > arena_bytes)
        return record(cudaErrorMemoryAllocation);
    size_t page_bytes = round_up(round_up(bytes, alignment), page);
    void *pages =
        mmap(nullptr, page_bytes + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages, page_bytes, PROT_READ | PROT_WRITE) != 0)
        return record(cudaErrorMemoryAllocation);
    Allocation allocation;
    char *block = lay_out(static_cast<char *>(pages), bytes, &allocation);
    fill_new_block(block, allocation);
    Guard guard(runtime().mutex);
    runtime().host_blocks[(uintptr_t)block] = allocation;
    *out = block;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *address)
{
    Gpu *gpu;
    cudaError_t error = enter(__func__, &gpu);
    if (error != cudaSuccess || !address)
        return error;
    announce_free(address);
    Guard guard(runtime().mutex);
    auto block = runtime().host_blocks.find((uintptr_t)address);
    if (block == runtime().host_blocks.end() || !block->second.live)
        return record(cudaErrorInvalidValue);
    check_canaries(block->first, block->second);
    revoke(&block->second);
    return cudaSuccess;
}

} // extern "C"
