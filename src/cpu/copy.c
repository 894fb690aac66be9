/* Copies past the caches: lines that are not read first need not be fetched to be overwritten, and what
 * others will read much later leaves the caches to what is read now. */
#include <string.h>

#include "cpu/internal.h"

#if defined(__SSE2__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <emmintrin.h>

enum { LINE = 64 };

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
