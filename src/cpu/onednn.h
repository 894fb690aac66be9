/* The backend's view of oneDNN: matrix products and convolutions. onednn.c is the only file that knows its
 * types, which differ between major versions. */
#ifndef DP_CPU_ONEDNN_H
#define DP_CPU_ONEDNN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "cpu/conv_shape.h"

typedef struct dp_dnnl dp_dnnl; /* an engine and a stream: one per device, used by its thread alone */

dp_status dp_dnnl_open(dp_dnnl **out, dp_error *err);
void dp_dnnl_close(dp_dnnl *dnnl); /* NULL is fine */

int dp_dnnl_lanes(void); /* floats in the vectors that the library uses here: 16, 8 or 4 */

/* c = op(a) op(b) + beta c, row-major: op(a) is [m, k], op(b) [k, n], c [m, n]; ld* are row lengths as they
 * lie in memory. */
dp_status dp_dnnl_sgemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float *a,
                        int64_t lda, const float *b, int64_t ldb, float beta, float *c, int64_t ldc,
                        dp_error *err);

typedef struct dp_dnnl_conv dp_dnnl_conv;

typedef struct dp_dnnl_conv_config {
    dp_conv_shape shape;
    int in_tag, out_tag; /* layouts of cpu/layout.h */
    bool bias, relu;
    bool winograd;                                 /* where offered */
    bool forward, backward_data, backward_weights; /* which will be called */
} dp_dnnl_conv_config;

/* Makes the primitives of a convolution. Where the library would run one of them by its slow reference code,
 * *out is NULL with DP_OK, unless `reference` is set. */
dp_status dp_dnnl_conv_create(dp_dnnl *dnnl, const dp_dnnl_conv_config *config, bool reference,
                              dp_dnnl_conv **out, dp_error *err);
void dp_dnnl_conv_destroy(dp_dnnl_conv *conv); /* NULL is fine */

/* Whether all of its primitives are the library's Winograd. */
bool dp_dnnl_conv_is_winograd(const dp_dnnl_conv *conv);

/* Bytes of scratch memory for any one call: the library's own, and a copy of the weights (or of their
 * gradient) in the order that it wants, which each call makes anew. Kept from call to call, those copies
 * would be a second and a third set of all weights; made, they cost a pass over them. */
size_t dp_dnnl_conv_scratch(const dp_dnnl_conv *conv);

/* weights: plain [O, C, KH, KW]. */
dp_status dp_dnnl_conv_forward(dp_dnnl_conv *conv, const void *in, const float *weights, const float *bias,
                               void *out, void *scratch, dp_error *err);
dp_status dp_dnnl_conv_backward_data(dp_dnnl_conv *conv, const void *out_gradient, const float *weights,
                                     void *in_gradient, void *scratch, dp_error *err);
/* weights_gradient: plain, overwritten or, with accumulate, added to. bias_gradient: [O], overwritten (not
 * touched without bias). */
dp_status dp_dnnl_conv_backward_weights(dp_dnnl_conv *conv, const void *in, const void *out_gradient,
                                        float *weights_gradient, bool accumulate, float *bias_gradient,
                                        void *scratch, dp_error *err);

#endif
