// Intervals of medians, changes, crossings; texts of documents.
#include <gtest/gtest.h>
#include <numeric>
#include <vector>

#include "bench/report_pages/csv.h"
#include "bench/report_pages/document.h"
#include "bench/report_pages/statistics.h"

namespace streambp::bench {
namespace {

TEST(ReportStatistics, FewRepeatsGiveTheirRange) {
  const MedianInterval three = median_interval({3.0, 1.0, 2.0});
  EXPECT_EQ(three.median, 2.0);
  EXPECT_EQ(three.low, 1.0);
  EXPECT_EQ(three.high, 3.0);
  EXPECT_DOUBLE_EQ(three.coverage, 0.75);
  EXPECT_EQ(median_interval({5.0}).coverage, 0.0);
  EXPECT_DOUBLE_EQ(median_interval({1.0, 2.0, 3.0, 4.0, 5.0}).coverage, 0.9375);
}

TEST(ReportStatistics, RatiosHaveAGeometricMean) {
  EXPECT_DOUBLE_EQ(geometric_mean({0.5, 2.0}), 1.0);
  EXPECT_DOUBLE_EQ(geometric_mean({4.0}), 4.0);
  EXPECT_NEAR(geometric_mean({1.0, 1.0, 8.0}), 2.0, 1e-15);
}

TEST(ReportStatistics, ManyRepeatsGiveOrderStatistics) {
  // Of 9 values the second and the eighth cover the median with 1 - 2 (1 + 9) / 2^9.
  const MedianInterval nine = median_interval({9, 8, 7, 6, 5, 4, 3, 2, 1});
  EXPECT_EQ(nine.low, 2.0);
  EXPECT_EQ(nine.high, 8.0);
  EXPECT_DOUBLE_EQ(nine.coverage, 1.0 - 20.0 / 512.0);
  const MedianInterval six = median_interval({1, 2, 3, 4, 5, 6});
  EXPECT_EQ(six.low, 1.0);
  EXPECT_EQ(six.high, 6.0);
  EXPECT_DOUBLE_EQ(six.coverage, 1.0 - 2.0 / 64.0);
}

/// 0.5^n is no double then: the interval was the median alone, and each of its steps took all before it.
TEST(ReportStatistics, ManyThousandsOfRepeatsKeepTheirInterval) {
  for (const auto& [count, low] :
       {std::pair<size_t, double>{1000, 469.0}, {2000, 956.0}, {1000000, 499020.0}}) {
    std::vector<double> values(count);
    std::iota(values.begin(), values.end(), 1.0);
    const MedianInterval interval = median_interval(values);
    EXPECT_EQ(interval.low, low);
    EXPECT_EQ(interval.high, static_cast<double>(count) + 1.0 - low);
    EXPECT_GE(interval.coverage, 0.95);
    EXPECT_LT(interval.coverage, 0.954);
  }
}

TEST(ReportStatistics, ChangesNeedTheWholeInterval) {
  const double threshold = 0.02;
  EXPECT_EQ(judge({1.1, 1.03, 1.2}, threshold), Change::kWorse);
  EXPECT_EQ(judge({1.1, 1.01, 1.2}, threshold), Change::kAmbiguous);
  EXPECT_EQ(judge({1.0, 0.99, 1.01}, threshold), Change::kSame);
  EXPECT_EQ(judge({0.9, 0.85, 0.97}, threshold), Change::kBetter);
  EXPECT_EQ(judge({0.9, 0.85, 0.99}, threshold), Change::kAmbiguous);
  const RatioInterval ratio = ratio_interval({2.0, 2.2, 2.4}, {1.0, 1.1, 1.25});
  EXPECT_DOUBLE_EQ(ratio.ratio, 2.0);
  EXPECT_DOUBLE_EQ(ratio.low, 2.0 / 1.25);
  EXPECT_DOUBLE_EQ(ratio.high, 2.4);
}

TEST(ReportStatistics, CrossingsAreInterpolatedInLogarithms) {
  EXPECT_EQ(cheaper_text({}), "");
  EXPECT_EQ(cheaper_text({{1024, 0.5}, {2048, 0.9}}), "at every length");
  EXPECT_EQ(cheaper_text({{1024, 1.5}, {2048, 1.0}}), "at none");
  // Halfway in the logarithms: 1,024 x sqrt(4) = 2,048.
  EXPECT_EQ(cheaper_text({{1024, 2.0}, {4096, 0.5}}), "from about 2000");
  EXPECT_EQ(cheaper_text({{1024, 0.5}, {4096, 2.0}}), "at the shortest, up to about 2000");
}

TEST(ReportText, FiguresAndLinksHaveTheirTexts) {
  EXPECT_EQ(length_text(8192), "8,192");
  EXPECT_EQ(length_text(131072), "128K");
  EXPECT_EQ(length_text(1234567), "1,234,567");
  EXPECT_EQ(bytes_text(1.25e9), "1.25 GB");
  EXPECT_EQ(bytes_text(std::nullopt), "-");
  EXPECT_EQ(seconds_text(0.5), "0.5 s");
  EXPECT_EQ(relative_link("/a/b/c d\"<.jsonl", "/a/e"), "../b/c%20d%22%3C.jsonl");
}

TEST(ReportText, DocumentsArePrintable) {
  Document document;
  document.title = "\x1b[31m\n\xff";
  document.sections = {{"a", "b", {Chart{"c", {{{"name", "\x1b"}}}, {}}}}};
  const nlohmann::json json = document_json(document, "/");
  EXPECT_EQ(json.at("title"), "\\x1b[31m\\n\\xff");
  EXPECT_EQ(json.at("sections")[0].at("blocks")[0].at("plots")[0].at("name"), "\\x1b");
}

TEST(ReportText, CsvIsReadAsItIsWritten) {
  const auto rows = csv_rows("# a, comment\na,\"b,\"\"c\"\"\"\r\n\n\"two\nlines\",d");
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0], (std::vector<std::string>{"a", "b,\"c\""}));
  EXPECT_EQ(rows[1], (std::vector<std::string>{"two\nlines", "d"}));
}

}  // namespace
}  // namespace streambp::bench
