#include "dptrain/bench.h"

const char *dp_topology_name(dp_topology topology)
{
    static const char *const names[] = {"star", "tree", "ring"};
    return names[topology];
}

/* How many times the whole model crosses a link, one way, while nothing else can go on. */
static double crossings(dp_topology topology, int devices)
{
    int rounds = 0;
    if (topology == DP_TOPOLOGY_RING)
        return (devices - 1.0) / devices;
    if (topology == DP_TOPOLOGY_STAR)
        return devices - 1;
    for (int reached = 1; reached < devices; reached *= 2)
        rounds++;
    return rounds;
}

double dp_cost_transfer_ms(const dp_cost_model *model, dp_topology topology, int devices)
{
    return 1e3 * 2 * crossings(topology, devices) * model->parameter_bytes / model->bytes_per_second;
}

double dp_cost_step_ms(const dp_cost_model *model, dp_topology topology, int devices, bool weak)
{
    return model->compute_ms / (weak ? 1 : devices) + dp_cost_transfer_ms(model, topology, devices);
}

double dp_cost_speedup(const dp_cost_model *model, dp_topology topology, int devices, bool weak)
{
    double step = dp_cost_step_ms(model, topology, devices, weak);
    return model->compute_ms * (weak ? devices : 1) / step;
}
