#include "streambp/model/layers/per_layer_input.h"

#include <cmath>

#include "streambp/memory/meter.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/mlp/mlp.h"
#include "streambp/ops/rows/rows.h"

namespace streambp {
namespace {

/// (projected + table_scale table[tokens]) / sqrt(2), [n, P].
at::Tensor add_table(const at::Tensor& projected, const at::Tensor& tokens, const PerLayerInput& settings) {
  at::Tensor sum;
  {
    const at::NoGradGuard no_grad;
    sum = gather_rows(settings.table->value, tokens).mul_(settings.table_scale).add_(projected);
    sum.mul_(M_SQRT1_2);
  }
  return differentiable(
      {projected}, std::move(sum), "per_layer_table", [tokens, &settings](std::vector<at::Tensor>&& dy) {
        at::Tensor d = dy[0] * M_SQRT1_2;
        if (settings.table->trainable())
          accumulate_rows(*settings.table, tokens, d * settings.table_scale, settings.pad_token_id);
        return std::vector<at::Tensor>{std::move(d)};
      });
}

/// gelu(gate) * input. The backward pass writes over both.
at::Tensor gated(const at::Tensor& gate_proj, const at::Tensor& input) {
  at::Tensor product;
  {
    const at::NoGradGuard no_grad;
    product = gate(Activation::kGeluTanh, gate_proj, input);
  }
  return differentiable({gate_proj, input}, std::move(product), "per_layer_gate",
                        [g = gate_proj.detach(), u = input.detach()](std::vector<at::Tensor>&& dy) mutable {
                          at::Tensor d = dy[0].contiguous();
                          gate_backward(Activation::kGeluTanh, g, u, d, /*wants_product=*/false);
                          return std::vector<at::Tensor>{g, u};
                        });
}

}  // namespace

bool PerLayerInput::trainable() const {
  if (!is_there()) return false;
  for (const Linear* map : {model_projection, gate, projection}) {
    if (map->trainable()) return true;
  }
  return projection_norm.weight->trainable() || norm.weight->trainable() || table->trainable();
}

at::Tensor add_per_layer_input(const at::Tensor& hidden, const at::Tensor& tokens, const at::Tensor& embedded,
                               const PerLayerInput& settings) {
  at::Tensor added;
  {
    const MemoryScope scope("MLP");
    const at::Tensor projected =
        rms_norm(linear(embedded, {settings.model_projection}).front(), settings.projection_norm);
    const at::Tensor product =
        gated(linear(hidden, {settings.gate}).front(), add_table(projected, tokens, settings));
    added = linear(product, {settings.projection}).front();
  }
  return rms_norm_add(hidden, added, settings.norm);
}

}  // namespace streambp
