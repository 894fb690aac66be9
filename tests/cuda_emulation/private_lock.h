// The runtime's own locks, invisible to ThreadSanitizer.
//
// TSan infers "A happened before B" from every lock that it sees. Were the emulation's locks among them, two
// streams would look ordered because both went through the emulation, and a missing cudaStreamWaitEvent would
// stay unreported. So the locks are futexes driven by native atomics, in files compiled without
// -fsanitize=thread (pthread mutexes are intercepted even there), and exactly the orderings that CUDA
// promises are announced by happens_before() and happens_after().
#pragma once

#include <atomic>
#include <climits>
#include <cstdint>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

// Absent (null) where libtsan is not linked in.
extern "C" {
void __tsan_acquire(void *) __attribute__((weak));
void __tsan_release(void *) __attribute__((weak));
void __tsan_read_range(void *, unsigned long) __attribute__((weak));
void __tsan_write_range(void *, unsigned long) __attribute__((weak));
void AnnotateIgnoreReadsBegin(const char *, int) __attribute__((weak));
void AnnotateIgnoreReadsEnd(const char *, int) __attribute__((weak));
void AnnotateIgnoreWritesBegin(const char *, int) __attribute__((weak));
void AnnotateIgnoreWritesEnd(const char *, int) __attribute__((weak));
}

namespace emulation
{

// All that this thread did so far happens before what follows happens_after() on the same address.
inline void happens_before(void *token)
{
    if (__tsan_release)
        __tsan_release(token);
}

inline void happens_after(void *token)
{
    if (__tsan_acquire)
        __tsan_acquire(token);
}

inline void announce_read(const void *address, size_t bytes)
{
    if (__tsan_read_range)
        __tsan_read_range(const_cast<void *>(address), bytes);
}

inline void announce_write(void *address, size_t bytes)
{
    if (__tsan_write_range)
        __tsan_write_range(address, bytes);
}

// Inside its scope TSan ignores this thread's accesses: containers of the runtime move their elements with
// the intercepted memmove, under locks that TSan does not see.
class Quiet
{
  public:
    Quiet()
    {
        if (AnnotateIgnoreReadsBegin) {
            AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
            AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
        }
    }
    ~Quiet()
    {
        if (AnnotateIgnoreReadsBegin) {
            AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
            AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
        }
    }
    Quiet(const Quiet &) = delete;
    Quiet &operator=(const Quiet &) = delete;
};

inline void futex_wait(std::atomic<uint32_t> *word, uint32_t seen)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

inline void futex_wake(std::atomic<uint32_t> *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, nullptr, nullptr, 0);
}

class Mutex
{
  public:
    void lock()
    {
        uint32_t seen = open;
        if (state.compare_exchange_strong(seen, held))
            return;
        if (seen != contended)
            seen = state.exchange(contended);
        while (seen != open) {
            futex_wait(&state, contended);
            seen = state.exchange(contended);
        }
    }
    bool try_lock()
    {
        uint32_t seen = open;
        return state.compare_exchange_strong(seen, held);
    }
    void unlock()
    {
        if (state.exchange(open) == contended)
            futex_wake(&state, 1);
    }

  private:
    enum : uint32_t { open, held, contended };
    std::atomic<uint32_t> state{open};
};

// Holds the mutex for a scope; TSan ignores the thread meanwhile.
class Guard
{
  public:
    explicit Guard(Mutex &mutex) : mutex(mutex)
    {
        mutex.lock();
    }
    ~Guard()
    {
        mutex.unlock();
    }
    Guard(const Guard &) = delete;
    Guard &operator=(const Guard &) = delete;

    Mutex &mutex;

  private:
    Quiet quiet;
};

// To be used with the mutex held.
class Condition
{
  public:
    void wait(Guard &guard)
    {
        uint32_t seen = sequence.load();
        waiters++;
        guard.mutex.unlock();
        futex_wait(&sequence, seen);
        guard.mutex.lock();
        waiters--;
    }
    void notify_all()
    {
        if (waiters == 0)
            return;
        sequence.fetch_add(1);
        futex_wake(&sequence, INT_MAX);
    }

  private:
    std::atomic<uint32_t> sequence{0};
    unsigned waiters = 0;
};

} // namespace emulation
