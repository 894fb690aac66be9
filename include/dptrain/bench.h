/* How fast training steps are: several devices against one, phase by phase; and what a model of their cost
 * predicts. UNSTABLE: may change in any version.
 *
 *     // How much faster two CPU devices train on batches of 128 than one.
 *     #include <stdio.h>
 *
 *     dp_status example(const dp_model *model, dp_error *err)
 *     {
 *         dp_bench_config config = dp_bench_defaults();
 *         config.context.backend = DP_BACKEND_CPU;
 *         config.context.logical_devices = 2;
 *         config.model = model;
 *         dp_bench_row row;
 *         dp_status status = dp_bench_compare(&config, 128, &row, err);
 *         if (status == DP_OK)
 *             printf("%.2f times as fast\n", row.speedup);
 *         return status;
 *     }
 *
 * Batches are noise that lies in memory before the clock starts: it is the engine that is measured, not the
 * loader. */
#ifndef DPTRAIN_BENCH_H
#define DPTRAIN_BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "dptrain/context.h"
#include "dptrain/engine.h"
#include "dptrain/model.h"
#include "dptrain/status.h"

DP_BEGIN_DECLARATIONS

typedef struct dp_bench_config {
    /* Every measurement opens a context of its own, so that the peaks of memory are its own, too. */
    dp_context_config context;
    dp_engine_config engine; /* device_ids[0] is the single device that all are compared with */
    const dp_model *model;   /* must outlive the call */
    int steps;               /* that are timed, on each side */
    int accumulation_steps;  /* what is timed as one step is so many batches, then an update; 0 means 1 */
    bool weak;               /* the single device gets one device's share of the batch instead of all of it */
    uint64_t seed;           /* of the weights and the samples */
    /* Asked between steps, may be NULL. Once it is true, the measurement ends: *stopped says so, and its
     * results are not to be used. */
    bool (*stop)(void *user);
    void *user;
} dp_bench_config;

dp_bench_config dp_bench_defaults(void); /* all devices, 20 steps */

typedef struct dp_bench_times {
    int64_t batch_size;
    double ms_per_step;              /* median */
    double low_ms, high_ms;          /* quartiles */
    double samples_per_second;       /* by the median */
    double phase_ms[DP_PHASES];      /* adds up to ms_per_step: shares of the phases in the middle half of the
                                        steps by time, scaled to the median */
    double overlapped_ms[DP_PHASES]; /* work of other devices hidden behind them, of the same steps */
} dp_bench_times;

typedef struct dp_bench_row {
    int64_t batch_size;               /* of all devices together */
    int used;                         /* devices that got samples */
    bool stopped;                     /* by config.stop */
    dp_bench_times single, parallel;  /* in turns within one run */
    double speedup;                   /* ratio of samples_per_second */
    double low_speedup, high_speedup; /* least and greatest of the turns' ratios */
    double efficiency;                /* speedup / devices */
    int devices;
    dp_device_report device[DP_ENGINE_MAX_DEVICES]; /* of the parallel side */
} dp_bench_row;

/* Trains with one device and with all of them in turns, after a warm-up, on batches of batch_size.
 * DP_ERROR_USAGE for a single device, and for a batch that dp_engine_check_batch refuses. */
dp_status dp_bench_compare(const dp_bench_config *config, int64_t batch_size, dp_bench_row *out,
                           dp_error *err);

/* The same of two engines of any kind, so of one setting with and without what is to be judged: `baseline`
 * takes the single device's place, with the whole batch; speedup is above 1 where config->engine is the
 * faster one, and efficiency stays 0. One device will do. */
dp_status dp_bench_compare_engines(const dp_bench_config *config, const dp_engine_config *baseline,
                                   int64_t batch_size, dp_bench_row *out, dp_error *err);

/* The parallel side alone; one device will do. Everything of the single one stays 0. */
dp_status dp_bench_measure(const dp_bench_config *config, int64_t batch_size, dp_bench_row *out,
                           dp_error *err);

/* The smallest measured batch from which on (it and every larger one) several devices beat one; 0 where there
 * is none. Rows in any order. */
int64_t dp_bench_break_even(const dp_bench_row *rows, int count);

/* Of the time a step takes beyond an even share of the single device's, the phase that holds most. *ms gets
 * that phase's part of it, in a step. */
dp_phase dp_bench_costliest_phase(const dp_bench_row *row, bool weak, double *ms);

/* ---- what a link and a model allow ---- */

/* How weights and gradients travel between the devices once a step. */
typedef enum dp_topology {
    DP_TOPOLOGY_STAR, /* the primary sends to each device in turn, and adds what each sends back */
    DP_TOPOLOGY_TREE, /* who has the weights sends them on: a binomial tree, and the same back */
    DP_TOPOLOGY_RING, /* every device sends to the next, a share at a time (ring all-reduce) */
    DP_TOPOLOGIES
} dp_topology;

const char *dp_topology_name(dp_topology topology);

typedef struct dp_cost_model {
    double compute_ms;       /* of a step on one device */
    double parameter_bytes;  /* weights, and as many of gradients */
    double bytes_per_second; /* of a link, one way at a time */
} dp_cost_model;

/* Milliseconds that a step's transfers take between so many devices, nothing hidden behind computing and no
 * latency: with t = parameter_bytes / bytes_per_second, star 2 (N - 1) t, tree 2 ceil(log2 N) t, ring
 * 2 (N - 1)/N t (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
 * 2009). */
double dp_cost_transfer_ms(const dp_cost_model *model, dp_topology topology, int devices);
/* Milliseconds of a step: compute_ms / N (strong scaling) or compute_ms (weak), and the transfers. */
double dp_cost_step_ms(const dp_cost_model *model, dp_topology topology, int devices, bool weak);
/* How much more samples a second than one device. */
double dp_cost_speedup(const dp_cost_model *model, dp_topology topology, int devices, bool weak);

DP_END_DECLARATIONS

#endif
