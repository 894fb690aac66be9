/* What the tests on emulated GPUs share. */
#ifndef DP_TESTS_CLI_EMULATED_H
#define DP_TESTS_CLI_EMULATED_H

#include "harness.h"

#define SMALL \
    "--device cuda --model mlp --hidden 16 --data synthetic:64 --n-epoch 2 --batch-size 16 --overwrite "

/* How many GPUs there are from now on. */
void machine(const char *gpus);
/* The folder with what stands in for NVML and for a profiler. */
const char *emulated_tools(void);
/* What `devices --json` with more options prints. Owner: the caller. */
json_t *list_devices(const char *options);
const json_t *find_link(const json_t *list, const char *from, const char *to);
/* A figure of the last process that wrote the emulation's report, by GPU; -1: there is none. */
void read_figure(const char *name, int values[8]);

TCase *emulated_links_case(void);
TCase *emulated_profiler_case(void);

#endif
