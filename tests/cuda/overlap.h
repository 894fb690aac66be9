/* Tests of test_engine_cuda that are in a file of their own. */
#ifndef OVERLAP_H
#define OVERLAP_H

#include <check.h>

TCase *overlap_case(void);

#endif
