/* Predictions for pictures in files: masks, or class labels. UNSTABLE: may change in any version.
 *
 *     #include <stdio.h>
 *
 *     static void print_label(void *user, const dp_prediction *p)
 *     {
 *         (void)user;
 *         printf("%s: class %lld\n", p->picture, (long long)p->label);
 *     }
 *
 *     // The labels of a folder's pictures, by the model of a checkpoint.
 *     dp_status example(dp_context *context, const dp_model *model, const dp_model_state *state,
 *                       const dp_checkpoint_info *info, dp_error *err)
 *     {
 *         dp_predict_config config = dp_predict_defaults(info);
 *         config.inputs = (const char *[]){"photographs"};
 *         config.input_count = 1;
 *         config.done = print_label;
 *         return dp_predict(context, model, state, &config, err);
 *     }
 */
#ifndef DPTRAIN_PREDICT_H
#define DPTRAIN_PREDICT_H

#include <stdbool.h>
#include <stdint.h>

#include "dptrain/train.h"

DP_BEGIN_DECLARATIONS

typedef struct dp_prediction {
    const char *picture; /* its path */
    const char *mask;    /* the path of its mask; NULL: a label */
    double marked;       /* share of the mask's pixels that are marked */
    int64_t label;
    const char *class_name; /* of the label; NULL: it has none */
    double probability;     /* of the label */
    int64_t truth;          /* the label that the picture's folder says; -1: none says */
} dp_prediction;

typedef struct dp_predict_config {
    dp_engine_config engine;
    int64_t batch_size; /* pictures, or parts of them, that the devices take at a time */
    int workers; /* threads that decode pictures ahead of the devices, and as many that write masks behind
                    them, at least 1; at most a batch waits on either side */
    dp_checkpoint_info info; /* how inputs are normalised, and what outputs mean */
    /* Pictures, and folders of them (or, if they have none, of such folders, one called masks apart). Also
     * "images:DIR", where a classifier's pictures have their truth from the folder that they lie in: by name
     * where info has the names of classes, else by the order of the folders; and "segmentation:DIR", the
     * pictures of DIR/images. */
    const char *const *inputs;
    int64_t input_count;
    const char *folder; /* masks: where they are written, NAME.png for a picture NAME.jpg; made if need be */
    bool overlay;       /* NAME_overlay.png, too: the picture with its mask in red */
    bool resize;        /* bring a picture to the model's size, and its mask back, instead of going over it in
                           parts of that size, which overlap */
    bool skip_bad;      /* pictures that cannot be read are left out and told to note, not an error */
    void (*note)(void *user, const char *text); /* one line; may be NULL */
    void (*start)(void *user);                  /* all is known to be well, predicting begins; may be NULL */
    void (*done)(void *user, const dp_prediction *prediction); /* in the order of the pictures; may be NULL */
    void (*end)(void *user); /* all are predicted but those that could not be read; may be NULL */
    void *user;
} dp_predict_config;

dp_predict_config dp_predict_defaults(const dp_checkpoint_info *info);

/* A model that makes one plane of logits of its input's height and width (bce_with_logits) writes masks:
 * white where the probability is above one half. One trained with cross_entropy gives labels, of pictures
 * that are brought to its size. Every header is looked at first: bad files end it before the first result.
 * What turns out to be damaged only when it is decoded is left out; the others are predicted, and then these
 * are named and counted, by DP_ERROR_IO or, with skip_bad, to note. Errors: DP_ERROR_IO for files;
 * DP_ERROR_USAGE for two pictures of one name, or a mask that would be written over a picture;
 * DP_ERROR_MISMATCH for another kind of model, or for class folders that are not the model's classes. */
dp_status dp_predict(dp_context *context, const dp_model *model, const dp_model_state *state,
                     const dp_predict_config *config, dp_error *err);

DP_END_DECLARATIONS

#endif
