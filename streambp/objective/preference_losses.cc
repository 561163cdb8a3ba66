#include "streambp/objective/preference_losses.h"

#include "streambp/error.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

using Scores = PairScores;
using Settings = PairLossSettings;

at::Tensor log_sigma(const at::Tensor& z) {
  return stable_log_sigmoid(z);
}

/// The entries of x [n] from the smallest to the largest. A product with a permutation, which has a backward
/// pass on every device.
at::Tensor sorted(const at::Tensor& x) {
  const at::Tensor order = x.detach().argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor columns = at::arange(x.size(0), order.options());
  return order.unsqueeze(1).eq(columns).to(x.scalar_type()).mv(x);
}

at::Tensor exo(const Scores& pairs, const Settings& settings) {
  const at::Tensor z = pairs.margins * settings.beta;
  const double e = settings.label_smoothing;
  return z.sigmoid() * (log_sigma(z) - std::log1p(-e)) + (-z).sigmoid() * (log_sigma(-z) - std::log(e));
}

at::Tensor discopop(const Scores& pairs, const Settings& settings) {
  const at::Tensor z = pairs.margins * settings.beta;
  const at::Tensor share = (z / settings.discopop_tau).sigmoid();
  return (share - 1.0) * log_sigma(z) + exp_clamped(-z) * share;
}

}  // namespace

at::Tensor smoothed_sigmoid_loss(const at::Tensor& z, double e) {
  return log_sigma(z) * (e - 1.0) - log_sigma(-z) * e;
}

const std::map<std::string, PairLoss>& pair_losses() {
  static const std::map<std::string, PairLoss> losses{
      {"sigmoid",
       {[](const Scores& p, const Settings& s) {
          return smoothed_sigmoid_loss(p.margins * s.beta, s.sigmoid_smoothing);
        },
        /*needs_beta=*/false, /*smooths=*/true, /*takes_divergence=*/true}},
      {"sigmoid_norm",
       {[](const Scores& p, const Settings& s) { return -log_sigma(p.mean_margins * s.beta); }, false, false,
        true}},
      {"hinge",
       {[](const Scores& p, const Settings& s) { return at_least(1.0 - p.margins * s.beta, 0.0); }, false,
        false, true}},
      {"ipo",
       {[](const Scores& p, const Settings& s) { return (p.mean_margins - 0.5 / s.beta).square(); }, true,
        false, true}},
      {"robust",
       {[](const Scores& p, const Settings& s) {
          const double e = s.label_smoothing;
          const at::Tensor z = p.margins * s.beta;
          return (log_sigma(z) * (e - 1.0) + log_sigma(-z) * e) / (1.0 - 2.0 * e);
        },
        false, true, true}},
      {"exo_pair", {exo, false, true, true}},
      {"nca_pair", {[](const Scores& p, const Settings& s) {
         const at::Tensor chosen = p.chosen_ratios * s.beta, rejected = p.rejected_ratios * s.beta;
         return -log_sigma(chosen) - (log_sigma(-chosen) + log_sigma(-rejected)) * 0.5;
       }}},
      {"bco_pair", {[](const Scores& p, const Settings& s) {
         return -log_sigma(p.chosen_ratios * s.beta) - log_sigma(p.rejected_ratios * -s.beta);
       }}},
      {"sppo_hard",
       {[](const Scores& p, const Settings& s) {
          return (p.chosen_ratios - 0.5 / s.beta).square() + (p.rejected_ratios + 0.5 / s.beta).square();
        },
        true}},
      {"apo_zero", {[](const Scores& p, const Settings& s) {
         return (p.chosen_ratios * -s.beta).sigmoid() + (p.rejected_ratios * s.beta).sigmoid();
       }}},
      {"apo_down", {[](const Scores& p, const Settings& s) {
         return (p.chosen_ratios * s.beta).sigmoid() +
                ((p.chosen_ratios - p.rejected_ratios) * -s.beta).sigmoid();
       }}},
      {"aot",
       {[](const Scores& p, const Settings& s) {
          const at::Tensor margins = sorted(p.policy_margins) - sorted(p.reference_margins);
          return smoothed_sigmoid_loss(margins * s.beta, s.label_smoothing);
        },
        false, true, false, /*sorts=*/true}},
      {"aot_unpaired",
       {[](const Scores& p, const Settings& s) {
          const at::Tensor margins = sorted(p.chosen_ratios) - sorted(p.rejected_ratios);
          return smoothed_sigmoid_loss(margins * s.beta, s.label_smoothing);
        },
        false, true, false, true}},
      {"discopop", {discopop, false, false, true}},
      {"sft", {[](const Scores& p, const Settings&) { return p.chosen_nll; }, false, false, true}}};
  return losses;
}

void check_smoothing(const std::string& objective, const std::string& name, double smoothing) {
  if (!pair_losses().at(name).smooths && smoothing != 0.0) {
    throw InputError("{}: label_smoothing is {}, expected 0 with loss_type {}", objective, smoothing, name);
  }
  if (name == "robust" && !(smoothing < 0.5)) {
    throw InputError("{}: label_smoothing is {}, expected less than 0.5 with loss_type robust", objective,
                     smoothing);
  }
  if (name == "exo_pair" && !(smoothing > 0.0 && smoothing < 1.0)) {
    throw InputError(
        "{}: label_smoothing is {}, expected more than 0 and less than 1 with loss_type exo_pair", objective,
        smoothing);
  }
}

}  // namespace streambp
