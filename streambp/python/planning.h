// What a step would take, asked from Python (streambp/plan): JSON in, JSON out, nothing computed.
//
// In a process of its own (plan_program.cc). Where Python has imported torch, many of ATen's kernels of the
// meta device are Python's, which allocate tensors that the CPU's and the GPU's kernels do not: a dry run
// there predicts too much. A process of its own also leaves the caller's threads, meters and limits alone.
#pragma once

#include <string>

namespace streambp::python {

/// The answer to a question as a JSON object: {"answer": ...}, or {"refused": "..."} with the message of an
/// InputError. `request` is a JSON object.
///
/// predict: a dry run of a step.
/// - model: an object with source, a folder or preset, or, with config (the text of a config.json), the
///   model's name in messages; adapter: the text of an adapter_config.json
/// - reference, teacher: objects as model, or left out; release_reference
/// - dtype ("model": as the config says), gradient_dtype and head_dtype (same, float32), device (cpu, cuda,
///   with or without an index), freeze (parts of names), value_head
/// - optimizer (none, sgd, adamw), optimizer_bits (32, 16, 8), master_weights
/// - objective, options (of the objective, texts by name), settings (those of setting_kinds(), method,
///   micro_batches and first_labels; texts by name)
/// - batch: padded tensors under the names of streambp/data/objective_inputs.h, objects with shape and
/// values;
///   or seq_len, sequences, prompt: of a batch that is made up
/// The answer: an object with the members of plan::Prediction, configuration and model.
///
/// longest: the longest sequence within a budget. In addition: budget_bytes, host_budget_bytes (0: no limit),
/// resolution. The answer: an object with the members of plan::LongestFit.
///
/// suggest: configurations that reach `wanted` tokens, or the furthest with 0, by rising cost; `settings` are
/// not searched. The answer: an array of objects as longest's with settings, cost and best.
///
/// choose: the cheapest configuration of the step that fits budget_bytes and host_budget_bytes; `settings`
/// are not searched. The answer: an object with description (of plan::Choice) and considered, their number;
/// where one fits also settings, cost, and prediction, an object as predict's.
///
/// keep: what each value of `keep` takes that a search tries, under the other settings as they are given. The
/// answer: an array of objects with keep (its text), beyond_resident_bytes and cost, by rising cost.
std::string answer_question(const std::string& question, const std::string& request);

}  // namespace streambp::python
