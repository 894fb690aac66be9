/* Model and split, as the commands that train are told about them. */
#include <string.h>

#include "base/text.h"
#include "cli/cli.h"

/* --model-type is the name of a U-Net's encoder. */
static dp_status model_name(const cli_options *o, const char **out, dp_error *err)
{
    static const char *const encoders[] = {"vgg16", "resnet34", "resnet101", NULL};
    static const char *const unets[] = {"unet16", "unet_resnet34", "unet_resnet101"};
    int encoder = -1;
    *out = cli_given(o, OPT_MODEL) ? o->value[OPT_MODEL] : "lenet";
    DP_TRY(cli_choice(o, OPT_MODEL_TYPE, encoders, &encoder, err));
    if (encoder < 0)
        return DP_OK;
    if (cli_given(o, OPT_MODEL) && strcmp(*out, unets[encoder]) != 0)
        return dp_fail(err, DP_ERROR_USAGE, "--model-type %s is the model %s, but --model says %s",
                       encoders[encoder], unets[encoder], *out);
    *out = unets[encoder];
    return DP_OK;
}

/* An option that the model has no use for must have a value that changes nothing. */
static dp_status check_use(const dp_model_config *m, const dp_model_traits *traits, dp_error *err)
{
    bool usual = m->hidden_count == 0 || (m->hidden_count == 2 && m->hidden[0] == 512 && m->hidden[1] == 512);
    const struct {
        const char *option;
        bool used, neutral;
    } rows[] = {
        {"hidden", traits->hidden, usual},
        {"width", traits->width, m->width == 0 || m->width == 64},
        {"filters", traits->decoder, m->filters == 0 || m->filters == 32},
        {"deconv", traits->decoder, !m->deconv},
        {"dropout", traits->dropout, m->dropout <= 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (!rows[i].used && !rows[i].neutral)
            return dp_fail(err, DP_ERROR_USAGE, "model '%s' has no use for --%s", m->name, rows[i].option);
    return DP_OK;
}

dp_status cli_model_config(const cli_options *o, dp_model_config *m, dp_model_traits *traits, dp_error *err)
{
    const char *name;
    DP_TRY(model_name(o, &name, err));
    *m = dp_model_defaults(name);
    DP_TRY(dp_model_traits_of(name, traits, err));
    DP_TRY(cli_integers(o, OPT_HIDDEN, 1, 1 << 24, DP_MODEL_MAX_HIDDEN, m->hidden, &m->hidden_count, err));
    DP_TRY(cli_integer(o, OPT_WIDTH, 1, 1 << 14, &m->width, err));
    DP_TRY(cli_integer(o, OPT_FILTERS, 1, 1 << 14, &m->filters, err));
    DP_TRY(cli_integer(o, OPT_NUM_CLASSES, 1, CLI_MAX_CLASSES, &m->outputs, err));
    DP_TRY(cli_number(o, OPT_DROPOUT, 0, CLI_BELOW_1, &m->dropout, err));
    m->deconv = cli_given(o, OPT_DECONV);
    return check_use(m, traits, err);
}

dp_status cli_split(const cli_options *o, dp_engine_config *e, double shares[DP_ENGINE_MAX_DEVICES],
                    int *count, dp_error *err)
{
    static const char *const convs[] = {"auto", "direct", NULL};
    const char *split = o->value[OPT_SPLIT];
    int conv = 0;
    *count = 0;
    DP_TRY(cli_choice(o, OPT_CONV, convs, &conv, err));
    e->direct_convolution = conv == 1;
    if (split && strcmp(split, "balanced") == 0)
        e->split = DP_SPLIT_BALANCED;
    else if (split && *split >= '0' && *split <= '9') {
        e->split = DP_SPLIT_SHARES;
        e->shares = shares;
        return cli_numbers(o, OPT_SPLIT, 0, 1e9, DP_ENGINE_MAX_DEVICES, shares, count, err);
    } else if (split && strcmp(split, "chunk") != 0)
        return dp_fail(err, DP_ERROR_USAGE,
                       "--split '%s' is unknown: chunk, balanced or shares like 1,2,2 are needed", split);
    return DP_OK;
}

dp_status cli_check_shares(const cli_options *o, const dp_engine_config *e, int shares, dp_error *err)
{
    if (e->split == DP_SPLIT_SHARES && shares != e->device_count)
        return dp_fail(err, DP_ERROR_USAGE, "--split '%s' has %d share%s for %d device%s",
                       o->value[OPT_SPLIT], shares, dp_s(shares), e->device_count, dp_s(e->device_count));
    return DP_OK;
}

dp_status cli_output_device(const cli_options *o, dp_engine_config *e, dp_error *err)
{
    int64_t output = -1;
    DP_TRY(cli_integer(o, OPT_OUTPUT_DEVICE, 0, 1 << 20, &output, err));
    e->output_device = (int)output;
    return DP_OK;
}

dp_status cli_synthetic_model(const cli_options *o, dp_model **out, dp_loss_kind *criterion, dp_error *err)
{
    dp_model_config m;
    dp_model_traits traits;
    *out = NULL;
    DP_TRY(cli_model_config(o, &m, &traits, err));
    m.input_rank = 3;
    memcpy(m.input_shape, traits.usual_shape, sizeof m.input_shape);
    DP_TRY(cli_size(o, OPT_SIZE, &m.input_shape[1], err));
    if (traits.dense && m.outputs > 1)
        return dp_fail(err, DP_ERROR_USAGE, "--num-classes %lld: synthetic masks have one channel",
                       (long long)m.outputs);
    if (!m.outputs)
        m.outputs = traits.dense ? 1 : traits.usual_classes;
    *criterion = traits.dense ? DP_LOSS_BCE_WITH_LOGITS : DP_LOSS_CROSS_ENTROPY;
    return dp_model_build(&m, out, err);
}

bool cli_list_models(const cli_options *o)
{
    if (!cli_given(o, OPT_MODEL) || strcmp(o->value[OPT_MODEL], "list") != 0)
        return false;
    for (const char *const *name = dp_model_names(); *name; name++)
        printf("%s\n", *name);
    return true;
}
