/* Preloaded into dptrain by tests: kills it at its DPTRAIN_KILL_AT-th call that changes a file, so that every
 * state that a crash can leave on disk can be visited. A write is killed when half of it is done. */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static _Atomic long calls;

static int is_due(void)
{
    const char *text = getenv("DPTRAIN_KILL_AT");
    return text && atomic_fetch_add(&calls, 1) + 1 == atol(text);
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    pause();
}

static void *real(const char *name)
{
    void *function = dlsym(RTLD_NEXT, name);
    if (!function)
        die();
    return function;
}

ssize_t write(int file, const void *bytes, size_t size)
{
    ssize_t (*next)(int, const void *, size_t) = (ssize_t(*)(int, const void *, size_t))real("write");
    if (file > STDERR_FILENO && is_due()) {
        if (next(file, bytes, size / 2) >= 0)
            die();
        die();
    }
    return next(file, bytes, size);
}

int open(const char *path, int flags, ...)
{
    int (*next)(const char *, int, ...) = (int (*)(const char *, int, ...))real("open");
    va_list list;
    va_start(list, flags);
    int mode = flags & O_CREAT ? va_arg(list, int) : 0;
    va_end(list);
    if (flags & O_CREAT && is_due())
        die();
    return next(path, flags, mode);
}

int fsync(int file)
{
    if (is_due())
        die();
    return ((int (*)(int))real("fsync"))(file);
}

int ftruncate(int file, off_t size)
{
    if (is_due())
        die();
    return ((int (*)(int, off_t))real("ftruncate"))(file, size);
}

int rename(const char *from, const char *to)
{
    if (is_due())
        die();
    return ((int (*)(const char *, const char *))real("rename"))(from, to);
}

int unlink(const char *path)
{
    if (is_due())
        die();
    return ((int (*)(const char *))real("unlink"))(path);
}
