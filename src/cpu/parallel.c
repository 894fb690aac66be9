/* The one place where the backend's own code enters OpenMP. */
#include "cpu/announce.h"
#include "cpu/internal.h"

/* A team's threads see what came before the region, and what follows it sees all that they did: the region
 * begins with a flush and ends with a barrier (OpenMP 4.5, sections 2.13.3 and 2.13.7). libgomp does both by
 * futexes of its own, which ThreadSanitizer cannot see, so that it took any later use of what a team had
 * written, and of the stack through which a team shares its variables, for a race. The order is announced;
 * what lies on that stack, this function's own variables, is not looked at. */
DP_NOT_SEEN static void run_team(int used, int64_t count,
                                 void (*body)(const void *context, int64_t begin, int64_t end),
                                 const void *context)
{
    char fork, join;
    dp_announce_release(&fork);
#pragma omp parallel for num_threads(used) schedule(static, 1)
    for (int i = 0; i < used; i++) {
        dp_announce_acquire(&fork);
        body(context, count * i / used, count * (i + 1) / used);
        dp_announce_release(&join);
    }
    dp_announce_acquire(&join);
}

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
    run_team((int)parts, count, body, context);
}
