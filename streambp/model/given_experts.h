// Experts that are given instead of chosen: the routing of whoever sampled the tokens, replayed.
#pragma once

#include <memory>

#include "streambp/model/batch.h"
#include "streambp/model/config/config.h"
#include "streambp/ops/mlp/router_choices.h"

namespace streambp {

/// Batch::router_indices as the choices of a pass; null where there are none. The weights of experts remain
/// the router's own scores of them, normalised as they are in the model, through which its gradient goes.
/// Throws InputError that names where they are from, row, column and layer: for a model without experts,
/// another number of layers or experts, an expert that is not there, and one that a token has twice.
std::shared_ptr<RouterChoices> given_choices(const Config& config, const Batch& batch, c10::Device device);

}  // namespace streambp
