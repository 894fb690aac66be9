// Sees each load and store of the kernels. They are compiled with -fsanitize=thread, which makes g++ call
// __tsan_read4(address) and its kin, and these functions are here instead of in libtsan.
//
// An access has to lie in a live block of memory of the launching GPU, of one that it has peer access to, or
// pinned; be aligned to its size; read only what has been written; and race with no other thread's. The first
// that does not ends the process with a line that names kernel, block, thread and memory. A lock lets one
// grid run at a time, so there is one picture of memory for all GPUs; what streams do in a wrong order is
// shown by ThreadSanitizer instead.
#include "checker.h"

#include <cstdio>
#include <cstring>
#include <link.h>
#include <malloc.h>
#include <unordered_map>

using namespace emulation;

extern "C" {
extern __thread uint3 threadIdx, blockIdx, blockDim, gridDim;
extern __thread void *emulation_dynamic_shared;
extern __thread int emulation_lane;
}

namespace checker
{

static const uintptr_t page_bytes = 4096, word = 4;

// What is known of a page. Device and pinned blocks take whole pages, so a page belongs to one block.
struct Page {
    enum Kind { device, pinned, shared } kind;
    Gpu *owner; // device
    uintptr_t block;
    const Allocation *allocation; // null: shared
    uintptr_t granule = word;     // bytes of a cell; 1 once smaller elements than words have been seen
    std::unique_ptr<Cell[]> cells;
    std::unique_ptr<unsigned char[]> written; // by byte; device only
};

struct Range {
    uintptr_t begin = 0, end = 0;
    bool contains(uintptr_t address) const
    {
        return address >= begin && address < end;
    }
};

// Where a host thread finds what is no memory of a GPU.
struct Surroundings {
    Range shared;                 // variables of this thread: those of blocks, and the built-in ones
    std::vector<Range> read_only; // tables of constants in the program
};

static Mutex pages_mutex, grid_mutex;                // the second is held by the thread whose grid runs
static std::unordered_map<uintptr_t, Page *> *pages; // a page is never destroyed: threads remember it
static __thread const Grid *running;
static __thread Surroundings *surroundings;
static Range closure;
static uint32_t launches;
static uint64_t block_number;

// ---- pages

// The block that the address lies in or nearest to, or null where there is none.
static const AllocationMap::value_type *block_near(const Location &location, uintptr_t address)
{
    Guard guard(runtime().mutex);
    const AllocationMap &blocks =
        location.kind == Location::device ? location.gpu->allocations : runtime().host_blocks;
    auto next = blocks.upper_bound(address), before = next;
    if (next == blocks.begin())
        return next == blocks.end() ? nullptr : &*next;
    --before;
    uintptr_t end = before->first + before->second.bytes;
    bool nearer = next != blocks.end() && address >= end && next->first - address < address - end;
    return nearer ? &*next : &*before;
}

static Page *new_page(Page::Kind kind)
{
    auto *page = new Page;
    page->kind = kind;
    page->owner = nullptr;
    page->block = 0;
    page->allocation = nullptr;
    return page;
}

static Page *make_page(uintptr_t address)
{
    Location location = locate((void *)address, 0);
    if (location.kind == Location::pageable)
        return nullptr;
    const auto *block = block_near(location, address);
    if (!block)
        return nullptr;
    const Allocation &allocation = block->second;
    if (address - (uintptr_t)allocation.pages >= allocation.page_bytes)
        return nullptr;
    Page *page = new_page(location.kind == Location::device ? Page::device : Page::pinned);
    page->owner = location.gpu;
    page->block = block->first;
    page->allocation = &allocation;
    if (page->kind == Page::device)
        page->written.reset(new unsigned char[page_bytes]());
    return page;
}

// The page of the address, or null where it is no memory that kernels can have.
static Page *page_of(uintptr_t address, bool shared)
{
    struct Last {
        uintptr_t number;
        Page *page;
    };
    static __thread Last last[64];
    uintptr_t number = address / page_bytes;
    Last &slot = last[number % 64];
    if (slot.page && slot.number == number && (slot.page->kind == Page::shared) == shared)
        return slot.page;
    Guard guard(pages_mutex);
    if (!pages)
        pages = new std::unordered_map<uintptr_t, Page *>;
    Page *&page = (*pages)[number];
    // Where the variables of an ended thread lay, there may be pinned memory now.
    if (!page || (page->kind == Page::shared) != shared)
        page = shared ? new_page(Page::shared) : make_page(address);
    slot = {number, page};
    return page;
}

static Cell *cells_of(Page *page, size_t bytes)
{
    if (!page->cells)
        page->cells.reset(new Cell[page_bytes / page->granule]);
    if (bytes < word && page->granule == word) {
        std::unique_ptr<Cell[]> finer(new Cell[page_bytes]);
        for (size_t i = 0; i < page_bytes; i++)
            finer[i] = page->cells[i / word];
        page->cells = std::move(finer);
        page->granule = 1;
    }
    return page->cells.get();
}

// ---- reports

static const char *verb(Use use)
{
    return use == Use::read ? "reads" : use == Use::write ? "writes" : "changes";
}

// "byte 400 of a block of 400 bytes in memory of GPU 1"
static const char *describe_memory(uintptr_t address, bool shared)
{
    static char text[160];
    if (shared) {
        snprintf(text, sizeof text, "the block's shared memory");
        return text;
    }
    Location location = locate((void *)address, 0);
    if (location.kind == Location::pageable)
        return "pageable host memory";
    char owner[32] = "pinned memory";
    if (location.gpu)
        snprintf(owner, sizeof owner, "memory of GPU %d", location.gpu->ordinal);
    const auto *block = block_near(location, address);
    if (!block)
        snprintf(text, sizeof text, "%s before its first block", owner);
    else
        snprintf(text, sizeof text, "byte %td of %s block of %zu bytes in %s",
                 (ptrdiff_t)(address - block->first), block->second.live ? "a" : "a freed",
                 block->second.bytes, owner);
    return text;
}

[[noreturn]] static void refuse(uintptr_t address, size_t bytes, Use use, bool shared, const char *reason)
{
    emulation_fail("%s %s %zu bytes at %p, %s: %s", describe_position(), verb(use), bytes, (void *)address,
                   describe_memory(address, shared), reason);
}

[[noreturn]] static void refuse_race(uintptr_t address, size_t bytes, Use use, bool shared, const Race &race)
{
    char reason[160];
    const char *did = race.other_wrote ? "wrote" : "read";
    if (race.same_block)
        snprintf(reason, sizeof reason,
                 "a race with thread %u of the block, which %s it with no barrier between", race.thread, did);
    else
        snprintf(reason, sizeof reason, "a race with block %u of the launch, which %s it", race.block, did);
    refuse(address, bytes, use, shared, reason);
}

// ---- an access

static Position position()
{
    uint32_t thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    return {launches, (uint32_t)block_number, thread};
}

static bool within(uintptr_t address, const void *variable, size_t bytes)
{
    return address - (uintptr_t)variable < bytes;
}

static bool built_in(uintptr_t address)
{
    return within(address, &threadIdx, sizeof threadIdx) || within(address, &blockIdx, sizeof blockIdx) ||
           within(address, &blockDim, sizeof blockDim) || within(address, &gridDim, sizeof gridDim) ||
           within(address, &emulation_dynamic_shared, sizeof emulation_dynamic_shared) ||
           within(address, &emulation_lane, sizeof emulation_lane);
}

static void check_cells(Page *page, uintptr_t address, size_t bytes, Use use, bool shared)
{
    Cell *cells = cells_of(page, bytes);
    const Position at = position();
    const uintptr_t granule = page->granule, begin = address % page_bytes / granule;
    const uintptr_t end = (address % page_bytes + bytes + granule - 1) / granule;
    for (uintptr_t i = begin; i < end; i++) {
        if (shared && use != Use::write &&
            (cells[i].write.launch != at.launch || cells[i].write.block != at.block))
            refuse(address, bytes, use, shared, "no thread of the block has written it");
        Race race = touch(&cells[i], at, use, shared);
        if (race.found)
            refuse_race(address, bytes, use, shared, race);
    }
}

static void check_global(Page *page, uintptr_t address, size_t bytes, Use use)
{
    if (!page->allocation->live)
        refuse(address, bytes, use, false, "it has been freed");
    if (address < page->block || address + bytes > page->block + page->allocation->bytes)
        refuse(address, bytes, use, false, "out of bounds");
    if (page->kind != Page::device)
        return;
    if (page->owner != running->gpu && !accessible(running->gpu, page->owner))
        refuse(address, bytes, use, false, "without peer access");
    unsigned char *written = page->written.get() + address % page_bytes;
    if (use == Use::write)
        memset(written, 1, bytes);
    else if (memchr(written, 0, bytes))
        refuse(address, bytes, use, false, "it has never been written");
}

// Within one page.
static void check_piece(uintptr_t address, size_t bytes, Use use, bool shared, const void *code)
{
    Page *page = page_of(address, shared);
    if (!page)
        refuse(address, bytes, use, shared, "out of bounds");
    if (!shared)
        check_global(page, address, bytes, use);
    check_cells(page, address, bytes, use, shared);
    if (!shared && use != Use::atomic)
        note_request(running->kernel, code, position(), address, bytes, use == Use::write);
}

static void check_access(uintptr_t address, size_t bytes, Use use, bool aligned, const void *code)
{
    const uintptr_t dynamic = (uintptr_t)emulation_dynamic_shared;
    bool shared = false;
    if (surroundings->shared.contains(address)) {
        if (built_in(address))
            return;
        shared = true; // asked first: glibc keeps these variables at the end of a thread's stack
    } else if (on_running_stack((void *)address) || (use == Use::read && closure.contains(address))) {
        return;
    } else if (address >= dynamic && address < dynamic + (running->shared_bytes + 127) / 128 * 128) {
        shared = true;
        if (address + bytes > dynamic + running->shared_bytes)
            refuse(address, bytes, use, shared, "past its end");
    } else if (use == Use::read) {
        for (const Range &range : surroundings->read_only)
            if (range.contains(address))
                return;
    }
    if (aligned && address % bytes != 0) {
        char reason[64];
        snprintf(reason, sizeof reason, "not aligned to %zu bytes", bytes);
        refuse(address, bytes, use, shared, reason);
    }
    while (bytes > 0) {
        uintptr_t rest = page_bytes - address % page_bytes;
        size_t piece = bytes < rest ? bytes : rest;
        check_piece(address, piece, use, shared, code);
        address += piece;
        bytes -= piece;
    }
}

// Structures that are aligned to a word are loaded word by word.
static void check_words(uintptr_t address, size_t bytes, Use use, const char *code)
{
    while (bytes > 0) {
        size_t piece = bytes < word ? bytes : word;
        check_access(address, piece, use, piece == word, code);
        address += piece;
        bytes -= piece;
    }
}

// ---- the host thread around a kernel

static int look_at_module(struct dl_phdr_info *info, size_t, void *)
{
    const uintptr_t variables = (uintptr_t)info->dlpi_tls_data;
    Range own;
    std::vector<Range> read_only;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) &part = info->dlpi_phdr[i];
        if (part.p_type == PT_TLS && variables)
            own = {variables, variables + part.p_memsz};
        if (part.p_type == PT_LOAD && !(part.p_flags & PF_W))
            read_only.push_back(
                {info->dlpi_addr + part.p_vaddr, info->dlpi_addr + part.p_vaddr + part.p_memsz});
    }
    if (!own.contains((uintptr_t)&threadIdx))
        return 0;
    surroundings->shared = own;
    surroundings->read_only = std::move(read_only);
    return 1;
}

static void look_around()
{
    if (surroundings)
        return;
    surroundings = new Surroundings; // of a stream's thread, few and small
    dl_iterate_phdr(look_at_module, nullptr);
    if (surroundings->shared.begin == 0)
        emulation_fail("the checker does not find the shared variables of kernels");
}

// ---- memory written and read by others than kernels

static void mark_written(uintptr_t address, size_t bytes, const unsigned char *as)
{
    while (bytes > 0) {
        uintptr_t rest = page_bytes - address % page_bytes;
        size_t piece = bytes < rest ? bytes : rest;
        Page *page = page_of(address, false);
        if (page && page->written) {
            if (as)
                memcpy(page->written.get() + address % page_bytes, as, piece);
            else
                memset(page->written.get() + address % page_bytes, 1, piece);
        }
        address += piece;
        bytes -= piece;
        as = as ? as + piece : nullptr;
    }
}

// Which bytes of device memory have been written; of other memory all have.
static std::vector<unsigned char> written_bytes(uintptr_t address, size_t bytes)
{
    std::vector<unsigned char> out(bytes, 1);
    for (size_t i = 0; i < bytes;) {
        uintptr_t rest = page_bytes - (address + i) % page_bytes;
        size_t piece = std::min(bytes - i, (size_t)rest);
        Page *page = page_of(address + i, false);
        if (page && page->written)
            memcpy(&out[i], page->written.get() + (address + i) % page_bytes, piece);
        i += piece;
    }
    return out;
}

} // namespace checker

using namespace checker;

extern "C" {

void emulation_on_kernel(const Grid *grid)
{
    if (!grid) {
        close_requests();
        running = nullptr;
        grid_mutex.unlock();
        return;
    }
    look_around();
    grid_mutex.lock();
    launches++;
    closure.begin = (uintptr_t)grid->closure;
    closure.end = closure.begin + malloc_usable_size(grid->closure);
    running = grid;
}

void emulation_on_block(uint64_t block)
{
    close_requests();
    block_number = block;
    begin_block((int)(blockDim.x * blockDim.y * blockDim.z));
}

void emulation_on_barrier()
{
    pass_barrier();
}

void emulation_on_syncwarp(int warp, unsigned mask)
{
    meet_lanes(warp, mask);
}

void emulation_on_copy(void *destination, const void *source, size_t bytes)
{
    if (locate(destination, 0).kind != Location::device)
        return;
    if (source && locate(source, 0).kind == Location::device)
        mark_written((uintptr_t)destination, bytes, written_bytes((uintptr_t)source, bytes).data());
    else
        mark_written((uintptr_t)destination, bytes, nullptr);
}

void emulation_on_library_read(const char *what, const void *source, size_t bytes)
{
    std::vector<unsigned char> written = written_bytes((uintptr_t)source, bytes);
    const void *missing = bytes ? memchr(written.data(), 0, bytes) : nullptr;
    if (!missing)
        return;
    uintptr_t address = (uintptr_t)source + (uintptr_t)((const unsigned char *)missing - written.data());
    emulation_fail("%s reads %p, %s: it has never been written", what, (void *)address,
                   describe_memory(address, false));
}

void emulation_on_atomic(const void *address, size_t bytes)
{
    if (running)
        check_access((uintptr_t)address, bytes, Use::atomic, true, __builtin_return_address(0));
}

// ---- what g++ calls: of n bytes, aligned to n as far as the type says; or aligned to less

#define ACCESSES_OF(n)                                                                                 \
    void __tsan_read##n(void *address)                                                                 \
    {                                                                                                  \
        if (running)                                                                                   \
            check_access((uintptr_t)address, n, Use::read, true, __builtin_return_address(0));         \
    }                                                                                                  \
    void __tsan_write##n(void *address)                                                                \
    {                                                                                                  \
        if (running)                                                                                   \
            check_access((uintptr_t)address, n, Use::write, true, __builtin_return_address(0));        \
    }                                                                                                  \
    void __tsan_unaligned_read##n(void *address)                                                       \
    {                                                                                                  \
        if (running)                                                                                   \
            check_words((uintptr_t)address, n, Use::read, (const char *)__builtin_return_address(0));  \
    }                                                                                                  \
    void __tsan_unaligned_write##n(void *address)                                                      \
    {                                                                                                  \
        if (running)                                                                                   \
            check_words((uintptr_t)address, n, Use::write, (const char *)__builtin_return_address(0)); \
    }

ACCESSES_OF(1)
ACCESSES_OF(2)
ACCESSES_OF(4)
ACCESSES_OF(8)
ACCESSES_OF(16)

// Also called by the emulation itself, where no grid runs on the thread.
void __tsan_read_range(void *address, unsigned long bytes)
{
    if (running)
        check_words((uintptr_t)address, bytes, Use::read, (const char *)__builtin_return_address(0));
}

void __tsan_write_range(void *address, unsigned long bytes)
{
    if (running)
        check_words((uintptr_t)address, bytes, Use::write, (const char *)__builtin_return_address(0));
}

void __tsan_init()
{
}

void __tsan_func_entry(void *)
{
}

void __tsan_func_exit()
{
}

} // extern "C"
