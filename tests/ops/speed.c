/* How fast the operations are, and which there are. */
#include "uses.h"

#include <string.h>

#include "base/thread.h"

/* The shortest of the runs that fit into a quarter of a second, at least three. */
static bool best_time(chain *c, int link, dp_status (*call)(chain *, int, dp_error *), double *out)
{
    dp_error err = {0};
    double start = dp_now();
    *out = 1e9;
    for (int i = 0; i < 4 || dp_now() - start < 0.25; i++) {
        double t = dp_now();
        if (call(c, link, &err) != DP_OK || chain_synchronize(c, &err) != DP_OK)
            return false;
        t = dp_now() - t;
        if (i > 0 && t < *out) /* the first is a warm-up */
            *out = t;
    }
    return true;
}

static bool speed_of_case(dp_device *device, const op_case *c, FILE *to)
{
    case_data data;
    chain *chain;
    dp_error err = {0};
    if (!case_data_make(c, false, 1, &data))
        return false;
    bool good = chain_create(device, c, &data, (chain_options){.training = true}, &chain, &err) == DP_OK;
    case_data_free(&data);
    if (!good) {
        fprintf(to, "%s: %s\n", c->text, err.message);
        return false;
    }
    for (int i = 0; i < c->length && good; i++) {
        double forward = 0, backward = 0;
        good = best_time(chain, i, chain_forward, &forward);
        /* Backward masks its gradient in place; again and again is the same work. */
        good = good && best_time(chain, i, chain_backward, &backward);
        double flops = op_case_flops(&c->chain[i]);
        int gradients = 1 + (i > 0 || c->input_gradient);
        fprintf(to, "%-46s %-10s layout %d  forward %8.3f ms", i ? "" : c->text,
                dp_op_kind_name(c->chain[i].kind), chain_layout(chain, i), forward * 1e3);
        if (flops > 0)
            fprintf(to, " %6.1f GFLOP/s  backward %8.3f ms %6.1f GFLOP/s\n", flops / forward * 1e-9,
                    backward * 1e3, gradients * flops / backward * 1e-9);
        else
            fprintf(to, "                  backward %8.3f ms\n", backward * 1e3);
    }
    chain_destroy(chain);
    return good;
}

bool print_speed(dp_device *device, FILE *to)
{
    for (int i = 0; speed_cases[i]; i++) {
        op_case c;
        if (!op_case_parse(speed_cases[i], &c) || !speed_of_case(device, &c, to))
            return false;
    }
    return true;
}

bool print_support(dp_device *device, FILE *to)
{
    for (int i = 0; correctness_cases[i]; i++) {
        op_case c;
        case_data data;
        chain *chain;
        dp_error err = {0};
        if (!op_case_parse(correctness_cases[i], &c) || !case_data_make(&c, true, 1, &data))
            return false;
        bool has = chain_create(device, &c, &data, (chain_options){.training = true}, &chain, &err) == DP_OK;
        fprintf(to, "%-3s %s", has ? "yes" : "no", c.text);
        for (int k = 0; k < c.length && has; k++)
            fprintf(to, "%s%d", k ? "," : "  layouts ", chain_layout(chain, k));
        fprintf(to, "%s%s\n", has ? "" : ": ", has ? "" : err.message);
        chain_destroy(has ? chain : NULL);
        case_data_free(&data);
    }
    return true;
}
