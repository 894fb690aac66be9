// Runs a grid on the calling stream's host thread, block after block.
//
// The threads of a block run one after another on the host thread's own stack, so a kernel without barriers
// is a plain loop over its threads. Only when one has to wait, at a barrier or in a warp operation, is a
// fiber started that runs the rest. A fiber never ends: it goes back to a pool and runs threads of later
// blocks.
//
// With a seed, blocks and threads run in another order in each launch.
#include "fiber.h"
#include "internal.h"

#include <cstdio>
#include <cstring>
#include <numeric>
#include <pthread.h>
#include <sys/mman.h>

extern "C" {
__thread uint3 threadIdx, blockIdx, blockDim, gridDim;
__thread void *emulation_dynamic_shared;
__thread int emulation_lane;
}

namespace emulation
{

static const size_t shared_capacity = 228 << 10; // a multiple of the page size

enum class State { not_started, running, ready, at_barrier, in_warp_operation, exited };

struct CudaThread {
    uint3 index;
    State state;
    Fiber *fiber; // that holds its stack while it waits
};

// Lanes of one warp that meet in one operation.
struct WarpMeeting {
    unsigned mask = 0, arrived = 0, not_yet_read = 0, votes = 0;
    uint64_t bits[32];
    bool open = false;
};

class Executor
{
  public:
    Executor();
    ~Executor();
    Executor(const Executor &) = delete;
    Executor &operator=(const Executor &) = delete;
    void run(const Grid &grid);
    void barrier(const char *file, int line);
    int barrier_count(const char *file, int line, int predicate);
    uint64_t warp_exchange(unsigned mask, uint64_t bits, int source, unsigned *votes, const char *operation);
    const char *describe();
    const char *explain_address(const void *address);
    bool on_running_stack(const char *address) const;

    // The body of every fiber of the pool.
    [[noreturn]] void run_fiber();

  private:
    void prepare(const Grid &grid);
    void run_block(uint64_t block);
    void shuffle_threads();
    void run_not_started();
    void become(int thread);
    void finish_current();
    void wait_current(State state);
    Fiber *next_fiber();
    Fiber *idle_fiber();
    void change_to(Fiber *to);
    void release_barrier();
    void check_mask(unsigned mask, int source, const char *operation);
    WarpMeeting *join_meeting(unsigned mask, int lane);

    Fiber own_stack;
    char *thread_stack, *thread_stack_end;
    Fiber *running = nullptr;
    std::vector<Fiber *> idle, all;

    const Grid *grid = nullptr;
    std::vector<CudaThread> threads;
    std::vector<int> order; // in which threads are started
    int count = 0, started = 0, live = 0, current = 0;
    std::vector<int> ready;
    size_t ready_taken = 0;

    int at_barrier = 0;
    const char *barrier_file = nullptr;
    int barrier_line = 0, barrier_votes = 0, last_votes = 0;
    std::vector<std::vector<std::unique_ptr<WarpMeeting>>> meetings; // by warp
    int open_meetings = 0;

    char *shared_pages;
    uint64_t random = 0;
    char text[256];
};

static __thread Executor *executor;

static void fiber_entry()
{
    executor->run_fiber();
}

Executor::Executor()
{
    void *pages = mmap(nullptr, shared_capacity + 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED || mprotect(pages, shared_capacity, PROT_READ | PROT_WRITE) != 0)
        emulation_fail("no memory for a block's shared memory");
    shared_pages = static_cast<char *>(pages);

    pthread_attr_t attributes;
    void *stack;
    size_t bytes;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0 ||
        pthread_attr_getstack(&attributes, &stack, &bytes) != 0)
        emulation_fail("a stream's thread does not know its stack");
    pthread_attr_destroy(&attributes);
    thread_stack = static_cast<char *>(stack);
    thread_stack_end = thread_stack + bytes;
}

Executor::~Executor()
{
    for (Fiber *fiber : all)
        destroy_fiber(fiber);
    munmap(shared_pages, shared_capacity + 4096);
}

// ---- the steps of every CUDA thread

inline void Executor::become(int thread)
{
    current = thread;
    threadIdx = threads[(size_t)thread].index;
    emulation_lane = thread & 31;
    threads[(size_t)thread].state = State::running;
}

inline void Executor::finish_current()
{
    threads[(size_t)current].state = State::exited;
    live--;
    if (open_meetings == 0)
        return;
    for (const auto &meeting : meetings[(size_t)current / 32])
        if (meeting->open && (meeting->mask >> (current & 31) & 1))
            emulation_fail("%s: lane %d exits while lanes of mask %08x wait for it", describe(), current & 31,
                           meeting->mask);
}

// ---- a grid and its blocks

void Executor::prepare(const Grid &of)
{
    grid = &of;
    count = (int)(of.block.x * of.block.y * of.block.z);
    threads.resize((size_t)count);
    order.resize((size_t)count);
    meetings.resize((size_t)(count + 31) / 32);
    int thread = 0;
    for (unsigned z = 0; z < of.block.z; z++)
        for (unsigned y = 0; y < of.block.y; y++)
            for (unsigned x = 0; x < of.block.x; x++)
                threads[(size_t)thread++].index = uint3{x, y, z};
    std::iota(order.begin(), order.end(), 0);
    blockDim = uint3{of.block.x, of.block.y, of.block.z};
    gridDim = uint3{of.grid.x, of.grid.y, of.grid.z};
    // Ends at the guard page as nearly as its alignment allows.
    size_t rounded = (of.shared_bytes + 127) / 128 * 128;
    emulation_dynamic_shared = shared_pages + shared_capacity - rounded;
    adopt_thread(&own_stack);
    running = &own_stack;
}

void Executor::run(const Grid &of)
{
    static std::atomic<uint64_t> launches{0};
    prepare(of);
    uint64_t blocks = (uint64_t)of.grid.x * of.grid.y * of.grid.z;
    uint64_t seed = settings().seed, step = 1, first = 0;
    if (seed != 0) {
        random = seed + ++launches;
        first = next_random(&random) % blocks;
        do
            step = 1 + next_random(&random) % blocks;
        while (std::gcd(step, blocks) != 1);
    }
    for (uint64_t i = 0; i < blocks; i++) {
        if (seed != 0)
            shuffle_threads();
        run_block((uint64_t)(((unsigned __int128)i * step + first) % blocks));
    }
    grid = nullptr;
}

// In turn as they are, backwards, or all mixed up.
void Executor::shuffle_threads()
{
    uint64_t choice = next_random(&random) % 3;
    for (int i = 0; i < count; i++)
        order[(size_t)i] = choice == 1 ? count - 1 - i : i;
    if (choice == 2)
        for (size_t i = (size_t)count - 1; i > 0; i--)
            std::swap(order[i], order[next_random(&random) % (i + 1)]);
}

void Executor::run_block(uint64_t block)
{
    blockIdx = uint3{(unsigned)(block % grid->grid.x), (unsigned)(block / grid->grid.x % grid->grid.y),
                     (unsigned)(block / grid->grid.x / grid->grid.y)};
    if (grid->shared_bytes > 0) // starts undefined
        memset(emulation_dynamic_shared, 0xff, grid->shared_bytes);
    for (CudaThread &thread : threads)
        thread.state = State::not_started;
    if (emulation_on_block)
        emulation_on_block(block);
    started = at_barrier = barrier_votes = 0;
    live = count;
    ready.clear();
    ready_taken = 0;
    run_not_started();
    if (live > 0)
        change_to(next_fiber()); // comes back when the last thread has exited
}

void Executor::run_not_started()
{
    // The one loop that every CUDA thread goes through: keep it short.
    void (*run)(void *) = grid->run;
    void *closure = grid->closure;
    while (started < count) {
        become(order[(size_t)started++]);
        run(closure);
        finish_current();
    }
}

void Executor::run_fiber()
{
    for (;;) {
        run_not_started();
        idle.push_back(running);
        change_to(next_fiber());
    }
}

// ---- threads of a block

void Executor::wait_current(State state)
{
    threads[(size_t)current].state = state;
    threads[(size_t)current].fiber = running;
    change_to(next_fiber());
    become(current);
}

// Who goes on when the running fiber cannot. Where that is a waiting thread, it has become the current one.
Fiber *Executor::next_fiber()
{
    for (;;) {
        if (started < count)
            return idle_fiber();
        if (ready_taken < ready.size()) {
            current = ready[ready_taken++];
            if (ready_taken == ready.size()) {
                ready.clear();
                ready_taken = 0;
            }
            return threads[(size_t)current].fiber;
        }
        if (live == 0)
            return &own_stack;
        if (at_barrier < live)
            emulation_fail(
                "%s: deadlock: of %d threads %d wait at __syncthreads and %d for lanes of their warp",
                describe(), live, at_barrier, live - at_barrier);
        if (live < count)
            emulation_fail("%s: %d threads wait at __syncthreads (%s:%d), %d have exited", describe(), live,
                           barrier_file, barrier_line, count - live);
        release_barrier();
    }
}

Fiber *Executor::idle_fiber()
{
    if (idle.empty()) {
        Fiber *made = make_fiber(fiber_entry);
        all.push_back(made);
        return made;
    }
    Fiber *fiber = idle.back();
    idle.pop_back();
    return fiber;
}

void Executor::change_to(Fiber *to)
{
    Fiber *from = running;
    if (to == from)
        return;
    running = to;
    switch_fiber(from, to);
}

// ---- barriers

void Executor::release_barrier()
{
    for (int thread : order) {
        threads[(size_t)thread].state = State::ready;
        ready.push_back(thread);
    }
    if (emulation_on_barrier)
        emulation_on_barrier();
    at_barrier = 0;
    last_votes = barrier_votes;
    barrier_votes = 0;
}

void Executor::barrier(const char *file, int line)
{
    if (at_barrier == 0) {
        barrier_file = file;
        barrier_line = line;
    } else if (barrier_line != line || strcmp(barrier_file, file) != 0) {
        emulation_fail("%s waits at __syncthreads (%s:%d), other threads of its block at another (%s:%d)",
                       describe(), file, line, barrier_file, barrier_line);
    }
    at_barrier++;
    wait_current(State::at_barrier);
}

int Executor::barrier_count(const char *file, int line, int predicate)
{
    barrier_votes += predicate;
    barrier(file, line);
    return last_votes; // of the barrier just passed: the next is not complete before all have read this
}

// ---- warp operations

void Executor::check_mask(unsigned mask, int source, const char *operation)
{
    int lane = current & 31, first = current & ~31;
    if (!(mask >> lane & 1))
        emulation_fail("%s: %s with mask %08x, which does not name the calling lane %d", describe(),
                       operation, mask, lane);
    if (!(mask >> source & 1))
        emulation_fail("%s: %s reads lane %d, which mask %08x does not name", describe(), operation, source,
                       mask);
    for (int other = 0; other < 32; other++) {
        if (!(mask >> other & 1))
            continue;
        if (first + other >= count)
            emulation_fail("%s: %s with mask %08x, but the warp has no lane %d", describe(), operation, mask,
                           other);
        if (threads[(size_t)(first + other)].state == State::exited)
            emulation_fail("%s: %s with mask %08x, but lane %d has exited", describe(), operation, mask,
                           other);
    }
}

// The open meeting of this mask that the lane has not joined yet, or a new one.
WarpMeeting *Executor::join_meeting(unsigned mask, int lane)
{
    auto &of_warp = meetings[(size_t)current / 32];
    WarpMeeting *unused = nullptr;
    for (const auto &meeting : of_warp) {
        if (meeting->open && meeting->mask == mask && !(meeting->arrived >> lane & 1))
            return meeting.get();
        if (!meeting->open && meeting->not_yet_read == 0)
            unused = meeting.get();
    }
    if (!unused) {
        of_warp.push_back(std::make_unique<WarpMeeting>());
        unused = of_warp.back().get();
    }
    unused->mask = unused->not_yet_read = mask;
    unused->arrived = unused->votes = 0;
    unused->open = true;
    open_meetings++;
    return unused;
}

uint64_t Executor::warp_exchange(unsigned mask, uint64_t bits, int source, unsigned *votes,
                                 const char *operation)
{
    int lane = current & 31, warp = current / 32;
    check_mask(mask, source & 31, operation);
    WarpMeeting *meeting = join_meeting(mask, lane);
    meeting->bits[lane] = bits;
    meeting->arrived |= 1u << lane;
    if (bits)
        meeting->votes |= 1u << lane;
    if (meeting->arrived == mask) {
        meeting->open = false;
        open_meetings--;
        // Of the operations of a warp it alone orders memory.
        if (emulation_on_syncwarp && strcmp(operation, "__syncwarp") == 0)
            emulation_on_syncwarp(warp, mask);
        for (int other = 0; other < 32; other++)
            if (other != lane && (mask >> other & 1)) {
                int thread = warp * 32 + other;
                threads[(size_t)thread].state = State::ready;
                ready.push_back(thread);
            }
    } else {
        wait_current(State::in_warp_operation);
    }
    if (votes)
        *votes = meeting->votes;
    meeting->not_yet_read &= ~(1u << lane);
    return meeting->bits[source & 31];
}

// ---- reports

const char *Executor::describe()
{
    if (!grid)
        return nullptr;
    snprintf(text, sizeof text, "kernel %s on GPU %d, block (%u,%u,%u), thread (%u,%u,%u)", grid->kernel,
             grid->gpu->ordinal, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
    return text;
}

const char *Executor::explain_address(const void *address)
{
    auto *at = static_cast<const char *>(address);
    if (at >= shared_pages + shared_capacity && at < shared_pages + shared_capacity + 4096)
        return "past the end of the block's dynamic shared memory";
    for (const Fiber *fiber : all)
        if (at >= fiber->stack && at < fiber->stack + 4096)
            return "a CUDA thread has used up its stack";
    return nullptr;
}

bool Executor::on_running_stack(const char *address) const
{
    if (running != &own_stack)
        return address >= running->stack && address < running->stack + fiber_stack_bytes;
    return address >= thread_stack && address < thread_stack_end;
}

void run_grid(const Grid &grid)
{
    if (!executor)
        executor = new Executor; // another launch on the stream will come
    if (emulation_on_kernel)
        emulation_on_kernel(&grid);
    executor->run(grid);
    if (emulation_on_kernel)
        emulation_on_kernel(nullptr);
}

bool on_running_stack(const void *address)
{
    return executor->on_running_stack(static_cast<const char *>(address));
}

void discard_executor()
{
    delete executor;
    executor = nullptr;
}

const char *describe_position()
{
    const char *text = executor ? executor->describe() : nullptr;
    return text ? text : "code outside kernels";
}

const char *fault_in_executor(const void *address)
{
    return executor ? executor->explain_address(address) : nullptr;
}

} // namespace emulation

extern "C" {

void emulation_barrier(const char *file, int line)
{
    emulation::executor->barrier(file, line);
}

int emulation_barrier_count(const char *file, int line, int predicate)
{
    return emulation::executor->barrier_count(file, line, predicate);
}

uint64_t emulation_warp_exchange(unsigned mask, uint64_t bits, int source, unsigned *votes,
                                 const char *operation)
{
    return emulation::executor->warp_exchange(mask, bits, source, votes, operation);
}

} // extern "C"
