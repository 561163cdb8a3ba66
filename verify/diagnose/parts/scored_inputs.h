// What a batch has of its scored tokens, in their order.
#pragma once

#include <vector>

#include <ATen/ATen.h>

#include "streambp/model/batch.h"

namespace streambp::verify {

/// Of each sequence its own among the scored tokens, [m] int64 each.
std::vector<at::Tensor> scored_of_sequences(const Batch& batch);

/// How many scored tokens the sequence of each has, [M] in float64.
at::Tensor scored_lengths(const Batch& batch);

/// An input of each token, [M] in float64; undefined where the batch has none of that name.
at::Tensor scored_input(const Batch& batch, const char* name);

}  // namespace streambp::verify
