#include "fiber.h"
#include "internal.h"

#include <sys/mman.h>

#ifdef __x86_64__
// Saves what a call must preserve, changes stacks, restores.
extern "C" void emulation_switch_stack(void **save, void *to);
asm(R"(
    .text
    .globl emulation_switch_stack
    .hidden emulation_switch_stack
    .type emulation_switch_stack, @function
emulation_switch_stack:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
    .size emulation_switch_stack, . - emulation_switch_stack
)");
#else
#include <ucontext.h>
#endif

namespace emulation
{

static char *make_stack()
{
    void *stack = mmap(nullptr, fiber_stack_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, 4096, PROT_NONE) != 0)
        emulation_fail("no memory for the stack of a CUDA thread");
    return static_cast<char *>(stack);
}

Fiber *make_fiber(void (*entry)())
{
    auto *fiber = new Fiber;
    fiber->stack = make_stack();
#ifdef __x86_64__
    auto **top = (void **)(fiber->stack + fiber_stack_bytes - 64);
    *--top = nullptr; // where entry would return to; keeps the stack aligned as after a call
    *--top = (void *)entry;
    for (int saved_register = 0; saved_register < 6; saved_register++)
        *--top = nullptr;
    fiber->stack_pointer = top;
#else
    auto *context = new ucontext_t;
    getcontext(context);
    context->uc_stack.ss_sp = fiber->stack;
    context->uc_stack.ss_size = fiber_stack_bytes;
    context->uc_link = nullptr;
    makecontext(context, entry, 0);
    fiber->stack_pointer = context;
#endif
    return fiber;
}

void destroy_fiber(Fiber *fiber)
{
    munmap(fiber->stack, fiber_stack_bytes);
#ifndef __x86_64__
    delete (ucontext_t *)fiber->stack_pointer;
#endif
    delete fiber;
}

void adopt_thread(Fiber *fiber)
{
#ifdef __x86_64__
    (void)fiber;
#else
    if (!fiber->stack_pointer)
        fiber->stack_pointer = new ucontext_t;
#endif
}

void switch_fiber(Fiber *from, Fiber *to)
{
#ifdef __x86_64__
    emulation_switch_stack(&from->stack_pointer, to->stack_pointer);
#else
    swapcontext((ucontext_t *)from->stack_pointer, (const ucontext_t *)to->stack_pointer);
#endif
}

} // namespace emulation
