/* Data: sets of samples, and loaders that prepare batches ahead of the devices. STABLE.
 *
 *     // Reads Fashion-MNIST once, in shuffled batches of 128, on two threads of the loader's.
 *     dp_status example(dp_error *err)
 *     {
 *         dp_data_config config = dp_data_defaults();
 *         config.source = "fashion-mnist";
 *         dp_dataset *train = NULL, *valid = NULL;
 *         dp_loader *loader = NULL;
 *         const dp_batch *batch = NULL;
 *         dp_status status = dp_data_open(&config, &train, &valid, err);
 *         dp_loader_config lc = {.dataset = train, .batch_size = 128, .workers = 2, .shuffle = true};
 *         if (status == DP_OK)
 *             status = dp_loader_create(&lc, &loader, err);
 *         if (status == DP_OK)
 *             status = dp_loader_start(loader, 0, 0, err); // epoch 0, from its first batch
 *         while (status == DP_OK && (status = dp_loader_next(loader, &batch, err)) == DP_OK && batch) {
 *             // batch->x is [batch->samples, 1, 28, 28], batch->y the labels
 *             dp_loader_release(loader, batch);
 *         }
 *         dp_loader_free(loader);
 *         dp_dataset_free(train);
 *         dp_dataset_free(valid);
 *         return status;
 *     }
 */
#ifndef DPTRAIN_DATA_H
#define DPTRAIN_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dptrain/status.h"
#include "dptrain/trace.h"

DP_BEGIN_DECLARATIONS

typedef struct dp_dataset dp_dataset;
typedef struct dp_loader dp_loader;

typedef enum dp_target_kind {
    DP_TARGET_LABELS, /* int32 class numbers, one a sample */
    DP_TARGET_VALUES, /* float32, target_elements a sample */
    DP_TARGET_MASK,   /* float32 0..1, [1, H, W] a sample */
} dp_target_kind;

/* Half of the samples are mirrored; a box of 70 to 100 % of each side is cut out and brought to the size. */
enum { DP_AUGMENT_HFLIP = 1, DP_AUGMENT_VFLIP = 2, DP_AUGMENT_CROP = 4 };
/* Of the bits, from the lowest: "hflip", "vflip", "crop", NULL. */
extern const char *const dp_augment_names[];

typedef struct dp_data_config {
    const char *source; /* "fashion-mnist", "idx:DIR", "safetensors:FILE", "segmentation:DIR", "images:DIR",
                           "synthetic[:N]" */
    uint64_t seed;      /* of the held-out share and of synthetic data */
    double valid_split; /* held-out share where the data has no test part of its own; 0: none */
    bool no_validation; /* valid_split was given as 0: no validation at all, test part or not */
    int64_t classes; /* 0: from the data (largest label + 1; 10 for fashion-mnist). Else a label at or above
                        it is an error */
    bool normalize_set;     /* mean and std were given */
    int normalize_channels; /* 1 (for all channels), or one each */
    float mean[4], std[4];
    /* Pictures in files (segmentation, images). */
    int64_t size[2];  /* height and width that all are brought to; 0: theirs, which must then be one */
    unsigned augment; /* DP_AUGMENT_... of the training share, a function of seed, epoch and sample */
    bool skip_bad;    /* files that cannot be used are left out and told to note, not an error */
    void (*note)(void *user, const char *text); /* a line each; may be NULL */
    void *note_user;
    /* shape of synthetic samples, [C, H, W], and its default number of classes */
    int64_t synthetic_shape[3];
    int64_t synthetic_classes;
    bool synthetic_masks; /* synthetic targets are masks [1, H, W] instead of labels */
} dp_data_config;

dp_data_config dp_data_defaults(void);

typedef struct dp_dataset_info {
    char description[160]; /* "fashion-mnist, 60,000 images 1x28x28, 10 classes" */
    int64_t samples;
    bool is_test; /* the source's own test part, not a held-out share */
    int rank;     /* of a sample: 1 (features) or 3 (C, H, W) */
    int64_t shape[3];
    int64_t elements; /* of a sample */
    dp_target_kind target;
    int64_t classes;       /* LABELS */
    int64_t named_classes; /* the first of these have names (images:DIR: the folders'), UTF-8; 0: none */
    const char *const *class_names; /* as long as a data set of this source lives */
    int64_t target_elements;        /* VALUES, MASK: float32 a sample; LABELS: 1 */
    size_t target_bytes;            /* a sample: 4 for LABELS, else 4 * target_elements */
    int normalize_channels; /* how inputs are normalised: (value - mean) / std, value in 0..1; 0: not at all
                             */
    float mean[4], std[4];
    unsigned augment; /* DP_AUGMENT_...: what is done to its pictures, anew in every epoch */
} dp_dataset_info;

/* Opens the source. *valid is NULL where there is no validation. Owner of both: the caller (they share
 * storage; free in any order). Errors: DP_ERROR_IO for files missing or corrupt; DP_ERROR_USAGE for a
 * malformed source or a split that leaves nothing; DP_ERROR_MISMATCH for labels outside the given classes or
 * x and y of different length. */
dp_status dp_data_open(const dp_data_config *config, dp_dataset **train, dp_dataset **valid, dp_error *err);
void dp_dataset_free(dp_dataset *dataset); /* NULL is fine */
const dp_dataset_info *dp_dataset_info_of(const dp_dataset *dataset);

/* Writes sample `index` (normalised float32) and its target (target_bytes); either may be NULL. The epoch
 * decides how a picture of the training share is augmented; -1: not at all. Any number of threads at once.
 * DP_ERROR_IO for a picture's file that cannot be read. */
dp_status dp_dataset_read(const dp_dataset *dataset, int64_t index, int64_t epoch, float *x, void *target,
                          dp_error *err);

/* The mean over the samples of the share of their target values above 0.5: of a mask's pixels, those that are
 * marked. Reads every target, on `workers` threads. DP_ERROR_USAGE for labels. */
dp_status dp_dataset_positive_share(const dp_dataset *dataset, int workers, double *out, dp_error *err);

typedef struct dp_batch {
    int64_t index; /* within the epoch, from 0 */
    int64_t samples;
    const float *x; /* [samples, shape...], plain */
    const void *y;  /* [samples, target] */
    void *slot;     /* the loader's */
} dp_batch;

typedef struct dp_loader_config {
    const dp_dataset *dataset; /* must outlive the loader */
    int64_t batch_size;
    bool shuffle;   /* the order is a function of seed and epoch alone; else 0, 1, 2, ... */
    bool drop_last; /* leave out a last batch that is not full */
    uint64_t seed;
    int workers; /* threads, at least 1 */
    /* Where batches live (pinned memory); both NULL: ordinary memory. */
    dp_status (*alloc)(void *context, size_t bytes, void **out, dp_error *err);
    void (*release)(void *context, void *pointer);
    void *alloc_context;
    dp_trace *trace;        /* where the workers record what they do; NULL: nowhere */
    const char *track_name; /* there; NULL: "loader" */
} dp_loader_config;

/* Starts the workers, which wait. Owner: the caller. */
dp_status dp_loader_create(const dp_loader_config *config, dp_loader **out, dp_error *err);
void dp_loader_free(dp_loader *loader);             /* joins the workers; NULL is fine */
int64_t dp_loader_batches(const dp_loader *loader); /* an epoch */

/* Begins an epoch at a batch; drops what an unfinished one had prepared. Batches handed out must be released
 * first. */
dp_status dp_loader_start(dp_loader *loader, int64_t epoch, int64_t first_batch, dp_error *err);
/* The next batch in order, waiting for it if need be; NULL after the last. It stays valid until released; up
 * to two may be held at once. */
dp_status dp_loader_next(dp_loader *loader, const dp_batch **out, dp_error *err);
void dp_loader_release(dp_loader *loader, const dp_batch *batch);

DP_END_DECLARATIONS

#endif
