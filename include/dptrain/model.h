/* Models: built layer by layer, or by name. STABLE.
 *
 *     dp_status example(dp_model **out, dp_error *err)
 *     {
 *         dp_model *m;
 *         dp_status status = dp_model_create("mine", &m, err);
 *         if (status != DP_OK)
 *             return status;
 *         dp_value x = dp_model_input(m, 3, (int64_t[]){1, 28, 28});
 *         x = dp_relu(m, dp_conv2d(m, "conv1", x, 32, 5, 1, 2));
 *         x = dp_max_pool2d(m, x, 2, 2, 0);
 *         x = dp_linear(m, "fc", dp_flatten(m, x), 10);
 *         status = dp_model_finish(m, x, err);
 *         if (status != DP_OK)
 *             dp_model_free(m);
 *         else
 *             *out = m;
 *         return status;
 *     }
 *
 * A builder that fails (shapes that do not fit, memory) returns a value that every later builder passes on;
 * dp_model_finish reports the first failure. Parameter names are PyTorch's: "conv1.weight", "conv1.bias". */
#ifndef DPTRAIN_MODEL_H
#define DPTRAIN_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dptrain/status.h"

DP_BEGIN_DECLARATIONS

typedef struct dp_model dp_model;
typedef int dp_value; /* a tensor in the model's graph; negative after a failure */

dp_status dp_model_create(const char *name, dp_model **out, dp_error *err);
void dp_model_free(dp_model *model); /* NULL is fine */

/* The input, without the batch dimension: rank 1 (features) or 3 (channels, height, width). Once per model.
 */
dp_value dp_model_input(dp_model *model, int rank, const int64_t *shape);
/* name may be "" (the parameters are then just "weight" and "bias"). Initial weights are PyTorch's defaults.
 */
dp_value dp_linear(dp_model *model, const char *name, dp_value x, int64_t out_features);
dp_value dp_conv2d(dp_model *model, const char *name, dp_value x, int64_t out_channels, int kernel,
                   int stride, int padding);
dp_value dp_conv2d_no_bias(dp_model *model, const char *name, dp_value x, int64_t out_channels, int kernel,
                           int stride, int padding);
/* Deconvolution: [C, H, W] to [out_channels, (H - 1) stride - 2 padding + kernel, ...]. */
dp_value dp_conv_transpose2d(dp_model *model, const char *name, dp_value x, int64_t out_channels, int kernel,
                             int stride, int padding);
/* Parameters weight and bias, buffers running_mean, running_var and num_batches_tracked; epsilon 1e-5,
 * momentum 0.1. In training each replica normalises with the statistics of its own chunk; the primary's
 * running ones are the only ones kept. */
dp_value dp_batch_norm2d(dp_model *model, const char *name, dp_value x);
dp_value dp_relu(dp_model *model, dp_value x);
dp_value dp_add(dp_model *model, dp_value a, dp_value b);    /* two different values of one shape */
dp_value dp_concat(dp_model *model, dp_value a, dp_value b); /* along channels */
dp_value dp_max_pool2d(dp_model *model, dp_value x, int kernel, int stride, int padding);
dp_value dp_adaptive_avg_pool2d(dp_model *model, dp_value x, int64_t height, int64_t width);
dp_value dp_upsample2x(dp_model *model, dp_value x); /* bilinear, align_corners=False */
/* With probability p, in training, an element (dropout2d: a channel) is zero, else divided by 1 - p. p = 0:
 * x itself. */
dp_value dp_dropout(dp_model *model, dp_value x, double p);
dp_value dp_dropout2d(dp_model *model, dp_value x, double p);
dp_value dp_flatten(dp_model *model,
                    dp_value x); /* [C, H, W] to [C*H*W]; a flat value is returned as it is */

/* How the layers that are added from here on get their initial weights. */
typedef enum dp_init {
    DP_INIT_DEFAULT,        /* PyTorch's: weights and biases uniform within 1/sqrt(fan_in) */
    DP_INIT_KAIMING_NORMAL, /* normal with deviation sqrt(2 / fan_out), biases 0 (He et al. 2015; what
                               torchvision gives the convolutions of ResNet and VGG) */
    DP_INIT_NORMAL,         /* normal with deviation 0.01, biases 0 (torchvision's classifier of VGG) */
} dp_init;

void dp_model_use_init(dp_model *model, dp_init init);

dp_status dp_model_finish(dp_model *model, dp_value output, dp_error *err);

/* Puts the model on a device of the context it will be used in, as module.to() does: dp_engine_create then
 * wants that device first. A model that was never put anywhere goes to the engine's first device. */
void dp_model_to(dp_model *model, int device);

/* ---- models by name ---- */

enum { DP_MODEL_MAX_HIDDEN = 32 };

typedef struct dp_model_config {
    const char *name;
    int input_rank; /* without the batch: 1 or 3 */
    int64_t input_shape[3];
    int64_t outputs;  /* classes, or values per sample; of dense models: channels of the mask */
    int hidden_count; /* mlp; 0: 512, 512 */
    int64_t hidden[DP_MODEL_MAX_HIDDEN];
    int64_t width;   /* ResNet, VGG and encoders: channels of the first layers; 0: 64 */
    int64_t filters; /* U-Nets: base of the decoder's channels; 0: 32 */
    bool deconv;     /* U-Nets: deconvolutions instead of bilinear upsampling */
    double dropout;  /* negative: the model's own; 0: none */
} dp_model_config;

/* What is to be known of a named model before it is built. */
typedef struct dp_model_traits {
    bool hidden, width, decoder, dropout;  /* which options it reads; decoder: filters and deconv */
    bool images;                           /* it takes [C, H, W] only */
    bool dense;                            /* its output is a mask [outputs, H, W] */
    int multiple, least;                   /* heights and widths it takes: multiples of, from */
    int64_t usual_shape[3], usual_classes; /* of synthetic data; 0 classes: a mask */
} dp_model_traits;

dp_model_config dp_model_defaults(const char *name);

/* NULL-terminated list of the names. */
const char *const *dp_model_names(void);
dp_status dp_model_traits_of(const char *name, dp_model_traits *out, dp_error *err);
dp_status dp_model_build(const dp_model_config *config, dp_model **out, dp_error *err);

/* A model's description: one line of JSON that dp_model_from_description builds the same model from
 * (checkpoints carry it). A model made by the builder functions has none (NULL). Owner: the model. */
const char *dp_model_description(const dp_model *model);
dp_status dp_model_from_description(const char *json, dp_model **out, dp_error *err);

/* ---- what a model holds ---- */

typedef struct dp_param_info {
    const char *name;
    int rank;
    int64_t shape[4];
    int64_t elements;
    int64_t offset; /* elements into a block of all weights (in order of the table, no gaps) */
    bool used;      /* the output depends on it; others get no gradient */
} dp_param_info;

const char *dp_model_name(const dp_model *model);
int dp_model_param_count(const dp_model *model);
const dp_param_info *dp_model_param(const dp_model *model, int index);
int64_t dp_model_elements(const dp_model *model); /* of all parameters */
/* Shape of input and output for one sample; returns the rank. */
int dp_model_input_shape(const dp_model *model, int64_t shape[3]);
int dp_model_output_shape(const dp_model *model, int64_t shape[3]);

/* What a finished model runs, in order: operations that are fused are one. */
typedef struct dp_operation_info {
    const char *kind; /* "conv2d" */
    char layer[64];   /* whose parameters it has, "layer1.0.conv1"; "" */
    bool adds, relu;  /* it adds another value, and ends with max(0, .), on the way */
    int rank;         /* of one sample's result */
    int64_t shape[3];
} dp_operation_info;

int dp_model_operation_count(const dp_model *model);
dp_operation_info dp_model_operation(const dp_model *model, int index);

/* Fills `weights` (dp_model_elements floats) with initial values: a function of seed, parameter and element.
 */
void dp_model_init_weights(const dp_model *model, uint64_t seed, float *weights);

/* What a layer keeps besides its parameters: batch normalisation's running mean and variance, float32
 * [elements], and its count of training batches, an int64 scalar. */
typedef struct dp_buffer_info {
    const char *name;
    bool counter;     /* an int64 scalar; else float32 */
    int64_t elements; /* 1 for a counter */
    int64_t offset;   /* into a block of all float32 buffers, or of all counters (in order of the table, no
                         gaps) */
} dp_buffer_info;

/* The name that a U-Net's encoder has for what another program's file calls `name`: torchvision's
 * ("layer1.0...", "features.0..."), or the original U-Net code's second one ("conv2.0..."). False where there
 * is none. */
bool dp_model_other_name(const dp_model *model, const char *name, char *out, size_t size);

int dp_model_buffer_count(const dp_model *model);
const dp_buffer_info *dp_model_buffer(const dp_model *model, int index);
int64_t dp_model_buffer_elements(const dp_model *model); /* of all float32 buffers */
int64_t dp_model_counters(const dp_model *model);        /* how many counters */
/* Initial values, PyTorch's: mean 0, variance 1, count 0. */
void dp_model_init_buffers(const dp_model *model, float *values, int64_t *counters);

/* All that a model learns, in host memory: PyTorch's state_dict. */
typedef struct dp_model_state {
    float *weights;    /* dp_model_elements */
    float *buffers;    /* dp_model_buffer_elements */
    int64_t *counters; /* dp_model_counters */
} dp_model_state;

/* Filled with zeros. Owner: the caller, who frees it with dp_model_state_free (also after a failure). */
dp_status dp_model_state_create(const dp_model *model, dp_model_state *out, dp_error *err);
void dp_model_state_free(dp_model_state *state);
/* Initial weights by seed, and initial buffers. */
void dp_model_state_init(const dp_model *model, uint64_t seed, dp_model_state *state);

DP_END_DECLARATIONS

#endif
