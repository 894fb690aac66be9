/* Copies from one device to another. A large one is written past the caches: a bucket of weights is read only
 * when the forward pass has come to it, need not be fetched to be overwritten, and leaves the memory to the
 * primary, which updates the next bucket meanwhile. Gathered outputs so large go the same way, though they
 * are read sooner. */
#include <string.h>

#include "cpu/internal.h"

#if defined(__SSE2__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <emmintrin.h>

enum { LINE = 64, LEAST_STREAMED = 4 << 20 };

void dp_cpu_copy(void *destination, const void *source, size_t bytes)
{
    if (bytes < LEAST_STREAMED) {
        memcpy(destination, source, bytes);
        return;
    }
    size_t head = (size_t)(-(uintptr_t)destination % LINE);
    memcpy(destination, source, head);
    const char *from = (const char *)source + head;
    char *to = (char *)destination + head, *end = to + (bytes - head) / LINE * LINE;
    for (; to < end; to += LINE, from += LINE)
        for (int i = 0; i < LINE; i += 16)
            _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
    _mm_sfence(); /* before anyone is told that it is there */
    memcpy(to, from, (bytes - head) % LINE);
}

#else

void dp_cpu_copy(void *destination, const void *source, size_t bytes)
{
    memcpy(destination, source, bytes);
}

#endif
