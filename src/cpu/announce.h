/* ThreadSanitizer cannot see what uninstrumented code reads and writes (oneDNN), nor what it orders
 * (libgomp); these tell it. Nothing in other builds. */
#ifndef DP_CPU_ANNOUNCE_H
#define DP_CPU_ANNOUNCE_H

#include <stddef.h>

#if defined(__SANITIZE_THREAD__)
#define DP_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DP_TSAN 1
#endif
#endif

#ifdef DP_TSAN
void __tsan_read_range(void *address, unsigned long size);
void __tsan_write_range(void *address, unsigned long size);
void __tsan_acquire(void *address);
void __tsan_release(void *address);

/* A function whose accesses are not looked at; those of functions that it calls are. */
#define DP_NOT_SEEN __attribute__((no_sanitize_thread, noinline))

static inline void dp_announce_read(const void *p, size_t bytes)
{
    if (p && bytes)
        __tsan_read_range((void *)p, bytes);
}

static inline void dp_announce_write(void *p, size_t bytes)
{
    if (p && bytes)
        __tsan_write_range(p, bytes);
}

/* All that the calling thread has done so far comes before what threads do after they have acquired p. */
static inline void dp_announce_release(void *p)
{
    __tsan_release(p);
}

static inline void dp_announce_acquire(void *p)
{
    __tsan_acquire(p);
}
#else
#define DP_NOT_SEEN

static inline void dp_announce_read(const void *p, size_t bytes)
{
    (void)p, (void)bytes;
}

static inline void dp_announce_write(void *p, size_t bytes)
{
    (void)p, (void)bytes;
}

static inline void dp_announce_release(void *p)
{
    (void)p;
}

static inline void dp_announce_acquire(void *p)
{
    (void)p;
}
#endif

#endif
