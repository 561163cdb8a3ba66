// Token files of objectives, for tests.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "streambp/data/objective_inputs.h"
#include "streambp/model/files/tensor_file.h"
#include "verify/tests/streambp/model/file_testing.h"
#include "verify/tests/streambp/objective/objective_testing.h"

namespace streambp {

inline constexpr int64_t kVocabulary = 20;
inline constexpr int64_t kNo = kNoTarget;

using File = std::map<std::string, at::Tensor>;

inline at::Tensor rows(const std::vector<std::vector<int64_t>>& values) {
  std::vector<at::Tensor> tensors;
  for (const auto& row : values) tensors.push_back(at::tensor(at::ArrayRef<int64_t>(row), at::kLong));
  return at::stack(tensors);
}

inline at::Tensor table(const std::vector<std::vector<double>>& values) {
  std::vector<at::Tensor> tensors;
  for (const auto& row : values) tensors.push_back(doubles(row));
  return at::stack(tensors);
}

inline Batch read(const std::string& objective, const File& tensors, const std::string& prefix = "") {
  const TempFolder folder;
  File prefixed;
  for (const auto& [name, tensor] : tensors) prefixed.emplace(prefix + name, tensor);
  write_tensors(folder.path() / "batch.safetensors", prefixed);
  return read_objective_batch(objective_kind(objective),
                              SafetensorsFile::open(folder.path() / "batch.safetensors"), kVocabulary,
                              prefix);
}

inline File with(File file, const std::string& name, const at::Tensor& tensor) {
  file[name] = tensor;
  return file;
}

inline File without(File file, const std::string& name) {
  file.erase(name);
  return file;
}

inline std::vector<double> list(const at::Tensor& tensor) {
  const at::Tensor data = tensor.to(at::kDouble).contiguous();
  return {data.const_data_ptr<double>(), data.const_data_ptr<double>() + data.numel()};
}

/// Two pairs: prompts padded on the left, completions on the right.
inline File pairs() {
  return {{"input_ids", rows({{5, 6, 7, 8}, {0, 2, 3, 0}, {5, 6, 9, 0}, {0, 2, 4, 11}})},
          {"attention_mask", rows({{1, 1, 1, 1}, {0, 1, 1, 0}, {1, 1, 1, 0}, {0, 1, 1, 1}})},
          {"completion_mask", rows({{0, 0, 1, 1}, {0, 0, 1, 0}, {0, 0, 1, 0}, {0, 0, 1, 1}})},
          {"ref_chosen_logps", doubles({-1, -2})},
          {"ref_rejected_logps", doubles({-3, -4})}};
}

/// Two rows of T = 5, completions in the last 3 columns.
inline File completions() {
  return {{"input_ids", rows({{5, 6, 7, 8, 9}, {0, 2, 3, 4, 0}})},
          {"attention_mask", rows({{1, 1, 1, 1, 1}, {0, 1, 1, 1, 0}})},
          {"completion_mask", rows({{1, 1, 1}, {1, 1, 0}})},
          {"advantages", doubles({0.5, -2})},
          {"old_per_token_logps", table({{-1, -2, -3}, {-4, -5, 1e300}})},
          {"ref_per_token_logps", table({{-6, -7, -8}, {-9, -10, 1e300}})}};
}

/// The same rows as responses; the second is asked for one value more than it has tokens.
inline File responses() {
  return {{"input_ids", rows({{5, 6, 7, 8, 9}, {0, 2, 3, 4, 0}})},
          {"attention_mask", rows({{1, 1, 1, 1, 1}, {0, 1, 1, 1, 0}})},
          {"responses", rows({{7, 8, 9}, {3, 4, 17}})},
          {"response_mask", rows({{1, 1, 1}, {1, 1, 0}})},
          {"value_mask", rows({{1, 1, 1}, {1, 1, 1}})},
          {"old_logprobs", table({{-1, -2, -3}, {-4, -5, 1}})},
          {"advantages", table({{1, 2, 3}, {4, 5, 6}})},
          {"old_values", table({{1.5, 2.5, 3.5}, {4.5, 5.5, 6.5}})},
          {"returns", table({{0.1, 0.2, 0.3}, {0.4, 0.5, 0.6}})}};
}

}  // namespace streambp
