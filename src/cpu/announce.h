/* ThreadSanitizer cannot see what uninstrumented code (oneDNN) reads and writes; these tell it. Nothing in
 * other builds. */
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
#else
static inline void dp_announce_read(const void *p, size_t bytes)
{
    (void)p, (void)bytes;
}

static inline void dp_announce_write(void *p, size_t bytes)
{
    (void)p, (void)bytes;
}
#endif

#endif
