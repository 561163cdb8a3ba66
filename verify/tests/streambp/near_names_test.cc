#include "streambp/near_names.h"

#include <gtest/gtest.h>

namespace streambp {
namespace {

const std::vector<std::string> kNames{"qwen3-8b",   "qwen3-14b",       "qwen3-32b",
                                      "qwen2.5-7b", "gemma-4-26b-a4b", "sweep"};

TEST(NearNames, ThoseThatBeginSo) {
  EXPECT_EQ(did_you_mean("gemma-4-26B", kNames), "; did you mean gemma-4-26b-a4b?");
  EXPECT_EQ(did_you_mean("qwen", kNames), "; did you mean qwen3-8b or qwen3-14b or qwen3-32b?");
  EXPECT_EQ(did_you_mean("sw", kNames), "");  // two letters begin many a name
}

TEST(NearNames, ThoseThatAreOneOrTwoLettersAway) {
  EXPECT_EQ(did_you_mean("Qwen3-8", kNames), "; did you mean qwen3-8b?");
  EXPECT_EQ(did_you_mean("seep", kNames), "; did you mean sweep?");
  EXPECT_EQ(did_you_mean("qwen2-7b", kNames), "; did you mean qwen3-8b or qwen2.5-7b?");
  EXPECT_EQ(did_you_mean("qwen3-34b", kNames),
            "; did you mean qwen3-14b or qwen3-32b?");  // the nearest alone
}

TEST(NearNames, NothingIsNear) {
  EXPECT_EQ(did_you_mean("llama", kNames), "");
  EXPECT_EQ(did_you_mean("", kNames), "");
}

}  // namespace
}  // namespace streambp
