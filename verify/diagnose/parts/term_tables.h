// Which terms a loss may have, by the options that multiply them and the values that they are of.
#pragma once

#include <cstddef>

#include "verify/diagnose/parts/term_words.h"
#include "verify/diagnose/wrong_engine/wrong_settings.h"

namespace streambp::verify {

/// A term that an option multiplies.
struct CoefficientOption {
  const char* objective;
  const char* option;
  const char* name;
  const char* text;
};
constexpr CoefficientOption kCoefficients[] = {
    {"grpo", "beta", "kl", "the KL term (beta)"},
    {"ppo", "kl_coef", "kl", "the KL term (kl_coef)"},
    {"cpo", "cpo_alpha", "cross-entropy", "the chosen completions' cross-entropy (cpo_alpha)"},
    {"simpo", "cpo_alpha", "cross-entropy", "the chosen completions' cross-entropy (cpo_alpha)"},
    {"orpo", "beta", "odds-ratio", "the odds-ratio term (beta)"},
    {"reward", "center_rewards_coefficient", "centering",
     "the term that centres rewards (center_rewards_coefficient)"}};

/// What a value's column of the slopes is a term of.
struct ColumnTerm {
  size_t column;
  const char* name;
  const char* text;
};
constexpr ColumnTerm kColumnTerms[] = {{1, "entropy", "the entropy bonus"},
                                       {2, "label-smoothing", "the label smoothing"},
                                       {3, "values", "the value loss"},
                                       {4, "divergence", "the divergence from the teacher"}};

/// A term of logits that a loss may have besides, and its weight in a pass.
struct LogitTerm {
  const char* name;
  const char* text;
  double WrongSettings::*weight;
};
constexpr LogitTerm kLogitTerms[] = {
    {"z-loss", "the mean square of the logits' log-sum-exp (z-loss)", &WrongSettings::z_loss},
    {"router-z-loss", "the mean square of the routers' log-sum-exp, summed over layers (router z-loss)",
     &WrongSettings::router_z_loss},
    {kTargetLogits, "the targets' logits", &WrongSettings::target_logits}};

}  // namespace streambp::verify
