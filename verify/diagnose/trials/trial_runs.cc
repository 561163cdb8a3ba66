#include "verify/diagnose/trials/trial_runs.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <utility>

#include "streambp/error.h"
#include "verify/diagnose/wrong_engine/run_mistake.h"

namespace streambp::verify {

bool is_of_backward_pass(const std::string& about) {
  static const std::set<std::string> kAbout{"detached", "tied embedding", "padding row", "sums"};
  return kAbout.contains(about) || about.ends_with(" slope");
}

namespace {

/// Where a mistake in the backward pass of a part of the layers shows first.
bool shows_at(const std::string& about, const std::string& place) {
  const auto is = [&](const char* name) { return place.starts_with(std::string(name) + "-of-layer"); };
  const bool at_input = is("input-gradient"), at_experts = is("experts-input-gradient"),
             at_middle = at_experts || is("mlp-input-gradient") || is("attention");
  if (about == "MLP's slope") return is("mlp-backward");
  if (about == "MLP's input slope" || about == "middle's slope") return at_middle;
  if (about == "router's slope") return at_experts;
  if (about == "layer input's slope" || about == "norms' slope") return at_input;
  if (about == "layers' norms' slope") return at_input || at_middle;
  if (about == "attention's input slope") return is("attention-input-gradient");
  return true;
}

}  // namespace

bool is_elsewhere(const std::string& about, const Location& location) {
  const auto wrong = [&](std::initializer_list<Role> roles) {
    return std::any_of(roles.begin(), roles.end(), [&](Role role) { return location.roles.contains(role); });
  };
  // What flows through layers is right: sums are wrong, or a parameter's own part.
  if (location.flow_is_right && location.kind == Location::Kind::kAlone)
    return about.ends_with(" slope") || about == "detached";
  if (location.kind != Location::Kind::kBetween) return false;
  if (about == "tied embedding" || about == "padding row") return true;
  const bool above_attention = wrong(
      {Role::kAfterMlp, Role::kExperts, Role::kMlp, Role::kRouter, Role::kBeforeMlp, Role::kAfterAttention});
  if (location.factor) return about != "sums";  // a part that is left out is no multiple
  const bool one_of_both =
      location.roles_there.contains(Role::kValues) && wrong({Role::kKeys}) != wrong({Role::kValues});
  if (about == "detached") return above_attention || one_of_both || wrong({Role::kOutput, Role::kQueries});
  if (about == "softmax's slope" || about == "softcap's slope" || about == "rotation's slope" ||
      about == "scores' slope")
    return above_attention || wrong({Role::kOutput, Role::kValues});
  // Each head's own gradients say which of them are wrong, where they are not in one matrix.
  const bool in_attention = !above_attention && !wrong({Role::kOutput, Role::kRecurrence});
  const bool apart = location.roles_there.contains(Role::kQueries);
  const bool q = wrong({Role::kQueries}), k = wrong({Role::kKeys}), v = wrong({Role::kValues});
  if (about == "attention's slope") return !in_attention || (apart && !(q && k));
  if (about == "queries' slope") return !in_attention || !apart || !q || k || v;
  if (about == "keys' slope") return !in_attention || !apart || q || !k;
  if (about == "key sums' slope") return !in_attention || !apart || q || !k || v;
  if (about == "value sums' slope") return !in_attention || !apart || q || k || !v;
  if (about == "adapters' slope" || about == "residual's slope") return false;
  return !shows_at(about, location.name);
}

TrialRuns::TrialRuns(const WrongSubject& subject, const FitGauge& gauge, const Tensors& truth,
                     const MakeMistake& run)
    : subject_(subject), gauge_(gauge), truth_(truth), run_(run) {
  Tried& right = whole_.emplace_back();
  right.fit = gauge.measure(truth, &right.sketch);
}

void TrialRuns::by_head(const Tensors& gradients, double right) {
  head_ = HeadGauge::of(subject_, gradients, truth_);
  if (head_ && head_->measure(truth_).residual <= right) head_.reset();
}

double TrialRuns::engine_error() const {
  WrongSettings nothing;
  if (head_) head_->ask(nothing);
  const Tensors made = run_(subject_, nothing);
  if (!head_) return FitGauge(made, truth_).measure(truth_).residual;
  const Tensors right = head_->part_of(truth_);
  return FitGauge(head_->part_of(made), right).measure(right).residual;
}

bool TrialRuns::try_out(const std::vector<const Hypothesis*>& of, double limit) {
  WrongSettings settings;
  for (const Hypothesis* each : of) each->make(settings);
  try {
    if (head_) {
      WrongSettings of_head = settings;
      head_->ask(of_head);
      Tried tried{of, {}, {}};
      tried.fit = head_->measure(run_(subject_, of_head), &tried.sketch);
      of_head_.push_back(tried);
      if (!(tried.fit.residual <= limit)) return true;
    }
    Tried tried{of, {}, {}};
    tried.fit = gauge_.measure(run_(subject_, settings), &tried.sketch);
    whole_.push_back(std::move(tried));
    return true;
  } catch (const InputError&) {
    return false;
  }
}

bool TrialRuns::may_be(const WrongSubject& other, double limit) const {
  if (!head_) return true;
  WrongSettings nothing;
  head_->ask(nothing);
  return head_->measure(run_mistake(other, nothing)).residual <= limit;
}

const Tried& TrialRuns::best() const {
  return *std::min_element(whole_.begin(), whole_.end(),
                           [](const Tried& a, const Tried& b) { return a.fit.residual < b.fit.residual; });
}

std::vector<Explanation> TrialRuns::numbers(const PartsLimits& limits, const Tensors& gradients) const {
  const WeightDirections steps = steps_of(truth_, gradients);
  const auto confirm = [&](const WrongSettings& settings) {
    return gauge_.measure(run_(subject_, settings));
  };
  if (!head_) return explain_by_numbers(subject_, gauge_, truth_, limits, steps, run_, confirm);
  const MakeMistake of_head = [&](const WrongSubject& subject, WrongSettings settings) {
    head_->ask(settings);
    return head_->part_of(run_(subject, settings));
  };
  return explain_by_numbers(subject_, head_->gauge(), head_->part_of(truth_), limits, steps, of_head,
                            confirm);
}

std::vector<MistakePair> TrialRuns::pairs(const std::vector<Hypothesis>& all, double limit) const {
  std::vector<SingleMistake> singles;
  for (const Tried& each : head_ ? of_head_ : whole_) {
    if (each.of.size() == 1) singles.push_back({each.of[0], each.fit.residual, each.sketch});
  }
  if (!head_) return likely_pairs(std::move(singles), whole_.front().sketch, gauge_);
  at::Tensor right;
  head_->measure(truth_, &right);
  std::vector<MistakePair> found = likely_pairs(std::move(singles), right, head_->gauge());
  // What gives the head's gradient and not the others may leave them to a mistake below.
  for (const Tried& each : of_head_) {
    if (each.of.size() > 1 || !(each.fit.residual <= limit)) continue;
    for (const Hypothesis& other : all) {
      if (is_of_backward_pass(other.about)) found.push_back({each.of[0], &other, 0.0});
    }
  }
  return found;
}

}  // namespace streambp::verify
