#include "base/thread.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { DP_MAX_SPIN_NS = 50000 };

dp_status dp_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *argument,
                          dp_error *err)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* inherited by the new thread */
    int rc = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return dp_fail(err, DP_ERROR_MEMORY, "cannot start thread '%s': %s", name, strerror(rc));
    char cut[16];
    snprintf(cut, sizeof cut, "%s", name);
    pthread_setname_np(*thread, cut); /* for debuggers and top alone */
    return DP_OK;
}

dp_status dp_signal_init(dp_signal *signal, uint32_t spin_ns, dp_error *err)
{
    memset(signal, 0, sizeof *signal);
    signal->spin_ns = spin_ns < DP_MAX_SPIN_NS ? spin_ns : DP_MAX_SPIN_NS;
    int rc = pthread_mutex_init(&signal->mutex, NULL);
    if (rc)
        return dp_fail(err, DP_ERROR_MEMORY, "cannot make a mutex: %s", strerror(rc));
    pthread_condattr_t attributes; /* its functions cannot fail on Linux */
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    rc = pthread_cond_init(&signal->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    if (rc) {
        pthread_mutex_destroy(&signal->mutex);
        return dp_fail(err, DP_ERROR_MEMORY, "cannot make a condition variable: %s", strerror(rc));
    }
    return DP_OK;
}

void dp_signal_destroy(dp_signal *signal)
{
    pthread_cond_destroy(&signal->changed);
    pthread_mutex_destroy(&signal->mutex);
}

/* A waiter counts itself before it looks at the value for the last time, a poster changes the value before it
 * looks at the count (both sequentially consistent): at least one of the two sees the other, so no wake-up is
 * lost and a post without waiters costs no lock. */
static void wake(dp_signal *signal)
{
    if (atomic_load(&signal->waiters) == 0)
        return;
    pthread_mutex_lock(&signal->mutex);
    pthread_cond_broadcast(&signal->changed);
    pthread_mutex_unlock(&signal->mutex);
}

void dp_signal_post(dp_signal *signal, uint64_t value)
{
    atomic_store(&signal->value, value);
    wake(signal);
}

void dp_signal_close(dp_signal *signal)
{
    atomic_store(&signal->closed, true);
    wake(signal);
}

bool dp_signal_reached(const dp_signal *signal, uint64_t value)
{
    return atomic_load_explicit(&signal->value, memory_order_acquire) >= value;
}

static bool spin(const dp_signal *signal, uint64_t value)
{
    double end = dp_now() + signal->spin_ns * 1e-9;
    do {
        for (int i = 0; i < 32; i++) {
            if (dp_signal_reached(signal, value))
                return true;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
    } while (dp_now() < end && !atomic_load_explicit(&signal->closed, memory_order_relaxed));
    return false;
}

bool dp_signal_wait(dp_signal *signal, uint64_t value)
{
    if (dp_signal_reached(signal, value) || (signal->spin_ns && spin(signal, value)))
        return true;
    pthread_mutex_lock(&signal->mutex);
    atomic_fetch_add(&signal->waiters, 1);
    while (atomic_load(&signal->value) < value && !atomic_load(&signal->closed))
        pthread_cond_wait(&signal->changed, &signal->mutex);
    atomic_fetch_sub(&signal->waiters, 1);
    pthread_mutex_unlock(&signal->mutex);
    return dp_signal_reached(signal, value);
}

bool dp_signal_wait_until(dp_signal *signal, uint64_t value, double deadline)
{
    const struct timespec end = {.tv_sec = (time_t)deadline,
                                 .tv_nsec = (long)((deadline - (double)(time_t)deadline) * 1e9)};
    if (dp_signal_reached(signal, value) || (signal->spin_ns && spin(signal, value)))
        return true;
    pthread_mutex_lock(&signal->mutex);
    atomic_fetch_add(&signal->waiters, 1);
    while (atomic_load(&signal->value) < value && !atomic_load(&signal->closed))
        if (pthread_cond_timedwait(&signal->changed, &signal->mutex, &end) == ETIMEDOUT)
            break;
    atomic_fetch_sub(&signal->waiters, 1);
    pthread_mutex_unlock(&signal->mutex);
    return dp_signal_reached(signal, value);
}

double dp_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* cgroup v2: "max 100000" or "QUOTA PERIOD". Returns 0 where there is no limit or no such file. */
static int quota_v2(void)
{
    FILE *f = fopen("/sys/fs/cgroup/cpu.max", "re");
    if (!f)
        return 0;
    long quota = 0, period = 0;
    int got = fscanf(f, "%ld %ld", &quota, &period);
    fclose(f);
    return got == 2 && quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
}

static long read_long(const char *path)
{
    FILE *f = fopen(path, "re");
    long value = 0;
    if (!f)
        return 0;
    if (fscanf(f, "%ld", &value) != 1)
        value = 0;
    fclose(f);
    return value;
}

static int quota_v1(void)
{
    long quota = read_long("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    long period = read_long("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
    return quota > 0 && period > 0 ? (int)((quota + period - 1) / period) : 0;
}

int dp_usable_cores(void)
{
    cpu_set_t set;
    int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    int quota = quota_v2();
    if (!quota)
        quota = quota_v1();
    if (quota > 0 && quota < cores)
        cores = quota;
    return cores > 0 ? cores : 1;
}
