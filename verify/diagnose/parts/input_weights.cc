#include "verify/diagnose/parts/input_weights.h"

#include <cmath>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <utility>

#include "streambp/error.h"
#include "streambp/objective/terms.h"

namespace streambp::verify {
namespace {

constexpr double kSame = 1e-9;
constexpr int64_t kMostSequences = 64;

class InputWeights {
 public:
  InputWeights(RowFacts& facts, const WrongSubject& subject, const Linearised& linear)
      : facts_(facts), subject_(subject), linear_(linear), all_(std::ssize(subject.batch.offsets) - 1) {}

  void run() {
    if (all_ < 2 || all_ > kMostSequences) return;
    for (const auto& [input, text] : {std::pair{inputs::kMargin, "margins"},
                                      std::pair{inputs::kReferenceSums, "the reference's log-probabilities"},
                                      std::pair{inputs::kOldSums, "the old log-probabilities"}}) {
      const auto found = subject_.batch.sequence_inputs.find(input);
      if (found == subject_.batch.sequence_inputs.end() || found->second.size(0) != all_) continue;
      of_input(input, text, found->second);
    }
  }

 private:
  void of_input(const std::string& input, const std::string& text, const at::Tensor& given) {
    add(fmt::format("{}-left-out", input), fmt::format("{} are left out", text),
        with(input, at::zeros_like(given)));
    add(fmt::format("{}-other-sign", input), fmt::format("{} have the other sign", text),
        with(input, -given));
    add(fmt::format("{}-mean", input), fmt::format("{} are the mean over the batch", text),
        with(input, given.mean().expand_as(given).contiguous()));
    // Of pairs both halves.
    const int64_t group = facts_.pairs ? all_ / 2 : all_;
    at::Tensor sum;
    for (int64_t by = 0; by < group; ++by) {
      const at::Tensor rolled = given.view({-1, group}).roll({by}, {1}).reshape({-1});
      const std::optional<at::Tensor> slopes = with(input, rolled);
      if (!slopes) return;
      sum = sum.defined() ? sum + *slopes : *slopes;
      if (by > 0)
        add(fmt::format("{}-of-others", input),
            fmt::format("{} are other {}s': each has those of the one {} before (modulo {})", text,
                        facts_.pairs ? "pair" : facts_.unit, by, group),
            slopes);
    }
    add(fmt::format("{}-broadcast", input),
        fmt::format("{0} are broadcast: each {1} meets the {0} of every {1}, [n, 1] against [n], in a mean "
                    "over all n x n",
                    text, facts_.pairs ? "pair" : facts_.unit),
        sum / static_cast<double>(group));
  }

  /// What each sequence counts with other numbers, as a multiple of what it should; NaN where it has none.
  std::optional<at::Tensor> with(const std::string& input, const at::Tensor& changed) const {
    try {
      Batch batch = subject_.batch;
      batch.sequence_inputs[input] = changed;
      const auto objective = make_objective(subject_.objective, batch, subject_.options);
      const ScoredValues slopes = slopes_at(*objective, linear_.values());
      at::Tensor weights = at::full({all_}, std::numeric_limits<double>::quiet_NaN(), at::kDouble);
      for (int64_t i = 0; i < all_; ++i) {
        const at::Tensor own = linear_.of_sequence(i);
        for (size_t column = 0; column < slopes.columns.size(); ++column) {
          const at::Tensor &right = linear_.slopes().columns[column], &other = slopes.columns[column];
          if (!right.defined() || !other.defined()) continue;
          const at::Tensor a = right.masked_select(own), b = other.masked_select(own);
          const double square = a.square().sum().item<double>();
          if (!(square > 0.0)) continue;
          const double times = (a * b).sum().item<double>() / square;
          // Another loss of its tokens, not another weight.
          if ((b - a * times).abs().max().item<double>() > kSame * a.abs().max().item<double>())
            return std::nullopt;
          weights[i] = times;
        }
      }
      return weights;
    } catch (const InputError&) {
      return std::nullopt;
    }
  }

  void add(std::string name, std::string sentence, const std::optional<at::Tensor>& weights) {
    if (!weights) return;
    OtherAdvantages other{std::move(name), std::move(sentence), {}};
    double most = 0.0, least = std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < all_; ++i) {
      const double own = (*weights)[i].item<double>();
      other.of_sequences.push_back(std::isfinite(own) ? own : 1.0);
      most = std::max(most, other.of_sequences.back());
      least = std::min(least, other.of_sequences.back());
    }
    if (most - least > kSame * std::abs(most)) facts_.other_weights.push_back(std::move(other));
  }

  RowFacts& facts_;
  const WrongSubject& subject_;
  const Linearised& linear_;
  int64_t all_;
};

}  // namespace

void add_input_weights(RowFacts& facts, const WrongSubject& subject, const Linearised& linear) {
  InputWeights(facts, subject, linear).run();
}

}  // namespace streambp::verify
