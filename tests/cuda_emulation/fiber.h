// Fibers: stacks of their own within one host thread, for CUDA threads that wait.
//
// Compiled without -fsanitize=thread: TSan must be told of a switch directly before it, by code that it does
// not follow itself.
#pragma once

#include <cstddef>

namespace emulation
{

struct Fiber {
    void *stack_pointer = nullptr; // while it does not run
    void *tsan = nullptr;
    char *stack = nullptr; // lowest address, a guard page; null for the host thread's own stack
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
