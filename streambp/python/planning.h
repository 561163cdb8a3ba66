// What a step would take, asked from Python: texts in, texts out, nothing computed (streambp/plan).
#pragma once

#include <string>

#include "streambp/python/engine.h"

namespace streambp::python {

/// A dry run of a step. `request`, a JSON object:
/// - model: an object with source, a folder or preset, or, with config (the text of a config.json), the
///   model's name in messages; adapter: the text of an adapter_config.json
/// - reference, teacher: objects as model, or left out; release_reference
/// - dtype ("model": as the config says), gradient_dtype (same, float32), device (cpu, cuda, with or without
///   an index), freeze (parts of names), value_head
/// - optimizer (none, sgd, adamw), optimizer_bits (32, 16, 8), master_weights
/// - objective, options (of the objective, texts by name), settings (those of setting_kinds(), method,
///   micro_batches and first_labels; texts by name)
/// - seq_len, sequences, prompt: of a batch that is made up where `batch` is empty. Padded tensors under the
///   names of streambp/data/objective_inputs.h otherwise.
/// Returns a JSON object with the members of plan::Prediction, and `configuration` and `model`.
/// Safe from any thread, next to passes that run: dry runs wait for one another, on a thread of their own,
/// and what they leave behind is what they found. Throws as answered() does.
std::string predict(const std::string& request, const TensorDict& batch);

/// The longest sequence within a budget. `request` in addition: budget_bytes, host_budget_bytes (0: no
/// limit), resolution. Returns a JSON object with the members of plan::LongestFit.
std::string longest(const std::string& request);

/// Configurations that reach `seq_len` tokens, or the furthest with 0, by rising cost: a JSON array of
/// objects as longest's with settings, cost and best. `settings` are not searched.
std::string suggest(const std::string& request);

}  // namespace streambp::python
