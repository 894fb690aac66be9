/* Inside dp_predict: predict_inputs.c lists what is to be predicted, predict.c goes through it,
 * predict_ahead.c decodes it, predict_batch.c runs it on the devices, predict_mask.c takes pictures apart and
 * puts masks together, predict_write.c writes these. */
#ifndef DP_TRAIN_PREDICT_STEPS_H
#define DP_TRAIN_PREDICT_STEPS_H

#include "base/error.h"
#include "dptrain/predict.h"
#include "io/folder.h"
#include "io/resize.h"

/* What a model takes and gives. */
struct dp_open_picture;

typedef struct dp_predictor {
    const dp_predict_config *config;
    dp_engine *engine;
    int64_t channels, height, width; /* of an input */
    int64_t elements, outputs;       /* of a sample */
    bool masks;

    /* The batch that is being filled. */
    int64_t filled;
    float *x, *y;
    struct dp_part *parts;

    struct dp_open_picture *open;  /* a list; owned */
    struct dp_mask_writer *writer; /* of masks; owned */
} dp_predictor;

/* A picture whose mask is coming together. */
typedef struct dp_open_picture {
    const dp_named_picture *name;
    dp_image image;
    int64_t height, width; /* of the plane: the picture's, or the model's where it is smaller or resized */
    float *sum, *weight;   /* of the logits' probabilities times their weights, by pixel of the plane */
    int64_t missing;       /* parts that have not been computed */
    struct dp_open_picture *next;
} dp_open_picture;

/* One sample of a batch. */
typedef struct dp_part {
    const dp_named_picture *name; /* labels */
    int64_t truth;                /* likewise */
    dp_open_picture *picture;     /* masks */
    int64_t x, y;                 /* where the part lies in the plane */
} dp_part;

/* ---- predict_inputs.c ---- */

/* A picture that is to be predicted. */
typedef struct dp_input {
    const dp_named_picture *name;
    int64_t pixels; /* by its header */
    int64_t truth;  /* the class that its folder says; -1: not known */
} dp_input;

/* Zero is empty; owned. */
typedef struct dp_inputs {
    dp_names names;  /* all, bad ones too */
    int64_t *truths; /* of the first `judged` of them */
    int64_t judged;
    dp_input *list; /* those that can be read, in order */
    int64_t count;
} dp_inputs;

/* Lists config->inputs and looks at every header, so that bad pictures are known before the first mask is
 * written. After a failure, too, *out is the caller's to clear. */
dp_status dp_inputs_collect(const dp_predict_config *config, const dp_model *model, dp_inputs *out,
                            dp_error *err);
void dp_inputs_clear(dp_inputs *inputs);

/* ---- predict.c ---- */

/* What the devices' thread needs of it: for a mask the picture, for a label the sample that the model takes.
 */
typedef struct dp_ready {
    dp_image image;
    float *sample; /* owned */
} dp_ready;

/* Reads and decodes. Any number of threads at once. After a failure, too, *out is the caller's to clear. */
dp_status dp_predict_prepare(const dp_predictor *predictor, const dp_input *input, dp_ready *out,
                             dp_error *err);
void dp_ready_clear(dp_ready *ready);

/* ---- predict_ahead.c ---- */

typedef struct dp_decoder dp_decoder;
/* Begins to prepare the inputs (which must outlive it) in config->workers threads; what waits is bounded by
 * a batch of pictures and by their pixels. Owner: the caller. */
dp_status dp_decoder_create(const dp_predictor *predictor, const dp_input *inputs, int64_t count,
                            dp_decoder **out, dp_error *err);
/* The next one in order, to be called once for each; a failure is of that one alone. The caller clears *out.
 */
dp_status dp_decoder_next(dp_decoder *decoder, dp_ready *out, dp_error *err);
void dp_decoder_free(dp_decoder *decoder); /* joins the threads; NULL is fine */

/* ---- predict_batch.c ---- */
dp_status dp_predict_open(dp_context *context, const dp_model *model, const dp_model_state *state,
                          const dp_predict_config *config, dp_predictor *out, dp_error *err);
void dp_predict_close(dp_predictor *predictor);
/* Where the next sample's input goes. */
float *dp_predict_slot(dp_predictor *predictor);
/* That input is complete; runs the batch if it is full. */
dp_status dp_predict_push(dp_predictor *predictor, dp_part part, dp_error *err);
/* Runs what there is. */
dp_status dp_predict_flush(dp_predictor *predictor, dp_error *err);
/* Values 0..255 to what the model takes, in place. */
void dp_predict_normalize(const dp_predictor *predictor, float *x);

/* ---- predict_mask.c ---- */

/* Takes over the picture, also when it fails. */
dp_status dp_predict_mask(dp_predictor *predictor, const dp_named_picture *name, dp_image *image,
                          dp_error *err);
/* Takes over a part's logits; the last one of a picture gives it to the writer. */
dp_status dp_mask_take(dp_predictor *predictor, const dp_part *part, const float *logits, dp_error *err);
/* Frees what a failure left unfinished. */
void dp_mask_drop_open(dp_predictor *predictor);
void dp_open_picture_free(dp_open_picture *picture);

/* ---- predict_write.c ---- */

typedef struct dp_mask_writer dp_mask_writer;
/* Threads that write masks, as many as config->workers, for at most `count` pictures. Owner: the caller. */
dp_status dp_mask_writer_create(const dp_predictor *predictor, int64_t count, dp_mask_writer **out,
                                dp_error *err);
/* Takes over a picture that all parts of are computed, also when it fails: a failure is that of the first
 * picture in order whose files could not be written, and ends the writing. config->done is told of those that
 * are written, in order and on this thread. What is left to write is bounded when it returns. */
dp_status dp_mask_writer_add(dp_mask_writer *writer, dp_open_picture *picture, dp_error *err);
/* Waits for all that was added before a failure. */
dp_status dp_mask_writer_finish(dp_mask_writer *writer, dp_error *err);
void dp_mask_writer_free(dp_mask_writer *writer); /* what is not begun is not written; NULL is fine */

#endif
