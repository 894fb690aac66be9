/* What a source of data gives: samples and targets in memory (or in an open file). Data sets are views of
 * it. Adding a source: a function that fills storages, and a line in the table of data.c. */
#ifndef DP_DATA_STORAGE_H
#define DP_DATA_STORAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "dptrain/data.h"
#include "io/idx.h"
#include "io/safetensors.h"

enum { DP_BYTE_VALUES = 256 };

typedef struct dp_storage dp_storage;

/* Pictures in files (pictures.h). */
typedef struct dp_pictures dp_pictures;
void dp_pictures_free(dp_pictures *pictures); /* NULL is fine */

/* Writes sample `index` (in range), normalised, and its target, unless x or target is NULL. The epoch is for
 * augmentation; below 0: none. Any number of threads at once. */
typedef dp_status (*dp_read_sample)(const dp_storage *storage, int64_t index, int64_t epoch, float *x,
                                    void *target, dp_error *err);

struct dp_storage {
    _Atomic int references; /* data sets that look at it */
    int64_t samples;
    bool is_test; /* the data's own test part */
    int rank;     /* of a sample: 1 or 3 */
    int64_t shape[3];
    int64_t elements;    /* of a sample */
    dp_read_sample read; /* set by dp_storage_normalize, unless the source has its own */

    /* Inputs, [samples, elements]: unsigned bytes that stand for 0..1, or float32. In memory (aligned to 1
     * byte only), or, where `file` is set, a tensor that is read sample by sample: such a file may be larger
     * than memory. */
    bool bytes;
    const unsigned char *x;
    const dp_tensor *x_tensor;

    dp_target_kind target;
    int64_t target_elements;
    int32_t *labels;           /* LABELS; owned */
    const dp_tensor *y_tensor; /* else: float32 in `file`, or in `made_values` */
    char **class_names;        /* LABELS: of the first named_classes of them, UTF-8; owned */
    int64_t named_classes;
    char *labels_path; /* where labels come from, for messages; owned */

    /* Normalisation, filled by dp_storage_normalize. */
    int normalize_channels; /* 0: none */
    float mean[4], std[4];
    float (*table)[DP_BYTE_VALUES]; /* bytes: the float of each value; one row, or one a channel; owned */

    /* Where the samples are: whichever the source uses. */
    dp_idx images;
    dp_safetensors *file;
    float *made, *made_values;
    dp_pictures *pictures;
};

/* What a source knows beyond its samples. */
typedef struct dp_source {
    dp_storage *train;
    dp_storage *test; /* the data's own test part; NULL if it has none, or none was wanted */
    int64_t classes;  /* 0: the largest label + 1 */
    /* How it is normalised unless the user says otherwise: 0, or so many channels with these. */
    int normalize_channels;
    float mean[4], std[4];
} dp_source;

/* Empty storage with one reference. Owner: the caller, dp_storage_release. */
dp_status dp_storage_create(dp_storage **out, dp_error *err);
dp_storage *dp_storage_share(dp_storage *storage);
void dp_storage_release(dp_storage *storage); /* NULL is fine */

/* Sets rank, shape and elements of a sample; DP_ERROR_MISMATCH unless each extent is at least 1 and the
 * product fits. `path` is for the message. */
dp_status dp_storage_set_shape(dp_storage *storage, int rank, const int64_t *shape, const char *path,
                               dp_error *err);

/* Checks the normalisation against the samples' channels and prepares it. channels is 0 (none), 1 (for all)
 * or the samples' number of channels. */
dp_status dp_storage_normalize(dp_storage *storage, int channels, const float *mean, const float *std,
                               dp_error *err);

/* Normalises a sample of float32 in place. */
void dp_storage_normalize_floats(const dp_storage *storage, float *x);

/* DP_ERROR_MISMATCH if a label is negative or, where classes > 0, not below it. *largest: the largest label.
 */
dp_status dp_storage_check_labels(const dp_storage *storage, int64_t classes, int64_t *largest,
                                  dp_error *err);

/* The sources. `argument` is what follows the colon, NULL if there is no colon. After a failure the storages
 * that were made so far are in *out and are the caller's to release, as they are after success. */
dp_status dp_open_fashion_mnist(const dp_data_config *config, const char *argument, dp_source *out,
                                dp_error *err);
dp_status dp_open_idx(const dp_data_config *config, const char *argument, dp_source *out, dp_error *err);
dp_status dp_open_safetensors(const dp_data_config *config, const char *argument, dp_source *out,
                              dp_error *err);
dp_status dp_open_segmentation(const dp_data_config *config, const char *argument, dp_source *out,
                               dp_error *err);
dp_status dp_open_images(const dp_data_config *config, const char *argument, dp_source *out, dp_error *err);
dp_status dp_open_synthetic(const dp_data_config *config, const char *argument, dp_source *out,
                            dp_error *err);

/* Fashion-MNIST from the first of these directories that exists (NULL-terminated list). */
dp_status dp_open_fashion_mnist_in(const char *const *directories, const dp_data_config *config,
                                   dp_source *out, dp_error *err);

#endif
