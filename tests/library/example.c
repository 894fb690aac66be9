/* A program on the installed library: builds a network of its own, trains it on two devices, and asks it.
 *
 *     cc example.c $(pkg-config --cflags --libs dptrain) -lm -o example && ./example
 *
 * The task: points of the plane, and which of three rings around the origin they lie in. */
#include <dptrain/engine.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 90, STEPS = 400, RINGS = 3, WEIGHTS = 2 * 48 + 48 + 48 * 48 + 48 + 48 * 3 + 3 };

static float x[BATCH][2], outputs[BATCH][RINGS];
static float weights[WEIGHTS]; /* dp_model_elements(model) says how many */
static int32_t ring[BATCH];

static void make_batch(void)
{
    for (int i = 0; i < BATCH; i++) {
        ring[i] = rand() % RINGS;
        double radius = ring[i] + 0.2 + 0.6 * rand() / RAND_MAX, angle = 6.2832 * rand() / RAND_MAX;
        x[i][0] = (float)(radius * cos(angle));
        x[i][1] = (float)(radius * sin(angle));
    }
}

/* 2 -> 48 -> 48 -> 3; the names are those that PyTorch would give to the parameters. */
static dp_status build(dp_model **model, dp_error *err)
{
    dp_status status = dp_model_create("rings", model, err);
    if (status != DP_OK)
        return status;
    dp_value v = dp_model_input(*model, 1, (int64_t[]){2});
    v = dp_relu(*model, dp_linear(*model, "hidden1", v, 48));
    v = dp_relu(*model, dp_linear(*model, "hidden2", v, 48));
    return dp_model_finish(*model, dp_linear(*model, "out", v, RINGS), err);
}

static dp_status train(dp_engine *engine, dp_error *err)
{
    dp_step_result result;
    const dp_step step = {.batch = {.samples = BATCH, .x = x[0], .y = ring}, .lr = 0.1, .update = true};
    for (int i = 0; i < STEPS; i++) {
        make_batch();
        dp_status status = dp_engine_train(engine, &step, &result, err);
        if (status != DP_OK)
            return status;
        if (i % 100 == 0 || i == STEPS - 1)
            printf("step %3d  loss %.4f  on %d devices\n", i, result.loss, result.devices);
    }
    return DP_OK;
}

static dp_status ask(dp_engine *engine, dp_error *err)
{
    const dp_host_batch batch = {.samples = BATCH, .x = x[0]};
    int right = 0;
    make_batch();
    dp_status status = dp_engine_forward(engine, &batch, outputs[0], err);
    for (int i = 0; i < BATCH && status == DP_OK; i++) {
        int best = 0;
        for (int k = 1; k < RINGS; k++)
            if (outputs[i][k] > outputs[i][best])
                best = k;
        right += best == ring[i];
    }
    if (status == DP_OK)
        printf("%d of %d new points are put into their ring\n", right, BATCH);
    return status;
}

int main(void)
{
    dp_error err = {0};
    dp_context *context = NULL;
    dp_model *model = NULL;
    dp_engine *engine = NULL;
    dp_context_config devices = dp_context_defaults();
    devices.logical_devices = 2;
    dp_engine_config config = dp_engine_defaults(); /* all devices, cross entropy, SGD with momentum */

    dp_status status = dp_context_open(&devices, &context, &err);
    if (status == DP_OK)
        status = build(&model, &err);
    if (status == DP_OK && (status = dp_engine_create(context, model, &config, &engine, &err)) == DP_OK) {
        printf("%d %s devices\n", dp_engine_devices(engine), dp_context_backend_name(context));
        dp_model_init_weights(model, 0, weights);
        status = dp_engine_set_weights(engine, weights, &err);
    }
    if (status == DP_OK && (status = train(engine, &err)) == DP_OK)
        status = ask(engine, &err);
    if (status != DP_OK)
        fprintf(stderr, "error: %s\n", err.message);
    dp_engine_free(engine);
    dp_model_free(model);
    dp_context_close(context);
    return status == DP_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
