// Rotary embedding: every type in every spelling, what is refused of it, and the frequencies it gives.
#include <cmath>
#include <cstdio>

#include "streambp/model/config/config_notes.h"
#include "streambp/model/config/rope_frequencies.h"
#include "verify/tests/streambp/model/config_testing.h"

namespace streambp {
namespace {

using nlohmann::json;

const json kLlama3 = {{"rope_type", "llama3"},
                      {"factor", 8.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 32}};

TEST(Rope, ReadsRopeInEverySpelling) {
  const RopeSettings llama3 = rope_settings(RopeType::kLlama3, 500.0, 8.0, 32);
  const json llama = small_config("llama");
  EXPECT_EQ(parse(with(llama, {{"rope_scaling", kLlama3}})).rope, llama3);
  EXPECT_EQ(
      parse(with(llama, {{"rope_scaling", with(without(kLlama3, "rope_type"), {{"type", "llama3"}})}})).rope,
      llama3);
  EXPECT_EQ(parse(with(llama, {{"rope_scaling", with(kLlama3, {{"type", "llama3"}})}})).rope, llama3);
  const json five = with(kLlama3, {{"rope_theta", 500}});
  EXPECT_EQ(parse(with(without(llama, "rope_theta"), {{"rope_parameters", five}})).rope, llama3);
  EXPECT_EQ(parse(with(llama, {{"rope_parameters", kLlama3}})).rope, llama3);
  EXPECT_EQ(parse(with(llama, {{"rope_parameters", five}, {"rope_scaling", kLlama3}})).rope, llama3);
  EXPECT_EQ(
      parse(with(without(llama, "rope_theta"), {{"rope_parameters", five}, {"rope_scaling", kLlama3}})).rope,
      llama3);
  EXPECT_EQ(parse(with(without(llama, "rope_theta"), {{"rope_scaling", kLlama3}})).rope.theta, 10000.0);
  const json linear = {{"type", "linear"}, {"factor", 4}, {"high_freq_factor", nullptr}};
  EXPECT_EQ(parse(with(llama, {{"rope_scaling", linear}})).rope,
            rope_settings(RopeType::kLinear, 500.0, 4.0, 0));
  EXPECT_EQ(parse(with(llama, {{"rope_scaling", {{"rope_type", "default"}}}})).rope, parse(llama).rope);
  EXPECT_EQ(parse(with(llama, {{"rope_scaling", json::object()}})).rope, parse(llama).rope);
}

TEST(Rope, RefusesBadRope) {
  const json llama = small_config("llama");
  const auto refuses_rope = [&](const json& changes, const std::string& part, const std::string& other = "") {
    return refuses(with(llama, {{"rope_scaling", with(kLlama3, changes)}}), "rope_scaling." + part, other);
  };
  for (const char* key :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
    EXPECT_TRUE(refuses(with(llama, {{"rope_scaling", without(kLlama3, key)}}),
                        std::string("rope_scaling.") + key, "missing"));
    EXPECT_TRUE(refuses_rope({{key, "8"}}, key));
    EXPECT_TRUE(refuses_rope({{key, -1}}, key));
  }
  EXPECT_TRUE(refuses_rope({{"factor", 0.5}}, "factor is 0.5", "at least 1"));
  EXPECT_TRUE(refuses_rope({{"low_freq_factor", 0}}, "low_freq_factor is 0"));
  EXPECT_TRUE(refuses_rope({{"low_freq_factor", 4.0}}, "high_freq_factor", "above low_freq_factor"));
  EXPECT_TRUE(refuses_rope({{"original_max_position_embeddings", 32.0}}, "original_max_position_embeddings",
                           "an integer"));
  EXPECT_TRUE(refuses_rope({{"rope_type", "su"}}, "rope_type is \"su\"",
                           "default, linear, dynamic, llama3, yarn or longrope"));
  EXPECT_TRUE(refuses_rope({{"rope_type", "yarn"}}, "high_freq_factor is 4.0", "rope type yarn"));
  EXPECT_TRUE(refuses_rope({{"rope_type", 1}}, "rope_type is 1", "a string"));
  EXPECT_TRUE(refuses_rope({{"type", "linear"}}, "rope_type is \"llama3\"", "the same as type: \"linear\""));
  EXPECT_TRUE(refuses_rope({{"rope_type", "linear"}}, "high_freq_factor is 4.0",
                           "no such key with rope type linear"));
  EXPECT_TRUE(refuses_rope({{"rope_type", nullptr}}, "factor is 8.0", "rope type default"));
  EXPECT_TRUE(refuses_rope({{"attention_factor", 1.2}}, "attention_factor"));
  EXPECT_TRUE(refuses_rope({{"partial_rotary_factor", 0.5}}, "partial_rotary_factor"));
  EXPECT_TRUE(refuses_rope({{"rope_theta", 600.0}}, "rope_theta is 600.0", "500.0"));
  EXPECT_TRUE(
      refuses(with(llama, {{"rope_scaling", {{"type", "linear"}}}}), "rope_scaling.factor is missing"));
  EXPECT_TRUE(refuses(with(llama, {{"rope_scaling", "linear"}}), "rope_scaling.", "not a JSON object"));
  EXPECT_TRUE(refuses(with(llama, {{"rope_parameters", {{"full_attention", kLlama3}}}}),
                      "rope_parameters.full_attention"));
  EXPECT_TRUE(refuses(with(llama, {{"rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "default"}}}}),
                      "rope_parameters.rope_theta"));
  EXPECT_TRUE(
      refuses(with(llama, {{"rope_parameters", {{"rope_type", "default"}}}, {"rope_scaling", kLlama3}}),
              "rope_scaling is ", "the same as rope_parameters"));
}

TEST(Rope, ReadsYarn) {
  const json llama = small_config("llama");
  const json yarn = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}};
  const auto rope = [&](const json& changes) {
    return parse(with(llama, {{"rope_scaling", with(yarn, changes)}})).rope;
  };
  RopeSettings expected = rope_settings(RopeType::kYarn, 500.0, 4.0, 32);
  expected.attention_factor = 1.138629436111989;  // 0.1 ln 4 + 1
  EXPECT_EQ(rope(json::object()), expected);
  const json of_model = without(yarn, "original_max_position_embeddings");
  EXPECT_EQ(parse(with(llama, {{"rope_scaling", of_model}, {"max_position_embeddings", 32}})).rope, expected);
  EXPECT_EQ(rope({{"mscale", 0}, {"mscale_all_dim", nullptr}}), expected);
  EXPECT_EQ(rope({{"mscale", 0.7}}), expected);  // transformers reads neither alone
  EXPECT_EQ(rope({{"mscale_all_dim", 0.7}}), expected);
  expected.beta_fast = 16.0;
  expected.beta_slow = 2.0;
  expected.truncate = false;
  expected.attention_factor = 1.5;
  const json stated = {{"beta_fast", 16}, {"beta_slow", 2}, {"truncate", false}, {"attention_factor", 1.5}};
  EXPECT_EQ(rope(stated), expected);
  EXPECT_EQ(rope(with(stated, {{"mscale", 1.0}, {"mscale_all_dim", 0.5}})), expected);
  // (0.07 ln 40 + 1) / (0.1 ln 40 + 1)
  EXPECT_DOUBLE_EQ(rope({{"factor", 40}, {"mscale", 0.7}, {"mscale_all_dim", 1.0}}).attention_factor,
                   0.91915599520444359);
  // The length before scaling may also stand outside, where it has to be the same.
  EXPECT_EQ(parse(with(llama, {{"original_max_position_embeddings", 32},
                               {"rope_scaling", without(yarn, "original_max_position_embeddings")}}))
                .rope,
            rope(json::object()));

  const auto refuses_yarn = [&](const json& changes, const std::string& part, const std::string& other = "") {
    return refuses(with(llama, {{"rope_scaling", with(yarn, changes)}}), "rope_scaling." + part, other);
  };
  EXPECT_TRUE(refuses_yarn({{"factor", nullptr}}, "factor is null"));
  EXPECT_TRUE(
      refuses_yarn({{"original_max_position_embeddings", nullptr}}, "original_max_position_embeddings"));
  EXPECT_TRUE(refuses_yarn({{"attention_factor", 0}}, "attention_factor is 0", "above 0"));
  EXPECT_TRUE(refuses_yarn({{"beta_fast", 0.5}}, "beta_fast is 0.5", "at least beta_slow (1)"));
  EXPECT_TRUE(refuses_yarn({{"beta_slow", 0}}, "beta_slow is 0"));
  EXPECT_TRUE(refuses_yarn({{"truncate", 1}}, "truncate is 1", "true or false"));
  EXPECT_TRUE(refuses_yarn({{"mscale", -1.0}}, "mscale is -1.0"));
  EXPECT_TRUE(refuses_yarn({{"low_freq_factor", 1.0}}, "low_freq_factor", "no such key"));
  EXPECT_TRUE(refuses(with(llama, {{"original_max_position_embeddings", 64}, {"rope_scaling", yarn}}),
                      "rope_scaling.original_max_position_embeddings is 32", "64"));
  EXPECT_TRUE(refuses(with(llama, {{"rope_theta", 1.0}, {"rope_scaling", yarn}}), "rope_theta", "above 1"));
}

TEST(Rope, ReadsDynamic) {
  const json llama = with(small_config("llama"), {{"max_position_embeddings", 16}});
  const json dynamic = {{"type", "dynamic"}, {"factor", 2.0}};
  RopeSettings expected = rope_settings(RopeType::kDynamic, 500.0, 2.0, 16);
  EXPECT_EQ(parse(with(llama, {{"rope_scaling", dynamic}})).rope, expected);
  EXPECT_EQ(
      parse(with(llama, {{"rope_scaling", with(dynamic, {{"original_max_position_embeddings", 16}})}})).rope,
      expected);
  EXPECT_TRUE(
      refuses(with(llama, {{"rope_scaling", with(dynamic, {{"original_max_position_embeddings", 32}})}}),
              "original_max_position_embeddings is 32", "max_position_embeddings (16)"));
  EXPECT_TRUE(
      refuses(with(llama, {{"rope_scaling", dynamic}, {"head_dim", 2}}), "head_dim is 2", "at least 4"));
}

TEST(Rope, ReadsLongropeAndPartialHeads) {
  const json phi = with(without(small_config("phi3"), "head_dim"),
                        {{"hidden_size", 96}, {"sliding_window", 7}, {"partial_rotary_factor", 0.5}});
  const json scaling = {
      {"type", "longrope"}, {"short_factor", {1, 1.5, 2, 4}}, {"long_factor", {1, 3, 5, 8}}};
  const auto longrope = [&](const json& outside, const json& inside) {
    return with(
        with(phi, {{"original_max_position_embeddings", 16}, {"rope_scaling", with(scaling, inside)}}),
        outside);
  };
  RopeSettings expected = rope_settings(RopeType::kLongrope, 500.0, 1.0, 16);
  expected.attention_factor = 1.5;  // sqrt(1 + ln 32 / ln 16)
  expected.short_factor = {1.0, 1.5, 2.0, 4.0};
  expected.long_factor = {1.0, 3.0, 5.0, 8.0};
  const Config config = parse(longrope(json::object(), json::object()));
  EXPECT_EQ(config.rope, expected);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rotary_dim, 8);
  EXPECT_EQ(config.attention_scale, 0.25);
  for (const char* type : {"su", "yarn"}) {
    EXPECT_EQ(parse(longrope(json::object(), {{"type", type}})), config) << type;
  }
  EXPECT_EQ(parse(longrope(json::object(), {{"type", "su"}, {"rope_type", "longrope"}, {"factor", 32}})),
            config);
  const json five = with(scaling, {{"rope_type", "longrope"},
                                   {"rope_theta", 500.0},
                                   {"partial_rotary_factor", 0.5},
                                   {"original_max_position_embeddings", 16}});
  EXPECT_EQ(parse(with(without(without(phi, "rope_theta"), "partial_rotary_factor"),
                       {{"original_max_position_embeddings", 16}, {"rope_parameters", five}})),
            config);
  EXPECT_EQ(parse(longrope({{"max_position_embeddings", 16}}, json::object())).rope.attention_factor, 1.0);
  EXPECT_EQ(parse(longrope(json::object(), {{"attention_factor", 1.25}})).rope.attention_factor, 1.25);
  EXPECT_EQ(parse(without(phi, "partial_rotary_factor")).rotary_dim, 16);

  const auto refuses_longrope = [&](const json& outside, const json& inside, const std::string& part) {
    return refuses(longrope(outside, inside), part);
  };
  EXPECT_TRUE(refuses_longrope({{"partial_rotary_factor", 1.0}}, json::object(),
                               "short_factor is [1,1.5,2,4], expected a "
                               "list of 8 numbers above 0"));
  for (const json& list :
       {json({1, 2, 3}), json({1, 2, 3, 0}), json({1, 2, 3, "4"}), json(4), json(nullptr)}) {
    EXPECT_TRUE(refuses_longrope(json::object(), {{"short_factor", list}}, "rope_scaling.short_factor is"));
    EXPECT_TRUE(refuses_longrope(json::object(), {{"long_factor", list}}, "rope_scaling.long_factor is"));
  }
  EXPECT_EQ(parse(longrope(json::object(), {{"factor", 4}})).rope.attention_factor, std::sqrt(1.5));
  EXPECT_EQ(parse(longrope(json::object(), {{"factor", 0.5}})).rope.attention_factor, 1.0);
  EXPECT_TRUE(refuses_longrope(json::object(), {{"factor", 0}}, "factor is 0"));
  EXPECT_TRUE(refuses_longrope({{"original_max_position_embeddings", nullptr}}, json::object(),
                               "original_max_position_embeddings is missing"));
  EXPECT_TRUE(refuses_longrope({{"original_max_position_embeddings", 1}}, json::object(), "at least 2"));
  EXPECT_TRUE(refuses_longrope(json::object(), {{"partial_rotary_factor", 1.0}},
                               "rope_scaling.partial_rotary_factor is 1.0"));
  EXPECT_TRUE(refuses_longrope(json::object(), {{"type", "linear"}}, "default or longrope"));
  for (const json& factor : {json(0), json(-0.5), json(1.5), json("0.5")}) {
    EXPECT_TRUE(refuses(with(phi, {{"partial_rotary_factor", factor}}), "partial_rotary_factor is"));
  }
  EXPECT_TRUE(
      refuses(with(phi, {{"partial_rotary_factor", 0.45}}), "even number of a head's 16 entries, not 7"));
}

// Found by the table of transformers' own readings (config_table_test.cc).
TEST(Rope, RefusesWhatTransformersReadsOtherwise) {
  const json phi = with(small_config("phi3"), {{"sliding_window", nullptr}});
  const json longrope = {{"rope_type", "longrope"},
                         {"short_factor", {1, 1, 1, 2}},
                         {"long_factor", {1, 2, 3, 4}},
                         {"original_max_position_embeddings", 16}};
  // The class's 4096 holds where the key is absent outside the object.
  EXPECT_TRUE(refuses(with(phi, {{"rope_parameters", longrope}}), "original_max_position_embeddings is 16",
                      "the key outside", "4096"));
  EXPECT_EQ(
      parse(with(phi, {{"rope_parameters", with(longrope, {{"original_max_position_embeddings", 4096}})}}))
          .rope.original_max_position_embeddings,
      4096);
  EXPECT_EQ(parse(with(phi, {{"rope_parameters", without(longrope, "original_max_position_embeddings")}}))
                .rope.original_max_position_embeddings,
            4096);
  const json linear = {{"type", "linear"}, {"factor", 8.0}};
  const json gemma = with(small_config("gemma3_text"), {{"sliding_window", 4}});
  EXPECT_TRUE(
      refuses(with(gemma, {{"rope_scaling", linear}}), "rope_scaling.type is \"linear\"", "rope_type"));
  EXPECT_EQ(parse(with(gemma, {{"rope_scaling", with(linear, {{"rope_type", "linear"}})}})).rope.factor, 8.0);
  const json yarn = {{"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 64}};
  EXPECT_TRUE(
      refuses(with(gemma, {{"rope_scaling", with(yarn, {{"truncate", false}})}}), "truncate is false"));
  EXPECT_TRUE(parse(with(gemma, {{"rope_scaling", yarn}})).rope.truncate);
}

TEST(Rope, NotesAYarnFactorThatOtherVersionsReplace) {
  const json yarn = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  const json llama = with(small_config("llama"), {{"rope_scaling", yarn}});
  const std::vector<std::string> notes = config_notes(parse(llama));
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("512 / 64 = 8"), std::string::npos) << notes[0];
  EXPECT_NE(notes[0].find("4.51 to 4.55"), std::string::npos) << notes[0];
  EXPECT_TRUE(config_notes(parse(with(llama, {{"max_position_embeddings", 256}}))).empty());
  EXPECT_TRUE(config_notes(parse(small_config("llama"))).empty());
}

// The greatest relative difference between the frequencies of `rope` and `expected`.
double frequency_error(const RopeSettings& rope, int64_t length, const std::vector<double>& expected) {
  const auto dim = static_cast<int64_t>(2 * expected.size());
  const std::vector<double> got = rope_inverse_frequencies(rope, dim, length);
  if (got.size() != expected.size()) return INFINITY;
  double error = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    error = std::max(error, std::abs(got[i] / expected[i] - 1.0));
  }
  return error;
}

// Expected numbers: the formulas of modeling_rope_utils.py in double precision, computed apart from this
// code.
TEST(RopeFrequencies, AreThoseOfTheFormulas) {
  const std::vector<double> plain = {1.0, 0.21147425268811282, 0.044721359549995794, 0.0094574160900317578};
  RopeSettings rope;
  rope.theta = 500.0;
  double worst = frequency_error(rope, 40, plain);
  const auto check = [&](int64_t length, const std::vector<double>& expected) {
    const double error = frequency_error(rope, length, expected);
    EXPECT_TRUE(error <= 1e-14) << error << " with type " << static_cast<int>(rope.type) << " at " << length;
    worst = std::max(worst, error);
  };
  check(40, plain);
  rope.type = RopeType::kLinear;
  rope.factor = 4.0;
  check(40, {0.25, 0.052868563172028205, 0.011180339887498949, 0.0023643540225079395});
  rope.type = RopeType::kLlama3;
  rope.factor = 8.0;
  rope.original_max_position_embeddings = 32;
  check(40, {1.0, 0.031185461937584393, 0.0055901699437494743, 0.0011821770112539697});
  rope.type = RopeType::kDynamic;
  rope.factor = 2.0;
  rope.original_max_position_embeddings = 16;
  check(13, plain);
  check(16, plain);
  check(40, {1.0, 0.13322043123627042, 0.017747683298777853, 0.0023643540225079395});
  rope.type = RopeType::kYarn;
  rope.factor = 4.0;
  rope.original_max_position_embeddings = 32;
  check(40, {1.0, 0.13217140793007051, 0.011180339887498949, 0.0023643540225079395});
  rope.truncate = false;
  check(40, {1.0, 0.060098687975737711, 0.011180339887498949, 0.0023643540225079395});
  rope = {};
  rope.type = RopeType::kYarn;
  rope.factor = 4.0;
  rope.original_max_position_embeddings = 512;
  rope.beta_fast = 8.0;
  rope.beta_slow = 2.0;
  check(1, {1.0, 0.31622776601683794, 0.1, 0.019764235376052368, 0.0025, 0.00079056941504209474, 0.00025,
            7.9056941504209485e-05});
  rope = {};
  rope.type = RopeType::kLongrope;
  rope.original_max_position_embeddings = 16;
  rope.short_factor = {1.0, 1.25, 1.5, 2.0};
  rope.long_factor = {1.0, 3.0, 5.0, 8.0};
  check(16, {1.0, 0.08, 0.0066666666666666671, 0.0005});
  check(17, {1.0, 0.033333333333333333, 0.002, 0.000125});
  std::printf("worst relative error %.2g, limit 1e-14\n", worst);
}

}  // namespace
}  // namespace streambp
