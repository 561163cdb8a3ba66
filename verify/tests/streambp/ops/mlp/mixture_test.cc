// A mixture of experts against one that runs every expert on every token, in float64, with and without the
// loss that balances the load.
#include "streambp/ops/mlp/mixture.h"

#include "verify/tests/streambp/ops/ops_testing.h"

namespace streambp {
namespace {

constexpr int64_t kMixtureExperts = 5;
constexpr int64_t kMixturePerToken = 2;

/// Parameters, maps and the mixture over them.
struct Layer {
  std::vector<Parameter> parameters;  // router, then gate, up and down of each expert
  std::vector<Linear> maps;
  Mixture mixture;

  explicit Layer(bool normalise) {
    parameters.push_back(parameter(random({kMixtureExperts, 6}, 1)));
    for (uint64_t expert = 0; expert < kMixtureExperts; ++expert) {
      for (const std::vector<int64_t>& shape : {std::vector<int64_t>{7, 6}, {7, 6}, {6, 7}})
        parameters.push_back(parameter(random(shape, 10 * expert + static_cast<uint64_t>(shape[0]))));
    }
    for (Parameter& p : parameters) maps.push_back({"map", &p});
    mixture.router = &maps[0];
    mixture.experts_per_token = kMixturePerToken;
    mixture.normalise = normalise;
    for (size_t i = 1; i < maps.size(); i += 3)
      mixture.experts.push_back({&maps[i], &maps[i + 1], &maps[i + 2]});
  }

  std::vector<Parameter*> pointers() {
    std::vector<Parameter*> all;
    for (Parameter& p : parameters) all.push_back(&p);
    return all;
  }
};

at::Tensor plain_mixture(const at::Tensor& residual, const at::Tensor& x, const std::vector<at::Tensor>& p,
                         bool normalise) {
  const at::Tensor probabilities = at::softmax(at::linear(x, p[0]), -1);
  auto [top, chosen] = probabilities.topk(kMixturePerToken, -1);
  if (normalise) top = top / top.sum(-1, true);
  const at::Tensor weights = at::zeros_like(probabilities).scatter(1, chosen, top);
  at::Tensor y = residual;
  for (int64_t e = 0; e < kMixtureExperts; ++e) {
    const at::Tensor product = at::silu(at::linear(x, p[1 + 3 * e])) * at::linear(x, p[2 + 3 * e]);
    y = y + weights.narrow(1, e, 1) * at::linear(product, p[3 + 3 * e]);
  }
  return y;
}

TEST(Mixture, AddsTheExpertThatEveryTokenHas) {
  Layer layer(/*normalise=*/false);
  std::vector<Parameter> shared = {parameter(random({1, 6}, 201)), parameter(random({9, 6}, 202)),
                                   parameter(random({9, 6}, 203)), parameter(random({6, 9}, 204))};
  const std::vector<Linear> maps = {
      {"gate", &shared[0]}, {"g", &shared[1]}, {"u", &shared[2]}, {"d", &shared[3]}};
  layer.mixture.shared_expert_gate = &maps[0];
  layer.mixture.shared_expert = {&maps[1], &maps[2], &maps[3]};
  std::vector<Parameter*> all = layer.pointers();
  const size_t own = all.size();
  for (Parameter& p : shared) all.push_back(&p);
  const auto plain = [&](const at::Tensor& residual, const at::Tensor& x, const std::vector<at::Tensor>& p) {
    const at::Tensor product = at::silu(at::linear(x, p[own + 1])) * at::linear(x, p[own + 2]);
    return plain_mixture(residual, x, p, false) +
           at::sigmoid(at::linear(x, p[own])) * at::linear(product, p[own + 3]);
  };
  expect_same(
      {random({23, 6}, 100), random({23, 6}, 101)}, all,
      [&](const auto& in) { return mixture(in[0], in[1], layer.mixture); },
      [&](const auto& in, const auto& p) { return plain(in[0], in[1], p); });
  for (Parameter* p : all) p->gradient.zero_();
  expect_same(
      {random({23, 6}, 101)}, all, [&](const auto& in) { return mixture({}, in[0], layer.mixture); },
      [&](const auto& in, const auto& p) { return plain(at::zeros_like(in[0]), in[0], p); });
}

at::Tensor plain_scores(const Mixture& mixture, const at::Tensor& logits) {
  return mixture.sigmoid ? at::sigmoid(logits) : at::softmax(logits, -1);
}

/// DeepSeek V3's and ERNIE 4.5's: the choice among the experts of some groups by corrected scores.
at::Tensor plain_corrected(const Mixture& mixture, const at::Tensor& residual, const at::Tensor& x,
                           const std::vector<at::Tensor>& p) {
  const at::Tensor scores = plain_scores(mixture, at::linear(x, p[0]));
  at::Tensor choice = scores.detach() + mixture.correction->value;
  const at::Tensor groups = choice.view({x.size(0), mixture.groups, -1});
  const at::Tensor sums = std::get<0>(groups.sort(-1, /*descending=*/true)).narrow(-1, 0, 2).sum(-1);
  const at::Tensor least =
      std::get<0>(sums.sort(-1, /*descending=*/true)).narrow(-1, mixture.topk_groups - 1, 1);
  choice = groups.masked_fill((sums < least).unsqueeze(-1), -1e9).view(scores.sizes());
  const at::Tensor chosen = std::get<1>(choice.topk(mixture.experts_per_token, -1));
  at::Tensor top = scores.gather(-1, chosen);
  if (mixture.normalise) top = top / (top.sum(-1, true) + mixture.added_to_sum).clamp_min(mixture.least_sum);
  const at::Tensor weights = at::zeros_like(scores).scatter(1, chosen, top * mixture.scale);
  at::Tensor y = residual;
  const auto expert = [&](size_t first) {
    return at::linear(at::silu(at::linear(x, p[first])) * at::linear(x, p[first + 1]), p[first + 2]);
  };
  for (int64_t e = 0; e < weights.size(1); ++e)
    y = y + weights.narrow(1, e, 1) * expert(1 + 3 * static_cast<size_t>(e));
  return y + expert(p.size() - 3);
}

TEST(Mixture, ChoosesInGroupsByCorrectedScores) {
  for (const auto& [sigmoid, normalise] :
       {std::pair(true, true), std::pair(true, false), std::pair(false, true), std::pair(false, false)}) {
    std::vector<Parameter> parameters = {parameter(random({6, 5}, 1))};
    for (uint64_t expert = 0; expert < 7; ++expert) {  // the last one is shared
      for (const std::vector<int64_t>& shape : {std::vector<int64_t>{7, 5}, {7, 5}, {5, 7}})
        parameters.push_back(parameter(random(shape, 20 * expert + parameters.size())));
    }
    std::vector<Linear> maps;
    for (Parameter& p : parameters) maps.push_back({"map", &p});
    const Parameter correction = parameter(0.5 * random({6}, 77), /*trainable=*/false);
    Mixture settings;
    settings.router = &maps[0];
    settings.correction = &correction;
    settings.sigmoid = sigmoid;
    settings.added_to_sum = sigmoid ? 0.1 : 0.0;
    settings.least_sum = sigmoid ? 0.0 : 0.7;
    settings.groups = 3;
    settings.topk_groups = 2;
    settings.scale = 1.7;
    settings.experts_per_token = 3;
    settings.normalise = normalise;
    for (size_t i = 1; i + 3 < maps.size(); i += 3)
      settings.experts.push_back({&maps[i], &maps[i + 1], &maps[i + 2]});
    settings.shared_expert = {&maps[19], &maps[20], &maps[21]};
    std::vector<Parameter*> all;
    for (Parameter& p : parameters) all.push_back(&p);
    // The groups and the correction decide something.
    const at::Tensor x = random({40, 5}, 101),
                     scores = plain_scores(settings, at::linear(x, parameters[0].value));
    const auto chosen = [](const at::Tensor& by) {
      return std::get<0>(std::get<1>(by.topk(3, -1)).sort(-1));
    };
    EXPECT_FALSE(at::equal(chosen(scores), chosen(scores + correction.value)));
    // Some sums are below the least one, and some above.
    const at::Tensor sums = scores.gather(-1, chosen(scores + correction.value)).sum(-1);
    EXPECT_TRUE(sigmoid || (sums.min().item<double>() < 0.7 && sums.max().item<double>() > 0.7));
    expect_same(
        {random({40, 5}, 100), x}, all, [&](const auto& in) { return mixture(in[0], in[1], settings); },
        [&](const auto& in, const auto& p) { return plain_corrected(settings, in[0], in[1], p); });
  }
}

/// Four experts whose outputs are 1, 2, 3 and 4, and a router whose logits for them are `step` apart, partly
/// by its adapter: nothing that bfloat16 could tell apart.
TEST(Mixture, SigmoidsOfNarrowRoutersAreOfWideLogits) {
  const auto narrow = [](const at::Tensor& x) { return x.to(at::kBFloat16); };
  for (const bool has_adapter : {false, true}) {
    const at::Tensor steps = at::arange(4, at::kDouble) / 256.0;  // next to 4, where bfloat16 has 1/32
    at::Tensor router = at::zeros({4, 8}, at::kDouble);
    router.select(1, 0).fill_(4.0);
    if (!has_adapter) router.select(1, 1).copy_(steps);
    at::Tensor to_third = at::zeros({1, 8}, at::kDouble);
    to_third.select(1, 2).fill_(1.0);
    std::vector<Parameter> parameters{parameter(narrow(router)), parameter(narrow(to_third)),
                                      parameter(narrow(steps.unsqueeze(1)))};
    for (int expert = 0; expert < 4; ++expert) {
      for (const int64_t map : {0, 1})
        parameters.push_back(parameter(narrow(at::ones({8, 8}) / (map + 4.0))));
      parameters.push_back(parameter(narrow(at::eye(8) * (expert + 1.0))));
    }
    const Parameter correction = parameter(at::zeros({4}, at::kFloat), /*trainable=*/false);
    std::vector<Linear> maps;
    for (Parameter& p : parameters) maps.push_back({"map", &p});
    if (has_adapter) maps[0].adapter = {&parameters[1], &parameters[2], 1.0};
    Mixture settings;
    settings.router = &maps[0];
    settings.correction = &correction;
    settings.sigmoid = true;
    settings.experts_per_token = 1;
    settings.normalise = true;
    for (size_t i = 3; i < maps.size(); i += 3)
      settings.experts.push_back({&maps[i], &maps[i + 1], &maps[i + 2]});
    const at::Tensor x = narrow(at::ones({3, 8}));
    const auto output = [&] { return mixture(at::zeros_like(x), x, settings).detach().to(at::kDouble); };
    const at::Tensor last = output();
    // With a correction that forbids all others, each expert says its own.
    const at::Tensor of_first = [&] {
      const at::NoGradGuard no_grad;
      correction.value.narrow(0, 1, 3).fill_(-10.0);
      return output();
    }();
    EXPECT_TRUE(at::allclose(last, 4.0 * of_first, 1e-2, 0.0)) << "with adapter " << has_adapter;
  }
}

TEST(Mixture, ScoresThatVanishGiveNothing) {
  Layer layer(/*normalise=*/true);
  const Parameter correction = parameter(at::zeros({kMixtureExperts}, at::kDouble), /*trainable=*/false);
  layer.mixture.correction = &correction;
  layer.mixture.sigmoid = true;
  layer.mixture.added_to_sum = 1e-20;
  layer.parameters[0].value.fill_(-1000.0);
  const at::Tensor x = at::ones({3, 6}, at::kDouble), residual = random({3, 6}, 4);
  EXPECT_TRUE(at::equal(mixture(residual, x, layer.mixture).detach(), residual)) << "0 / 0 is no weight";
}

TEST(Mixture, EqualsEveryExpertOnEveryToken) {
  for (const bool normalise : {true, false}) {
    Layer layer(normalise);
    expect_same(
        {random({23, 6}, 100), random({23, 6}, 101)}, layer.pointers(),
        [&](const auto& in) { return mixture(in[0], in[1], layer.mixture); },
        [&](const auto& in, const auto& p) { return plain_mixture(in[0], in[1], p, normalise); });
  }
}

TEST(Mixture, BiasesOfExpertsAreWeightedWithTheRest) {
  Layer layer(/*normalise=*/true);
  std::vector<Parameter> more = {parameter(random({6}, 301)), parameter(random({2, 7}, 302)),
                                 parameter(random({6, 2}, 303)), parameter(random({6}, 304))};
  layer.maps[3].bias = &more[0];  // of the first expert's down_proj
  layer.maps[6].adapter = {&more[1], &more[2], 0.7, &more[3]};
  std::vector<Parameter*> all = layer.pointers();
  const size_t own = all.size();
  for (Parameter& p : more) all.push_back(&p);
  const auto plain = [&](const at::Tensor& residual, const at::Tensor& x, const std::vector<at::Tensor>& p) {
    const at::Tensor probabilities = at::softmax(at::linear(x, p[0]), -1);
    const auto [top, chosen] = probabilities.topk(kMixturePerToken, -1);
    const at::Tensor weights =
        at::zeros_like(probabilities).scatter(1, chosen, top / top.sum(-1, /*keepdim=*/true));
    const at::Tensor product = at::silu(at::linear(x, p[4])) * at::linear(x, p[5]);
    const at::Tensor low = at::linear(at::linear(product, p[own + 1]), p[own + 2], p[own + 3]);
    return plain_mixture(residual, x, p, true) + weights.narrow(1, 0, 1) * p[own] +
           weights.narrow(1, 1, 1) * low * 0.7;
  };
  expect_same(
      {random({23, 6}, 100), random({23, 6}, 101)}, all,
      [&](const auto& in) { return mixture(in[0], in[1], layer.mixture); },
      [&](const auto& in, const auto& p) { return plain(in[0], in[1], p); });
}

TEST(Mixture, FewerTokensThanExperts) {
  Layer layer(true);
  const at::Tensor residual = random({1, 6}, 3), x = random({1, 6}, 4).requires_grad_();
  std::vector<at::Tensor> values;
  for (const Parameter& p : layer.parameters) values.push_back(p.value);
  const at::Tensor plain_x = x.detach().clone().requires_grad_();
  const at::Tensor y = mixture(residual, x, layer.mixture);
  const at::Tensor expected = plain_mixture(residual, plain_x, values, true);
  expect_near(y.detach(), expected.detach(), "value");
  const at::Tensor cotangent = random({1, 6}, 5);
  expect_near(torch::autograd::grad({y}, {x}, {cotangent}).front(),
              torch::autograd::grad({expected}, {plain_x}, {cotangent}).front(), "input");
}

TEST(Mixture, RunsAgainWithTheChoicesOfItsFirstRun) {
  constexpr int64_t kRows = 40;
  const at::Tensor x = random({kRows, 6}, 7), cotangent = random({kRows, 6}, 8);
  const at::Tensor nudge = 1e-12 * random({6}, 9);
  /// The gradient of x, with the routers of experts 0 and 1 a rounding error apart, above or below.
  const auto run = [&](double side, RouterChoices* choices) {
    Layer layer(true);
    const at::Tensor router = layer.parameters[0].value;
    router[0].copy_(router[1] + side * nudge);
    const at::Tensor leaf = x.clone().requires_grad_();
    const at::Tensor y = mixture({}, leaf, layer.mixture, {.layer = 1, .choices = choices});
    return torch::autograd::grad({y}, {leaf}, {cotangent}).front();
  };
  const auto apart = [](const at::Tensor& a, const at::Tensor& b) {
    return (a - b).abs().max().item<double>();
  };
  RouterChoices choices(/*layers=*/2, kRows, kMixturePerToken, kMixtureExperts, at::kCPU);
  const at::Tensor first = run(1.0, &choices);
  EXPECT_TRUE(apart(run(-1.0, nullptr), first) > 1e-3) << "no near tie: the test says nothing";
  const double error = apart(run(-1.0, &choices), first);
  EXPECT_TRUE(error <= 1e-9) << error;
}

TEST(RouterChoices, AreThoseOfTheSameRows) {
  for (const int64_t experts : {256, 257}) {
    RouterChoices choices(/*layers=*/2, /*tokens=*/10, /*per_token=*/3, experts, at::kCPU);
    const at::Tensor chosen = at::randint(experts, {4, 3}, at::kLong);
    chosen[0][0] = experts - 1;
    choices.keep(1, 2, chosen);
    EXPECT_TRUE(at::equal(choices.find(1, 2, 4), chosen));
    for (const auto& [layer, begin, rows] : {std::array<int64_t, 3>{0, 2, 4}, {1, 3, 4}, {1, 2, 3}})
      EXPECT_FALSE(choices.find(layer, begin, rows).defined());
    choices.close();
    choices.keep(0, 2, chosen);
    EXPECT_FALSE(choices.find(0, 2, 4).defined()) << "after the forward pass nothing is kept";
  }
}

TEST(Mixture, TheBalancingLossStreams) {
  constexpr double kCoefficient = 0.7;
  constexpr int64_t kRows = 17;
  const at::Tensor x = random({kRows, 6}, 7), cotangent = random({kRows, 6}, 8);
  Layer plain(true);
  const at::Tensor leaf = x.clone().requires_grad_();
  std::vector<at::Tensor> leaves{leaf};
  for (const Parameter& p : plain.parameters) leaves.push_back(p.value.clone().requires_grad_());
  const std::vector<at::Tensor> parameters(leaves.begin() + 1, leaves.end());
  const at::Tensor probabilities = at::softmax(at::linear(leaf, parameters[0]), -1);
  const at::Tensor chosen = std::get<1>(probabilities.topk(kMixturePerToken, -1));
  const at::Tensor load =
      at::one_hot(chosen, kMixtureExperts).to(at::kDouble).sum(at::IntArrayRef{0, 1}) / kRows;
  const at::Tensor balance_loss = kCoefficient * kMixtureExperts * (load * probabilities.mean(0)).sum();
  const at::Tensor total =
      (plain_mixture(at::zeros_like(leaf), leaf, parameters, true) * cotangent).sum() + balance_loss;
  const auto truth = torch::autograd::grad({total}, leaves);

  for (const int64_t chunk : {int64_t{1}, int64_t{4}, kRows - 1, kRows, kRows + 3}) {
    Layer layer(true);
    RouterBalance balance(kCoefficient, kMixtureExperts, at::kCPU);
    const auto run = [&](const at::Tensor& rows) {
      return mixture({}, rows, layer.mixture, {.balance = &balance});
    };
    std::vector<int64_t> begins;
    for (int64_t begin = 0; begin < kRows; begin += chunk) {
      begins.push_back(begin);
      run(x.narrow(0, begin, std::min(chunk, kRows - begin)));
    }
    balance.close();
    at::Tensor dx = at::empty_like(x);
    for (auto begin = begins.rbegin(); begin != begins.rend(); ++begin) {
      const int64_t rows = std::min(chunk, kRows - *begin);
      const at::Tensor part = x.narrow(0, *begin, rows).clone().requires_grad_();
      dx.narrow(0, *begin, rows)
          .copy_(torch::autograd::grad({run(part)}, {part}, {cotangent.narrow(0, *begin, rows)}).front());
    }
    const double expected = balance_loss.item<double>();
    EXPECT_TRUE(std::abs(balance.loss() - expected) <= 1e-14 * expected) << balance.loss() << " " << expected;
    expect_near(dx, truth[0], "input");
    for (size_t i = 0; i < layer.parameters.size(); ++i)
      expect_near(layer.parameters[i].gradient, truth[1 + i], "parameter");
  }
}

TEST(Mixture, TheBalancingLossLeavesTokensOut) {
  constexpr double kCoefficient = 0.7;
  constexpr int64_t kRows = 17;
  const at::Tensor x = random({kRows, 6}, 7);
  const at::Tensor counted = at::arange(kRows).remainder(3).ne(1);
  const at::Tensor indices = counted.nonzero().squeeze(1);
  // The same loss over the tokens that count, and nothing else: no cotangent reaches the rows.
  Layer plain(true);
  const at::Tensor leaf = x.clone().requires_grad_();
  const at::Tensor router = plain.parameters.front().value.clone().requires_grad_();
  const at::Tensor probabilities = at::softmax(at::linear(leaf, router), -1).index_select(0, indices);
  const at::Tensor chosen = std::get<1>(probabilities.topk(kMixturePerToken, -1));
  const auto rows = static_cast<double>(indices.size(0));
  const at::Tensor load =
      at::one_hot(chosen, kMixtureExperts).to(at::kDouble).sum(at::IntArrayRef{0, 1}) / rows;
  const at::Tensor loss = kCoefficient * kMixtureExperts * (load * probabilities.mean(0)).sum();
  const auto truth = torch::autograd::grad({loss}, {leaf, router});

  for (const int64_t chunk : {int64_t{1}, int64_t{5}, kRows}) {
    Layer layer(true);
    RouterBalance balance(kCoefficient, kMixtureExperts, at::kCPU, counted);
    at::Tensor dx = at::empty_like(x);
    for (const bool backward : {false, true}) {
      for (int64_t begin = 0; begin < kRows; begin += chunk) {
        const at::Tensor part = x.slice(0, begin, begin + chunk).clone().requires_grad_(backward);
        const at::Tensor y = mixture({}, part, layer.mixture, {.begin = begin, .balance = &balance});
        if (backward)
          dx.slice(0, begin, begin + chunk)
              .copy_(torch::autograd::grad({y}, {part}, {at::zeros_like(y)}).front());
      }
      balance.close();
    }
    EXPECT_TRUE(std::abs(balance.loss() - loss.item<double>()) <= 1e-14 * loss.item<double>());
    expect_near(dx, truth[0], "input");
    expect_near(layer.parameters.front().gradient, truth[1], "router");
    EXPECT_TRUE((dx.index_select(0, counted.logical_not().nonzero().squeeze(1)) == 0).all().item<bool>());
  }
  // Nothing counts: no loss, and a gradient of zero.
  RouterBalance none(kCoefficient, kMixtureExperts, at::kCPU, at::zeros({kRows}, at::kBool));
  none.count(probabilities.detach(), chosen, 0);
  EXPECT_EQ(none.loss(), 0.0);
  EXPECT_TRUE((none.gradient(0, 3) == 0).all().item<bool>());
}

}  // namespace
}  // namespace streambp
