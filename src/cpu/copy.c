/* Copies past the caches. A large bucket of weights is read only when the forward pass has come to it, need
 * not be fetched to be overwritten, and leaves the memory to whoever works meanwhile. Gathered outputs so
 * large go the same way, though they are read sooner. */
#include <string.h>

#include "cpu/internal.h"

enum { LINE = 64, LEAST_STREAMED = 4 << 20 };

#if defined(__SSE2__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <emmintrin.h>

void dp_cpu_stream(void *destination, const void *source, size_t bytes)
{
    size_t head = (size_t)(-(uintptr_t)destination % LINE);
    if (head > bytes)
        head = bytes;
    memcpy(destination, source, head);
    const char *from = (const char *)source + head;
    char *to = (char *)destination + head, *end = to + (bytes - head) / LINE * LINE;
    for (; to < end; to += LINE, from += LINE)
        for (int i = 0; i < LINE; i += 16)
            _mm_stream_si128((__m128i *)(to + i), _mm_loadu_si128((const __m128i *)(from + i)));
    memcpy(to, from, (bytes - head) % LINE);
}

void dp_cpu_stream_end(void)
{
    _mm_sfence();
}

#else

void dp_cpu_stream(void *destination, const void *source, size_t bytes)
{
    memcpy(destination, source, bytes);
}

void dp_cpu_stream_end(void)
{
}

#endif

void dp_cpu_copy(void *destination, const void *source, size_t bytes)
{
    if (bytes < LEAST_STREAMED) {
        memcpy(destination, source, bytes);
        return;
    }
    dp_cpu_stream(destination, source, bytes);
    dp_cpu_stream_end();
}
