/* The one place where the backend's own code enters OpenMP. */
#include "cpu/internal.h"

void dp_cpu_for(int threads, int64_t count, int64_t grain,
                void (*body)(const void *context, int64_t begin, int64_t end), const void *context)
{
    int64_t parts = grain > 0 ? (count + grain - 1) / grain : count;
    if (parts > threads)
        parts = threads;
    if (parts <= 1) {
        if (count > 0)
            body(context, 0, count);
        return;
    }
    int used = (int)parts;
#pragma omp parallel for num_threads(used) schedule(static, 1)
    for (int i = 0; i < used; i++)
        body(context, count * i / used, count * (i + 1) / used);
}
