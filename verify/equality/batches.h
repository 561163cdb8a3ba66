// The batches and models that equality is checked on.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "streambp/model/model.h"

namespace streambp::verify {

/// The padding token of equality_model's presets. Some real tokens of every batch are it.
inline constexpr int64_t kPaddingToken = 1;

/// Random tokens of a shape, about one in eight of them kPaddingToken.
at::Tensor equality_tokens(at::IntArrayRef shape, int64_t vocab_size, at::Generator& generator);

/// A batch whose longest sequence has `length` tokens, by name:
/// - single: one sequence
/// - three: three sequences of unequal lengths
/// - short: sequences of one token among longer ones
/// - masked: three sequences with unscored prompts, scattered targets, and positions with gaps (if
///   positions_skip: not every family takes them)
/// - unscored: not a single target
/// - packed: two rows of documents, some of a single token, with targets across documents
/// Throws InputError for another name.
Batch equality_batch(const std::string& name, int64_t length, int64_t vocab_size, uint64_t seed,
                     bool positions_skip = true);

enum class Side { kLeft, kRight };

/// `packed` as one row instead of two.
Batch in_one_row(const Batch& packed, int64_t vocab_size);

/// `batch` as padded input_ids, attention_mask, labels and position_ids, read again by pack(). What stands
/// under the padding is no token at all, so that it would be noticed.
Batch repack(const Batch& batch, Side padding, int64_t vocab_size);

/// Families and their variants that have a preset for tests, without its ending.
std::vector<std::string> equality_families();

/// The preset for tests of a family.
std::string equality_preset(const std::string& family);

/// Of a folder or a preset; with `changes`, keys of config.json as a JSON object, in place of the preset's.
/// Throws InputError for changes of a folder, and for those that the reader of config.json refuses.
Config equality_config(const std::string& name, const std::string& changes = {});

/// A folder's weights, or a preset's random ones with deviations as after training: attention that prefers
/// some tokens, norms that are not ones; with kPaddingToken. In float64. A preset's vocabulary has
/// `more_tokens` more than equality_config says.
Model equality_model(const std::string& name, uint64_t seed,
                     const std::function<bool(const std::string&)>& trainable = {}, int64_t more_tokens = 0,
                     const std::string& changes = {});

/// A choice of parameters that are trained while the others are frozen.
struct Trainable {
  std::string name;
  std::function<bool(const std::string&)> chosen;
};

/// Norms only, the last layer only, the head only (where it is not tied), the embedding only.
std::vector<Trainable> trainable_choices(const Config& config);

}  // namespace streambp::verify
