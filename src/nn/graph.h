/* The graph behind a dp_model: values (tensors of one sample), nodes (operations) and parameters. */
#ifndef DP_NN_GRAPH_H
#define DP_NN_GRAPH_H

#include "base/error.h"
#include "device/device.h"
#include "dptrain/model.h"

typedef struct dp_graph_value {
    int rank; /* of one sample: 1 or 3 */
    int64_t shape[3];
    int producer; /* node index, -1 for the input */
} dp_graph_value;

typedef struct dp_node {
    dp_op_kind kind;
    int inputs;
    dp_value input[DP_OP_MAX_INPUTS], output;
    int params;
    int param[DP_OP_MAX_PARAMS]; /* indices into dp_model.params */
    int buffers;
    int buffer[DP_OP_MAX_BUFFERS]; /* indices into dp_model.buffers */
    int kernel, stride, padding;
    double probability; /* the dropouts */
    int layer;
    bool relu; /* fused: the output is max(0, .) */
} dp_node;

typedef enum dp_fill { DP_FILL_UNIFORM, DP_FILL_NORMAL, DP_FILL_CONSTANT } dp_fill;

typedef struct dp_param {
    dp_param_info info;
    char *name; /* info.name points here */
    dp_fill
        fill; /* initial values: uniform in [-scale, scale), normal with deviation scale, or scale itself */
    float scale;
} dp_param;

typedef struct dp_model_buffer_entry {
    dp_buffer_info info;
    char *name;    /* info.name points here */
    float initial; /* counters start at 0 */
} dp_model_buffer_entry;

struct dp_model {
    char *name, *description;
    dp_graph_value *values;
    dp_node *nodes;
    dp_param *params;
    dp_model_buffer_entry *buffers;
    int value_count, node_count, param_count, buffer_count;
    int64_t elements, buffer_elements, counters;
    dp_init init; /* of the next layers */
    int dropouts; /* so far */
    dp_value input, output;
    dp_value result; /* the output in plain order, which is what the program ends with */
    bool finished;
    int device;       /* where the weights are to live; -1: on an engine's first device */
    dp_error failure; /* the first of a builder call */

    /* What runs, in order, after dp_model_finish: nodes that the output depends on, activations fused. */
    dp_node *program;
    int program_count;
    int64_t
        norm_positions; /* the fewest positions (height x width) of a batch normalisation; 0: there is none */
};

/* Derives the program from the nodes (src/nn/program.c). */
dp_status dp_model_make_program(dp_model *model, dp_error *err);

/* The operation that a node is at a batch of n samples. */
dp_op_desc dp_node_desc(const dp_model *model, const dp_node *node, int64_t n);
dp_shape dp_value_shape(const dp_model *model, dp_value value, int64_t n);

/* The description that the registry attaches to a model by name; text is copied. */
dp_status dp_model_set_description(dp_model *model, const char *json, dp_error *err);

#endif
