/* What the tests of data sets share: opening a source, well or badly. For one test program each. */
#ifndef DP_TESTS_DATASET_H
#define DP_TESTS_DATASET_H

#include <check.h>
#include <string.h>

#include "dptrain/data.h"
#include "io/safetensors.h"
#include "scratch.h"

static dp_dataset *train, *valid;
static const dp_dataset_info *info;

static inline dp_data_config from(const char *source)
{
    dp_data_config config = dp_data_defaults();
    config.source = source;
    return config;
}

static inline void open_ok(const dp_data_config *config)
{
    dp_error err = {0};
    ck_assert_msg(dp_data_open(config, &train, &valid, &err) == DP_OK, "%s", err.message);
    info = dp_dataset_info_of(train);
}

static inline void close_both(void)
{
    dp_dataset_free(train); /* either order */
    dp_dataset_free(valid);
}

static inline void open_fails(const dp_data_config *config, dp_status status, const char *why)
{
    dp_error err = {0};
    dp_status got = dp_data_open(config, &train, &valid, &err);
    ck_assert_msg(got == status, "status %d, %s", (int)got, err.message);
    ck_assert_msg(strstr(err.message, why) != NULL, "%s (wanted: %s)", err.message, why);
    ck_assert_ptr_null(train);
    ck_assert_ptr_null(valid);
}

/* ---- a safetensors file of the test's own: `data` in the scratch directory ---- */

#define SHAPE(...)                                                         \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) \
    {                                                                      \
        __VA_ARGS__                                                        \
    }

static inline dp_data_config file_config(void)
{
    static char source[2100];
    snprintf(source, sizeof source, "safetensors:%s", scratch("data"));
    return from(source);
}

static inline dp_tensor tensor(const char *name, dp_dtype dtype, int rank, const int64_t *shape,
                               const void *data)
{
    dp_tensor t = {
        .name = (char *)(uintptr_t)name, .dtype = dtype, .rank = rank, .elements = 1, .data = data};
    for (int d = 0; d < rank; d++) {
        t.shape[d] = shape[d];
        t.elements *= shape[d];
    }
    t.bytes = (size_t)t.elements * dp_dtype_size(dtype);
    return t;
}

static inline void write_tensors(dp_tensor a, dp_tensor b)
{
    /* One odd byte in front: nothing lies aligned. */
    static const unsigned char odd[1] = {7};
    const dp_tensor tensors[] = {tensor("odd", DP_U8, 1, (int64_t[]){1}, odd), a, b};
    dp_error err = {0};
    ck_assert_msg(dp_safetensors_write(scratch("data"), tensors, 3, NULL, 0, &err) == DP_OK, "%s",
                  err.message);
}

#endif
