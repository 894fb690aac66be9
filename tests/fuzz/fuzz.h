/* Targets for coverage-guided fuzzing, one a reader of bytes that nobody vouches for (clang's libFuzzer,
 * https://llvm.org/docs/LibFuzzer.html). A new reader: a file fuzz_NAME.c that defines
 * LLVMFuzzerTestOneInput, and corpus/NAME/ with a few small inputs, sound and unsound. What a fuzzer finds is
 * kept there under a name that says what it is; every build runs all inputs through the target (replay.c),
 * with a fuzzer or without. */
#ifndef DP_TESTS_FUZZ_FUZZ_H
#define DP_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The path of a file (in memory) with these bytes; the same file every time. */
const char *fuzz_file(const void *bytes, size_t size);

/* A safetensors file that a mutation is likely to leave sound: the input up to the first line's end is the
 * header, whose length is put before it, what follows are the contents. Returns its path. */
const char *fuzz_framed_file(const uint8_t *data, size_t size);

/* A failure has a message of one printable line, success has none: ends the program otherwise. */
void fuzz_check(dp_status status, const dp_error *err);

#endif
