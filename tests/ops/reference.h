/* Every operation in float64 by the plainest loops: what the backends are measured against. All tensors are
 * in the plain order. */
#ifndef DP_TESTS_OPS_REFERENCE_H
#define DP_TESTS_OPS_REFERENCE_H

#include "device/device.h"

/* weight and bias may be NULL. */
void reference_forward(const dp_op_desc *desc, const double *in, const double *weight, const double *bias,
                       double *out);

/* Gradients of sum(out * out_gradient). Each target is added to; weight's and bias's may be NULL. */
void reference_backward(const dp_op_desc *desc, const double *in, const double *weight, const double *out,
                        const double *out_gradient, double *in_gradient, double *weight_gradient,
                        double *bias_gradient);

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
