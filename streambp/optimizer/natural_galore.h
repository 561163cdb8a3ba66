// Natural GaLore (Das, 2024, arXiv 2410.16029): GaLore with a natural gradient in its space; inside the
// library only.
#pragma once

#include <map>
#include <string>

#include <ATen/ATen.h>

#include "streambp/optimizer/galore.h"

namespace streambp {

/// The averages take F^-1 g for the projected gradient g, F = damping I + G G^T being the empirical Fisher
/// matrix of the last `history` of them, g among them: the columns of G, each as one vector. By Woodbury's
/// identity F^-1 G = G (damping I + G^T G)^-1, and g is a column of G: all that is solved is a system of
/// `history` unknowns, and nothing is subtracted from g / damping, as the paper's formula has it, where that
/// cancels. Gradients stay in the history when the space is chosen again, as in the author's code.
class NaturalGaLore final : public GaLore {
 public:
  explicit NaturalGaLore(const OptimizerSettings& settings) : GaLore(settings) {}

  std::map<std::string, at::Tensor> states() const override;

 private:
  struct History {
    /// [history, numbers of a projected gradient]: that of step t (0, 1, ...) in row t % history.
    at::Tensor gradients;
    at::Tensor products;  // [history, history] float64: of each two of the rows
  };

  void prepare_projected(const std::string& name, const State& state) override;
  at::Tensor transformed(const std::string& name, const State& state, at::Tensor projected) override;

  std::map<std::string, History> histories_;
};

}  // namespace streambp
