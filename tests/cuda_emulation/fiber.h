// Fibers: stacks of their own within one host thread, for CUDA threads that wait.
//
// TSan is not told of them: to it a stream is one thread, which is all that the order of streams needs. With
// a TSan thread for each of a block's hundreds, every hand-over would cost a walk over thousands of clocks.
// Its picture of the stack holds, as every function that a kernel enters on some fiber is left by the end of
// the block; only the callers that a report names may be another CUDA thread's.
#pragma once

#include <cstddef>

namespace emulation
{

struct Fiber {
    void *stack_pointer = nullptr; // while it does not run
    char *stack = nullptr;         // lowest address, a guard page; null for the host thread's own stack
};

constexpr size_t fiber_stack_bytes = 128 << 10;

// A fiber that runs `entry` when it is first switched to; entry must not return.
Fiber *make_fiber(void (*entry)());
// Of a fiber that does not run.
void destroy_fiber(Fiber *fiber);
// Describes the calling host thread as a fiber.
void adopt_thread(Fiber *fiber);
void switch_fiber(Fiber *from, Fiber *to);

} // namespace emulation
