/* Every operation in float64 by the plainest loops: what the backends are measured against. All tensors are
 * in the plain order. */
#ifndef DP_TESTS_OPS_REFERENCE_H
#define DP_TESTS_OPS_REFERENCE_H

#include "device/device.h"

/* The tensors of one operation. Those that it does not have are NULL. */
typedef struct reference_tensors {
    const double *in[DP_OP_MAX_INPUTS], *weight, *bias;
    double *out;
    const double *out_gradient;
    double *in_gradient[DP_OP_MAX_INPUTS], *weight_gradient, *bias_gradient; /* added to */
    double *buffer[DP_OP_MAX_BUFFERS];                                       /* in training moved */
    bool training;
} reference_tensors;

void reference_forward(const dp_op_desc *desc, const reference_tensors *t);

/* Gradients of sum(out * out_gradient), from what forward left in out. */
void reference_backward(const dp_op_desc *desc, const reference_tensors *t);

/* What the dropouts of all cases draw from. */
extern const dp_op_random reference_random;

/* The operations of reference_maps.c; false for any other kind. */
bool reference_maps_forward(const dp_op_desc *desc, const reference_tensors *t);
/* out_gradient: behind a ReLU already. Leaves the bias alone. */
bool reference_maps_backward(const dp_op_desc *desc, const reference_tensors *t, const double *out_gradient);

/* Per-sample sums and scale times their gradient. labels for cross entropy, targets for the rest. */
void reference_loss(dp_criterion criterion, int64_t samples, int64_t elements, const double *output,
                    const int32_t *labels, const double *targets, double pos_weight, double scale,
                    double *sample_loss, double *gradient);

/* One step by PyTorch's documentation on one weight. m and v hold its state; momentum 0: m is not used. */
typedef struct reference_optimizer {
    dp_optimizer_kind kind;
    double lr, momentum, weight_decay, beta1, beta2, eps;
    bool nesterov;
} reference_optimizer;

void reference_step(const reference_optimizer *o, int step, double gradient, double *weight, double *m,
                    double *v);

#endif
