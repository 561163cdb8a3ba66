#include "verify/diagnose/locate.h"

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <set>

#include "streambp/model/lora/peft_name.h"
#include "verify/compare/fit.h"
#include "verify/diagnose/layer_roles.h"
#include "verify/diagnose/parts/row_words.h"
#include "verify/diagnose/wrong_rows.h"

namespace streambp::verify {
namespace {

/// Where more than this share of what lies below is wrong, it is wrong because of what lies above.
constexpr double kFollows = 0.7;
constexpr double kHardlyAny = 0.1;
constexpr size_t kShownNames = 6;
constexpr size_t kShownFactors = 4;
/// Norms that differ by less are one.
constexpr double kSameLength = 1e-6;

bool contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

struct ParameterState {
  std::string name;
  int64_t layer = 0;  // the embedding -1, final norm and heads the number of layers
  Role role = Role::kOther;
  std::string in_layer;  // its name without model.layers.N.
  double factor = 0.0;
  bool wrong = false;
  bool none = false;      // zero where the truth is not
  bool is_zero = false;   // the truth
  bool multiple = false;  // of the truth
  double norm = 0.0;      // of the given gradient
  std::string
      rows;  // of a matrix that is wrong in some of its rows alone: "rows 0 to 7 of 32, which are zero"
};

class Locating {
 public:
  Locating(const Config& config, const Tensors& gradients, const Tensors& truth, const GradientLimits& limits)
      : config_(config) {
    for (const auto& [name, of_truth] : truth) states_.push_back(state_of(name));
    const double common = common_factor(gradients, truth, limits);
    for (ParameterState& state : states_) judge(state, gradients, truth, limits, common);
    common_ = common;
    for (const auto& [name, limit] : limits) digits_ = limit > kSameLength ? 4 : digits_;
  }

  std::optional<Location> run() {
    if (std::none_of(states_.begin(), states_.end(), [](const auto& state) { return state.wrong; }))
      return std::nullopt;
    Location location;
    location.right = summary(false);
    location.wrong = summary(true);
    top_ = -1;
    for (const ParameterState& state : states_) {
      if (state.wrong) top_ = std::max(top_, state.layer);
    }
    // An expert may have seen rows that are right alone, a head of its own one term of the loss.
    const auto is_right = [](const ParameterState& state) {
      return !state.wrong && !state.is_zero && state.role != Role::kExperts && state.role != Role::kRouter;
    };
    const auto right_from = [&](auto chosen) {
      return std::any_of(states_.begin(), states_.end(), [&](const ParameterState& state) {
        const bool in_layer = state.layer >= 0 && state.layer < config_.num_hidden_layers;
        return in_layer && chosen(state) && is_right(state);
      });
    };
    location.forward_is_right = right_from([](const ParameterState&) { return true; });
    location.flow_is_right =
        top_ < 0 || right_from([&](const ParameterState& state) { return below(state); });
    const bool multiples = std::all_of(states_.begin(), states_.end(), [](const ParameterState& state) {
      return !state.wrong || state.multiple;
    });
    if (multiples || share_of_wrong([&](const ParameterState& state) { return below(state); }) <= kFollows) {
      alone(location);
    } else if (top_ == config_.num_hidden_layers || nothing_above()) {
      location.name = "everywhere";
      location.sentence =
          "gradients are wrong from the top on: the loss, the targets or the forward pass is another";
    } else {
      between(location);
    }
    return location;
  }

 private:
  ParameterState state_of(const std::string& name) const {
    ParameterState state;
    state.name = name;
    const std::string prefix = "model.layers.";
    const size_t at = name.find(prefix);
    if (at == std::string::npos) {
      const bool is_embedding = contains(name, "embed_tokens") || contains(name, "per_layer_");
      state.layer = is_embedding ? -1 : config_.num_hidden_layers;
      state.in_layer = name;
      return state;
    }
    const size_t dot = name.find('.', at + prefix.size());
    state.layer = std::stoll(name.substr(at + prefix.size(), dot - at - prefix.size()));
    state.in_layer = name.substr(dot + 1);
    state.role = role_of(state.in_layer, config_.norm_names(state.layer));
    return state;
  }

  static double limit_of(const GradientLimits& limits, const std::string& name) {
    const auto found = limits.find(name);
    return found == limits.end() ? 1e-9 : found->second;
  }

  static at::Tensor of(const Tensors& gradients, const std::string& name, const at::Tensor& truth) {
    const auto found = gradients.find(name);
    return found == gradients.end() ? at::zeros_like(truth) : found->second.to(at::kCPU, at::kDouble);
  }

  /// 1, or where hardly any are right then, the median.
  double common_factor(const Tensors& gradients, const Tensors& truth, const GradientLimits& limits) const {
    std::vector<double> factors;
    for (const auto& [name, t] : truth) {
      const double factor = factor_of(of(gradients, name, t), t);
      if (std::isfinite(factor) && factor != 0.0) factors.push_back(factor);
    }
    if (factors.empty()) return 1.0;
    const double middle = median_of(factors);
    const auto right_with = [&](double common) {
      return std::count_if(truth.begin(), truth.end(), [&](const auto& entry) {
        const at::Tensor g = of(gradients, entry.first, entry.second);
        return relative_error(g / common, entry.second) <= limit_of(limits, entry.first);
      });
    };
    const auto with_one = static_cast<double>(right_with(1.0));
    const bool hardly_any = with_one <= kHardlyAny * static_cast<double>(truth.size());
    return middle != 0.0 && hardly_any && static_cast<double>(right_with(middle)) > with_one ? middle : 1.0;
  }

  static void judge(ParameterState& state, const Tensors& gradients, const Tensors& truth,
                    const GradientLimits& limits, double common) {
    const at::Tensor& t = truth.at(state.name);
    const at::Tensor g = of(gradients, state.name, t);
    const double limit = limit_of(limits, state.name), norm = norm_of(t);
    state.wrong = !(relative_error(g / common, t) <= limit);
    state.is_zero = !(norm > 0.0);
    if (!state.wrong || state.is_zero) return;
    state.none = norm_of(g) <= kNoGradient * norm;
    state.factor = state.none ? 0.0 : factor_of(g, t);
    state.multiple = state.none || (std::isfinite(state.factor) && state.factor != 0.0 &&
                                    relative_error(g / state.factor, t) <= limit);
    state.norm = norm_of(g);
    if (!state.multiple && t.dim() >= 1) state.rows = wrong_rows_text(g / common, t, limit);
  }

  /// Whether all of the highest layer is wrong, and no parameter of the head is trained that could be right.
  bool nothing_above() const {
    return top_ + 1 == config_.num_hidden_layers &&
           std::all_of(states_.begin(), states_.end(), [&](const ParameterState& state) {
             return state.layer < top_ || (state.layer == top_ && state.wrong);
           });
  }

  /// Whether gradients reach it later than the highest that is wrong.
  bool below(const ParameterState& state) const { return state.layer < top_; }

  template <typename Chosen>
  double share_of_wrong(Chosen chosen) const {
    double all = 0.0, wrong = 0.0;
    for (const ParameterState& state : states_) {
      if (!chosen(state)) continue;
      all += 1.0;
      wrong += state.wrong ? 1.0 : 0.0;
    }
    return all > 0.0 ? wrong / all : 0.0;
  }

  /// "self_attn.q_norm.weight of layers 0 to 3, lm_head.weight".
  std::string names_text(const std::vector<const ParameterState*>& chosen) const {
    std::map<std::string, std::vector<int64_t>> layers;
    std::map<std::string, size_t> everywhere;
    std::map<int64_t, size_t> of_layer, chosen_of_layer;
    for (const ParameterState& state : states_) everywhere[state.in_layer] += 1, of_layer[state.layer] += 1;
    for (const ParameterState* state : chosen) chosen_of_layer[state->layer] += 1;
    std::vector<int64_t> whole;
    for (const auto& [layer, count] : chosen_of_layer) {
      if (layer >= 0 && layer < config_.num_hidden_layers && count == of_layer[layer]) whole.push_back(layer);
    }
    for (const ParameterState* state : chosen) {
      if (!std::binary_search(whole.begin(), whole.end(), state->layer))
        layers[state->in_layer].push_back(state->layer);
    }
    std::vector<std::string> texts;
    if (!whole.empty()) texts.push_back("all of " + list_text("layer", whole));
    for (auto& [name, numbers] : layers) {
      std::sort(numbers.begin(), numbers.end());
      const bool has_layer = numbers.front() >= 0 && numbers.front() < config_.num_hidden_layers;
      const bool all = numbers.size() == everywhere[name] && numbers.size() > 1;
      texts.push_back(!has_layer ? name
                      : all      ? name + " of all layers"
                                 : name + " of " + list_text("layer", numbers));
    }
    const size_t all = texts.size();
    if (all > kShownNames) texts.resize(kShownNames);
    return fmt::format("{}{}", fmt::join(texts, ", "),
                       all > kShownNames ? fmt::format(" and {} more", all - kShownNames) : "");
  }

  std::string level_text(int64_t layer) const {
    if (layer < 0) return "the embedding";
    if (layer == config_.num_hidden_layers) return "the head";
    return fmt::format("layer {}", layer);
  }

  /// The levels that are wholly right, or those with something wrong.
  std::string summary(bool wrong) const {
    std::map<int64_t, std::pair<size_t, size_t>> by_level;  // wrong, all
    for (const ParameterState& state : states_) {
      by_level[state.layer].first += state.wrong ? 1 : 0;
      by_level[state.layer].second += 1;
    }
    std::vector<std::string> texts;
    for (auto level = by_level.rbegin(); level != by_level.rend(); ++level) {
      const auto& [bad, all] = level->second;
      if (wrong != (bad > 0)) continue;
      texts.push_back(level_text(level->first) +
                      (bad > 0 && bad < all ? fmt::format(" ({} of {})", bad, all) : ""));
    }
    const size_t all = texts.size(), shown = 12;
    if (all > shown) texts.resize(shown);
    return texts.empty() ? "nothing"
                         : fmt::format("{}{}", fmt::join(texts, ", "), all > shown ? ", ..." : "");
  }

  /// Of gradients that all are as long: each is clipped by itself.
  std::string clipped_text(const std::vector<const ParameterState*>& scaled) const {
    const double norm = scaled.front()->norm;
    const bool alike = std::all_of(scaled.begin(), scaled.end(), [&](const ParameterState* state) {
      return std::abs(state->norm / norm - 1.0) <= kSameLength;
    });
    const auto [least, most] = std::minmax_element(
        scaled.begin(), scaled.end(), [](const auto* a, const auto* b) { return a->factor < b->factor; });
    return alike ? fmt::format("gradients are clipped parameter by parameter, to a norm of {:.4g}: {} of {}",
                               norm, scaled.size(), states_.size())
                 : fmt::format(
                       "{} of {} parameters are multiples of what they should be, each by a factor of its "
                       "own between {:.4g} and {:.4g}",
                       scaled.size(), states_.size(), (*least)->factor / common_, (*most)->factor / common_);
  }

  /// Of matrices that are wrong in some of their rows alone: which, as of one head, expert or rank.
  std::string rows_text(const std::vector<const ParameterState*>& chosen) const {
    std::string all;
    for (const ParameterState* state : chosen) {
      if (state->rows.empty() || (!all.empty() && state->rows != all)) return "";
      all = state->rows;
    }
    return all.empty() ? "" : fmt::format(" in {}", all);
  }

  void alone(Location& location) const {
    location.kind = Location::Kind::kAlone;
    std::vector<const ParameterState*> wrong, none, scaled, other;
    std::set<Role> roles;
    for (const ParameterState& state : states_) {
      if (!state.wrong) continue;
      wrong.push_back(&state);
      location.parameters.push_back(state.name);
      roles.insert(state.role);
      (state.none ? none : state.multiple ? scaled : other).push_back(&state);
    }
    location.alone = names_text(wrong);
    std::vector<std::string> sentences;
    if (!none.empty()) sentences.push_back("no gradient reaches " + names_text(none));
    std::map<std::string, std::vector<const ParameterState*>> by_factor;
    for (const ParameterState* state : scaled)
      by_factor[fmt::format("{:.{}g}", state->factor / common_, digits_)].push_back(state);
    const std::string clipped = by_factor.size() > kShownFactors ? clipped_text(scaled) : "";
    if (!clipped.empty()) sentences.push_back(clipped);
    for (const auto& [factor, states] : by_factor) {
      if (!clipped.empty()) break;
      sentences.push_back(fmt::format("{} {} {} times what {} should be", names_text(states),
                                      states.size() == 1 ? "is" : "are", factor,
                                      states.size() == 1 ? "it" : "they"));
    }
    if (!other.empty()) {
      const std::string rows = rows_text(other);
      const bool vectors = std::all_of(other.begin(), other.end(), [](const ParameterState* state) {
        return contains(state->in_layer, "norm") || state->in_layer.ends_with(".bias");
      });
      const std::string of_sum =
          vectors ? ": their own gradients' sum over tokens, heads or ranks, not what flows through them"
                  : own_words(roles);
      sentences.push_back(fmt::format("only {} {} wrong{}{}", names_text(other),
                                      other.size() == 1 ? "is" : "are", rows, rows.empty() ? of_sum : ""));
    } else {
      for (const ParameterState* state : wrong) location.factors[state->name] = state->factor / common_;
    }
    const bool adapters = std::all_of(none.begin(), none.end(),
                                      [](const ParameterState* state) { return is_peft_name(state->name); });
    location.name = other.empty() && scaled.empty()
                        ? (adapters ? "adapters-without-gradient" : "parameters-without-gradient")
                    : other.empty() ? "parameters-scaled"
                                    : "parameters-alone";
    location.sentence = fmt::format("{}{}", fmt::join(sentences, "; "),
                                    wrong.size() < states_.size() ? ", while all else is right" : "");
  }

  /// What layer `top_` has that none above it has.
  std::string kind_text() const {
    const auto highest = [&](auto has) {
      if (!has(top_)) return false;
      for (int64_t layer = top_ + 1; layer < config_.num_hidden_layers; ++layer) {
        if (has(layer)) return false;
      }
      return top_ + 1 < config_.num_hidden_layers;
    };
    if (highest([&](int64_t layer) { return config_.is_recurrent(layer); }))
      return ", the highest recurrent one,";
    if (highest([&](int64_t layer) { return config_.has_window(layer); }))
      return ", the highest with a window,";
    if (highest([&](int64_t layer) { return config_.is_sparse(layer); }))
      return ", the highest with experts,";
    if (highest([&](int64_t layer) { return !config_.has_window(layer) && !config_.is_recurrent(layer); }))
      return ", the highest that sees all tokens,";
    return "";
  }

  /// The multiple of what they should be that all of these are, but for the norm of what they read.
  std::optional<double> factor_of_highest(const std::vector<const ParameterState*>& wrong) const {
    std::optional<double> factor;
    for (const ParameterState* state : wrong) {
      if (state->role == Role::kBeforeAttention) continue;
      if (!state->multiple || state->none) return std::nullopt;
      if (factor && std::abs(state->factor / *factor - 1.0) > kSameLength) return std::nullopt;
      factor = state->factor;
    }
    return factor ? std::optional(*factor / common_) : std::nullopt;
  }

  void between(Location& location) const {
    location.kind = Location::Kind::kBetween;
    std::map<Role, std::pair<size_t, size_t>> roles;  // wrong, all
    std::vector<const ParameterState*> wrong;
    for (const ParameterState& state : states_) {
      if (state.layer != top_) continue;
      roles[state.role].first += state.wrong ? 1 : 0;
      roles[state.role].second += 1;
      location.roles_there.insert(state.role);
      if (state.wrong) wrong.push_back(&state), location.roles.insert(state.role);
    }
    const auto [name, words] = words_for_roles(config_, top_, roles);
    location.name = fmt::format("{}-of-layer-{}", name, top_);
    location.factor = factor_of_highest(wrong);
    std::vector<std::string> first;
    for (const ParameterState* state : wrong) first.push_back(state->in_layer);
    if (first.size() > kShownNames) first.resize(kShownNames), first.emplace_back("...");
    const bool all = std::all_of(states_.begin(), states_.end(),
                                 [&](const auto& state) { return state.layer != top_ || state.wrong; });
    const bool none = std::all_of(states_.begin(), states_.end(), [&](const ParameterState& state) {
      return !below(state) || !state.wrong || state.none;
    });
    location.sentence = fmt::format(
        "{}: in layer {}{} {} {}{}, {} and all below {}", words, top_, kind_text(),
        all ? "everything" : fmt::format("{}", fmt::join(first, ", ")),
        first.size() == 1 || all ? "is wrong" : "are wrong",
        location.factor ? fmt::format(" ({:.6g} times what it should be, but for norms)", *location.factor)
                        : "",
        all ? "what is above is right" : "the rest of it and what is above are right",
        none ? "has no gradient" : "follows");
  }

  const Config& config_;
  std::vector<ParameterState> states_;
  int64_t top_ = -1;
  double common_ = 1.0;
  int digits_ = 6;  // of factors that are told apart
};

}  // namespace

std::optional<Location> locate(const Config& config, const Tensors& gradients, const Tensors& truth,
                               const GradientLimits& limits) {
  return Locating(config, gradients, truth, limits).run();
}

}  // namespace streambp::verify
