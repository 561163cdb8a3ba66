// Choosing a configuration: the estimated costs rank as measured times do, a search leaves alone what is
// fixed, and the chosen configuration is the cheapest that fits.
#include "streambp/plan/choice.h"

#include <algorithm>
#include <functional>
#include <gtest/gtest.h>
#include <limits>
#include <set>

#include "bench/sweep/choice.h"
#include "streambp/plan/flops/cost_model.h"
#include "verify/tests/turns.h"

namespace streambp::plan {
namespace {

TrainingStep step_of(int64_t tokens) {
  TrainingStep step;
  step.seq_len = tokens;
  return step;
}

/// A model of shapes, and costs for `device`.
struct ChoiceSubject {
  explicit ChoiceSubject(const std::string& model, at::ScalarType dtype = at::kFloat,
                         c10::DeviceType device = at::kCPU, bool lora = false)
      : predictor(setup_of(model, dtype, lora), device) {}

  static ModelSetup setup_of(const std::string& model, at::ScalarType dtype, bool lora) {
    ModelSetup setup;
    setup.model = model;
    setup.dtype = setup.gradient_dtype = dtype;
    if (lora) setup.lora = LoraConfig{8, 8.0, false, {kAllLinear}};
    return setup;
  }

  double cost(int64_t tokens, const Settings& settings) const {
    return CostModel(predictor.models(), step_of(tokens), predictor.device()).relative(settings);
  }

  Predictor predictor;
};

Settings with(Method method, int64_t chunk = 0, const std::function<void(Settings&)>& change = {}) {
  Settings settings;
  settings.method = method;
  settings.chunk = chunk;
  if (change) change(settings);
  return settings;
}

const auto kKeepAttention = [](Settings& settings) { settings.keep.attention = kAllLayers; };

TEST(CostModel, RanksMethodsAsTheyWereMeasuredOnTheCpu) {
  // results/compare-2048, -4096 and -8192: medians at the chunks that --chunk auto stands for.
  const ChoiceSubject subject("qwen3-cpu");
  for (const auto& [tokens, chunk] : {std::pair<int64_t, int64_t>{2048, 1024}, {4096, 1024}, {8192, 1024}}) {
    const double standard = subject.cost(tokens, with(Method::kStandard));
    const double kept = subject.cost(tokens, with(Method::kStreambp, chunk, kKeepAttention));
    const double streambp = subject.cost(tokens, with(Method::kStreambp, chunk));
    const double checkpoint = subject.cost(tokens, with(Method::kCheckpoint));
    std::printf("%d tokens: standard %.3f, keep-attention %.3f, streambp %.3f, checkpoint %.3f\n",
                static_cast<int>(tokens), standard, kept, streambp, checkpoint);
    EXPECT_EQ(standard, 1.0);
    EXPECT_LT(standard, kept);
    EXPECT_LT(kept, streambp);
    EXPECT_LT(streambp, checkpoint);
    EXPECT_LT(subject.cost(tokens, with(Method::kLogitsOnly)), checkpoint) << "no full logits";
  }
}

TEST(CostModel, ThinChunksAreSlowAndThickOnesGainLittle) {
  const ChoiceSubject subject("qwen3-8b", at::kBFloat16, at::kCUDA);
  const auto cost = [&](int64_t chunk) { return subject.cost(65536, with(Method::kStreambp, chunk)); };
  EXPECT_GT(cost(64), 1.2 * cost(1024));
  EXPECT_GT(cost(256), 1.05 * cost(1024));
  EXPECT_GT(cost(1024), cost(4096));
  EXPECT_LT(cost(1024), 1.03 * cost(4096));
}

TEST(CostModel, WhatIsComputedOrSentAgainCosts) {
  const ChoiceSubject subject("qwen3-8b", at::kBFloat16, at::kCUDA);
  const auto cost = [&](const std::function<void(Settings&)>& change) {
    return subject.cost(32768, with(Method::kStreambp, 1024, change));
  };
  const double plain = cost({});
  EXPECT_GT(plain, 1.0);
  EXPECT_LT(cost(kKeepAttention), plain);
  const double every2 = cost([](Settings& s) { s.every = 2; });
  const double every4 = cost([](Settings& s) { s.every = 4; });
  EXPECT_GT(every2, plain);
  EXPECT_GT(every4, every2);
  EXPECT_GT(cost([](Settings& s) { s.offload = Offload::kHost; }), plain);
  EXPECT_GT(cost([](Settings& s) { s.order = Order::kForward; }), 1.2 * plain)
      << "the keys and values of 16 chunks before each one on average";
  // Without gradients of weights, what is computed again is a greater part of the whole.
  const ChoiceSubject lora("qwen3-8b", at::kBFloat16, at::kCUDA, /*lora=*/true);
  EXPECT_GT(lora.cost(32768, with(Method::kCheckpoint)),
            subject.cost(32768, with(Method::kCheckpoint)) + 0.05);
}

std::set<std::string> descriptions(const std::vector<Settings>& all) {
  std::set<std::string> texts;
  for (const Settings& settings : all) texts.insert(configuration_text(settings));
  return texts;
}

TEST(Configurations, AreDistinctAndCanBeRun) {
  const SearchSpace space;
  for (const int64_t tokens : {9, 300, 2048, 65536}) {
    for (const bool may_offload : {false, true}) {
      const std::vector<Settings> all = list_configurations(space, at::kCPU, 36, tokens, may_offload);
      EXPECT_EQ(descriptions(all).size(), all.size());
      std::set<Method> methods;
      for (const Settings& settings : all) {
        EXPECT_NO_THROW(check_settings(settings));
        EXPECT_LE(settings.chunk, tokens);
        EXPECT_TRUE(may_offload || settings.offload == Offload::kNone);
        methods.insert(settings.method);
      }
      EXPECT_EQ(methods.size(), method_names().size());
    }
  }
  EXPECT_TRUE(descriptions(list_configurations(space, at::kCPU, 36, 1500, false))
                  .contains("streambp, chunk 750, keep-attention, every 4"))
      << "the chunk that auto stands for is among them";
  EXPECT_TRUE(descriptions(list_configurations(space, at::kCPU, 36, 2048, false))
                  .contains("streambp, chunk 256, every 6"))
      << "the square root of the layers";
}

TEST(Configurations, LeaveAloneWhatIsFixed) {
  SearchSpace space;
  space.chunks = {512, 128};
  space.given.stream_head = true;
  space.given.keep.attention = kAllLayers;
  space.fixed = {"keep_attention", "every", "offload"};
  for (const Settings& settings : list_configurations(space, at::kCPU, 36, 65536, /*may_offload=*/true)) {
    EXPECT_TRUE(settings.streams_head());
    EXPECT_EQ(settings.every, 1);
    EXPECT_EQ(settings.offload, Offload::kNone);
    EXPECT_TRUE(!is_chunked(settings.method) || settings.chunk == 512 || settings.chunk == 128);
    EXPECT_TRUE(settings.method != Method::kStreambp || settings.keep.attention == kAllLayers);
  }
  space = {};
  space.methods = {Method::kStandard};
  EXPECT_EQ(descriptions(list_configurations(space, at::kCPU, 36, 65536, false)),
            (std::set<std::string>{"standard", "standard, streamed head"}));
}

TEST(Choice, IsTheCheapestThatFitsAndSaysWhatDoesNot) {
  ChoiceSubject subject("qwen3-tiny", at::kDouble);
  const TrainingStep asked = step_of(1500);
  const SearchSpace space;
  std::vector<std::pair<double, int64_t>> all;  // cost and peak of each configuration, by other means
  const CostModel costs(subject.predictor.models(), asked, at::kCPU);
  for (const Settings& settings :
       list_configurations(space, at::kCPU, subject.predictor.models().policy->config().num_hidden_layers,
                           asked.seq_len, false)) {
    all.emplace_back(costs.relative(settings), subject.predictor.predict(asked, settings).peak_bytes);
  }
  std::set<int64_t> peaks;
  for (const auto& [cost, peak] : all) peaks.insert(peak);
  ASSERT_GT(peaks.size(), 10u);
  double cost_before = std::numeric_limits<double>::infinity();
  std::set<std::string> chosen;
  verify::Turns turns(7);
  for (const int64_t budget : peaks) {
    if (!turns.next() && budget != *peaks.rbegin()) continue;
    double cheapest = std::numeric_limits<double>::infinity();
    for (const auto& [cost, peak] : all)
      if (peak <= budget) cheapest = std::min(cheapest, cost);
    const Choice choice = choose(subject.predictor, asked, space, {budget, 0});
    ASSERT_TRUE(choice.chosen);
    const Considered& taken = choice.considered[*choice.chosen];
    EXPECT_EQ(taken.cost, cheapest) << describe(choice);
    EXPECT_LE(taken.predicted->peak_bytes, budget);
    EXPECT_TRUE(taken.why_not.empty());
    EXPECT_LE(taken.cost, cost_before) << "more memory, more time";
    EXPECT_EQ(choice.considered.size(), all.size());
    cost_before = taken.cost;
    chosen.insert(method_name(taken.settings.method));
    const nlohmann::json member = bench::choice_member(choice);
    EXPECT_EQ(member.at("predicted_peak_bytes"), taken.predicted->peak_bytes);
    EXPECT_EQ(member.at("considered").size(), all.size());
    for (const auto& other : member.at("considered")) {
      EXPECT_EQ(other.at("fits"), other.at("predicted_peak_bytes").get<int64_t>() <= budget);
      EXPECT_TRUE(other.at("relative_cost") >= taken.cost || !other.at("why_not").is_null());
    }
  }
  EXPECT_TRUE(chosen.contains("standard")) << "with all the memory there is";
  EXPECT_TRUE(chosen.contains("streambp")) << "with the least";

  const Choice nothing = choose(subject.predictor, asked, space, {*peaks.begin() - 1, 0});
  EXPECT_FALSE(nothing.chosen);
  EXPECT_EQ(nothing.leanest()->predicted->peak_bytes, *peaks.begin());
  EXPECT_NE(describe(nothing).find("nothing fits"), std::string::npos);
  EXPECT_NE(bench::choice_reason(nothing).find("--budget"), std::string::npos);
  const std::string tight = describe(choose(subject.predictor, asked, space, {*peaks.begin(), 0}));
  EXPECT_NE(tight.find("standard needs"), std::string::npos) << tight;
  EXPECT_EQ(bench::choice_member(nothing).at("relative_cost"), nullptr);
}

TEST(Choice, OffloadsWithinTheHostsBudget) {
  ChoiceSubject subject("qwen3-cpu", at::kFloat);  // of several layers: of two, one input alone is held
  const TrainingStep asked = step_of(4000);
  const SearchSpace space;
  const auto least = [&](int64_t host) {
    return choose(subject.predictor, asked, space, {1, host}).leanest()->predicted;
  };
  const auto without = least(0);
  EXPECT_EQ(without->host_peak_bytes, 0);
  const Choice choice = choose(subject.predictor, asked, space, {without->peak_bytes - 1, int64_t{1} << 40});
  ASSERT_TRUE(choice.chosen) << describe(choice);
  EXPECT_EQ(choice.considered[*choice.chosen].settings.offload, Offload::kHost);
  EXPECT_FALSE(choose(subject.predictor, asked, space, {without->peak_bytes - 1, 1}).chosen)
      << "a host without memory";
}

}  // namespace
}  // namespace streambp::plan
