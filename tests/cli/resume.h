/* What the tests of runs that continue share. */
#ifndef DP_TESTS_CLI_RESUME_H
#define DP_TESTS_CLI_RESUME_H

#include "harness.h"

/* 54 samples in 7 batches, windows of 2, 2, 2 and 1: four steps an epoch. */
#define RUN                                                                                                 \
    "train --model linear --data synthetic:64 --batch-size 8 --accumulation-steps 2 --n-epoch 2 --lr 0.01 " \
    "--optimizer adamw --quiet "

/* Two runs' files of weights are the same, byte for byte. */
void assert_same_files(const char *a, const char *b, int epochs);
void assert_ends_well(const char *directory);
/* The same files, and the same numbers in the two logs to the last bit. */
void assert_same_runs(const char *a, const char *b, int epochs);

TCase *resume_damage_case(void);

#endif
