// The tables of methods and settings: every row is complete, and every setting reads what it writes.
#include <gtest/gtest.h>
#include <set>

#include "streambp/backprop/method.h"
#include "streambp/backprop/method_kind.h"
#include "streambp/backprop/settings.h"
#include "streambp/error.h"
#include "streambp/model/config/config.h"

namespace streambp {
namespace {

/// Values of `kind` to try: all words, and some numbers.
std::vector<std::string> values_of(const SettingKind& kind) {
  std::vector<std::string> values = kind.choices;
  values.insert(values.end(), kind.examples.begin(), kind.examples.end());
  if (kind.type == SettingType::kSwitch) values = {"true", "false"};
  if (kind.type == SettingType::kNumber) values.insert(values.end(), {"1", "7", "123456789012"});
  return values;
}

TEST(MethodKinds, AreCompleteAndInOrder) {
  std::set<std::string> names;
  for (size_t i = 0; i < method_kinds().size(); ++i) {
    const MethodKind& kind = method_kinds()[i];
    EXPECT_EQ(static_cast<size_t>(kind.method), i) << kind.name;
    EXPECT_EQ(&method_kind(kind.method), &kind);
    EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
    EXPECT_FALSE(kind.summary.empty()) << kind.name;
    EXPECT_FALSE(kind.source.empty()) << kind.name;
    EXPECT_FALSE(kind.keeps.empty()) << kind.name;
    EXPECT_NE(kind.run, nullptr) << kind.name;
    EXPECT_NE(kind.layer_runs, nullptr) << kind.name;
    EXPECT_NE(describe_methods().find("  " + kind.name + ": " + kind.summary), std::string::npos);
    for (const std::string& setting : kind.settings) EXPECT_NO_THROW(setting_kind(setting)) << kind.name;
    EXPECT_TRUE(kind.takes("head") && kind.takes("head_chunk")) << kind.name;
    EXPECT_EQ(is_chunked(kind.method), kind.auto_chunk != nullptr) << kind.name;
    EXPECT_EQ(is_chunked(kind.method), !kind.candidate_chunks.empty()) << kind.name;
    EXPECT_TRUE(is_chunked(kind.method) || !kind.equal_with_one_chunk) << kind.name;
    EXPECT_TRUE(is_chunked(kind.method) || (!kind.chunks_mlp_only && !kind.head_by_chunks)) << kind.name;
    if (kind.with_streamed_head) {
      EXPECT_EQ(kind.head, HeadDefault::kFull) << kind.name;
      EXPECT_EQ(method_kind(*kind.with_streamed_head).run, kind.run) << kind.name;
    }
  }
}

TEST(MethodKinds, RunLayersAsTheySay) {
  const Config config = preset("qwen3-tiny");
  for (const MethodKind& kind : method_kinds()) {
    Settings settings;
    settings.method = kind.method;
    settings.chunk = is_chunked(kind.method) ? 4 : 0;
    const LayerRuns runs = kind.layer_runs(settings, {10, 3}, config, 0, /*joined=*/false);
    EXPECT_EQ(runs.mlp, kind.recomputes ? 2.0 : 1.0) << kind.name;
    EXPECT_TRUE(runs.down >= 1.0 && runs.down <= runs.mlp) << kind.name;
    EXPECT_TRUE(runs.keys_values >= 0.0 && runs.keys_values_backward == 0.0) << kind.name;
    const LayerRuns joined = kind.layer_runs(settings, {10, 3}, config, 1, /*joined=*/true);
    EXPECT_EQ(joined.mlp, 1.0) << kind.name;
  }
  // 13 tokens in chunks of 4: all but the last token are before a later chunk.
  Settings settings;
  settings.chunk = 4;
  const auto of_streambp = method_kind(Method::kStreambp).layer_runs;
  EXPECT_EQ(of_streambp(settings, {10, 3}, config, 0, false).keys_values, 12.0 / 13.0);
  EXPECT_EQ(of_streambp(settings, {10, 3}, config, 0, false).down, 1.0);
  settings.keep.attention = kAllLayers;
  EXPECT_EQ(of_streambp(settings, {10, 3}, config, 0, false).attention, 1.0);
  // In forward order the chunks see 4, 8 and 2 earlier tokens of their sequences.
  settings.order = Order::kForward;
  const LayerRuns forward = of_streambp(settings, {10, 3}, config, 0, false);
  EXPECT_EQ(forward.keys_values, forward.keys_values_backward);
  EXPECT_EQ(forward.keys_values, 14.0 / 13.0);
  EXPECT_EQ(forward.down, 2.0);
}

TEST(MethodKinds, CandidateChunksHalveAgainAndAgain) {
  for (const MethodKind& kind : method_kinds()) {
    int64_t larger = 8192;
    for (const int64_t chunk : kind.candidate_chunks) {
      EXPECT_TRUE(chunk >= 64 && chunk < larger && (chunk & (chunk - 1)) == 0) << kind.name << " " << chunk;
      larger = chunk;
    }
  }
}

TEST(MethodKinds, SayWhatTheyKeepOfTheLayers) {
  const auto kept = [](const std::string& keep, int64_t every = 1, const std::string& offload = "none") {
    Settings settings;
    set_setting(setting_kind("keep"), settings, keep);
    settings.every = every;
    set_setting(setting_kind("offload"), settings, offload);
    return method_kind(Method::kStreambp).describe_kept(settings);
  };
  EXPECT_EQ(kept("none"), "inputs");
  EXPECT_EQ(kept("none", 4), "1/4 inputs");
  EXPECT_EQ(kept("attention:1,gate-up:2"), "inputs+attention:1+gate-up:2");
  EXPECT_EQ(kept("keys-values", 3, "host"), "1/3 inputs+keys-values on host");
  EXPECT_EQ(kept("gate-up", 1, "host:7"), "inputs+gate-up, 7 on host");
  EXPECT_EQ(kept("gate-up", 1, "host:0"), "inputs+gate-up, 0 on host");
  EXPECT_EQ(method_kind(Method::kChunkMajor).describe_kept({}), "keys+values");
}

TEST(SettingKinds, ReadWhatTheyWrite) {
  std::set<std::string> names, flags;
  for (const SettingKind& kind : setting_kinds()) {
    EXPECT_TRUE(names.insert(kind.name).second && flags.insert(kind.flag).second) << kind.name;
    EXPECT_EQ(&setting_kind(kind.name), &kind);
    EXPECT_TRUE(kind.flag.starts_with("--")) << kind.flag;
    EXPECT_FALSE(kind.help.empty()) << kind.name;
    EXPECT_FALSE(methods_that_take(kind.name).empty()) << kind.name;
    ASSERT_NE(kind.text, nullptr) << kind.name;
    ASSERT_NE(kind.assign, nullptr) << kind.name;
    EXPECT_TRUE(is_default(kind, Settings{})) << kind.name;
    std::set<std::string> seen;
    for (const std::string& value : values_of(kind)) {
      Settings settings;
      set_setting(kind, settings, value);
      EXPECT_EQ(kind.text(settings), value) << kind.name;
      EXPECT_EQ(is_default(kind, settings), value == kind.text(Settings{})) << kind.name;
      for (const SettingKind& other : setting_kinds()) {
        EXPECT_TRUE(&other == &kind || is_default(other, settings))
            << kind.name << "=" << value << " changes " << other.name;
      }
    }
    Settings settings;
    for (const char* wrong : {"", "nonesuch", "0", "-1", "1.5", "7x", "99999999999999999999",
                              "host:", "host:x", "host:7x", "host:-1", "host:99999999999999999999"})
      EXPECT_THROW(set_setting(kind, settings, wrong), InputError) << kind.name << " '" << wrong << "'";
  }
  EXPECT_THROW(setting_kind("nonesuch"), InputError);
}

TEST(SettingKinds, ListValuesThatCanBeSet) {
  for (const SettingKind& kind : setting_kinds()) {
    std::vector<std::string> listed = kind.same_bits;
    listed.insert(listed.end(), kind.same_gradients.begin(), kind.same_gradients.end());
    for (const std::string& value : listed) {
      Settings settings;
      EXPECT_NO_THROW(set_setting(kind, settings, value)) << kind.name << " " << value;
      EXPECT_FALSE(is_default(kind, settings)) << kind.name << " " << value;
    }
    if (kind.candidates == nullptr) continue;
    EXPECT_TRUE(kind.searched) << kind.name;
    for (const int64_t layers : {1, 2, 36}) {
      for (const bool may_offload : {false, true}) {
        const std::vector<std::string> candidates = kind.candidates({layers, may_offload});
        bool has_default = false;
        for (const std::string& value : candidates) {
          Settings settings;
          EXPECT_NO_THROW(set_setting(kind, settings, value)) << kind.name << " " << value;
          has_default = has_default || is_default(kind, settings);
        }
        EXPECT_TRUE(has_default) << kind.name;
      }
    }
  }
}

TEST(SettingKinds, NameTheMethodsThatTakeTheHeadInFull) {
  std::string help;
  for (const SettingKind& kind : setting_kinds()) help = kind.name == "head" ? kind.help : help;
  for (const MethodKind& method : method_kinds())
    EXPECT_EQ(help.find(method.name) != std::string::npos, method.head == HeadDefault::kFull) << method.name;
}

TEST(Vocabularies, MayDifferByOnePercent) {
  HeadRequest request;
  request.divergence = Divergence::kForward;
  for (const auto& [policy, teacher] : {std::pair{100, 99}, {99, 100}, {100, 100}, {1000, 991}})
    EXPECT_NO_THROW(check_vocabularies(request, policy, teacher)) << policy << " " << teacher;
  for (const auto& [policy, teacher] : {std::pair{100, 98}, {98, 100}, {1000, 989}})
    EXPECT_THROW(check_vocabularies(request, policy, teacher), InputError) << policy << " " << teacher;
  request.any_vocabulary = true;
  EXPECT_NO_THROW(check_vocabularies(request, 100, 50));
  EXPECT_NO_THROW(check_vocabularies({}, 100, 50)) << "no teacher";
}

TEST(SettingKinds, ProposeWhatIsWorthTrying) {
  using Values = std::vector<std::string>;
  const auto candidates = [](const char* name, int64_t layers, int64_t every = 1) {
    SearchContext context{layers, /*may_offload=*/false};
    context.settings.every = every;
    return setting_kind(name).candidates(context);
  };
  EXPECT_EQ(candidates("every", 1), (Values{"1"}));
  EXPECT_EQ(candidates("every", 4), (Values{"1", "2"}));
  EXPECT_EQ(candidates("every", 16), (Values{"1", "2", "4"}));
  EXPECT_EQ(candidates("every", 28), (Values{"1", "2", "4", "5"}));
  EXPECT_EQ(candidates("every", 100), (Values{"1", "2", "4", "8", "10"}));
  const std::string half = "keys-values,attention-half", queries = "queries," + half;
  const std::string some = queries + ",gate-up:", all = queries + ",gate-up";
  EXPECT_EQ(candidates("keep", 1), (Values{"none", "keys-values", half, queries, some + "1", all}));
  EXPECT_EQ(candidates("keep", 36),
            (Values{"none", "keys-values", half, queries, some + "9", some + "18", some + "27", all}));
  EXPECT_EQ(candidates("keep", 36, /*every=*/2), (Values{"none"}));
  EXPECT_EQ(candidates("keep_attention", 36), (Values{"true", "false"}));
}

TEST(SettingKinds, TakeBackWhatTheySet) {
  for (const SettingKind& kind : setting_kinds()) {
    for (const std::string& value : values_of(kind)) {
      Settings settings;
      set_setting(kind, settings, value);
      set_setting(kind, settings, kind.text(Settings{}));
      for (const SettingKind& each : setting_kinds())
        EXPECT_TRUE(is_default(each, settings)) << kind.name << "=" << value << " leaves " << each.name;
    }
  }
}

TEST(Settings, AreThoseThatTheMethodTakes) {
  Settings asked;
  for (const SettingKind& kind : setting_kinds()) {
    for (const std::string& value : values_of(kind)) {
      if (value != kind.text(Settings{})) set_setting(kind, asked, value);
    }
  }
  for (const MethodKind& method : method_kinds()) {
    const Settings settings = settings_for(method.method, asked);
    EXPECT_EQ(settings.method, method.method);
    EXPECT_NO_THROW(check_settings(settings)) << method.name;
    for (const SettingKind& kind : setting_kinds())
      EXPECT_EQ(kind.text(settings), kind.text(method.takes(kind.name) ? asked : Settings{})) << kind.name;
  }
}

TEST(Settings, AreRefusedElsewhere) {
  for (const MethodKind& method : method_kinds()) {
    Settings plain;
    plain.method = method.method;
    EXPECT_NO_THROW(check_settings(plain)) << method.name;
    for (const SettingKind& kind : setting_kinds()) {
      for (const std::string& value : values_of(kind)) {
        Settings settings = plain;
        set_setting(kind, settings, value);
        const bool taken = method.takes(kind.name) || !kind.refused_elsewhere || is_default(kind, settings);
        const bool full =
            method.head == HeadDefault::kAlwaysStreamed && kind.name == "head" && value == "full";
        if (taken && !full) {
          EXPECT_NO_THROW(check_settings(settings)) << configuration_text(settings);
        } else {
          EXPECT_THROW(check_settings(settings), InputError) << configuration_text(settings);
        }
      }
    }
  }
  for (const auto& spoil : {+[](Settings& s) { s.chunk = -1; }, +[](Settings& s) { s.every = 0; },
                            +[](Settings& s) { s.head_chunk = -1; }}) {
    Settings settings;
    spoil(settings);
    EXPECT_THROW(check_settings(settings), InputError);
  }
}

TEST(Settings, AreDescribedWhereTheyAreNotTheDefault) {
  Settings settings;
  EXPECT_EQ(configuration_text(settings), "streambp");
  settings.chunk = 1024;
  settings.keep.attention = kAllLayers;
  settings.every = 4;
  settings.offload = Offload::kHost;
  settings.order = Order::kForward;
  settings.head_chunk = 64;
  EXPECT_EQ(configuration_text(settings),
            "streambp, chunk 1024, keep-attention, every 4, offload host, order forward, head-chunk 64");
  settings = {};
  settings.stream_head = false;
  EXPECT_EQ(configuration_text(settings), "streambp, full head");
  settings.method = Method::kStandard;
  EXPECT_EQ(configuration_text(settings), "standard");
  settings.stream_head = true;
  settings.baseline = "hugging-face";
  EXPECT_EQ(configuration_text(settings), "standard, streamed head, baseline hugging-face");
  settings.stream_head = false;
  settings.head_chunk = 64;
  EXPECT_EQ(configuration_text(settings), "standard, baseline hugging-face") << "a full head has no chunks";
}

TEST(Settings, HaveVariantsForTheEqualitySweep) {
  Settings streambp;
  // Two values of keep_attention, four of every, two of keep, three of offload, without the plain pass.
  const std::vector<Settings> variants = same_bits_variants(streambp, /*with_full_head=*/false);
  EXPECT_EQ(variants.size(), 47u);
  std::set<std::string> texts{configuration_text(streambp)};
  for (const Settings& variant : variants) {
    EXPECT_NO_THROW(check_settings(variant));
    EXPECT_TRUE(texts.insert(configuration_text(variant)).second) << configuration_text(variant);
  }
  EXPECT_TRUE(same_bits_variants(streambp, /*with_full_head=*/true).empty());
  ASSERT_EQ(same_gradients_variants(streambp).size(), 1u);
  EXPECT_EQ(same_gradients_variants(streambp).front().order, Order::kForward);
  Settings standard;
  standard.method = Method::kStandard;
  EXPECT_TRUE(same_bits_variants(standard, false).empty());
  ASSERT_EQ(same_bits_variants(standard, true).size(), 2u);
  EXPECT_EQ(same_bits_variants(standard, true).front().baseline, "hugging-face");
  EXPECT_EQ(same_bits_variants(standard, true).back().baseline, "trl");
  EXPECT_TRUE(same_gradients_variants(standard).empty());
}

}  // namespace
}  // namespace streambp
