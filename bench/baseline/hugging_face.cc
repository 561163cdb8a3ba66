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

class HuggingFaceOps : public ModelOps {
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
        const bool cuts = mlp.activation == Activation::kRelu || mlp.activation == Activation::kRelu2;
        kept = {mlp.activation == Activation::kSilu ? at::silu(saved.gate_proj)
                : cuts                              ? saved.gate_proj.clamp_min(0.0)
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
  bool keeps_confident_targets() const override { return false; }

  std::vector<at::Tensor> held_with_logits(const at::Tensor& logits) const override {
    return {logits.detach()};
  }
};

class TrlOps final : public HuggingFaceOps {
 public:
  std::vector<at::Tensor> held_with_logits(const at::Tensor&) const override { return {}; }

  at::Tensor target_log_probabilities(const at::Tensor& logits, const HeadTargets& scored,
                                      double temperature) const override {
    const std::vector<int64_t>& offsets = scored.offsets;
    std::vector<int64_t> lengths;
    for (size_t i = 0; i + 1 < offsets.size(); ++i) lengths.push_back(offsets[i + 1] - offsets[i]);
    const std::vector<at::Tensor> rows =
        (temperature == 1.0 ? logits : logits / temperature).split_with_sizes(lengths);
    std::vector<at::Tensor> values;
    for (size_t i = 0; i < rows.size(); ++i) {
      const at::Tensor log_p = at::log_softmax(rows[i], /*dim=*/-1);
      const auto [first, last] = scored.within(offsets[i], offsets[i + 1]);
      const at::Tensor of_row = scored.indices.slice(0, first, last) - offsets[i];
      values.push_back(log_p.index({of_row.to(logits.device()), scored.targets.slice(0, first, last)}));
    }
    return at::cat(values);
  }
};

}  // namespace

void add_baselines() {
  static const HuggingFaceOps hugging_face;
  static const TrlOps trl;
  add_model_ops("hugging-face", hugging_face);
  add_model_ops("trl", trl);
}

}  // namespace streambp::bench
