/* Runs cases on a device through the backend contract alone, and by the reference. */
#ifndef DP_TESTS_OPS_RUNNER_H
#define DP_TESTS_OPS_RUNNER_H

#include "cases.h"

/* Inputs of a case, and what came of it. Float arrays are in the plain order; owner: the struct, freed with
 * the function that ends in _free. */
typedef struct case_data {
    float *in, *out_gradient;
    float *param[MAX_CHAIN][2], *start[MAX_CHAIN][2]; /* start: what gradients are added to */
    float *buffer[MAX_CHAIN][2];                      /* before the first forward */
} case_data;

typedef struct case_result {
    float *out, *in_gradient;
    float *gradient[MAX_CHAIN][2], *buffer[MAX_CHAIN][2];
} case_result;

typedef struct case_reference {
    double *out, *in_gradient;
    double *gradient[MAX_CHAIN][2], *buffer[MAX_CHAIN][2];
} case_reference;

int64_t case_param_elements(const dp_op_desc *desc, int which); /* 0 where there is none */
int64_t case_buffer_elements(const dp_op_desc *desc);           /* of each of two, or 0 */

/* Coarse data are multiples of 1/8, chosen so that sums are exact in float32 and no output of a linear,
 * convolution or deconvolution with bias is zero: then every ReLU and every maximum, of equals the first, is
 * the same in any arithmetic (unless an average or a dropout comes before it). Fine data are continuous. */
bool case_data_make(const op_case *c, bool coarse, uint64_t seed, case_data *out);
void case_data_free(case_data *data);
void case_result_free(case_result *result);
void case_reference_free(case_reference *reference);

bool case_reference_run(const op_case *c, const case_data *data, bool training, case_reference *out);

/* A case's operations with their memory on a device. */
typedef struct chain chain;

typedef struct chain_options {
    bool training, direct;
    bool replica; /* running values are not kept */
    /* Before each call its workspace, and before backward every tensor that no operation says it will read,
     * are filled with NaN: an operation that reads what it should not is found out. */
    bool scribble;
} chain_options;

/* Called by the device's own thread, after dp_device_enter. */
dp_status chain_create(dp_device *device, const op_case *c, const case_data *data, chain_options options,
                       chain **out, dp_error *err);
void chain_destroy(chain *chain);
dp_status chain_forward(chain *chain, int link, dp_error *err);
dp_status chain_backward(chain *chain, int link, dp_error *err);
dp_status chain_synchronize(chain *chain, dp_error *err);
int chain_layout(const chain *chain, int link); /* the tag of a link's output */

/* All of it: forward and (in training) backward, results copied out. */
dp_status case_run(dp_device *device, const op_case *c, const case_data *data, chain_options options,
                   case_result *out, dp_error *err);

#endif
