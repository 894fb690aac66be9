/* Own kernels run on any x86-64: DP_CLONES compiles a function for several instruction sets and lets the
 * loader choose. The choice depends on the machine alone, so results stay the same bit for bit on it.
 *
 * Functions that a cloned function calls must be DP_INLINE to be compiled for the same instruction set.
 * Clang's clones and the sanitizers' start-up do not mix with the loader's choice: baseline code there. */
#ifndef DP_CPU_CLONES_H
#define DP_CPU_CLONES_H

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#if __GNUC__ >= 12
#define DP_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define DP_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#endif
#else
#define DP_CLONES
#endif

#define DP_INLINE static inline __attribute__((always_inline))

#endif
