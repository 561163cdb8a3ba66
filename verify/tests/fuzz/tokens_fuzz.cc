// Any tensors in the file of --tokens are either refused with an InputError or give a batch that keeps what
// batch.h promises. An input is a text: the objective's number, then a line for each tensor, such as
// "input_ids I64 2,3 1 2 3 4 5 6"; the file's framing has a target of its own (safetensors_fuzz.cc).
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fmt/ranges.h>
#include <set>
#include <sstream>
#include <string_view>

#include "streambp/data/objective_inputs.h"
#include "streambp/error.h"
#include "verify/tests/fuzz/fuzz.h"
#include "verify/tests/fuzz/scratch.h"

namespace {

using streambp::Batch;
using streambp::kNoTarget;

constexpr int64_t kVocabulary = 11;
constexpr uint64_t kMostBytes = 4096;

int64_t accepted_count = 0;

void require(bool holds) {
  if (!holds) std::abort();
}

/// `value`, a number as a file's author writes it, as bytes of `dtype`; those of a dtype that has none here
/// are the low bytes of the integer.
void append(std::vector<std::byte>& bytes, const std::string& dtype, const std::string& value) {
  const auto put = [&](auto number) {
    const auto* const from = reinterpret_cast<const std::byte*>(&number);
    bytes.insert(bytes.end(), from, from + sizeof number);
  };
  const double real = std::strtod(value.c_str(), nullptr);
  const int64_t whole = std::strtoll(value.c_str(), nullptr, 10);
  if (dtype == "F64") return put(real);
  if (dtype == "F32")
    return put(static_cast<float>(std::abs(real) < 1e38 ? real : std::copysign(INFINITY, real)));
  const auto size = static_cast<std::size_t>((streambp::safetensors_bits(dtype) + 7) / 8);
  const auto* const from = reinterpret_cast<const std::byte*>(&whole);
  bytes.insert(bytes.end(), from, from + std::min<std::size_t>(size, sizeof whole));
}

/// A line's tensor as a part of a safetensors file: its member of the header, its bytes at the end of `data`.
/// Empty where the line is none, or its tensor is large.
std::string member(const std::string& line, std::vector<std::byte>& data) {
  std::istringstream words(line);
  std::string name, dtype, shape_text;
  if (!(words >> name >> dtype >> shape_text) || name.find_first_of("\"\\") != std::string::npos) return {};
  std::vector<int64_t> shape;
  std::istringstream sizes(shape_text);
  for (std::string size; shape_text != "-" && std::getline(sizes, size, ',');)
    shape.push_back(std::strtoll(size.c_str(), nullptr, 10));
  uint64_t size = 0;
  try {
    size = streambp::safetensors_size(dtype, shape);
  } catch (const streambp::InputError&) {
    return {};
  }
  if (size > kMostBytes) return {};
  std::vector<std::byte> bytes;
  std::string value = "0", next;
  while (bytes.size() < size) {  // the last number stands for those that are missing
    if (words >> next) value = next;
    append(bytes, dtype, value);
  }
  bytes.resize(size);
  const uint64_t begin = data.size();
  data.insert(data.end(), bytes.begin(), bytes.end());
  return fmt::format(R"("{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", name, dtype,
                     fmt::join(shape, ","), begin, data.size());
}

std::string safetensors_file(std::istream& lines) {
  std::vector<std::byte> data;
  std::string header = "{";
  for (std::string line; std::getline(lines, line);) {
    const std::string one = member(line, data);
    if (!one.empty()) header += (header.size() > 1 ? "," : "") + one;
  }
  header += '}';
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(reinterpret_cast<const char*>(data.data()), data.size());
}

void require_promises(const Batch& batch) {
  const int64_t size = batch.size();
  require(size >= 1 && batch.tokens.numel() == size && batch.positions.numel() == size);
  require(batch.targets.numel() == size && batch.padded_indices.numel() == size);
  require(batch.offsets.front() == 0 && std::is_sorted(batch.offsets.begin(), batch.offsets.end()));
  const auto tokens = batch.tokens.accessor<int64_t, 1>(), targets = batch.targets.accessor<int64_t, 1>();
  const auto positions = batch.positions.accessor<int64_t, 1>();
  const auto indices = batch.padded_indices.accessor<int64_t, 1>();
  std::set<int64_t> seen;
  for (int64_t i = 0; i < size; ++i) {
    require(tokens[i] >= 0 && tokens[i] < kVocabulary);
    require(targets[i] == kNoTarget || (targets[i] >= 0 && targets[i] < kVocabulary));
    require(positions[i] >= 0 && positions[i] < batch.rope_length);
    require(indices[i] >= 0 && indices[i] < batch.padded_rows * batch.padded_columns);
    require(seen.insert(indices[i]).second);
  }
  require(!batch.value_mask.defined() || batch.value_mask.numel() == size);
  const auto require_finite = [](const at::Tensor& numbers, int64_t count) {
    require(numbers.numel() == count && numbers.scalar_type() == at::kDouble);
    require(numbers.isfinite().all().item<bool>());
  };
  for (const auto& [name, numbers] : batch.token_inputs) require_finite(numbers, size);
  const auto sequences = static_cast<int64_t>(batch.offsets.size()) - 1;
  for (const auto& [name, numbers] : batch.sequence_inputs) require_finite(numbers, sequences);
  for (const auto& [name, number] : batch.scalar_inputs) require(std::isfinite(number));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const streambp::fuzz::Scratch folder;
  std::istringstream text(std::string(reinterpret_cast<const char*>(data), size));
  std::string first;
  std::getline(text, first);
  const std::vector<streambp::ObjectiveKind>& kinds = streambp::objective_kinds();
  const auto number = std::strtoul(first.c_str(), nullptr, 10);
  const auto labels = first.ends_with('i') ? streambp::FirstLabels::kIgnore : streambp::FirstLabels::kRefuse;
  const std::filesystem::path file = folder.write("tokens.safetensors", safetensors_file(text));
  try {
    const Batch batch = streambp::read_objective_batch(
        kinds[number % kinds.size()], streambp::SafetensorsFile::open(file), kVocabulary, "", labels, 0);
    ++accepted_count;
    require_promises(batch);
    streambp::reading_notes(batch);
  } catch (const streambp::InputError&) {
  }
  return 0;
}

namespace streambp::fuzz {

std::vector<std::string> corpus() {
  const std::string ids = "\ninput_ids I64 2,4 1 2 3 4 5 6 7 8\n";
  const std::string masks = "attention_mask I64 2,4 1 1 1 1 0 1 1 1\n";
  std::vector<std::string> seeds;
  const std::vector<ObjectiveKind>& kinds = objective_kinds();
  std::set<Layout> layouts;
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (!layouts.insert(kinds[i].layout).second) continue;
    const std::string number = std::to_string(i);
    switch (kinds[i].layout) {
      case Layout::kLabels:
        seeds.push_back(number + ids + masks + "labels I32 2,4 -100 2 3 4 -100 -100 -100 8\n");
        seeds.push_back(number + "i" + ids + masks + "labels I64 2,4 1 2 3 4 -100 6 7 8\n");
        seeds.push_back(number +
                        "\ninput_ids I64 1,6 1 2 3 4 5 6\nposition_ids I64 1,6 0 1 2 0 1 2\n"
                        "cu_seq_lens_q I32 3 0 3 6\nmax_length_q I64 - 3\nnum_items_in_batch F32 - 4\n");
        break;
      case Layout::kPairs:
        seeds.push_back(number + ids + masks +
                        "completion_mask BOOL 2,4 0 0 1 1 0 0 0 1\n"
                        "ref_chosen_logps F32 1 -2.5\nref_rejected_logps F64 1 -3\n");
        break;
      case Layout::kRanked:
        seeds.push_back(number + ids + masks + "margin F32 1 0.5\n");
        break;
      case Layout::kTexts:
        seeds.push_back(number + ids + masks);
        seeds.push_back(number + ids + "attention_mask I64 2,4 1 1 1 1 0\n");
        break;
      case Layout::kLabelled:
        seeds.push_back(number + ids + masks +
                        "completion_mask I64 2,4 0 0 1 1 0 0 0 1\nrole I64 2 1 0\n"
                        "ref_logps F32 2 -1 -2\n");
        seeds.push_back(number + ids + masks +
                        "completion_mask I64 2,4 0 0 1 1 0 0 0 1\nlabel BOOL 2 1 0\n"
                        "KL_input_ids I64 2,4 1 2 3 4 5 6 7 8\n"
                        "KL_attention_mask I64 2,4 1\nKL_completion_mask I64 2,4 0 1\n");
        seeds.push_back(number +
                        "\ninput_ids U8 2,1\nlabel BOOL 2\nKL_input_ids I32 0,9223372036854775807\n");
        break;
      case Layout::kCompletions:
        seeds.push_back(number + ids + masks +
                        "completion_mask I64 2,2 1 0 1 1\nadvantages F32 2 0.5 -0.5\n"
                        "old_per_token_logps F32 2,2 -1 -2 -3 -4\n"
                        "importance_sampling_ratio F32 2,1 1 0.5\n");
        seeds.push_back(number + ids + masks +
                        "completion_mask I64 2,2 1 0 0 0\nadvantages F32 2 0.5 -0.5\n"
                        "importance_sampling_ratio F32 2,1 1 nan\n");
        seeds.push_back(number +
                        "\nprompt_ids I64 1,2 1 2\nprompt_mask I64 1,2 0 1\ncompletion_ids I64 1,2 3 4\n"
                        "completion_mask I64 1,2 1 1\nadvantages F32 1,2 0.5 1\n"
                        "ref_per_token_logps F32 1,2 -1\nnum_items_in_batch I64 - 2\n");
        break;
      case Layout::kResponses:
        seeds.push_back(number + ids + masks +
                        "responses I64 2,2 3 4 7 8\nresponse_mask I64 2,2 1 1 1 0\n"
                        "old_logprobs F32 2,2 -1\nadvantages F32 2,2 0.5\n"
                        "value_mask I64 2,2 1 1 1 1\nold_values F32 2,2 0\nreturns F32 2,2 1\n");
        break;
    }
  }
  seeds.emplace_back("0\n");
  return seeds;
}

std::vector<std::string> dictionary() {
  return {"input_ids",
          "attention_mask",
          "position_ids",
          "labels",
          "completion_mask",
          "advantages",
          "tool_mask",
          "old_logps",
          "sampling_per_token_logps",
          "ref_logps",
          "responses",
          "value_mask",
          "prompt_ids",
          "completion_ids",
          "KL_input_ids",
          "seq_idx",
          "cu_seq_lens_k",
          "max_length_k",
          "router_indices",
          "indexer_indices",
          "num_items_in_batch",
          "role",
          " I64 ",
          " I32 ",
          " U8 ",
          " BOOL ",
          " F32 ",
          " F64 ",
          " F16 ",
          " F8_E4M3 ",
          " F4 ",
          " - ",
          " 2,4 ",
          " 2 ",
          " 1,4 ",
          " 0,9223372036854775807 ",
          " 2,0 ",
          " nan",
          " inf",
          " 1e308",
          " -100",
          " 9223372036854775807",
          "\n",
          " 1099511627776"};
}

int64_t accepted() {
  return accepted_count;
}

}  // namespace streambp::fuzz
