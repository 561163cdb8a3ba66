#include "streambp/ops/mlp/mixture.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "streambp/error.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/differentiable.h"
#include "streambp/ops/dry_run.h"
#include "streambp/ops/mlp/grouped_experts.h"
#include "streambp/ops/mlp/shared_expert.h"
#include "streambp/ops/rows/rows.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {
namespace {

/// One expert's tokens.
struct Share {
  size_t expert = 0;
  at::Tensor indices;  // [r] int64: among the n * k choices, in the order of tokens
  at::Tensor tokens;   // [r] int64: rows of x
  at::Tensor weights;  // [r, 1], in the dtype of x
  at::Tensor given;    // [r, D], what the expert gives before Mixture::output_norm, where there is one
  GatedMlpSaved saved;
};

/// What a forward pass leaves for the backward pass.
struct Routing {
  at::Tensor probabilities;  // [n, X], float32 or wider: the softmax, or the sigmoids
  at::Tensor choices;        // [n, k] int64
  at::Tensor top;            // [n, k]: the chosen experts' probabilities
  at::Tensor balanced;       // [n, X]: the softmax that a balance is of; undefined: there is none
  std::vector<Share> shares;
  GroupedRows grouped;                // instead of shares, where products of groups serve
  std::vector<at::Tensor> untouched;  // in a dry run: as large as the shares that were not run
};

/// What the chosen experts' probabilities are divided by where they are normalised, [n, 1].
at::Tensor divisor_of(const Routing& routing, const Mixture& settings) {
  at::Tensor sum = routing.top.sum(1, /*keepdim=*/true);
  if (settings.added_to_sum > 0.0) sum.add_(settings.added_to_sum);
  return settings.least_sum > 0.0 ? sum.clamp_min_(settings.least_sum) : sum;
}

/// The chosen experts' shares, [n, k]: their weights before Mixture::scale.
at::Tensor top_shares(const Routing& routing, const Mixture& settings) {
  return settings.normalise ? routing.top / divisor_of(routing, settings) : routing.top;
}

/// Each choice's factor of its own, [n, k], in the dtype of the probabilities.
at::Tensor expert_scales(const Routing& routing, const Mixture& settings) {
  const at::Tensor& scales = settings.expert_scale->value;
  return scales.to(routing.top.scalar_type())
      .index_select(0, routing.choices.flatten())
      .view(routing.choices.sizes());
}

at::Tensor weights_of(const Routing& routing, const Mixture& settings) {
  at::Tensor shares = top_shares(routing, settings);
  if (settings.expert_scale != nullptr) shares = shares * expert_scales(routing, settings);
  return settings.scale == 1.0 ? shares : shares * settings.scale;
}

/// The choices of each expert. In a dry run, where nobody chooses, all have the same load, and the first
/// stands for all.
std::vector<Share> shares_of(const at::Tensor& choices, const Mixture& settings) {
  const int64_t experts = static_cast<int64_t>(settings.experts.size());
  std::vector<Share> shares;
  if (!has_values(choices)) {
    const at::Tensor indices = at::empty({(choices.numel() + experts - 1) / experts}, choices.options());
    return {{.indices = indices, .tokens = at::empty_like(indices), .weights = {}, .given = {}, .saved = {}}};
  }
  const auto [sorted, order] = at::sort(choices.flatten(), /*stable=*/true, /*dim=*/0, /*descending=*/false);
  // Where each expert's choices begin: the one copy that the host waits for, as it sizes what follows.
  const at::Tensor begins = at::searchsorted(sorted, at::arange(experts + 1, sorted.options())).to(at::kCPU);
  const int64_t* const begin = begins.const_data_ptr<int64_t>();
  for (int64_t expert = 0; expert < experts; ++expert) {
    const int64_t rows = begin[expert + 1] - begin[expert];
    if (rows == 0) continue;
    const at::Tensor indices = order.narrow(0, begin[expert], rows);
    shares.push_back({.expert = static_cast<size_t>(expert),
                      .indices = indices,
                      .tokens = indices.div(choices.size(1), "floor"),
                      .weights = {},
                      .given = {},
                      .saved = {}});
  }
  return shares;
}

/// Whether the router's weight is float32 where x is half as wide.
bool is_wide(const Linear& router, const at::Tensor& x) {
  return router.weight->value.scalar_type() != x.scalar_type();
}

/// The router's logits [n, X]. Those whose scores a correction next to them is to tell apart, and wide ones,
/// are summed in float32 or wider, as in transformers.
at::Tensor logits_of(const at::Tensor& x, const Mixture& settings) {
  const Linear& router = *settings.router;
  const at::ScalarType wide = sum_dtype(x);
  const bool is_narrow = settings.correction == nullptr && !settings.wide_logits && !is_wide(router, x);
  if (is_narrow || x.scalar_type() == wide) return linear_forward(router, x);
  const at::Tensor rows = x.to(wide);
  const auto transposed = [&](const Parameter& matrix) { return matrix.value.to(wide).t(); };
  at::Tensor logits = at::mm(rows, transposed(*router.weight));
  if (router.adapter && router.adapter->enabled) {
    const LowRankAdapter& adapter = *router.adapter;
    logits.addmm_(at::mm(rows, transposed(*adapter.a)), transposed(*adapter.b), /*beta=*/1, adapter.scale);
  }
  return router.output_scale == 1.0 ? logits : logits.mul_(router.output_scale);
}

/// Sets the probabilities of `routing`, and those that a balance is of.
void score(const at::Tensor& x, const Mixture& settings, const MixtureRun& run, Routing& routing) {
  const at::Tensor logits = logits_of(x, settings);
  if (run.router != nullptr && run.router->logits.defined())
    run.router->logits.narrow(0, run.begin, x.size(0)).copy_(logits);
  const at::Tensor wide = logits.to(sum_dtype(x));
  const bool is_softmax = !settings.sqrt_softplus && !settings.sigmoid;
  routing.probabilities = is_softmax               ? at::softmax(wide, -1)
                          : settings.sqrt_softplus ? at::softplus(wide).sqrt_()
                                                   : at::sigmoid(wide);
  if (run.balance == nullptr || settings.experts_of_token != nullptr) return;
  routing.balanced = is_softmax ? routing.probabilities : at::softmax(wide, -1);
}

/// The experts [n, k] int64 that a table has for tokens.
at::Tensor experts_of(const at::Tensor& tokens, const Mixture& settings) {
  const at::Tensor experts = gather_rows(settings.experts_of_token->value, tokens).to(at::kLong);
  if (!has_values(experts)) return experts;
  const auto count = static_cast<int64_t>(settings.experts.size());
  const at::Tensor sorted = std::get<0>(experts.sort(/*stable=*/true, /*dim=*/1, /*descending=*/false));
  at::Tensor wrong = sorted.lt(0).logical_or_(sorted.ge(count)).any(1);
  if (experts.size(1) > 1)
    wrong.logical_or_(at::eq(sorted.slice(1, 1), sorted.slice(1, 0, experts.size(1) - 1)).any(1));
  if (wrong.any().item<bool>())
    throw InputError("{}: token {} has experts that are not {} different ones of 0 to {}",
                     settings.experts_of_token->name, tokens[wrong.nonzero()[0][0]].item<int64_t>(),
                     experts.size(1), count - 1);
  return experts;
}

/// The chosen experts, [n, k] int64.
at::Tensor choose(const at::Tensor& scores, const Mixture& settings) {
  const int64_t k = settings.experts_per_token;
  at::Tensor corrected =
      settings.correction == nullptr ? scores : scores + settings.correction->value.flatten();
  if (settings.topk_groups < settings.groups) {
    const at::Tensor groups = corrected.view({scores.size(0), settings.groups, -1});
    const at::Tensor best = std::get<0>(groups.topk(2, -1)).sum(-1);
    const at::Tensor chosen = std::get<1>(best.topk(settings.topk_groups, -1));
    const at::Tensor is_left_out = at::ones_like(best, at::kBool).scatter_(1, chosen, false);
    corrected = groups.masked_fill(is_left_out.unsqueeze(-1), -std::numeric_limits<double>::infinity())
                    .view(scores.sizes());
  }
  return std::get<1>(corrected.topk(k, -1));
}

/// Sets the probabilities and choices of `routing`, and the chosen experts' probabilities.
void route(const at::Tensor& x, const Mixture& settings, const MixtureRun& run, Routing& routing) {
  score(x, settings, run, routing);
  if (run.choices != nullptr) routing.choices = run.choices->find(run.layer, run.begin, x.size(0));
  if (!routing.choices.defined()) {
    routing.choices = settings.experts_of_token != nullptr ? experts_of(run.tokens, settings)
                                                           : choose(routing.probabilities, settings);
    if (run.choices != nullptr) {
      routing.choices = run.choices->with_given(run.layer, run.begin, routing.choices);
      run.choices->keep(run.layer, run.begin, routing.choices);
    }
  }
  routing.top = routing.probabilities.gather(1, routing.choices);
  if (!routing.balanced.defined()) return;
  // The loss is of the most probable experts, which a correction's choice, or given ones, need not be.
  const bool given = run.choices != nullptr && run.choices->are_given(run.layer);
  const at::Tensor most_probable = settings.correction == nullptr && !given
                                       ? routing.choices
                                       : std::get<1>(routing.balanced.topk(settings.experts_per_token, -1));
  run.balance->count(routing.balanced, most_probable, run.begin);
}

/// The experts' weights where all run together.
std::optional<StackedExperts> grouped_experts(const at::Tensor& x, const Mixture& settings) {
  if (settings.output_norm.weight != nullptr) return std::nullopt;
  std::optional<StackedExperts> experts = stacked_experts(settings.experts);
  if (experts && !has_grouped_products(x, *experts)) experts.reset();
  return experts;
}

at::Tensor forward(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& of_router,
                   const Mixture& settings, const MixtureRun& run, Routing& routing) {
  const at::NoGradGuard no_grad;
  at::Tensor y = run.graph_only ? unread(x) : residual.defined() ? residual.clone() : at::zeros_like(x);
  const MemoryScope scope("MLP");  // all but the output, which is the caller's
  route(of_router.defined() ? of_router : x, settings, run, routing);
  const at::Tensor weights = weights_of(routing, settings).to(x.scalar_type()).flatten().unsqueeze(1);
  if (std::optional<StackedExperts> experts = grouped_experts(x, settings)) {
    const int64_t piece_rows = grouped_piece_rows(experts->gate_proj.size(0));
    routing.grouped = group_rows(routing.choices, weights, std::move(*experts), piece_rows);
    grouped_forward(settings.experts, routing.grouped, x, run.graph_only ? at::Tensor() : y);
    return y;
  }
  routing.shares = shares_of(routing.choices, settings);
  for (Share& share : routing.shares) {
    const GatedMlp& expert = settings.experts[share.expert];
    share.weights = gather_rows(weights, share.indices);
    if (run.graph_only) {
      share.saved = save_gated(expert, gather_rows(x, share.tokens));
    } else {
      const at::Tensor product = gated_product(expert, gather_rows(x, share.tokens), share.saved);
      at::Tensor given = linear_forward(*expert.down_proj, product);
      if (settings.output_norm.weight != nullptr) {
        share.given = given;
        given = norm_of_scaled_forward(share.given, settings.output_norm);
      }
      add_sorted_rows(y, share.tokens, given.mul_(share.weights));
    }
    share.saved.x.reset();  // gathered again: k copies of x would be more than the experts' own tensors
    if (!has_values(x)) {
      const int64_t rest = routing.choices.numel() - share.tokens.size(0);
      for (const at::Tensor& kept : {share.saved.gate_proj, share.saved.up_proj, share.given}) {
        if (kept.defined()) routing.untouched.push_back(at::empty({rest, kept.size(1)}, kept.options()));
      }
    }
  }
  return y;
}

/// Of p = sqrt(softplus(z)), whose softplus is z itself above 20, as PyTorch has it.
at::Tensor slope_of_sqrt_softplus(const at::Tensor& p) {
  const at::Tensor square = p * p;
  return (-square).expm1_().neg_().masked_fill_(square > 20.0, 1.0).div_(p * 2.0);
}

/// The gradient of logits for that of their softmax p.
at::Tensor of_softmax(const at::Tensor& dp, const at::Tensor& p) {
  return (dp - (dp * p).sum(1, /*keepdim=*/true)).mul_(p);
}

/// The gradient of the router's logits for that of the chosen experts' weights, [n, k].
at::Tensor backward_router(const Routing& routing, const Mixture& settings, const at::Tensor& d_weights,
                           const MixtureRun& run) {
  const at::Tensor& p = routing.probabilities;
  at::Tensor d_top = d_weights.to(p.scalar_type());
  if (settings.scale != 1.0) d_top = d_top * settings.scale;
  if (settings.expert_scale != nullptr) {
    const at::Tensor d_scales = (d_top * top_shares(routing, settings)).flatten().unsqueeze(1);
    Parameter column;
    column.gradient = settings.expert_scale->gradient;
    if (column.gradient.defined()) column.gradient = column.gradient.unsqueeze(1);
    accumulate_rows(column, routing.choices.flatten(),
                    d_scales.to(settings.expert_scale->value.scalar_type()));
    d_top = d_top * expert_scales(routing, settings);
  }
  if (settings.normalise) {
    const at::Tensor divisor = divisor_of(routing, settings);
    at::Tensor along = (d_top * top_shares(routing, settings)).sum(1, /*keepdim=*/true);
    // A sum below the least one is not what was divided by.
    if (settings.least_sum > 0.0)
      along.masked_fill_(routing.top.sum(1, /*keepdim=*/true) < settings.least_sum, 0.0);
    d_top = (d_top - along).div_(divisor);
  }
  at::Tensor dp = at::zeros_like(p);
  dp.scatter_(1, routing.choices, d_top);
  at::Tensor d_balanced;
  if (routing.balanced.defined())
    d_balanced = run.balance->gradient(run.begin, p.size(0)).to(p.scalar_type());
  if (settings.sqrt_softplus) {
    dp.mul_(slope_of_sqrt_softplus(p));
  } else if (settings.sigmoid) {
    dp.mul_(at::mul(p, 1.0 - p));
  } else {
    if (d_balanced.defined()) dp.add_(std::exchange(d_balanced, {}));
    dp = of_softmax(dp, p);
  }
  if (d_balanced.defined()) dp.add_(of_softmax(d_balanced.expand_as(p), routing.balanced));
  if (run.router != nullptr && run.router->gradient.defined())
    dp.add_(run.router->gradient.narrow(0, run.begin, p.size(0)));
  return dp;
}

/// Adds the gradients of the router's parameters for that of its logits, and to dx [n, D], which may be
/// undefined, that of the rows it has read.
void backward_logits(const Linear& router, const at::Tensor& x, const at::Tensor& d_logits, at::Tensor& dx) {
  if (!is_wide(router, x)) {
    const at::Tensor own = d_logits.to(x.scalar_type());
    linear_accumulate(router, x, own);
    linear_backward_input(router, own, dx);
    return;
  }
  if (router.adapter && router.adapter->enabled)
    throw InputError("{}: its weight is float32 in a model of 16 bits, where no adapter is supported",
                     router.name);
  const Linear weight{.name = router.name, .weight = router.weight, .output_scale = router.output_scale};
  linear_accumulate(weight, x.to(d_logits.scalar_type()), d_logits);
  at::Tensor wide;
  linear_backward_input(weight, d_logits, wide);
  if (dx.defined()) {
    dx.add_(wide);
  } else {
    dx = wide.to(x.scalar_type());
  }
}

/// The gradient of the rows of an expert whose output is normed before it is weighted; `d_weights` [r, 1]
/// receives that of its weights.
at::Tensor backward_normed_expert(const Mixture& settings, Share& share, const at::Tensor& dy,
                                  at::Tensor& d_weights) {
  const at::Tensor given = std::exchange(share.given, {});
  d_weights = (norm_of_scaled_forward(given, settings.output_norm) * dy).sum(1, /*keepdim=*/true);
  const at::Tensor d_given = norm_of_scaled_backward(dy * share.weights, given, settings.output_norm);
  return gated_mlp_backward(settings.experts[share.expert], std::move(share.saved), d_given);
}

/// The gradients of x and, where it is not x, of what the router reads; adds the parameters'.
std::vector<at::Tensor> backward(const at::Tensor& x, const at::Tensor& of_router, const Mixture& settings,
                                 const MixtureRun& run, Routing& routing, const at::Tensor& dy) {
  at::Tensor d_weights = at::zeros({routing.choices.numel(), 1}, x.options());
  at::Tensor dx = at::zeros_like(x);
  if (!routing.grouped.saved.empty())
    grouped_backward(settings.experts, routing.grouped, x, dy, dx, d_weights);
  for (Share& share : routing.shares) {
    const GatedMlp& expert = settings.experts[share.expert];
    if (expert.trains_input_maps()) share.saved.x = gather_rows(x, share.tokens);
    at::Tensor d_share;
    const at::Tensor d_rows =
        settings.output_norm.weight != nullptr
            ? backward_normed_expert(settings, share, gather_rows(dy, share.tokens), d_share)
            : gated_mlp_backward(expert, std::move(share.saved), gather_rows(dy, share.tokens), share.weights,
                                 &d_share);
    add_sorted_rows(dx, share.tokens, d_rows);
    d_weights.index_copy_(0, share.indices, d_share);
  }
  const at::Tensor d_logits =
      backward_router(routing, settings, d_weights.view(routing.choices.sizes()), run);
  at::Tensor d_router = of_router.defined() ? at::Tensor() : dx;
  backward_logits(*settings.router, of_router.defined() ? of_router : x, d_logits, d_router);
  if (!of_router.defined()) return {dx};
  return {dx, d_router};
}

}  // namespace

at::Tensor mixture(const at::Tensor& before, const at::Tensor& x, const Mixture& settings,
                   const MixtureRun& run, const at::Tensor& of_router) {
  at::Tensor residual = before;
  if (!run.routed_alone && settings.shared_expert_gate != nullptr) {
    residual =
        add_shared_expert(before, x, settings.shared_expert, *settings.shared_expert_gate, run.graph_only);
  } else if (!run.routed_alone && settings.has_shared_expert()) {
    residual = gated_mlp(before, x, settings.shared_expert, run.graph_only);
  }
  Routing routing;
  at::Tensor y = forward(residual, x, of_router, settings, run, routing);
  std::vector<at::Tensor> inputs{x};
  if (of_router.defined()) inputs.push_back(of_router);
  const bool has_residual = residual.defined();
  if (has_residual) inputs.push_back(residual);
  const MemoryScope scope("MLP");
  return differentiable(inputs, std::move(y), "mixture",
                        [x = x.detach(), of_router = of_router.defined() ? of_router.detach() : of_router,
                         &settings, run, routing, has_residual](std::vector<at::Tensor>&& dy) mutable {
                          auto gradients = backward(x, of_router, settings, run, routing, dy[0]);
                          if (has_residual) gradients.push_back(dy[0]);
                          return gradients;
                        });
}

}  // namespace streambp
