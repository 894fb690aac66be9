#include "tests/faults/inject.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <zlib.h>

const char *const fault_kind_names[FAULT_KINDS] = {"memory", "json", "threads", "reads", "writes"};

static struct {
    _Atomic int kind;
    _Atomic long left; /* calls of the kind until the one that fails; 0: none will */
    _Atomic bool fired;
    const char *call;
    char thread[16];
    _Atomic long blocks, threads;
} state;

/* The blocks that are live, by address: memory that others allocated (Check, in this program) is freed here
 * too. */
enum { BUCKETS = 4096, BUCKET = 64 };
static struct {
    pthread_mutex_t mutex;
    void *block[BUCKETS][BUCKET];
} live = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void inject(fault_kind kind, long n)
{
    atomic_store(&state.left, 0);
    atomic_store(&state.fired, false);
    atomic_store(&state.kind, (int)kind);
    atomic_store(&state.left, n);
}

bool injected(const char **thread, const char **call)
{
    *thread = state.thread;
    *call = state.call;
    return atomic_load(&state.fired);
}

long live_blocks(void)
{
    return atomic_load(&state.blocks);
}

long live_threads(void)
{
    return atomic_load(&state.threads);
}

static bool fails(fault_kind kind, const char *call)
{
    if (atomic_load(&state.kind) != (int)kind || atomic_load(&state.left) == 0 ||
        atomic_fetch_sub(&state.left, 1) != 1)
        return false;
    state.call = call;
    pthread_getname_np(pthread_self(), state.thread, sizeof state.thread);
    atomic_store(&state.fired, true);
    return true;
}

/* ---- memory ---- */

void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void __real_free(void *p);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void __wrap_free(void *p);

/* Puts `with` in the place of `what`; false if there is none. */
static bool replace(void *of, void *what, void *with)
{
    void **bucket = live.block[(uintptr_t)of / 16 % BUCKETS];
    bool found = false;
    pthread_mutex_lock(&live.mutex);
    for (int i = 0; i < BUCKET && !found; i++) {
        found = bucket[i] == what;
        if (found)
            bucket[i] = with;
    }
    pthread_mutex_unlock(&live.mutex);
    return found;
}

static void *counted(void *p)
{
    if (p && !replace(p, NULL, p))
        abort(); /* more live blocks than a run can have */
    if (p)
        atomic_fetch_add(&state.blocks, 1);
    return p;
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails(FAULT_MEMORY, "calloc") ? NULL : counted(__real_calloc(count, size));
}

void *__wrap_realloc(void *p, size_t size)
{
    if (fails(FAULT_MEMORY, "realloc"))
        return NULL;
    void *q = __real_realloc(p, size);
    if (!q || !p)
        return counted(q);
    if (!replace(p, p, NULL))
        return q;
    atomic_fetch_sub(&state.blocks, 1);
    return counted(q);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return fails(FAULT_MEMORY, "aligned_alloc") ? NULL : counted(__real_aligned_alloc(alignment, size));
}

void __wrap_free(void *p)
{
    if (p && replace(p, p, NULL))
        atomic_fetch_sub(&state.blocks, 1);
    __real_free(p);
}

/* Jansson's reader and writer end the program, or leave out text, where they have no memory for a character.
 * That is their own affair: a whole call of them fails here, as it does when they have no memory for a value.
 */
static _Thread_local bool within;

static bool cannot_read(const char *call, json_error_t *error)
{
    if (!fails(FAULT_JSON, call))
        return false;
    if (error) {
        *error = (json_error_t){.text = "out of memory"};
        error->text[JSON_ERROR_TEXT_LENGTH - 1] = json_error_out_of_memory;
    }
    return true;
}

json_t *__real_json_loads(const char *text, size_t flags, json_error_t *error);
json_t *__wrap_json_loads(const char *text, size_t flags, json_error_t *error);
json_t *__wrap_json_loads(const char *text, size_t flags, json_error_t *error)
{
    if (cannot_read("json_loads", error))
        return NULL;
    within = true;
    json_t *json = __real_json_loads(text, flags, error);
    within = false;
    return json;
}

json_t *__real_json_loadb(const char *text, size_t size, size_t flags, json_error_t *error);
json_t *__wrap_json_loadb(const char *text, size_t size, size_t flags, json_error_t *error);
json_t *__wrap_json_loadb(const char *text, size_t size, size_t flags, json_error_t *error)
{
    if (cannot_read("json_loadb", error))
        return NULL;
    within = true;
    json_t *json = __real_json_loadb(text, size, flags, error);
    within = false;
    return json;
}

char *__real_json_dumps(const json_t *json, size_t flags);
char *__wrap_json_dumps(const json_t *json, size_t flags);
char *__wrap_json_dumps(const json_t *json, size_t flags)
{
    if (fails(FAULT_JSON, "json_dumps"))
        return NULL;
    within = true;
    char *text = __real_json_dumps(json, flags);
    within = false;
    return text;
}

static void *json_memory(size_t size)
{
    return !within && fails(FAULT_JSON, "malloc of Jansson") ? NULL : counted(malloc(size));
}

__attribute__((constructor)) static void feed_jansson(void)
{
    json_set_alloc_funcs(json_memory, __wrap_free);
}

int __real_inflateInit2_(z_streamp stream, int bits, const char *version, int size);
/* Visible, as libpng asks for the real one: the linker wants both to be of one kind. */
__attribute__((visibility("default"))) int __wrap_inflateInit2_(z_streamp stream, int bits,
                                                                const char *version, int size);
int __wrap_inflateInit2_(z_streamp stream, int bits, const char *version, int size)
{
    return fails(FAULT_JSON, "inflateInit2") ? Z_MEM_ERROR
                                             : __real_inflateInit2_(stream, bits, version, size);
}

/* ---- threads ---- */

int __real_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*run)(void *), void *argument)
{
    if (fails(FAULT_THREADS, "pthread_create"))
        return EAGAIN;
    int rc = __real_pthread_create(t, a, run, argument);
    if (rc == 0)
        atomic_fetch_add(&state.threads, 1);
    return rc;
}

int __real_pthread_join(pthread_t t, void **result);
int __wrap_pthread_join(pthread_t t, void **result);
int __wrap_pthread_join(pthread_t t, void **result)
{
    int rc = __real_pthread_join(t, result);
    if (rc == 0)
        atomic_fetch_sub(&state.threads, 1);
    return rc;
}

/* WRAP(kind, error, type of the result, name, parameters, arguments): a call that fails with -1 and errno. */
#define WRAP(kind, error, type, name, parameters, arguments) \
    type __real_##name parameters;                           \
    type __wrap_##name parameters;                           \
    type __wrap_##name parameters                            \
    {                                                        \
        if (fails(kind, #name)) {                            \
            errno = error;                                   \
            return -1;                                       \
        }                                                    \
        return __real_##name arguments;                      \
    }

/* The two that return an error number. */
#define WRAP_INIT(name, object, attributes)                                \
    int __real_##name(object *o, const attributes *a);                     \
    int __wrap_##name(object *o, const attributes *a);                     \
    int __wrap_##name(object *o, const attributes *a)                      \
    {                                                                      \
        return fails(FAULT_THREADS, #name) ? EAGAIN : __real_##name(o, a); \
    }
WRAP_INIT(pthread_mutex_init, pthread_mutex_t, pthread_mutexattr_t)
WRAP_INIT(pthread_cond_init, pthread_cond_t, pthread_condattr_t)

/* ---- files ---- */

int __real_open(const char *path, int flags, mode_t mode);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    bool reads = (flags & O_ACCMODE) == O_RDONLY;
    if (fails(reads ? FAULT_READS : FAULT_WRITES, reads ? "open to read" : "open to write")) {
        errno = EIO;
        return -1;
    }
    return __real_open(path, flags, mode);
}

WRAP(FAULT_READS, EIO, ssize_t, pread, (int fd, void *p, size_t n, off_t at), (fd, p, n, at))
WRAP(FAULT_READS, EIO, int, fstat, (int fd, struct stat *st), (fd, st))
WRAP(FAULT_WRITES, EIO, int, rename, (const char *from, const char *to), (from, to))
WRAP(FAULT_WRITES, EIO, int, mkdir, (const char *path, mode_t mode), (path, mode))
WRAP(FAULT_WRITES, EIO, int, flock, (int fd, int what), (fd, what))

ssize_t __real_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n)
{
    if (fails(FAULT_WRITES, "write")) {
        (void)!__real_write(fd, p, n / 2); /* a disk fills up in the midst of it */
        errno = ENOSPC;
        return -1;
    }
    return __real_write(fd, p, n);
}

/* Nothing is synced: no test here loses power, and the sweep makes thousands of files. */
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    (void)fd;
    if (!fails(FAULT_WRITES, "fsync"))
        return 0;
    errno = EIO;
    return -1;
}
