/* From an optimizer's settings to the arguments of an update: torch.optim.SGD and torch.optim.AdamW. */
#ifndef DP_OPTIM_OPTIM_H
#define DP_OPTIM_OPTIM_H

#include "device/device.h"
#include "dptrain/engine.h"

/* Everything of dp_update_args that is the same for every bucket of optimizer step `step` (from 1). AdamW's
 * betas are 0.9 and 0.999, eps is 1e-8, as PyTorch's defaults. */
dp_update_args dp_update_hyper(const dp_optimizer_config *config, double lr, int64_t step);

#endif
