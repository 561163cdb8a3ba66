// The objective of a batch, made when the values are known, with what mistakes change of it.
#pragma once

#include <map>
#include <string>

#include "verify/diagnose/wrong_engine/wrong_engine.h"

namespace streambp::verify {

/// Subject and settings must outlive it.
class LateObjective final : public Objective {
 public:
  LateObjective(const WrongSubject& subject, const WrongSettings& settings, const Batch& batch);

  std::string name() const override { return subject_.objective; }
  bool separable() const override { return false; }
  at::Tensor targets() const override { return targets_; }
  HeadRequest request() const override { return request_; }
  at::Tensor loss(const TokenValues& values, int64_t begin, int64_t end) const override;

 private:
  /// The batch with the policy's log-probabilities [M] for those of others, where that is a mistake.
  Batch with_policy(const at::Tensor& log_probabilities) const;

  const WrongSubject& subject_;
  const WrongSettings& settings_;
  Batch batch_;
  at::Tensor scored_, targets_;
  std::map<std::string, std::string> options_;
  HeadRequest request_;
};

}  // namespace streambp::verify
