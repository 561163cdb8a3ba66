// What the tests of comparisons share.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <ATen/ATen.h>

#include "streambp/model/files/safetensors.h"
#include "streambp/model/files/tensor_file.h"
#include "verify/compare/compare.h"
#include "verify/compare/judge.h"
#include "verify/compare/truth.h"

namespace streambp::verify {

inline constexpr const char* kEmbedding = "model.embed_tokens.weight";
inline constexpr const char* kProjection = "model.layers.0.self_attn.q_proj.weight";

/// Seeded normal numbers in float64.
inline at::Tensor random_tensor(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions().dtype(at::kDouble));
}

/// A golden case, compared as the command does.
struct Golden {
  CompareOptions options;
  Tensors gradients;
};

inline Golden open_golden(const std::string& model, const std::string& name) {
  const std::string root = STREAMBP_GOLDENS;
  Golden golden;
  golden.options.model = root + "/models/" + model;
  golden.options.tokens = root + "/cases/" + name + "/tensors.safetensors";
  const SafetensorsFile file = SafetensorsFile::open(golden.options.tokens);
  for (const auto& [entry, unused] : file.entries()) {
    if (entry.starts_with("grad.")) golden.gradients.emplace(entry.substr(5), read_tensor(file, entry));
  }
  return golden;
}

/// Whether these gradients of the case are right.
inline bool is_exact(const Golden& golden, const Tensors& gradients) {
  Truth truth = open_truth(golden.options);
  return judge(truth, golden.options, gradients).comparison.verdict == Verdict::kExact;
}

/// Changes `truth`, and whatever is opened from where it came from.
inline void change_always(Truth& truth, const std::function<void(Truth&)>& change) {
  truth.open_again = [open_again = truth.open_again, change](at::ScalarType dtype) {
    Truth again = open_again(dtype);
    change(again);
    return again;
  };
  change(truth);
}

}  // namespace streambp::verify
