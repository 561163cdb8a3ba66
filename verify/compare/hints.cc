#include "verify/compare/hints.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <string_view>

#include "streambp/model/files/strict_json.h"
#include "streambp/model/files/tensor_file.h"
#include "streambp/objective/terms.h"
#include "verify/compare/names.h"
#include "verify/error_measure.h"

namespace streambp::verify {
namespace {

std::vector<Normaliser> normalisers_of(const Batch& batch, double scored) {
  const auto rows = static_cast<double>(batch.padded_rows);
  const auto columns = static_cast<double>(batch.padded_columns);
  return {{"nothing (a sum)", 1.0},
          {"scored tokens", scored},
          {"tokens", static_cast<double>(batch.size())},
          {"rows", rows},
          {"columns", columns},
          {"rows x columns", rows * columns},
          {"rows x (columns - 1)", rows * (columns - 1.0)},
          {"scored tokens and the first of each row", scored + rows}};
}

/// The first of `names` that an adapter's parameters have, or has not; empty where there is none.
std::string first_of(const std::vector<std::string>& names, bool of_adapter) {
  const auto found = std::find_if(names.begin(), names.end(), [&](const std::string& name) {
    return (name.find("lora_") != std::string::npos) == of_adapter;
  });
  return found == names.end() ? "" : shown(*found);
}

/// Why gradients of `options.adapter` are incomplete.
void add_adapter_hints(const CompareOptions& options, Comparison& comparison) {
  const std::string theirs = first_of(comparison.surplus, true), weight = first_of(comparison.surplus, false);
  const bool any_missing = !first_of(comparison.missing, true).empty();
  const bool any_known = comparison.findings.size() > comparison.missing.size() + comparison.surplus.size();
  if (theirs.find("lora_magnitude_vector") != theirs.npos) {
    comparison.hints.push_back(fmt::format("{} is DoRA's (use_dora), which is not supported", theirs));
  } else if (!theirs.empty()) {
    comparison.hints.push_back(
        fmt::format("--adapter {} has no {}: expected the PEFT folder of this run; target_modules, "
                    "layers_to_transform or the adapter's name in its adapter_config.json is another",
                    options.adapter, theirs));
  } else if (!weight.empty() && any_missing && !any_known) {
    comparison.hints.push_back(
        fmt::format("{} is a weight, and under --adapter the adapter's own parameters are judged: without "
                    "--adapter the gradients of a full training are; after merge_and_unload() an adapter "
                    "has none any more",
                    weight));
  } else if (!weight.empty()) {
    comparison.hints.push_back(
        fmt::format("{} is frozen under --adapter {}: leave out what has requires_grad=False, or name the "
                    "module in modules_to_save of adapter_config.json where it is trained too",
                    weight, options.adapter));
  }
  for (const ParameterFinding& finding : comparison.findings) {
    if (!finding.of.problem.starts_with("shape") || finding.of.name.find("lora_") == std::string::npos)
      continue;
    comparison.hints.push_back(
        fmt::format("{}: {}: the rank r in {}/adapter_config.json is another than that of the run",
                    shown(finding.of.name), finding.of.problem, options.adapter));
    break;
  }
}

/// What weights that were rounded to 16 bits are from themselves, at most.
constexpr double kRoundingOfWeights = 1e-2;

/// One tensor in 16 bits has all others judged by its noise: that has to be seen.
void add_dtype_note(const Tensors& gradients, Comparison& comparison) {
  std::vector<std::string> narrow;
  for (const auto& [name, gradient] : gradients) {
    if (gradient.scalar_type() == comparison.dtype) narrow.push_back(name);
  }
  if (narrow.empty() || narrow.size() == gradients.size()) return;
  const std::string dtype = dtype_name(comparison.dtype);
  comparison.notes.push_back(fmt::format(
      "{} of {} gradients {} {} ({}), the others of another dtype, and all are judged by the noise of "
      "{}: a smaller error of any is not seen",
      narrow.size(), gradients.size(), narrow.size() == 1 ? "is" : "are", dtype, shown(narrow.front()),
      dtype));
}

}  // namespace

void add_name_hints(const CompareOptions& options, Comparison& comparison) {
  if (comparison.verdict != Verdict::kIncomplete) return;
  const auto flat =
      std::find_if(comparison.surplus.begin(), comparison.surplus.end(),
                   [](const std::string& name) { return name.find("_flat_param") != std::string::npos; });
  if (flat != comparison.surplus.end()) {
    comparison.hints.push_back(
        fmt::format("{} is FSDP's flat parameter: save gradients within "
                    "FSDP.summon_full_params(model, with_grads=True)",
                    shown(*flat)));
  } else if (!options.adapter.empty()) {
    add_adapter_hints(options, comparison);
  } else if (const std::string lora = first_of(comparison.surplus, true); !lora.empty()) {
    comparison.hints.push_back(
        fmt::format("{} is a LoRA adapter's: --adapter DIR, its PEFT folder (adapter_config.json and "
                    "adapter_model.safetensors, as model.save_pretrained(DIR) writes them before the step), "
                    "has the adapter's gradients judged",
                    lora));
  } else if (comparison.surplus.empty() && !comparison.missing.empty()) {
    comparison.hints.push_back(
        "every trained parameter is expected to have a gradient: these may have been frozen, or lie on other "
        "ranks (FSDP, ZeRO); of LoRA, --adapter DIR names the PEFT folder");
  }
}

void add_factor_hints(const Batch& batch, const CompareOptions& options, Comparison& comparison) {
  if (comparison.verdict != Verdict::kScaled || options.objective != "sft") return;
  const auto scored = static_cast<double>(count(batch).scored);
  const FactorFit& fit = comparison.fit;
  const double close = std::max((fit.high - fit.low) / std::abs(fit.factor), 1e-9);
  for (const std::string& guess :
       explain_factor(comparison.factor, options.divisor.value_or(std::max(scored, 1.0)),
                      normalisers_of(batch, scored), close)) {
    comparison.hints.push_back("the factor fits " + guess);
  }
}

LossFinding judge_loss(double given, double truth, const Batch& batch, const CompareOptions& options,
                       at::ScalarType dtype) {
  LossFinding finding;
  finding.given = given;
  finding.error = relative_error(given, truth);
  finding.limit = dtype == at::kDouble ? 1e-10 : dtype == at::kFloat ? 1e-5 : 2e-2;
  if (finding.within() || options.objective != "sft" || truth == 0.0) return finding;
  const auto scored = static_cast<double>(count(batch).scored);
  for (const std::string& guess :
       explain_factor(given / truth, options.divisor.value_or(std::max(scored, 1.0)),
                      normalisers_of(batch, scored), finding.limit))
    finding.hints.push_back("--loss fits " + guess);
  return finding;
}

void add_value_hints(const Truth& truth, const CompareOptions& options, const Tensors& gradients,
                     Comparison& comparison) {
  Tensors weights;
  for (const auto& parameter : truth.model.parameters()) {
    if (parameter->trainable()) weights.emplace(parameter->name, parameter->value);
  }
  const Tensors named = named_as(weights, gradients, &truth.model.config()).gradients;
  if (!options.compute_dtype && comparison.dtype != at::kDouble) add_dtype_note(named, comparison);
  if (comparison.verdict != Verdict::kWrong && comparison.verdict != Verdict::kIncomplete) return;
  std::vector<std::string> not_finite, reshaped;
  size_t zeros = 0, own_weights = 0, of_fresh = 0;
  for (const ParameterFinding& finding : comparison.findings) {
    const std::string& name = finding.of.name;
    if (name.find("lora_A") != name.npos && finding.of.problem.empty() && std::isnan(finding.factor) &&
        !finding.within())
      ++of_fresh;
    const auto given = named.find(name);
    const auto weight = weights.find(name);
    if (given == named.end() || weight == weights.end()) continue;
    if (finding.of.problem == "holds NaN or infinity") {
      not_finite.push_back(name);
    } else if (finding.of.problem.starts_with("shape")) {
      if (given->second.numel() == weight->second.numel())
        reshaped.push_back(fmt::format("{}: {}", shown(name), finding.of.problem));
    } else if (finding.of.problem.empty()) {
      zeros += is_zero(given->second) ? 1 : 0;
      own_weights += relative_error(given->second, weight->second) <= kRoundingOfWeights ? 1 : 0;
    }
  }
  const size_t all = comparison.findings.size();
  if (!not_finite.empty())
    comparison.hints.push_back(fmt::format(
        "{} of {} gradients hold NaN or infinity, {} for one: where the loss is finite, look for a "
        "row of padding whose attention sees nothing, or an overflow",
        not_finite.size(), all, shown(not_finite.front())));
  if (!reshaped.empty())
    comparison.hints.push_back(fmt::format(
        "{} of {} gradients have as many entries in another shape, {}: transposed or flattened? Under "
        "Hugging Face's names a linear map is [out, in]",
        reshaped.size(), all, reshaped.front()));
  if (of_fresh > 0)
    comparison.hints.push_back(fmt::format(
        "{} gradients of lora_A are 0 where lora_B is 0, as in {}, and these are not: the folder is of "
        "a fresh adapter, the gradients of one that was trained already",
        of_fresh, options.adapter));
  if (zeros == all) comparison.hints.push_back("all gradients are zero: were they saved after zero_grad()?");
  if (own_weights == all)
    comparison.hints.push_back("these are the model's weights, not gradients: save each parameter's .grad");
}

void add_precision_hints(Comparison& comparison) {
  constexpr double kOfFloat32 = 1e-5;
  if (comparison.verdict != Verdict::kWrong || comparison.dtype != at::kDouble) return;
  double worst = 0.0;
  for (const ParameterFinding& finding : comparison.findings)
    worst = worse(worst, comparison.differs ? finding.residual : finding.of.error);
  if (!(worst <= kOfFloat32)) return;
  if (comparison.differs)
    comparison.hints.push_back(fmt::format("without the factor of {:.6g} errors are {} at most",
                                           comparison.factor, error_text(worst)));
  comparison.hints.push_back(
      "errors of this size in float64 are those of float32 inside: Hugging Face's models compute softmax, "
      "norms and rotary "
      "tables in float32 whatever their dtype; --compute-dtype float32 judges them as such");
}

}  // namespace streambp::verify
