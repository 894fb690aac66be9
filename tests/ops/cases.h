/* The table of cases that every backend runs through. */
#ifndef DP_TESTS_OPS_CASES_H
#define DP_TESTS_OPS_CASES_H

#include "device/device.h"

enum { MAX_CHAIN = 8 };

/* A chain of operations, each in the layout that the one before it chose. It ends in rank 2: a flatten is
 * added where the text does not. Parameters of all operations get gradients. Value 0 is the case's input,
 * value k the result of the k-th operation (from 1); an operation reads the value before it and, if it takes
 * two inputs, another one that its text names. */
typedef struct op_case {
    const char *text; /* the case, see cases.c */
    bool accumulate;  /* gradients are added to what is there */
    bool input_gradient;
    int length;
    dp_op_desc chain[MAX_CHAIN];
    int reads[MAX_CHAIN][DP_OP_MAX_INPUTS]; /* values */
} op_case;

/* Cases of the correctness table, and those whose speed is worth a table. */
extern const char *const correctness_cases[], *const speed_cases[];

/* Reads a case from its text; false if it is malformed (a mistake in the table). */
bool op_case_parse(const char *text, op_case *out);

/* Multiplications and additions of one forward pass. */
double op_case_flops(const dp_op_desc *desc);

typedef struct loss_case {
    dp_criterion criterion;
    int64_t samples, elements;
    float pos_weight, scale;
    bool in_place; /* the gradient overwrites the output */
} loss_case;

extern const loss_case loss_cases[];
extern const size_t loss_case_count;

typedef struct update_case {
    const char *name;
    dp_optimizer_kind kind;
    float lr, momentum, weight_decay;
    bool nesterov;
} update_case;

extern const update_case update_cases[];
extern const size_t update_case_count;

#endif
