// GPT-OSS's clamped gate, Step 3.7's limited one and gates of heads, and GPT-OSS's experts as they are
// stored, against the same in plain ATen.
#include "streambp/ops/mlp/gated_output.h"
#include "streambp/ops/mlp/mixture.h"
#include "streambp/ops/mlp/mlp.h"
#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

constexpr ClampedGate kGate{1.3, 0.8};
constexpr int64_t kExperts = 5, kPerToken = 2, kHidden = 6, kWidth = 7;

at::Tensor plain_gate(const at::Tensor& gate_up) {
  const at::Tensor gate = gate_up.slice(1, 0, {}, 2).clamp_max(kGate.limit);
  const at::Tensor up = gate_up.slice(1, 1, {}, 2).clamp(-kGate.limit, kGate.limit);
  return gate * at::sigmoid(gate * kGate.alpha) * (up + 1.0);
}

/// With values and cotangents of so many rows: forward, all gradients, with row weights and without.
void check_gate(int64_t rows, at::ScalarType dtype, double limit) {
  const at::Tensor gate_up = random({rows, 2 * kWidth}, 1).to(dtype), d = random({rows, kWidth}, 2).to(dtype);
  const at::Tensor row_weights = random({rows, 1}, 3).to(dtype);
  for (const bool weighted : {false, true}) {
    SCOPED_TRACE(fmt::format("{} rows, {}, weighted: {}", rows, at::toString(dtype), weighted));
    const auto leaf = [](const at::Tensor& x) { return x.to(at::kDouble).requires_grad_(); };
    const at::Tensor plain = leaf(gate_up), plain_weights = leaf(row_weights);
    const at::Tensor product = plain_gate(plain);
    const at::Tensor expected = weighted ? product * plain_weights : product;
    const auto truth = torch::autograd::grad({expected}, {plain, plain_weights}, {d.to(at::kDouble)}, false,
                                             false, /*allow_unused=*/true);
    const auto near = [&](const at::Tensor& got, const at::Tensor& wanted, const char* what) {
      expect_near(got.to(at::kDouble), wanted.detach(), what, limit);
    };
    near(clamped_gate(kGate, gate_up), product, "product");
    // What gate and up projection give by themselves, as MiniMax M3's MLPs have it.
    at::Tensor gates = gate_up.slice(1, 0, {}, 2).contiguous(), ups = gate_up.slice(1, 1, {}, 2).contiguous();
    EXPECT_TRUE(at::equal(clamped_gate(kGate, gates, ups), clamped_gate(kGate, gate_up)));
    at::Tensor d_gate_up = gate_up.clone(), d_product = d.clone(), d_weights;
    clamped_gate_backward(kGate, d_gate_up, d_product, /*wants_product=*/true,
                          weighted ? row_weights : at::Tensor(), &d_weights);
    near(d_gate_up, truth[0], "gradient");
    at::Tensor d_apart = d.clone(), d_weights_apart;
    clamped_gate_backward(kGate, gates, ups, d_apart, /*wants_product=*/true,
                          weighted ? row_weights : at::Tensor(), &d_weights_apart);
    EXPECT_TRUE(at::equal(gates, d_gate_up.slice(1, 0, {}, 2)) &&
                at::equal(ups, d_gate_up.slice(1, 1, {}, 2)));
    EXPECT_TRUE(at::equal(d_apart, d_product)) << "the product of two tensors";
    near(d_product, product, "product, backward");
    if (weighted) near(d_weights, truth[1], "row weights");
    at::Tensor again = gate_up.clone(), given = d.clone();
    clamped_gate_backward(kGate, again, given, /*wants_product=*/false, weighted ? row_weights : at::Tensor(),
                          &d_weights);
    EXPECT_FALSE(given.defined());
    EXPECT_TRUE(at::equal(again, d_gate_up)) << "without the product";
  }
}

TEST(SquaredRelu, EqualsPlainAutograd) {
  const at::Tensor row_weights = random({9, 1}, 4), cotangent = random({9, 5}, 5);
  for (const bool weighted : {false, true}) {
    const at::Tensor x = random({9, 5}, 6).requires_grad_(), weights = row_weights.clone().requires_grad_();
    const at::Tensor product = at::relu(x).square(), expected = weighted ? product * weights : product;
    expect_near(squared_relu(x.detach()), product.detach(), "product");
    const auto truth = torch::autograd::grad({expected}, {x, weights}, {cotangent}, false, false, true);
    for (const bool wants_product : {false, true}) {
      at::Tensor d_x = x.detach().clone(), d_product = cotangent.clone(), d_weights;
      squared_relu_backward(d_x, d_product, wants_product, weighted ? row_weights : at::Tensor(), &d_weights);
      expect_near(d_x, truth[0], "x");
      if (weighted) expect_near(d_weights, truth[1], "row weights");
      EXPECT_EQ(d_product.defined(), wants_product);
      if (wants_product) expect_near(d_product, product.detach(), "product again");
    }
  }
}

TEST(LimitedGate, EqualsPlainAutograd) {
  constexpr double kLimit = 0.4;
  const at::Tensor row_weights = random({9, 1}, 4), cotangent = random({9, 5}, 5);
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    for (const bool weighted : {false, true}) {
      const at::Tensor gate = random({9, 5}, 6).requires_grad_(), up = random({9, 5}, 7).requires_grad_();
      const at::Tensor weights = row_weights.clone().requires_grad_();
      const at::Tensor activated = activation == Activation::kSilu ? at::silu(gate) : at::gelu(gate, "tanh");
      EXPECT_GT(activated.gt(kLimit).sum().item<int64_t>(), 3);
      EXPECT_GT(up.abs().gt(kLimit).sum().item<int64_t>(), 10);
      const at::Tensor product = activated.clamp_max(kLimit) * up.clamp(-kLimit, kLimit);
      const at::Tensor expected = weighted ? product * weights : product;
      expect_near(limited_gate(activation, kLimit, gate.detach(), up.detach()), product.detach(), "product");
      const auto truth =
          torch::autograd::grad({expected}, {gate, up, weights}, {cotangent}, false, false, true);
      for (const bool wants_product : {false, true}) {
        at::Tensor d_gate = gate.detach().clone(), d_up = up.detach().clone(), d_product = cotangent.clone();
        at::Tensor d_weights;
        limited_gate_backward(activation, kLimit, d_gate, d_up, d_product, wants_product,
                              weighted ? row_weights : at::Tensor(), &d_weights);
        expect_near(d_gate, truth[0], "gate");
        expect_near(d_up, truth[1], "up");
        if (weighted) expect_near(d_weights, truth[2], "row weights");
        EXPECT_EQ(d_product.defined(), wants_product);
        if (wants_product) expect_near(d_product, product.detach(), "product again");
      }
    }
  }
}

TEST(GatedOutput, TakesAGateOfEachEntryOrOfEachHead) {
  for (const int64_t width : {4, 1}) {
    const at::Tensor x = random({7, 3, 4}, 1).requires_grad_(),
                     gates = random({7, 3, width}, 2).requires_grad_();
    const at::Tensor cotangent = random({7, 3, 4}, 3);
    const at::Tensor expected = x * at::sigmoid(gates), found = gated_output(x, gates);
    expect_near(found.detach(), expected.detach(), "output");
    const auto truth = torch::autograd::grad({expected}, {x, gates}, {cotangent});
    const auto ours = torch::autograd::grad({found}, {x, gates}, {cotangent});
    expect_near(ours[0], truth[0], "x");
    expect_near(ours[1], truth[1], "gates");
  }
}

TEST(ClampedGate, EqualsPlainAutograd) {
  for (const int64_t rows : {1, 23, 1100}) check_gate(rows, at::kDouble, kOpLimit);
}

TEST(ClampedGate, OfNarrowerTensorsIsRoundedOnce) {
  check_gate(600, at::kFloat, 1e-6);
  check_gate(600, at::kBFloat16, 4e-3);
  check_gate(600, at::kHalf, 5e-4);
}

TEST(ClampedGate, HasNoSlopeBeyondItsLimits) {
  at::Tensor d_gate_up = at::tensor({9.0, 0.5, 0.5, 9.0, 0.5, -9.0, -9.0, 0.5}, at::kDouble).unsqueeze(0);
  at::Tensor d_product = at::ones({1, 4}, at::kDouble);
  clamped_gate_backward(kGate, d_gate_up, d_product, false);
  const std::vector<bool> expected{false, true, true, false, true, false, true, true};
  for (int64_t i = 0; i < 8; ++i)
    EXPECT_EQ(d_gate_up[0][i].item<double>() != 0.0, expected[static_cast<size_t>(i)]) << i;
}

TEST(LimitedGate, CutsBothProjectionsOffBeforeTheActivation) {
  constexpr double kLimit = 0.8;
  for (const int64_t rows : {1, 23}) {
    Parameter gate = parameter(random({kWidth, kHidden}, 11)), up = parameter(random({kWidth, kHidden}, 12)),
              down = parameter(random({kHidden, kWidth}, 13));
    const Linear gate_map{"gate_proj", &gate}, up_map{"up_proj", &up}, down_map{"down_proj", &down};
    for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
      GatedMlp mlp{&gate_map, &up_map, &down_map, activation};
      mlp.limit = kLimit;
      expect_same(
          {random({rows, kHidden}, 14)}, {&gate, &up, &down},
          [&](const std::vector<at::Tensor>& x) { return gated_mlp({}, x[0], mlp); },
          [&](const std::vector<at::Tensor>& x, const std::vector<at::Tensor>& w) {
            const at::Tensor g = at::mm(x[0], w[0].t()).clamp_max(kLimit);
            const at::Tensor u = at::mm(x[0], w[1].t()).clamp(-kLimit, kLimit);
            return at::mm((activation == Activation::kSilu ? at::silu(g) : at::gelu(g, "tanh")) * u,
                          w[2].t());
          });
    }
  }
}

/// The two tensors and their biases that hold all experts, and the maps of each over parts of them.
struct Stored {
  std::vector<Parameter> whole;  // router, its bias, gate_up_proj, its bias, down_proj, its bias
  std::vector<Parameter> parts;
  std::vector<Linear> maps;
  Mixture mixture;

  Stored() {
    const std::vector<std::vector<int64_t>> shapes{{kExperts, kHidden},
                                                   {kExperts},
                                                   {kExperts, kHidden, 2 * kWidth},
                                                   {kExperts, 2 * kWidth},
                                                   {kExperts, kWidth, kHidden},
                                                   {kExperts, kHidden}};
    for (size_t i = 0; i < shapes.size(); ++i) whole.push_back(parameter(random(shapes[i], 40 + i)));
    parts.reserve(4 * kExperts);
    maps.reserve(1 + 2 * kExperts);
    maps.push_back({"router", &whole[0], &whole[1]});
    for (int64_t expert = 0; expert < kExperts; ++expert) {
      for (const size_t first : {2, 4}) {
        const auto part = [&](const at::Tensor& x) {
          return x.dim() == 3 ? x.select(0, expert).t() : x.select(0, expert);
        };
        for (const size_t i : {first, first + 1})
          parts.push_back({"part", part(whole[i].value), part(whole[i].gradient)});
        maps.push_back({"map", &parts[parts.size() - 2], &parts[parts.size() - 1]});
      }
    }
    mixture.router = &maps[0];
    mixture.experts_per_token = kPerToken;
    mixture.normalise = true;
    for (size_t i = 1; i < maps.size(); i += 2) {
      GatedMlp expert;
      expert.gate_up_proj = &maps[i];
      expert.down_proj = &maps[i + 1];
      expert.clamped = kGate;
      mixture.experts.push_back(expert);
    }
  }
};

/// As transformers has it: every expert on every token here, and a softmax over the chosen logits.
at::Tensor plain_mixture(const at::Tensor& residual, const at::Tensor& x, const std::vector<at::Tensor>& p) {
  const at::Tensor logits = at::linear(x, p[0], p[1]);
  const auto [top, chosen] = logits.topk(kPerToken, -1);
  const at::Tensor weights = at::zeros_like(logits).scatter(1, chosen, top.softmax(-1));
  at::Tensor y = residual;
  for (int64_t e = 0; e < kExperts; ++e) {
    const at::Tensor inner = plain_gate(at::matmul(x, p[2][e]) + p[3][e]);
    y = y + weights.narrow(1, e, 1) * (at::matmul(inner, p[4][e]) + p[5][e]);
  }
  return y;
}

TEST(ClampedGate, ExpertsInTwoTensorsEqualEveryExpertOnEveryToken) {
  for (const int64_t rows : {1, 23, 90}) {
    Stored stored;
    std::vector<Parameter*> all;
    for (Parameter& p : stored.whole) all.push_back(&p);
    expect_same(
        {random({rows, kHidden}, 100), random({rows, kHidden}, 101)}, all,
        [&](const auto& in) { return mixture(in[0], in[1], stored.mixture); },
        [&](const auto& in, const auto& p) { return plain_mixture(in[0], in[1], p); });
  }
}

}  // namespace
}  // namespace streambp
