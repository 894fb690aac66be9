/* Weights in files: what a checkpoint says, and loading by name. */
#include "small_run.h"

/* ---- checkpoints ---- */

START_TEST(a_checkpoint_says_what_it_was_told)
{
    dp_model *model = linear_model(3, 2), *read;
    const float weights[8] = {1, -2, 3, 0.1F, 1e-38F, 6, 7, 8};
    const dp_checkpoint_info info = {.criterion = DP_LOSS_BCE_WITH_LOGITS,
                                     .pos_weight = 0.1,
                                     .normalize_channels = 3,
                                     .mean = {0.485F, 0.456F, 0.406F},
                                     .std = {0.229F, 1e-9F, 0.225F},
                                     .data_seed = UINT64_MAX,
                                     .valid_split = 1.0 / 3,
                                     .epoch = 41};
    OK(dp_checkpoint_write(scratch("w"), model, &(dp_model_state){.weights = (float *)weights}, &info, &err));
    dp_checkpoint_info got;
    OK(dp_checkpoint_open(scratch("w"), &read, &got, &err));
    ck_assert_int_eq(got.criterion, info.criterion);
    ck_assert_double_eq(got.pos_weight, info.pos_weight);
    ck_assert_int_eq(got.normalize_channels, 3);
    ck_assert_int_eq(memcmp(got.mean, info.mean, sizeof info.mean), 0);
    ck_assert_int_eq(memcmp(got.std, info.std, sizeof info.std), 0);
    ck_assert_uint_eq(got.data_seed, UINT64_MAX);
    ck_assert_double_eq(got.valid_split, info.valid_split);
    ck_assert_int_eq(got.epoch, 41);
    ck_assert_str_eq(dp_model_description(read), dp_model_description(model));
    float back[8];
    dp_load_report report;
    OK(dp_weights_load(scratch("w"), read, false, &(dp_model_state){.weights = back}, &report, &err));
    ck_assert_int_eq(memcmp(back, weights, sizeof back), 0);
    ck_assert(report.loaded == 2 && report.stripped == 0 && report.skipped == 0);
    dp_model_free(model);
    dp_model_free(read);
}
END_TEST

/* A file of one parameter whose metadata has, beside the model's description, the given pair. */
static dp_status open_with(const char *key, const char *value, dp_checkpoint_info *info)
{
    static const float bias[2];
    dp_model *model = linear_model(3, 2), *read;
    const dp_tensor tensor = TENSOR("bias", DP_F32, bias, 2);
    const dp_metadata metadata[] = {{"model", (char *)dp_model_description(model)},
                                    {"loss", strcmp(key, "loss") == 0 ? (char *)value : "mse"},
                                    {(char *)key, (char *)value}};
    OK(dp_safetensors_write(scratch("m"), &tensor, 1, metadata, strcmp(key, "loss") == 0 ? 2 : 3, &err));
    dp_status status = dp_checkpoint_open(scratch("m"), &read, info, &err);
    dp_model_free(read);
    dp_model_free(model);
    return status;
}

START_TEST(names_of_classes_go_with_a_checkpoint)
{
    static const char *const names[] = {"cat", "say \"no\", dog", "\xc3\xa9l\xc3\xa9phant", ""};
    static const char *const wrong[] = {"",       "{}",    "[1]",           "[\"a\", null]",
                                        "[\"a\"", "\"a\"", "[\"a\\u0000\"]"};
    dp_model *model = linear_model(3, 2);
    float weights[8] = {0};
    dp_class_names got;
    dp_checkpoint_info info = {.pos_weight = 1, .named_classes = 4, .class_names = names};
    OK(dp_checkpoint_write(scratch("w"), model, &(dp_model_state){.weights = weights}, &info, &err));
    OK(dp_checkpoint_class_names(scratch("w"), &got, &err));
    ck_assert_int_eq(got.count, 4);
    for (int i = 0; i < 4; i++)
        ck_assert_str_eq(got.list[i], names[i]);
    dp_class_names_clear(&got);
    ck_assert_int_eq(got.count, 0);
    info.named_classes = 0;
    OK(dp_checkpoint_write(scratch("w"), model, &(dp_model_state){.weights = weights}, &info, &err));
    OK(dp_checkpoint_class_names(scratch("w"), &got, &err));
    ck_assert(got.count == 0 && !got.list);
    dp_model_free(model);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        OK(open_with("class_names", wrong[i], &info));
        ck_assert_msg(dp_checkpoint_class_names(scratch("m"), &got, &err) == DP_ERROR_MISMATCH, "%s",
                      wrong[i]);
        ck_assert_ptr_nonnull(strstr(err.message, "names of classes"));
        dp_class_names_clear(&got);
    }
}
END_TEST

START_TEST(metadata_is_not_trusted)
{
    static const char *const wrong[][2] = {
        {"loss", "hinge"},
        {"loss", ""},
        {"pos_weight", "0"},
        {"pos_weight", "-1"},
        {"pos_weight", "nan"},
        {"pos_weight", "inf"},
        {"valid_split", "1"},
        {"valid_split", "-0.1"},
        {"valid_split", "nan"},
        {"valid_split", "x"},
        {"pos_weight", "1x"},
        {"epoch", "1e300"},
        {"epoch", "-1"},
        {"data_seed", "-1"},
        {"data_seed", ""},
        {"data_seed", "99999999999999999999"},
        {"normalization", "{"},
        {"normalization", "[]"},
        {"normalization", "{\"mean\":[0],\"std\":[0]}"},
        {"normalization", "{\"mean\":[0,0],\"std\":[1]}"},
        {"normalization", "{\"mean\":[\"0\"],\"std\":[1]}"},
        {"normalization", "{\"mean\":[0,0,0,0,0],\"std\":[1,1,1,1,1]}"},
        {"normalization", "{\"mean\":[1e300],\"std\":[1]}"},
        {"normalization", "{\"mean\":[0],\"std\":[1e-300]}"},
    };
    dp_checkpoint_info info;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        dp_status status = open_with(wrong[i][0], wrong[i][1], &info);
        ck_assert_msg(status == DP_ERROR_MISMATCH, "%s %s: status %d", wrong[i][0], wrong[i][1], (int)status);
    }
    OK(open_with("note", "anything", &info));
    ck_assert_int_eq(info.epoch, -1);
    ck_assert_int_eq(info.criterion, DP_LOSS_MSE);
}
END_TEST

START_TEST(files_that_are_no_checkpoint_are_refused)
{
    static const float values[2];
    const dp_tensor tensor = TENSOR("bias", DP_F32, values, 2);
    dp_model *model;
    dp_checkpoint_info info;
    ck_assert_int_eq(dp_checkpoint_open(scratch("none"), &model, &info, &err), DP_ERROR_IO);
    ck_assert_ptr_null(model);
    scratch_write("short", "12345", 5);
    ck_assert_int_eq(dp_checkpoint_open(scratch("short"), &model, &info, &err), DP_ERROR_IO);
    ck_assert_int_eq(dp_checkpoint_open(write_tensors("bare", &tensor, 1), &model, &info, &err),
                     DP_ERROR_MISMATCH);
    assert_says("does not say which model");
    ck_assert_ptr_null(model);
}
END_TEST

/* ---- weights by name ---- */

static float w23[6] = {1, 2, 3, 4, 5, 6}, b2[2] = {7, 8};

static dp_status load(const dp_tensor *tensors, int count, bool partial, float out[8], dp_load_report *report)
{
    dp_model *model = linear_model(3, 2);
    for (int i = 0; i < 8; i++)
        out[i] = -1;
    dp_status status = dp_weights_load(write_tensors("w", tensors, count), model, partial,
                                       &(dp_model_state){.weights = out}, report, &err);
    dp_model_free(model);
    return status;
}

START_TEST(module_prefixes_are_stripped)
{
    float out[8];
    dp_load_report report;
    const dp_tensor one[] = {TENSOR("module.weight", DP_F32, w23, 2, 3), TENSOR("bias", DP_F32, b2, 2)};
    OK(load(one, 2, false, out, &report));
    ck_assert(report.loaded == 2 && report.stripped == 1 && report.skipped == 0);
    for (int i = 0; i < 8; i++)
        ck_assert_float_eq(out[i], (float)(i + 1));
    const dp_tensor two[] = {TENSOR("module.module.weight", DP_F32, w23, 2, 3),
                             TENSOR("module.bias", DP_F32, b2, 2)};
    OK(load(two, 2, false, out, &report));
    ck_assert_int_eq(report.stripped, 2);
    const dp_tensor not_one[] = {TENSOR("submodule.weight", DP_F32, w23, 2, 3),
                                 TENSOR("bias", DP_F32, b2, 2)};
    ck_assert_int_eq(load(not_one, 2, false, out, &report), DP_ERROR_MISMATCH);
    assert_says("unexpected key(s): \"submodule.weight\"");
    const dp_tensor both[] = {TENSOR("module.bias", DP_F32, b2, 2), TENSOR("bias", DP_F32, b2, 2)};
    ck_assert_int_eq(load(both, 2, true, out, &report), DP_ERROR_MISMATCH);
    assert_says("'bias' twice");
}
END_TEST

/* A replica wrapped within a model: fc1.module.weight. */
START_TEST(module_is_stripped_after_a_dot_too)
{
    dp_model *model;
    const dp_model_config config = {
        .name = "mlp", .input_rank = 1, .input_shape = {3}, .outputs = 1, .hidden_count = 1, .hidden = {2}};
    OK(dp_model_build(&config, &model, &err));
    const dp_tensor tensors[] = {TENSOR("fc1.module.weight", DP_F32, w23, 2, 3),
                                 TENSOR("module.fc1.module.bias", DP_F32, b2, 2),
                                 TENSOR("fc2.weight", DP_F32, w23, 1, 2), TENSOR("fc2.bias", DP_F32, b2, 1)};
    float out[11];
    ck_assert_int_eq(dp_model_elements(model), 11);
    dp_load_report report;
    OK(dp_weights_load(write_tensors("w", tensors, 4), model, false, &(dp_model_state){.weights = out},
                       &report, &err));
    ck_assert(report.loaded == 4 && report.stripped == 2 && report.skipped == 0);
    ck_assert(out[5] == 6 && out[7] == 8);
    dp_model_free(model);
}
END_TEST

/* A model's tensors, and each of the encoder's under a second name too, before the first or behind it. */
typedef struct two_names {
    dp_tensor tensors[1024];
    char names[1024][64];
    int count, renamed;
} two_names;

static void add_named(two_names *file, const dp_tensor *tensor, const char *format, const char *rest)
{
    ck_assert_int_lt(file->count, 1024);
    char *name = file->names[file->count];
    snprintf(name, sizeof file->names[0], format, rest);
    dp_tensor *t = &file->tensors[file->count++];
    *t = *tensor;
    t->name = name;
}

/* As the original U-Net code names a ResNet's and torchvision VGG's layers. */
static void add_second_name(two_names *file, const dp_tensor *tensor)
{
    static const char *const names[][2] = {{"encoder.conv1.", "conv1.0.%s"}, {"encoder.bn1.", "conv1.1.%s"},
                                           {"encoder.layer1.", "conv2.%s"},  {"encoder.layer2.", "conv3.%s"},
                                           {"encoder.layer3.", "layer3.%s"}, {"encoder.layer4.", "conv5.%s"},
                                           {"encoder.5.", "conv2.0.%s"},     {"encoder.28.", "conv5.4.%s"},
                                           {"encoder.fc.", "fc.%s"},         {"encoder.", "features.%s"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(tensor->name, names[i][0], strlen(names[i][0])) == 0) {
            add_named(file, tensor, names[i][1], tensor->name + strlen(names[i][0]));
            file->renamed++;
            return;
        }
}

START_TEST(an_encoder_may_have_other_names)
{
    static const char *const models[] = {"unet16", "unet_resnet34"};
    static two_names file;
    const dp_model_config config = {.name = models[_i % 2],
                                    .input_rank = 3,
                                    .input_shape = {3, 64, 64},
                                    .outputs = 1,
                                    .width = 2,
                                    .filters = 2};
    dp_model *model;
    OK(dp_model_build(&config, &model, &err));
    dp_model_state written = {0}, read = {0};
    OK(dp_model_state_create(model, &written, &err));
    OK(dp_model_state_create(model, &read, &err));
    dp_model_state_init(model, 7, &written);
    dp_model_state_init(model, 8, &read);
    dp_views views = {0};
    OK(dp_views_add(&views, model, "", &written, dp_state_count(model), &err));
    bool both = _i / 2 < 2, second_first = _i / 2 == 1; /* else the second names alone */
    file.count = file.renamed = 0;
    for (int i = 0; i < views.count; i++) {
        int before = file.count;
        if (!both || second_first)
            add_second_name(&file, &views.tensors[i]);
        if (both || file.count == before)
            add_named(&file, &views.tensors[i], "%s", views.tensors[i].name);
        if (both && !second_first)
            add_second_name(&file, &views.tensors[i]);
    }
    ck_assert_int_ge(file.renamed, 26);
    dp_load_report report;
    OK(dp_weights_load(write_tensors("w", file.tensors, file.count), model, false, &read, &report, &err));
    ck_assert_int_eq(report.loaded, dp_state_count(model));
    ck_assert_int_eq(memcmp(read.weights, written.weights, (size_t)dp_model_elements(model) * sizeof(float)),
                     0);
    dp_views_clear(&views);
    dp_model_state_free(&written);
    dp_model_state_free(&read);
    dp_model_free(model);
}
END_TEST

START_TEST(half_precision_is_widened_and_integers_are_refused)
{
    static const uint16_t half[2] = {0x3C00, 0xC000}, brain[6] = {0x3F80, 0xC000, 0x3F80, 0, 0, 0};
    static const int64_t whole[2] = {7, 8};
    float out[8];
    dp_load_report report;
    const dp_tensor floats[] = {TENSOR("weight", DP_BF16, brain, 2, 3), TENSOR("bias", DP_F16, half, 2)};
    OK(load(floats, 2, false, out, &report));
    ck_assert(out[0] == 1 && out[1] == -2 && out[6] == 1 && out[7] == -2);
    const dp_tensor integers[] = {TENSOR("weight", DP_F32, w23, 2, 3), TENSOR("bias", DP_I64, whole, 2)};
    ck_assert_int_eq(load(integers, 2, false, out, &report), DP_ERROR_MISMATCH);
    assert_says("\"bias\" is I64 [2] in the file, [2] in the model");
    ck_assert_float_eq(out[0], -1); /* nothing is loaded from a file that does not fit */
    OK(load(integers, 2, true, out, &report));
    ck_assert(report.loaded == 1 && report.skipped == 1);
    ck_assert(out[5] == 6 && out[6] == -1);
}
END_TEST

START_TEST(what_does_not_fit_is_listed)
{
    static char names[20][200];
    dp_tensor many[20];
    float out[8];
    dp_load_report report;
    for (int i = 0; i < 20; i++) {
        snprintf(names[i], sizeof names[i], "extra%02d.%0150d", i, 0);
        many[i] = TENSOR(names[i], DP_F32, b2, 2);
    }
    many[0] = TENSOR("weight", DP_F32, w23, 3, 2);
    ck_assert_int_eq(load(many, 20, false, out, &report), DP_ERROR_MISMATCH);
    assert_says("missing key(s): \"bias\"");
    assert_says("\"extra06.");
    assert_says(" and 13 more");
    assert_says("size mismatch: \"weight\" is F32 [3, 2] in the file, [2, 3] in the model");
    assert_says("--init-partial");
    ck_assert_int_eq(load(many, 20, true, out, &report), DP_ERROR_MISMATCH); /* nothing fits */
    many[1] = TENSOR("bias", DP_F32, b2, 2);
    OK(load(many, 20, true, out, &report));
    ck_assert(report.loaded == 1 && report.skipped == 1);
    ck_assert(out[0] == -1 && out[6] == 7);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("checkpoint");
    TCase *t = add_case(s, "checkpoint");
    tcase_add_test(t, a_checkpoint_says_what_it_was_told);
    tcase_add_test(t, names_of_classes_go_with_a_checkpoint);
    tcase_add_test(t, metadata_is_not_trusted);
    tcase_add_test(t, files_that_are_no_checkpoint_are_refused);
    t = add_case(s, "weights");
    tcase_add_test(t, module_prefixes_are_stripped);
    tcase_add_test(t, module_is_stripped_after_a_dot_too);
    tcase_add_loop_test(t, an_encoder_may_have_other_names, 0, 6);
    tcase_add_test(t, half_precision_is_widened_and_integers_are_refused);
    tcase_add_test(t, what_does_not_fit_is_listed);
    return run_tests(argc, argv, s);
}
