#include "bench/baseline/hugging_face.h"

#include <utility>
#include <vector>

#include "streambp/memory/meter.h"
#include "streambp/model/model_ops.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp::bench {
namespace {

/// x itself, holding `kept` until its backward pass has run.
at::Tensor hold(const at::Tensor& x, std::vector<at::Tensor> kept) {
  return differentiable({x}, x.detach(), "hold", [kept = std::move(kept)](std::vector<at::Tensor>&& dy) {
    return std::vector<at::Tensor>{dy[0]};
  });
}

class HuggingFaceOps final : public ModelOps {
 public:
  at::Tensor rms_norm(const at::Tensor& x, const RmsNorm& norm) const override {
    RmsNormSaved saved;
    at::Tensor y = rms_norm_forward(x, norm, saved);
    at::Tensor normalised;
    {
      const at::NoGradGuard no_grad;
      saved.x = saved.x.to(sum_dtype(x));
      normalised = (saved.x * saved.rstd).to(x.scalar_type());
    }
    y = differentiable({x}, std::move(y), "rms_norm", [saved, &norm](std::vector<at::Tensor>&& dy) {
      return std::vector<at::Tensor>{rms_norm_backward(dy[0], saved, norm)};
    });
    return hold(y, {std::move(normalised)});
  }

  at::Tensor normed_rope(const at::Tensor& x, const RmsNorm* norm, const RopeTable& table) const override {
    const at::Tensor normed = norm == nullptr ? x : rms_norm(x, *norm);
    const at::Tensor y = rope(normed, table);
    const at::Tensor held = normed.detach();
    return hold(y, {held, held.clone(at::MemoryFormat::Contiguous)});
  }

  at::Tensor gated_mlp(const at::Tensor& residual, const at::Tensor& x, const GatedMlp& mlp,
                       bool) const override {
    GatedMlpSaved saved;
    at::Tensor output;
    std::vector<at::Tensor> kept, inputs{x};
    if (residual.defined()) inputs.push_back(residual);
    {
      const at::NoGradGuard no_grad;
      at::Tensor product;
      {
        const MemoryScope scope("MLP");
        product = gated_product(mlp, x, saved);
        kept = {mlp.activation == Activation::kSilu ? at::silu(saved.gate_proj)
                                                    : at::gelu(saved.gate_proj, "tanh"),
                product};
      }
      output = residual.defined() ? linear_add_forward(residual, product, *mlp.down_proj)
                                  : linear_forward(*mlp.down_proj, product);
    }
    const MemoryScope scope("MLP");
    output =
        differentiable(inputs, std::move(output), "gated_mlp",
                       [&mlp, saved, inputs = inputs.size()](std::vector<at::Tensor>&& dy) mutable {
                         std::vector<at::Tensor> gradients{gated_mlp_backward(mlp, std::move(saved), dy[0])};
                         if (inputs == 2) gradients.push_back(dy[0]);
                         return gradients;
                       });
    return hold(output, std::move(kept));
  }

  bool skips_unread() const override { return false; }

  std::vector<at::Tensor> held_with_logits(const at::Tensor& logits) const override {
    return {logits.detach()};
  }
};

}  // namespace

void add_hugging_face_baseline() {
  static const HuggingFaceOps ops;
  add_model_ops("hugging-face", ops);
}

}  // namespace streambp::bench
