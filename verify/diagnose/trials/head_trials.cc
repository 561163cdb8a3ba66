#include "verify/diagnose/trials/head_trials.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <map>
#include <set>

#include "verify/diagnose/wrong_engine/other_weights.h"
#include "verify/diagnose/wrong_rows.h"

namespace streambp::verify {
namespace {

/// Of code that works by chunks: one for every size of chunk.
const std::set<std::string> kOfChunks{"detached", "chunk mask", "positions", "recurrence"};

bool has_name(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

/// Whether a mistake leaves parameters of a kind without a gradient.
bool leaves_without(const WrongSettings& settings, const std::string& kind) {
  const auto& norms = settings.missing_norms;
  return std::find(norms.begin(), norms.end(), kind) != norms.end() ||
         std::any_of(settings.weights.begin(), settings.weights.end(), [&](const WeightChange& change) {
           return change.how == WeightChange::How::kAbsent && change.kind == kind;
         });
}

/// Names of parameters that should have a gradient and have none.
std::vector<std::string> without_gradient(const Tensors& gradients, const Tensors& truth,
                                          double none = kNoGradient) {
  std::vector<std::string> without;
  for (const auto& [name, of_truth] : truth) {
    const auto found = gradients.find(name);
    const double own = found == gradients.end() ? 0.0 : found->second.norm().item<double>();
    if (own <= none * of_truth.norm().item<double>()) without.push_back(name);
  }
  return without;
}

/// Whether a parameter of this expert has a gradient.
bool expert_has_gradient(const Tensors& gradients, int64_t expert) {
  const std::string of_one = fmt::format(".experts.{}.", expert);
  return std::any_of(gradients.begin(), gradients.end(), [&](const auto& entry) {
    const auto& [name, gradient] = entry;
    if (has_name(name, of_one.c_str())) return gradient.any().template item<bool>();
    return gradient.dim() == 3 && has_name(name, "experts") && expert < gradient.size(0) &&
           gradient.select(0, expert).any().template item<bool>();
  });
}

/// Whether a mistake leaves some of the parameters with such names without a gradient.
bool leaves_without(const WrongSettings& settings, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    if (has_name(name, "sinks")) return settings.no_sinks;
    if (has_name(name, "q_norm") || has_name(name, "k_norm"))
      return settings.missing_norm == MissingNorm::kHeads;
    if (const std::string kind = kind_of(name); has_name(kind, "norm") && settings.missing_norms.empty())
      return settings.missing_norm != MissingNorm::kNone;
    else
      return leaves_without(settings, kind);
  });
}

}  // namespace

std::optional<HeadGauge> HeadGauge::of(const WrongSubject& subject, const Tensors& gradients,
                                       const Tensors& truth) {
  const Model& model = subject.model;
  HeadGauge made;
  if (truth.contains(model.norm().weight->name)) made.names_.push_back(model.norm().weight->name);
  if (model.has_head() && !model.head().adapter && model.head().trained_rows == nullptr) {
    const std::string& name = model.head().weight->name;
    if (truth.contains(name) && model.config().tie_word_embeddings) {
      at::Tensor others = at::ones({truth.at(name).size(0)}, at::kBool);
      others.index_fill_(0, subject.batch.tokens, false);
      if (const at::Tensor& ids = subject.input_ids; ids.defined()) {
        const at::Tensor known = ids.flatten().to(at::kLong);
        others.index_fill_(0, known.masked_select(known.ge(0).logical_and(known.lt(others.size(0)))), false);
      }
      made.other_rows_ = others.nonzero().squeeze(1);
      // Where the head's part is lost, the last norm's gradient alone is of the forward pass.
      const auto found = gradients.find(name);
      const bool is_there = found != gradients.end() && made.other_rows_.numel() > 0 &&
                            found->second.index_select(0, made.other_rows_).any().item<bool>();
      if (is_there) made.names_.push_back(made.tied_ = name);
    } else if (truth.contains(name)) {
      made.names_.push_back(name);
    }
  }
  if (made.names_.empty()) {
    // Adapters, whose highest layer hears of everything above it.
    const std::string highest = fmt::format("model.layers.{}.", model.layers().size() - 1);
    for (const auto& [trained, unused] : truth) {
      if (has_name(trained, highest.c_str())) made.names_.push_back(trained);
    }
    made.top_layers_ = 1;
  }
  if (made.names_.empty() || (made.top_layers_ > 0 && model.layers().size() < 2)) return std::nullopt;
  made.gauge_.emplace(made.part_of(gradients), made.part_of(truth));
  return made;
}

Tensors HeadGauge::part_of(const Tensors& gradients) const {
  Tensors part;
  for (const std::string& name : names_) {
    const auto found = gradients.find(name);
    if (found != gradients.end())
      part[name] = name == tied_ ? found->second.index_select(0, other_rows_) : found->second;
  }
  return part;
}

void add_missing_logits(std::vector<Hypothesis>& all, const WrongSubject& subject, const Tensors& gradients,
                        const Tensors& truth) {
  if (!subject.model.has_head() || subject.model.head().adapter) return;
  const std::string& name = subject.model.head().weight->name;
  const auto given = gradients.find(name), right = truth.find(name);
  if (given == gradients.end() || right == truth.end()) return;
  at::Tensor none = given->second.any(1).logical_not() & right->second.any(1);
  if (subject.model.config().tie_word_embeddings) none.index_fill_(0, subject.batch.tokens, false);
  const at::Tensor& targets = subject.batch.targets;  // whose logits a softmax has
  none.index_fill_(0, targets.masked_select(targets.ne(kNoTarget)), false);
  const int64_t vocabulary = none.size(0), count = none.sum().item<int64_t>();
  if (count == 0 || count == vocabulary) return;
  const at::Tensor found = none.nonzero().squeeze(1);
  std::vector<int64_t> entries(found.data_ptr<int64_t>(), found.data_ptr<int64_t>() + count);
  const bool tail = entries.front() == vocabulary - count;
  const std::string which =
      tail ? fmt::format("the last {} entries of the vocabulary, from {} on,", count, entries.front())
           : fmt::format("{} entries of the vocabulary, {} first,", count, entries.front());
  all.insert(all.begin(),
             {fmt::format("missing-logits-{}", count),
              fmt::format("{} are not in the softmax{}", which,
                          tail ? " (a vocabulary that is cut off)" : " (their logits are masked)"),
              "logits", [entries](WrongSettings& s) { s.missing_logits = entries; }});
}

std::vector<const Hypothesis*> in_order(const std::vector<Hypothesis>& all, const Tensors& gradients,
                                        const Tensors& truth) {
  const std::vector<std::string> without = without_gradient(gradients, truth);
  std::array<std::vector<const Hypothesis*>, 4> groups;
  for (const Hypothesis& each : all) {
    const WrongSettings settings = each.settings();
    const bool whole = !kOfChunks.contains(each.about) && each.about != "one layer";
    groups[leaves_without(settings, without) ? 0
           : whole                           ? 1
           : each.about == "one layer"       ? 2
                                             : 3]
        .push_back(&each);
  }
  std::vector<const Hypothesis*> sorted;
  for (const auto& group : groups) sorted.insert(sorted.end(), group.begin(), group.end());
  return sorted;
}

void drop_contradicted(std::vector<Hypothesis>& all, const Tensors& gradients, const Tensors& truth,
                       double noise) {
  std::map<std::string, size_t> trained, without;
  for (const auto& [name, of_truth] : truth) ++trained[kind_of(name)];
  for (const std::string& name : without_gradient(gradients, truth, std::max(kNoGradient, 3.0 * noise)))
    ++without[kind_of(name)];
  const auto has_none = [&](const std::string& kind) {
    return !trained.contains(kind) || (without.contains(kind) && without.at(kind) == trained.at(kind));
  };
  const auto has_some = [&](const std::string& kind) { return trained.contains(kind) && !has_none(kind); };
  std::erase_if(all, [&](const Hypothesis& each) {
    const WrongSettings settings = each.settings();
    if (settings.experts == WrongExperts::kLostExpert && noise < kNoGradient)
      return expert_has_gradient(gradients, settings.lost_expert);
    return std::any_of(settings.missing_norms.begin(), settings.missing_norms.end(), has_some) ||
           std::any_of(settings.weights.begin(), settings.weights.end(), [&](const WeightChange& change) {
             return change.how == WeightChange::How::kAbsent
                        ? has_some(change.kind)
                        : change.how == WeightChange::How::kZero && has_none(change.kind);
           });
  });
}

}  // namespace streambp::verify
