#include "verify/diagnose/diagnose.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <map>
#include <unistd.h>

#include "streambp/error.h"

namespace streambp::verify {
namespace {

/// What is called a fit, of gradients without noise.
constexpr double kFits = 1e-3;
/// A fit may be this much worse than the noise alone: a wrong pass has other roundings than the right one.
constexpr double kNoiseAllowance = 1.5;
/// The truth itself may be this much worse than measured noise.
constexpr double kTruthAllowance = 1.25;
/// An explanation has to leave less than this share of what the truth leaves.
constexpr double kBetterThanTruth = 0.8;
/// Explanations within this factor of the best are indistinguishable from it.
constexpr double kTie = 1.1;
/// Residuals below are rounding.
constexpr double kRounding = 1e-9;
/// How far the plain engine may be from the truth, with nothing wrong.
constexpr double kEngineLimit = 1e-8;
/// Pairs that are run: of all, and in addition of every kind with the best single mistake and with the
/// second.
constexpr size_t kPairs = 24;
constexpr std::array<size_t, 2> kOfEveryKind{3, 1};

/// What rounding an entry to the coarsest dtype among the gradients does to it on average.
double rounding_of(const Tensors& gradients) {
  double rounding = 0.0;
  for (const auto& [name, gradient] : gradients) {
    const at::ScalarType dtype = gradient.scalar_type();
    if (dtype == at::kBFloat16) rounding = std::max(rounding, 1.7e-3);
    if (dtype == at::kHalf) rounding = std::max(rounding, 2.1e-4);
    if (dtype == at::kFloat) rounding = std::max(rounding, 2.6e-8);
  }
  return rounding;
}

bool has_dtype(const Tensors& gradients, at::ScalarType dtype) {
  return std::any_of(gradients.begin(), gradients.end(),
                     [&](const auto& entry) { return entry.second.scalar_type() == dtype; });
}

/// "37 of 150" on stderr, where somebody may be watching.
void progress(size_t done, size_t all, const char* what) {
  if (::isatty(STDERR_FILENO) == 0) return;
  fmt::print(stderr, "\r{} of {} {}   {}", done, all, what, done == all ? "\n" : "");
  std::fflush(stderr);
}

/// One hypothesis that was run, or several.
struct Tried {
  std::vector<const Hypothesis*> of;  // none: the truth
  Fit fit;
  at::Tensor sketch;
};

class Search {
 public:
  Search(const WrongSubject& subject, const Tensors& gradients, const Tensors& truth, double noise,
         const DiagnoseOptions& options)
      : subject_(subject),
        truth_(truth),
        options_(options),
        gauge_(gradients, truth),
        scalings_(scalings(subject)),
        hypotheses_(hypotheses(subject, options.chunks)),
        noise_(std::max(noise, rounding_of(gradients))) {
    for (Hypothesis& missing : missing_gradients(gradients, truth)) hypotheses_.push_back(std::move(missing));
    // Their own precision is no mistake of theirs.
    if (has_dtype(gradients, at::kBFloat16))
      std::erase_if(hypotheses_, [](const Hypothesis& h) { return h.name == "bf16-rounded"; });
  }

  Diagnosis run() {
    check_engine();
    diagnosis_.limit = std::max(kFits, kNoiseAllowance * noise_);
    add({}, truth_);
    truth_fit_ = tried_.front().fit;
    // The truth, or its multiple: there is nothing left to explain.
    if (truth_fit_.residual <= std::max(kRounding, kTruthAllowance * noise_)) return finish();
    diagnosis_.tried = scalings_.size();
    for (size_t i = 0; i < hypotheses_.size(); ++i) {
      progress(i + 1, hypotheses_.size(), "mistakes");
      if (try_out({&hypotheses_[i]})) ++diagnosis_.tried;
    }
    if (options_.pairs && !fits(best())) try_pairs();
    return finish();
  }

 private:
  void check_engine() const {
    const Tensors plain = options_.run(subject_, WrongSettings{});
    const double off = FitGauge(plain, truth_).measure(truth_).residual;
    if (!(off <= kEngineLimit)) {
      throw InputError(
          "--diagnose: the engine that makes mistakes is {:.1e} off the truth with none, expected {:.0e}",
          off, kEngineLimit);
    }
  }

  /// Whether this explains the gradients, where the truth does not as well.
  bool fits(const Tried& tried) const {
    if (!(tried.fit.residual <= diagnosis_.limit)) return false;
    if (tried.of.empty()) return tried.fit.has_factor();
    return tried.fit.residual <= kBetterThanTruth * truth_fit_.residual;
  }

  /// False where the objective refuses such a batch.
  bool try_out(const std::vector<const Hypothesis*>& of) {
    WrongSettings settings;
    for (const Hypothesis* each : of) each->make(settings);
    try {
      add(of, options_.run(subject_, settings));
      return true;
    } catch (const InputError&) {
      return false;
    }
  }

  void add(const std::vector<const Hypothesis*>& of, const Tensors& gradients) {
    Tried& tried = tried_.emplace_back();
    tried.of = of;
    tried.fit = gauge_.measure(gradients, &tried.sketch);
  }

  const Tried& best() const {
    return *std::min_element(tried_.begin(), tried_.end(),
                             [](const Tried& a, const Tried& b) { return a.fit.residual < b.fit.residual; });
  }

  struct Pair {
    const Hypothesis* first;
    const Hypothesis* second;
    double residual;  // as if the two changed the gradients by the sum of what each does
  };

  /// Two small mistakes change the gradients by nearly the sum of what each does: of all pairs, those that
  /// come closest so. A large mistake changes what a second one does: with each of the two that explain most,
  /// some of every kind.
  std::vector<Pair> likely_pairs() const {
    std::vector<const Tried*> singles;
    for (size_t i = 1; i < tried_.size(); ++i) singles.push_back(&tried_[i]);
    std::sort(singles.begin(), singles.end(),
              [](const Tried* a, const Tried* b) { return a->fit.residual < b->fit.residual; });
    std::vector<std::pair<Pair, size_t>> all;  // with the rank of the first
    for (size_t i = 0; i < singles.size(); ++i) {
      for (size_t j = i + 1; j < singles.size(); ++j) {
        const Hypothesis *first = singles[i]->of[0], *second = singles[j]->of[0];
        if (first->about == second->about) continue;
        const at::Tensor sum = singles[i]->sketch + singles[j]->sketch - tried_.front().sketch;
        all.push_back({{first, second, gauge_.sketch_residual(sum)}, i});
      }
    }
    std::sort(all.begin(), all.end(),
              [](const auto& a, const auto& b) { return a.first.residual < b.first.residual; });
    std::vector<Pair> chosen;
    std::map<std::pair<size_t, std::string>, size_t> of_kind;
    size_t of_all = 0;
    for (const auto& [pair, rank] : all) {
      const size_t most = rank < kOfEveryKind.size() ? kOfEveryKind[rank] : 0;
      if (of_all < kPairs) {
        ++of_all;
      } else if (of_kind[{rank, pair.second->about}] >= most) {
        continue;
      }
      ++of_kind[{rank, pair.second->about}];
      chosen.push_back(pair);
    }
    return chosen;
  }

  void try_pairs() {
    const std::vector<Pair> pairs = likely_pairs();
    for (size_t i = 0; i < pairs.size(); ++i) {
      progress(i + 1, pairs.size(), "pairs of mistakes");
      ++diagnosis_.pairs_tried;
      if (!try_out({pairs[i].first, pairs[i].second})) continue;
      // What fits this well needs no better.
      if (fits(tried_.back()) && tried_.back().fit.residual <= std::max(1e-6, noise_)) break;
    }
  }

  Explanation explain(const Tried& tried) const {
    std::vector<std::string> names, sentences;
    for (const Hypothesis* each : tried.of) {
      names.push_back(each->name);
      sentences.push_back(each->sentence);
    }
    if (tried.fit.has_factor()) {
      const std::vector<const Scaling*> same = scalings_like(tried.fit);
      std::vector<std::string> or_else;
      for (const Scaling* each : same) or_else.push_back(each->sentence);
      names.push_back(same.empty() ? fmt::format("times {:.6g}", tried.fit.factor) : same.front()->name);
      sentences.push_back(same.empty()
                              ? fmt::format("all gradients have a factor of {:.9g}", tried.fit.factor)
                              : fmt::format("{}", fmt::join(or_else, ", or ")));
    }
    if (names.empty()) return {"truth", "nothing is wrong", tried.fit};
    return {fmt::format("{}", fmt::join(names, " + ")), fmt::format("{}", fmt::join(sentences, "; and ")),
            tried.fit};
  }

  /// The scalings that a factor may be: those as close to it as any, three at most.
  std::vector<const Scaling*> scalings_like(const Fit& fit) const {
    const auto off = [&](const Scaling& scaling) { return std::abs(fit.factor / scaling.factor - 1.0); };
    double closest = std::max(fit.factor_error, kRounding);
    for (const Scaling& scaling : scalings_) closest = std::min(closest, off(scaling));
    std::vector<const Scaling*> same;
    for (const Scaling& scaling : scalings_) {
      if (off(scaling) <= closest + kRounding && same.size() < 3) same.push_back(&scaling);
    }
    return same;
  }

  Diagnosis finish() {
    std::stable_sort(tried_.begin(), tried_.end(), [](const Tried& a, const Tried& b) {
      // Within rounding the simpler one, which comes first.
      return std::max(a.fit.residual, kRounding) < std::max(b.fit.residual, kRounding);
    });
    for (const Tried& tried : tried_) diagnosis_.explanations.push_back(explain(tried));
    if (fits(tried_.front())) {
      diagnosis_.kind = Diagnosis::Kind::kExplained;
      const double limit = std::max(kTie * tried_.front().fit.residual, kRounding);
      for (const Tried& tried : tried_) diagnosis_.fitting += tried.fit.residual <= limit ? 1 : 0;
    } else if (truth_fit_.residual <= diagnosis_.limit && !truth_fit_.has_factor()) {
      diagnosis_.kind = Diagnosis::Kind::kRight;
    }
    return std::move(diagnosis_);
  }

  const WrongSubject& subject_;
  const Tensors& truth_;
  const DiagnoseOptions& options_;
  FitGauge gauge_;
  std::vector<Scaling> scalings_;
  std::vector<Hypothesis> hypotheses_;
  double noise_;
  Fit truth_fit_;
  std::vector<Tried> tried_;  // the truth first
  Diagnosis diagnosis_;
};

}  // namespace

double precision_residual(const Tensors& gradients, const Tensors& truth) {
  return FitGauge(gradients, truth).measure(truth).residual;
}

Diagnosis diagnose(const WrongSubject& subject, const Tensors& gradients, const Tensors& truth, double noise,
                   const DiagnoseOptions& options) {
  return Search(subject, gradients, truth, noise, options).run();
}

}  // namespace streambp::verify
