// All experts of a mixture together against one after another: the same bits where nothing rounds, and no
// larger an error where something does, over loads and pieces of every kind. Products of groups are torch's
// for the CPU here; a whole mixture runs with our CUDA kernels on the host.
#include "streambp/ops/mlp/grouped_experts.h"

#include <ATen/record_function.h>

#include "streambp/memory/meter.h"
#include "streambp/model/config/config.h"
#include "streambp/model/model.h"
#include "streambp/ops/cuda/on_host.h"
#include "streambp/ops/cuda/scratch.h"
#include "streambp/ops/mlp/mixture.h"
#include "streambp/ops/rows/rows.h"
#include "streambp/runtime/device.h"
#include "verify/tests/streambp/ops/ops_testing.h"
#include "verify/tests/streambp/ops/serve_cpu.h"

namespace streambp {
namespace {

constexpr int64_t kExperts = 5;
constexpr int64_t kSize = 16;
constexpr int64_t kWidth = 24;

/// Experts in two tensors of all, gate and up of one in rows that follow each other.
struct Stack {
  std::vector<Parameter> parameters;  // gate, up and down of each expert
  std::vector<Linear> maps;
  std::vector<GatedMlp> experts;

  /// `apart`: each weight has a storage of its own.
  Stack(const at::Tensor& gate_up, const at::Tensor& down, Activation activation, bool apart,
        bool trainable = true) {
    const int64_t width = gate_up.size(1) / 2;
    for (int64_t expert = 0; expert < gate_up.size(0); ++expert) {
      const at::Tensor both = gate_up.select(0, expert);
      for (const at::Tensor& value :
           {both.narrow(0, 0, width), both.narrow(0, width, width), down.select(0, expert)})
        parameters.push_back(parameter(apart ? value.clone() : value, trainable));
    }
    for (Parameter& p : parameters) maps.push_back({"map", &p});
    for (size_t i = 0; i < maps.size(); i += 3)
      experts.push_back({&maps[i], &maps[i + 1], &maps[i + 2], activation});
  }
};

/// What a run over some rows gives, and the experts' gradients.
struct Results {
  at::Tensor y, dx, d_weights;
  std::vector<at::Tensor> gradients;

  std::vector<at::Tensor> all() const {
    std::vector<at::Tensor> tensors{y, dx, d_weights};
    tensors.insert(tensors.end(), gradients.begin(), gradients.end());
    return tensors;
  }
};

/// What both runs are of: rows, their choices and these choices' weights, a cotangent.
struct Case {
  at::Tensor gate_up, down, x, dy, choices, weights;
  Activation activation;

  Case to(at::ScalarType dtype) const {
    return {gate_up.to(dtype), down.to(dtype),    x.to(dtype), dy.to(dtype),
            choices,           weights.to(dtype), activation};
  }
};

Results with_gradients(Results results, const Stack& stack) {
  for (const Parameter& p : stack.parameters) results.gradients.push_back(p.gradient);
  return results;
}

Results together(const Case& of, int64_t piece_rows) {
  Stack stack(of.gate_up, of.down, of.activation, /*apart=*/false);
  GroupedRows rows = group_rows(of.choices, of.weights, stacked_experts(stack.experts).value(), piece_rows);
  Results results{at::zeros_like(of.x), at::zeros_like(of.x), at::full_like(of.weights, 7.0), {}};
  grouped_forward(stack.experts, rows, of.x, results.y);
  grouped_backward(stack.experts, rows, of.x, of.dy, results.dx, results.d_weights);
  return with_gradients(std::move(results), stack);
}

Results one_by_one(const Case& of) {
  Stack stack(of.gate_up, of.down, of.activation, /*apart=*/true);
  Results results{at::zeros_like(of.x), at::zeros_like(of.x), at::full_like(of.weights, 7.0), {}};
  for (int64_t number = 0; number < kExperts; ++number) {
    const GatedMlp& expert = stack.experts[static_cast<size_t>(number)];
    const at::Tensor indices = of.choices.flatten().eq(number).nonzero().squeeze(1);
    if (indices.size(0) == 0) continue;
    const at::Tensor tokens = indices.div(of.choices.size(1), "floor");
    const at::Tensor weights = gather_rows(of.weights, indices);
    GatedMlpSaved saved;
    const at::Tensor product = gated_product(expert, gather_rows(of.x, tokens), saved);
    add_sorted_rows(results.y, tokens, linear_forward(*expert.down_proj, product).mul_(weights));
    at::Tensor d_own;
    add_sorted_rows(
        results.dx, tokens,
        gated_mlp_backward(expert, std::move(saved), gather_rows(of.dy, tokens), weights, &d_own));
    results.d_weights.index_copy_(0, indices, d_own);
  }
  return with_gradients(std::move(results), stack);
}

/// Choices of `rows` tokens among some of the experts.
at::Tensor choices_of(int64_t rows, int64_t per_token, const std::vector<int64_t>& among, uint64_t seed) {
  const at::Tensor order =
      at::rand({rows, static_cast<int64_t>(among.size())}, at::detail::createCPUGenerator(seed))
          .argsort(int64_t{-1});
  return at::tensor(among, at::kLong).index({order}).narrow(1, 0, per_token).contiguous();
}

/// Loads: all experts, one with all rows (the first, the last), none in the middle, one row.
std::vector<at::Tensor> loads() {
  return {
      choices_of(23, 2, {0, 1, 2, 3, 4}, 1), choices_of(9, 1, {0}, 2), choices_of(9, 1, {4}, 3),
      choices_of(13, 2, {0, 1, 4}, 4),       choices_of(1, 1, {2}, 5), choices_of(1, 5, {0, 1, 2, 3, 4}, 6)};
}

TEST(GroupedExperts, GiveTheBitsOfOneAfterAnother) {
  for (const at::Tensor& choices : loads()) {
    const int64_t rows = choices.size(0), count = choices.numel();
    const auto whole = [](at::IntArrayRef shape, uint64_t seed) { return integers(shape, seed, at::kFloat); };
    const Case of{whole({kExperts, 2 * kWidth, kSize}, 11),
                  whole({kExperts, kSize, kWidth}, 12),
                  whole({rows, kSize}, 13),
                  whole({rows, kSize}, 14),
                  choices,
                  whole({count, 1}, 15),
                  Activation::kRelu};
    const std::vector<at::Tensor> expected = one_by_one(of).all();
    for (const int64_t piece_rows : {int64_t{1}, int64_t{2}, int64_t{7}, count - 1, count, count + 1}) {
      if (piece_rows == 0) continue;
      const std::vector<at::Tensor> got = together(of, piece_rows).all();
      for (size_t i = 0; i < got.size(); ++i)
        EXPECT_TRUE(at::equal(got[i], expected[i])) << i << " of " << rows << " rows by " << piece_rows;
    }
  }
}

TEST(GroupedExperts, AreAsPreciseAsOneAfterAnother) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const at::Tensor& choices : loads()) {
      const int64_t rows = choices.size(0), count = choices.numel();
      const Case of = Case{0.3 * random({kExperts, 2 * kWidth, kSize}, 21),
                           0.3 * random({kExperts, kSize, kWidth}, 22),
                           random({rows, kSize}, 23),
                           random({rows, kSize}, 24),
                           choices,
                           at::sigmoid(random({count, 1}, 25)),
                           Activation::kSilu}
                          .to(dtype);
      const Case exact = of.to(at::kDouble);
      const std::vector<at::Tensor> truth = one_by_one(exact).all(), before = one_by_one(of).all();
      for (const int64_t piece_rows : {int64_t{3}, count}) {
        const std::vector<at::Tensor> got = together(of, piece_rows).all();
        for (size_t i = 0; i < got.size(); ++i) {
          if (truth[i].norm().item<double>() == 0.0) {
            EXPECT_EQ(got[i].abs().max().item<double>(), 0.0) << i;
            continue;
          }
          const double own = relative_distance(before[i].to(at::kDouble), truth[i]);
          const double error = relative_distance(got[i].to(at::kDouble), truth[i]);
          const double unit = dtype == at::kFloat ? 0x1p-23 : 0x1p-8;
          EXPECT_TRUE(error <= std::max(1.25 * own, unit))
              << i << " of " << rows << " rows by " << piece_rows << ": " << error << ", one by one " << own;
        }
      }
    }
  }
}

TEST(GroupedExperts, AreThoseOfOneStorageAndNothingElse) {
  const at::Tensor gate_up = random({kExperts, 2 * kWidth, kSize}, 1),
                   down = random({kExperts, kSize, kWidth}, 2);
  const auto plain = [&] { return Stack(gate_up, down, Activation::kSilu, /*apart=*/false); };
  const Stack stack = plain();
  const auto found = stacked_experts(stack.experts);
  ASSERT_TRUE(found);
  EXPECT_TRUE(at::equal(found->gate_proj, gate_up.narrow(1, 0, kWidth)));
  EXPECT_TRUE(at::equal(found->up_proj, gate_up.narrow(1, kWidth, kWidth)));
  EXPECT_TRUE(at::equal(found->down_proj, down));
  EXPECT_FALSE(stacked_experts(Stack(gate_up, down, Activation::kSilu, /*apart=*/true).experts));
  EXPECT_FALSE(stacked_experts({}));
  const auto is_refused = [&](auto change) {
    Stack other = plain();
    change(other);
    return !stacked_experts(other.experts);
  };
  Parameter bias = parameter(random({kSize}, 3));
  EXPECT_TRUE(is_refused([&](Stack& s) { s.maps[5].bias = &bias; }));
  EXPECT_TRUE(is_refused([&](Stack& s) { s.maps[4].output_scale = 2.0; }));
  EXPECT_TRUE(is_refused([&](Stack& s) { s.maps[3].adapter = LowRankAdapter{&bias, &bias}; }));
  EXPECT_TRUE(is_refused([&](Stack& s) { s.experts[2].limit = 7.0; }));
  EXPECT_TRUE(is_refused([&](Stack& s) { s.experts[2].is_clamped = true; }));
  EXPECT_TRUE(is_refused([&](Stack& s) { s.experts[2].activation = Activation::kRelu; }));
  EXPECT_TRUE(is_refused([&](Stack& s) { std::swap(s.experts[1], s.experts[2]); })) << "unequal distances";
  EXPECT_TRUE(is_refused([&](Stack& s) { s.parameters[6].value = s.parameters[6].value.clone(); }));
}

TEST(GroupedExperts, NeedAKernelOfTheDevice) {
  const at::Tensor gate_up = random({kExperts, 2 * kWidth, kSize}, 1).to(at::kBFloat16),
                   down = random({kExperts, kSize, kWidth}, 2).to(at::kBFloat16), x = gate_up[0];
  const auto serves = [&](const at::Tensor& rows, const at::Tensor& in, const at::Tensor& out) {
    return has_grouped_products(
        rows, stacked_experts(Stack(in, out, Activation::kSilu, /*apart=*/false).experts).value());
  };
  EXPECT_FALSE(serves(x, gate_up, down)) << "the CPU";
  const ServeCpu serve(cuda::kernels_on_host());
  EXPECT_TRUE(serves(x, gate_up, down));
  EXPECT_FALSE(serves(x.to(at::kFloat), gate_up.to(at::kFloat), down.to(at::kFloat)));
  EXPECT_FALSE(serves(x, gate_up.to(at::kFloat), down.to(at::kFloat)));
  const auto narrow = [](const at::Tensor& t, int64_t dim) { return t.narrow(dim, 0, 12).contiguous(); };
  EXPECT_FALSE(serves(x, narrow(gate_up, 2), narrow(down, 1))) << "rows of 24 bytes";
  const GpuLimits outer = cuda::card();
  for (const auto& [capability, has] :
       {std::pair(80, false), {89, false}, {90, true}, {100, true}, {120, false}}) {
    cuda::set_card({capability, 100, 100 * 1024});
    EXPECT_EQ(serves(x, gate_up, down), has) << capability;
  }
  cuda::set_card(outer);
}

int64_t calls = 0, products = 0, inside = 0;

/// Counts the calls of ATen but for those that torch's product of groups makes on the CPU, one for each.
struct CountedCall : at::ObserverContext {
  explicit CountedCall(bool is_product) : is_product(is_product) {}
  bool is_product;

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    const bool is_product = function.name() == std::string("aten::_grouped_mm");
    if (inside == 0) ++calls;
    if (is_product) ++products, ++inside;
    return std::make_unique<CountedCall>(is_product);
  }
  static void end(const at::RecordFunction&, at::ObserverContext* context) {
    if (static_cast<CountedCall*>(context)->is_product) --inside;
  }
};

/// A mixture whose rows are one piece.
struct WholeMixture {
  static constexpr int64_t kMany = 8;
  static constexpr int64_t kPerToken = 3;
  static constexpr int64_t kRows = 200;
  static constexpr int64_t kDeep = 128;
  Parameter router_weight;
  Linear router;
  Stack stack;
  at::Tensor x, dy;
  Mixture mixture;

  WholeMixture(c10::Device device, at::ScalarType dtype, bool apart, bool trainable)
      : router_weight(parameter(made({kMany, kDeep}, 31, device, dtype))),
        router({"router", &router_weight}),
        stack(made({kMany, 2 * kWidth, kDeep}, 32, device, dtype),
              made({kMany, kDeep, kWidth}, 33, device, dtype), Activation::kSilu, apart, trainable),
        x(made({kRows, kDeep}, 34, device, dtype)),
        dy(made({kRows, kDeep}, 35, device, dtype)) {
    mixture.router = &router;
    mixture.experts = stack.experts;
    mixture.experts_per_token = kPerToken;
    mixture.normalise = true;
  }

  /// Numbers that bfloat16 has.
  static at::Tensor made(at::IntArrayRef shape, uint64_t seed, c10::Device device, at::ScalarType dtype) {
    if (device.is_meta()) return at::empty(shape, at::TensorOptions(device).dtype(dtype));
    return (0.2 * random(shape, seed)).to(at::kBFloat16).to(dtype);
  }

  /// y, dx and the gradients.
  std::vector<at::Tensor> run() {
    x.requires_grad_();
    const at::Tensor y = streambp::mixture({}, x, mixture);
    std::vector<at::Tensor> results{y.detach(), torch::autograd::grad({y}, {x}, {dy}).front(),
                                    router_weight.gradient};
    for (const Parameter& p : stack.parameters) {
      if (p.gradient.defined()) results.push_back(p.gradient);
    }
    return results;
  }
};

/// With the numbers of ATen's calls and of products of groups.
std::vector<at::Tensor> counted_run(bool apart, bool trainable) {
  WholeMixture whole(at::kCPU, at::kBFloat16, apart, trainable);
  calls = products = 0;
  const at::CallbackHandle handle = at::addGlobalCallback(
      at::RecordFunctionCallback(&CountedCall::begin, &CountedCall::end).scopes({at::RecordScope::FUNCTION}));
  std::vector<at::Tensor> results = whole.run();
  at::removeCallback(handle);
  return results;
}

TEST(GroupedExperts, AreAMixtureOnAGpu) {
  const std::vector<at::Tensor> truth =
      WholeMixture(at::kCPU, at::kDouble, /*apart=*/true, /*trainable=*/true).run();
  const ServeCpu serve(cuda::kernels_on_host());
  for (const bool trainable : {true, false}) {
    const std::vector<at::Tensor> apart = counted_run(/*apart=*/true, trainable);
    EXPECT_EQ(products, 0);
    const int64_t calls_apart = calls;
    const std::vector<at::Tensor> together = counted_run(/*apart=*/false, trainable);
    EXPECT_EQ(products, 6) << "three each way";
    // Their number does not grow with that of the experts, where these are frozen.
    EXPECT_TRUE(trainable ? calls < calls_apart : 2 * calls < calls_apart) << calls << " of " << calls_apart;
    ASSERT_EQ(together.size(), trainable ? 3 + 3 * WholeMixture::kMany : 3U);
    for (size_t i = 0; i < together.size(); ++i) {
      const double own = relative_distance(apart[i].to(at::kDouble), truth[i]);
      const double error = relative_distance(together[i].to(at::kDouble), truth[i]);
      EXPECT_TRUE(error <= 1.25 * own) << i << ": " << error << ", one by one " << own;
    }
  }
}

TEST(GroupedExperts, AllocateWhatDryRunsPredictByPieces) {
  install_meters();
  constexpr int64_t kRows = 1500, kPerToken = 2;
  for (const int64_t piece_rows : {700, 3000}) {
    const auto peak = [&](c10::Device device) {
      const auto options = at::TensorOptions(device).dtype(at::kFloat);
      Stack stack(at::zeros({kExperts, 2 * kWidth, kSize}, options),
                  at::zeros({kExperts, kSize, kWidth}, options), Activation::kSilu, /*apart=*/false);
      const at::Tensor x = at::zeros({kRows, kSize}, options), y = at::zeros_like(x), dx = at::zeros_like(x);
      // The mean load, as a dry run has it.
      const at::Tensor choices =
          at::arange(kRows * kPerToken).remainder_(kExperts).view({kRows, kPerToken}).to(device);
      const at::Tensor weights = at::zeros({kRows * kPerToken, 1}, options),
                       d_weights = at::zeros_like(weights);
      const int64_t before = read_meter(device).live_bytes;
      reset_peak(device);
      GroupedRows rows = group_rows(choices, weights, stacked_experts(stack.experts).value(), piece_rows);
      grouped_forward(stack.experts, rows, x, y);
      grouped_backward(stack.experts, rows, x, y, dx, d_weights);
      return read_meter(device).peak_bytes - before;
    };
    const int64_t predicted = peak(at::kMeta), real = peak(at::kCPU);
    EXPECT_EQ(predicted, real);
  }
}

TEST(GroupedExperts, AllocateWhatDryRunsPredictOfAGpu) {
  install_meters();
  for (const bool trainable : {true, false}) {
    const auto peak = [&](c10::Device device) {
      WholeMixture whole(device, at::kBFloat16, /*apart=*/false, trainable);
      const int64_t before = read_meter(device).live_bytes;
      reset_peak(device);
      whole.run();
      return read_meter(device).peak_bytes - before;
    };
    const ServeCpu serve(cuda::kernels_on_host());
    const MetaStandIn stand_in(c10::kCUDA);
    const int64_t predicted = peak(at::kMeta), real = peak(at::kCPU);
    // The product for the CPU takes nothing of the kernel's.
    EXPECT_LE(real, predicted);
    EXPECT_LE(predicted, real + cuda::grouped_product_bytes(WholeMixture::kMany) + 4096);
  }
}

/// The experts of a layer of qwen3-moe-tiny.
std::vector<GatedMlp> experts_of(Model& model, std::vector<Linear>& maps) {
  std::vector<GatedMlp> experts(4);
  maps.resize(3 * experts.size());
  for (const auto& parameter : model.parameters()) {
    for (size_t i = 0; i < maps.size(); ++i) {
      const char* const part = std::array{"gate", "up", "down"}[i % 3];
      if (parameter->name == fmt::format("model.layers.2.mlp.experts.{}.{}_proj.weight", i / 3, part))
        maps[i] = {"map", parameter.get()};
    }
  }
  for (size_t i = 0; i < experts.size(); ++i) experts[i] = {&maps[3 * i], &maps[3 * i + 1], &maps[3 * i + 2]};
  return experts;
}

TEST(GroupedExperts, HaveOneStorageInModelsOfOurs) {
  std::vector<Linear> maps;
  for (const c10::Device device : {c10::kCPU, c10::kMeta}) {
    Model::Placement placement{.dtype = at::kBFloat16, .device = device};
    Model model = Model::random(preset("qwen3-moe-tiny"), placement, 1);
    EXPECT_TRUE(stacked_experts(experts_of(model, maps))) << device;
    placement.filled = [](Parameter&) {};
    Model apart = Model::random(preset("qwen3-moe-tiny"), placement, 1);
    EXPECT_FALSE(stacked_experts(experts_of(apart, maps))) << "their values may come and go one by one";
  }
}

}  // namespace
}  // namespace streambp
