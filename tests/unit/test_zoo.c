/* The models by name: parameters as PyTorch counts them, fusion, sizes, other programs' names. */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "nn/graph.h"

static dp_model *build_config(const dp_model_config *config)
{
    dp_model *m = NULL;
    dp_error err = {0};
    ck_assert_msg(dp_model_build(config, &m, &err) == DP_OK, "%s", err.message);
    return m;
}

static dp_model_config image_config(const char *name, int64_t height, int64_t width, int64_t outputs)
{
    dp_model_config c = dp_model_defaults(name);
    c.input_rank = 3;
    c.input_shape[0] = 3;
    c.input_shape[1] = height;
    c.input_shape[2] = width;
    c.outputs = outputs;
    return c;
}

/* What PyTorch counts for the same networks. */
static const struct {
    const char *name;
    bool deconv;
    int side;
    int64_t outputs, elements;
    int params, buffers;
} zoo[] = {
    {"resnet18", false, 224, 1000, 11689512, 62, 60},
    {"resnet34", false, 224, 1000, 21797672, 110, 108},
    {"resnet50", false, 224, 1000, 25557032, 161, 159},
    {"resnet101", false, 224, 1000, 44549160, 314, 312},
    {"resnet18_cifar", false, 32, 10, 11173962, 62, 60},
    {"vgg16", false, 224, 1000, 138357544, 32, 0},
    {"unet16", false, 128, 1, 29306465, 50, 0},
    {"unet16", true, 128, 1, 32202337, 50, 0},
    {"unet_resnet34", false, 128, 1, 35117897, 138, 108},
    {"unet_resnet101", true, 128, 1, 79680585, 342, 312},
};
enum { ZOO = sizeof zoo / sizeof zoo[0] };

START_TEST(parameters_are_as_many_as_pytorchs)
{
    dp_model_config c = image_config(zoo[_i].name, zoo[_i].side, zoo[_i].side, zoo[_i].outputs);
    c.deconv = zoo[_i].deconv;
    dp_model *m = build_config(&c);
    ck_assert_int_eq(dp_model_elements(m), zoo[_i].elements);
    ck_assert_int_eq(dp_model_param_count(m), zoo[_i].params);
    ck_assert_int_eq(dp_model_buffer_count(m), zoo[_i].buffers);
    ck_assert_int_eq(dp_model_counters(m), zoo[_i].buffers / 3);
    for (int p = 0; p < dp_model_param_count(m); p++)
        ck_assert_int_eq(dp_model_param(m, p)->used,
                         strncmp(dp_model_param(m, p)->name, "encoder.fc.", strlen("encoder.fc.")) != 0);
    dp_model_free(m);
}
END_TEST

START_TEST(descriptions_rebuild_the_same_network)
{
    dp_model_config c = image_config(zoo[_i].name, zoo[_i].side, zoo[_i].side, zoo[_i].outputs);
    dp_model_traits traits;
    dp_error err = {0};
    ck_assert(dp_model_traits_of(c.name, &traits, &err) == DP_OK);
    c.deconv = zoo[_i].deconv;
    c.width = 8;
    c.filters = 4;
    c.dropout = traits.dropout ? 0.25 : -1;
    dp_model *m = build_config(&c), *again;
    ck_assert_msg(dp_model_from_description(dp_model_description(m), &again, &err) == DP_OK, "%s",
                  err.message);
    ck_assert_str_eq(dp_model_description(m), dp_model_description(again));
    ck_assert_int_eq(dp_model_elements(m), dp_model_elements(again));
    ck_assert_int_eq(m->program_count, again->program_count);
    for (int i = 0; i < m->program_count; i++)
        ck_assert(m->program[i].probability == again->program[i].probability);
    dp_model_free(m);
    dp_model_free(again);
}
END_TEST

/* conv, norm+relu, conv, norm+add+relu: nothing of a residual block runs by itself but these. */
START_TEST(a_residual_block_is_four_operations)
{
    dp_model_config c = image_config("resnet18_cifar", 32, 32, 10);
    dp_model *m = build_config(&c);
    int kinds[DP_OP_KINDS] = {0}, sums = 0;
    for (int i = 0; i < m->program_count; i++) {
        const dp_node *node = &m->program[i];
        kinds[node->kind]++;
        sums += node->inputs == 2;
        if (node->inputs == 2) /* what is added is there before */
            for (int k = 0; k < i; k++)
                if (m->program[k].output == node->input[1])
                    kinds[DP_OP_ADD]--;
    }
    ck_assert_int_eq(kinds[DP_OP_RELU], 0);
    ck_assert_int_eq(kinds[DP_OP_CONV2D], 20);
    ck_assert_int_eq(kinds[DP_OP_BATCH_NORM2D], 20);
    ck_assert_int_eq(sums, 8);
    ck_assert_int_eq(kinds[DP_OP_ADD], -8); /* each found once, and no addition is left */
    ck_assert_int_eq(m->program_count, 20 + 20 + 3);
    ck_assert_int_eq(m->norm_positions, 16);
    dp_model_free(m);
}
END_TEST

/* A skip connection is read by the pooling and by the concatenation: its relu belongs to the convolution. */
START_TEST(skips_keep_their_relu)
{
    dp_model_config c = image_config("unet16", 32, 64, 1);
    dp_model *m = build_config(&c);
    int pools = 0;
    for (int i = 0; i < m->program_count; i++) {
        ck_assert_int_ne(m->program[i].kind, DP_OP_RELU);
        if (m->program[i].kind != DP_OP_MAX_POOL2D)
            continue;
        pools++;
        ck_assert(!m->program[i].relu);
        ck_assert(m->program[i - 1].kind == DP_OP_CONV2D && m->program[i - 1].relu);
    }
    ck_assert_int_eq(pools, 5);
    dp_model_free(m);
}
END_TEST

static const struct {
    const char *name;
    int height, width;
    const char *says; /* NULL: fine */
} sizes[] = {
    {"unet16", 100, 130, "nearest sizes are 96x128 and 128x160"},
    {"unet16", 96, 160, NULL},
    {"unet16", 31, 32, "nearest size is 32x32"},
    {"unet_resnet34", 128, 160, "nearest sizes are 128x128 and 128x192"},
    {"unet_resnet34", 64, 192, NULL},
    {"vgg16", 31, 40, "nearest size is 32x40"},
    {"vgg16", 33, 47, NULL},
    {"resnet18", 7, 9, NULL},
    {"resnet18_cifar", 1, 1, NULL},
};

START_TEST(sizes_that_cannot_be_taken_name_the_nearest)
{
    dp_model_config c = image_config(sizes[_i].name, sizes[_i].height, sizes[_i].width, 2);
    c.width = c.filters = 2;
    dp_model *m = NULL;
    dp_error err = {0};
    dp_status status = dp_model_build(&c, &m, &err);
    if (!sizes[_i].says) {
        ck_assert_msg(status == DP_OK, "%s", err.message);
    } else {
        ck_assert_int_eq(status, DP_ERROR_MISMATCH);
        ck_assert_msg(strstr(err.message, sizes[_i].says) != NULL, "%s", err.message);
    }
    dp_model_free(m);
}
END_TEST

static const char *const other_names[][3] = {
    {"unet16", "conv1.2.bias", "encoder.2.bias"},
    {"unet16", "conv2.0.weight", "encoder.5.weight"},
    {"unet16", "conv3.4.weight", "encoder.14.weight"},
    {"unet16", "conv5.4.bias", "encoder.28.bias"},
    {"unet16", "features.7.weight", "encoder.7.weight"},
    {"unet16", "conv1.4.bias", NULL},
    {"unet16", "conv3.1.bias", NULL},
    {"unet16", "conv6.0.bias", NULL},
    {"unet_resnet34", "conv1.0.weight", "encoder.conv1.weight"},
    {"unet_resnet34", "conv1.1.running_var", "encoder.bn1.running_var"},
    {"unet_resnet34", "conv3.0.downsample.1.bias", "encoder.layer2.0.downsample.1.bias"},
    {"unet_resnet34", "conv5.2.bn1.weight", "encoder.layer4.2.bn1.weight"},
    {"unet_resnet34", "conv1.weight", "encoder.conv1.weight"},
    {"unet_resnet34", "layer4.0.conv2.weight", "encoder.layer4.0.conv2.weight"},
    {"unet_resnet34", "final.weight", NULL},
    {"resnet18", "layer1.0.conv1.weight", NULL},
};

START_TEST(encoders_are_known_by_other_names)
{
    const char *const *row = other_names[_i];
    dp_model_config c = image_config(row[0], 64, 64, 1);
    c.width = c.filters = 2;
    dp_model *m = build_config(&c);
    char out[64];
    bool found = dp_model_other_name(m, row[1], out, sizeof out);
    ck_assert_int_eq(found, row[2] != NULL);
    bool exists = false;
    for (int p = 0; found && p < dp_model_param_count(m); p++)
        exists |= strcmp(dp_model_param(m, p)->name, out) == 0;
    for (int b = 0; found && b < dp_model_buffer_count(m); b++)
        exists |= strcmp(dp_model_buffer(m, b)->name, out) == 0;
    if (found) {
        ck_assert_str_eq(out, row[2]);
        ck_assert(exists);
    }
    dp_model_free(m);
}
END_TEST

static void moments(const float *w, int64_t n, double *mean, double *deviation)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)w[i];
        squares += (double)w[i] * (double)w[i];
    }
    *mean = sum / (double)n;
    *deviation = sqrt(squares / (double)n - *mean * *mean);
}

START_TEST(encoders_start_as_torchvisions_do)
{
    dp_model_config c = image_config("vgg16", 32, 32, 10);
    c.width = 16;
    dp_model *m = build_config(&c);
    dp_model_state state;
    dp_error err = {0};
    ck_assert(dp_model_state_create(m, &state, &err) == DP_OK);
    dp_model_state_init(m, 5, &state);
    for (int p = 0; p < dp_model_param_count(m); p++) {
        const dp_param_info *info = dp_model_param(m, p);
        double mean, deviation, want = 0.01;
        moments(state.weights + info->offset, info->elements, &mean, &deviation);
        if (info->rank == 1)
            want = 0;
        else if (info->rank == 4)
            want = sqrt(2.0 / (double)(info->shape[0] * info->shape[2] * info->shape[3]));
        double slack = 4 * want / sqrt((double)info->elements);
        ck_assert_msg(fabs(mean) <= slack && fabs(deviation - want) <= slack,
                      "%s: mean %g, deviation %g, want %g", info->name, mean, deviation, want);
    }
    dp_model_state_free(&state);
    dp_model_free(m);
}
END_TEST

START_TEST(running_statistics_start_at_zero_and_one)
{
    dp_model_config c = image_config("resnet18_cifar", 8, 8, 10);
    c.width = 4;
    dp_model *m = build_config(&c);
    dp_model_state state;
    dp_error err = {0};
    ck_assert(dp_model_state_create(m, &state, &err) == DP_OK);
    dp_model_state_init(m, 0, &state);
    for (int b = 0; b < dp_model_buffer_count(m); b++) {
        const dp_buffer_info *info = dp_model_buffer(m, b);
        float want = strstr(info->name, "running_var") ? 1 : 0;
        for (int64_t i = 0; i < info->elements; i++)
            ck_assert(info->counter ? state.counters[info->offset] == 0
                                    : state.buffers[info->offset + i] == want);
    }
    dp_model_state_free(&state);
    dp_model_free(m);
}
END_TEST

#define LOOP(table) (int)(sizeof table / sizeof table[0])

int main(void)
{
    Suite *s = suite_create("zoo");
    TCase *t = tcase_create("zoo");
    tcase_add_loop_test(t, parameters_are_as_many_as_pytorchs, 0, ZOO);
    tcase_add_loop_test(t, descriptions_rebuild_the_same_network, 0, ZOO);
    tcase_add_test(t, a_residual_block_is_four_operations);
    tcase_add_test(t, skips_keep_their_relu);
    tcase_add_loop_test(t, sizes_that_cannot_be_taken_name_the_nearest, 0, LOOP(sizes));
    tcase_add_loop_test(t, encoders_are_known_by_other_names, 0, LOOP(other_names));
    tcase_add_test(t, encoders_start_as_torchvisions_do);
    tcase_add_test(t, running_statistics_start_at_zero_and_one);
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
