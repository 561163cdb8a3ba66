// What a pass has a GPU do, by the kinds of work that run at rates of their own: what a roofline needs.
#pragma once

#include <nlohmann/json.hpp>

#include "streambp/backprop/method.h"
#include "streambp/model/model.h"
#include "streambp/objective/objective.h"

namespace streambp::bench {

/// Of one pass. An estimate of the time that it takes at given rates (bench/roofline.json) is made of it in
/// scripts/gpu/gpu_report.py.
struct Work {
  double products = 0.0;            // operations in matrix products other than attention's
  double attention_forward = 0.0;   // operations
  double attention_backward = 0.0;  // operations, the scores computed again among them
  double moved_bytes = 0.0;         // through the GPU's memory by all that is no matrix product
  double host_bytes = 0.0;          // over the link to the host, both directions together
};

/// The operations are plan::hardware_flops, of which attention's are taken apart. Bytes, each value read or
/// written once by each kernel that has it:
/// - layers: of a token 10 D + 2 (H + K) E + 3 F values each time forward (two norms, two sums of the
///   residual stream, norm and rotation of queries and keys, the gate), 12 D + 3 (H + K) E + 6 F backward.
/// - a chunk's parts of attention: forward and backward are taken in parts of a prefix, whose results are
///   added up in float32 (attention_device.h); gradients of keys and values come out for each query head.
/// - the head's logits in float32: three times where it is streamed, seven where it is not.
/// - --offload host: what is kept goes to the host and comes back.
/// - --weights host: a layer's weights come once a pass and direction, and go back where a fused optimizer
/// has
///   changed them.
/// Weights and their gradients in the GPU's memory are left out: products of a thousand rows and more move
/// them behind their arithmetic. Baselines' own copies, mixtures' rows and optimizers are left out too.
Work work_of(const Model& model, const Batch& batch, const Objective& objective, const Settings& settings,
             const Model* teacher);

/// The member `work` of records for GPUs.
nlohmann::json work_member(const Work& work);

}  // namespace streambp::bench
