/* Makes the project's own calls of the system fail, one at a time. The linker puts these functions in front
 * of the named ones (--wrap) in this test program alone: calls from the library and the commands come here,
 * those inside oneDNN, libgomp, zlib and libc do not. Jansson is given its memory from here. */
#ifndef DP_TESTS_FAULTS_INJECT_H
#define DP_TESTS_FAULTS_INJECT_H

#include <stdbool.h>

typedef enum fault_kind {
    FAULT_MEMORY,  /* calloc, realloc, aligned_alloc */
    FAULT_JSON,    /* what Jansson allocates for us, and zlib's start */
    FAULT_THREADS, /* pthread_create, and making mutexes and condition variables */
    FAULT_READS,   /* open for reading, fstat, pread */
    FAULT_WRITES,  /* open for writing, write (half of it, then no space), fsync, rename, mkdir, flock, fcntl
                    */
    FAULT_KINDS
} fault_kind;

extern const char *const fault_kind_names[FAULT_KINDS];

/* From now on call number n (from 1) of the kind fails; n = 0: none does. Forgets what was counted. */
void inject(fault_kind kind, long n);
/* Did it come to call n? thread: the name of the thread that made it, call: what was called. */
bool injected(const char **thread, const char **call);

/* What the wrapped calls have handed out and not got back. */
long live_blocks(void);
long live_threads(void);

#endif
