// Objectives that ask the head for several things of each distribution at once: streamed rows against the
// full logits under autograd.
#include <cmath>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "streambp/backprop/method.h"
#include "verify/equality/batches.h"
#include "verify/evaluation.h"

namespace streambp {

using namespace verify;
namespace {

/// A weighted sum of everything that `asked` names, with weights that differ from token to token.
class Everything final : public Objective {
 public:
  explicit Everything(HeadRequest asked) : asked_(asked) {}

  std::string name() const override { return "everything"; }
  bool separable() const override { return true; }
  HeadRequest request() const override { return asked_; }

  at::Tensor loss(const TokenValues& values, int64_t begin, int64_t end) const override {
    at::Tensor sum = at::zeros({}, at::kDouble);
    double turn = 0.0;
    for (const at::Tensor& column :
         {values.log_probabilities, values.entropies, values.mean_log_probabilities, values.divergences}) {
      turn += 1.0;
      if (!column.defined()) continue;
      sum = sum + (column * at::sin(at::arange(begin, end, at::kDouble) * turn + turn)).sum();
    }
    return sum;
  }

 private:
  HeadRequest asked_;
};

struct AskedOfHead {
  bool entropies, means;
  Divergence divergence;
  double temperature, divergence_temperature;
  int64_t teachers_tokens;  // more than the model's
};

TEST(HeadDistributions, SeveralRequestsAtOnceStream) {
  const auto kFrozen = [](const std::string&) { return false; };
  for (const char* name : {"qwen3-tiny", "gemma2-tiny"}) {  // whose logits are capped
    Model model = equality_model(name, 3);
    Batch batch = equality_batch("masked", 19, model.config().vocab_size, 5);
    batch.tokens.clamp_max_(model.config().vocab_size - 10);
    double worst = 0.0;
    for (const AskedOfHead& asked : {AskedOfHead{true, true, Divergence::kNone, 1.3, 1.0, 0},
                                     AskedOfHead{true, false, Divergence::kForward, 1.0, 1.0, 0},
                                     AskedOfHead{true, true, Divergence::kReverse, 1.0, 1.0, 0},
                                     AskedOfHead{true, true, Divergence::kReverse, 0.8, 0.8, 0},
                                     AskedOfHead{true, false, Divergence::kJensenShannon, 1.0, 1.0, 0},
                                     AskedOfHead{false, true, Divergence::kReverse, 1.0, 2.0, 0},
                                     AskedOfHead{true, true, Divergence::kJensenShannon, 0.7, 2.0, 0},
                                     AskedOfHead{true, false, Divergence::kReverse, 1.0, 1.0, -8},
                                     AskedOfHead{true, false, Divergence::kReverse, 1.0, 1.0, 8},
                                     AskedOfHead{true, true, Divergence::kForward, 1.5, 1.5, -8}}) {
      Model teacher = equality_model(name, 4, kFrozen, asked.teachers_tokens);
      HeadRequest request;
      request.entropies = asked.entropies;
      request.mean_log_probabilities = asked.means;
      request.divergence = asked.divergence;
      request.temperature = asked.temperature;
      request.divergence_temperature = asked.divergence_temperature;
      request.jensen_shannon_beta = 0.3;
      request.any_vocabulary = true;
      const Everything objective(request);
      Settings full, streamed;
      full.method = Method::kStandard;
      streamed.chunk = 7;
      const Evaluation expected = evaluate(model, batch, objective, full, &teacher);
      for (const int64_t head_chunk : {1, 3, 64}) {
        streamed.head_chunk = head_chunk;
        const EvaluationErrors errors =
            measure(evaluate(model, batch, objective, streamed, &teacher), expected);
        worst = worse(worst, errors.worst());
        EXPECT_TRUE(errors.worst() <= 1e-12)
            << name << ", divergence " << static_cast<int>(asked.divergence) << " at "
            << asked.divergence_temperature << ", teacher " << asked.teachers_tokens << ", head chunk "
            << head_chunk << ": " << error_text(errors.worst()) << " in " << errors.worst_parameter();
      }
    }
    fmt::print("{}: worst {:.1e}\n", name, worst);
  }
}

}  // namespace
}  // namespace streambp
