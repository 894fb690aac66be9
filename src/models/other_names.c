/* Names under which other programs keep the encoders of the U-Nets: torchvision's own models, and the
 * original U-Net code, which stores each encoder layer a second time as conv1 to conv5. */
#include <stdio.h>
#include <string.h>

#include "models/models.h"

static bool starts(const char *name, const char *prefix)
{
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* "conv2.2.weight": the layer 2 of stage 2 of VGG's features, in which every stage ends with a pooling. */
static bool vgg_stage(const char *name, char *out, size_t size)
{
    static const int first[] = {0, 5, 10, 17, 24}, layers[] = {2, 2, 3, 3, 3};
    int stage, layer, used = 0;
    if (sscanf(name, "conv%1d.%1d%n", &stage, &layer, &used) != 2 || name[used] != '.' || stage < 1 ||
        stage > 5 || layer % 2 != 0 || layer / 2 >= layers[stage - 1])
        return false;
    int n = snprintf(out, size, "encoder.%d%s", first[stage - 1] + layer, name + used);
    return n > 0 && (size_t)n < size;
}

/* conv1.0 and conv1.1 are the stem; conv2 to conv5 are layer1 to layer4. */
static bool resnet_stage(const char *name, char *out, size_t size)
{
    int n = -1;
    if (starts(name, "conv1.0."))
        n = snprintf(out, size, "encoder.conv1.%s", name + strlen("conv1.0."));
    else if (starts(name, "conv1.1."))
        n = snprintf(out, size, "encoder.bn1.%s", name + strlen("conv1.1."));
    else if (starts(name, "conv") && name[4] >= '2' && name[4] <= '5' && name[5] == '.')
        n = snprintf(out, size, "encoder.layer%c%s", name[4] - 1, name + 5);
    return n > 0 && (size_t)n < size;
}

bool dp_model_other_name(const dp_model *model, const char *name, char *out, size_t size)
{
    const char *kind = dp_model_name(model);
    int n = -1;
    if (strcmp(kind, "unet16") == 0) {
        if (vgg_stage(name, out, size))
            return true;
        if (starts(name, "features."))
            n = snprintf(out, size, "encoder.%s", name + strlen("features."));
    } else if (starts(kind, "unet_resnet")) {
        if (resnet_stage(name, out, size))
            return true;
        if (starts(name, "conv1.") || starts(name, "bn1.") || starts(name, "layer") || starts(name, "fc."))
            n = snprintf(out, size, "encoder.%s", name);
    }
    return n > 0 && (size_t)n < size;
}
