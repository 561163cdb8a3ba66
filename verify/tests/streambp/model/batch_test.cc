// Packing: what is dropped, what is kept, what is refused.
#include "streambp/model/batch.h"

#include <gtest/gtest.h>

#include "streambp/error.h"
#include "streambp/model/model.h"

namespace streambp {
namespace {

constexpr int64_t kVocabulary = 50;

at::Tensor rows(std::initializer_list<std::initializer_list<int64_t>> values) {
  std::vector<at::Tensor> stacked;
  for (const auto& row : values)
    stacked.push_back(at::tensor(at::ArrayRef<int64_t>(row.begin(), row.size()), at::kLong));
  return at::stack(stacked);
}

std::vector<int64_t> list(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Pack, DropsPaddingOnBothSides) {
  const Batch batch = pack(rows({{0, 0, 5, 6, 7}, {8, 9, 0, 0, 0}, {1, 2, 3, 4, 5}}),
                           rows({{0, 0, 1, 1, 1}, {1, 1, 0, 0, 0}, {1, 1, 1, 1, 1}}), {}, {}, kVocabulary);
  EXPECT_EQ(list(batch.tokens), (std::vector<int64_t>{5, 6, 7, 8, 9, 1, 2, 3, 4, 5}));
  EXPECT_EQ(batch.offsets, (std::vector<int64_t>{0, 3, 5, 10}));
  EXPECT_EQ(list(batch.positions), (std::vector<int64_t>{0, 1, 2, 0, 1, 0, 1, 2, 3, 4}));
  EXPECT_EQ(list(batch.targets), (std::vector<int64_t>{6, 7, -100, 9, -100, 2, 3, 4, 5, -100}));
  EXPECT_EQ(list(batch.padded_indices), (std::vector<int64_t>{2, 3, 4, 5, 6, 10, 11, 12, 13, 14}));
}

TEST(Pack, LabelsAreShiftedAndMayLieBehindTheLastToken) {
  const Batch batch =
      pack(rows({{5, 6, 7, 0}}), rows({{1, 1, 1, 0}}), rows({{-100, -100, 3, 4}}), {}, kVocabulary);
  EXPECT_EQ(list(batch.targets), (std::vector<int64_t>{-100, 3, 4}));
}

TEST(Pack, KeepsGivenPositions) {
  const Batch batch = pack(rows({{5, 6, 7}}), {}, {}, rows({{3, 9, 10}}), kVocabulary);
  EXPECT_EQ(list(batch.positions), (std::vector<int64_t>{3, 9, 10}));
}

TEST(Pack, UnpackPutsValuesBack) {
  const Batch batch = pack(rows({{0, 5, 6}, {8, 0, 0}}), rows({{0, 1, 1}, {1, 0, 0}}), {}, {}, kVocabulary);
  const at::Tensor padded = unpack(batch, at::tensor({1.0, 2.0, 3.0}, at::kDouble));
  EXPECT_TRUE(at::equal(padded, at::tensor({0.0, 1.0, 2.0, 3.0, 0.0, 0.0}, at::kDouble).view({2, 3})));
}

TEST(Pack, ARowWithoutTokensIsAnEmptySequence) {
  const Batch batch =
      pack(rows({{1, 2}, {0, 0}, {3, 4}}), rows({{1, 1}, {0, 0}, {1, 1}}), {}, {}, kVocabulary);
  EXPECT_EQ(batch.offsets, (std::vector<int64_t>{0, 2, 2, 4}));
  EXPECT_EQ(batch.size(), 4);
}

TEST(Pack, DocumentsBeginWherePositionsDoNotGoOn) {
  const at::Tensor ids = rows({{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}});
  const at::Tensor positions = rows({{0, 1, 0, 0, 5, 6}, {4, 5, 6, 7, 8, 9}});
  const at::Tensor labels = rows({{1, 2, 3, -100, 5, 6}, {7, 8, 9, 10, 11, 12}});
  const Batch batch = pack(ids, {}, labels, positions, kVocabulary);
  EXPECT_TRUE(batch.packed);
  EXPECT_EQ(batch.offsets, (std::vector<int64_t>{0, 2, 3, 4, 6, 12}));
  EXPECT_EQ(list(batch.positions), (std::vector<int64_t>{0, 1, 0, 0, 5, 6, 4, 5, 6, 7, 8, 9}));
  // A document's first label is predicted from the one before, but for a row's first.
  EXPECT_EQ(list(batch.targets),
            (std::vector<int64_t>{2, 3, kNoTarget, 5, 6, kNoTarget, 8, 9, 10, 11, 12, kNoTarget}));
  EXPECT_EQ(batch.targets_across_documents, 2);
  EXPECT_EQ(batch.rope_length, 10);

  const Batch unlabelled = pack(ids, {}, {}, positions, kVocabulary);
  EXPECT_EQ(list(unlabelled.targets), (std::vector<int64_t>{2, kNoTarget, kNoTarget, kNoTarget, 6, kNoTarget,
                                                            8, 9, 10, 11, 12, kNoTarget}));
  EXPECT_EQ(unlabelled.targets_across_documents, 0);

  const Batch masked = pack(ids, at::ones_like(ids), labels, positions, kVocabulary);
  EXPECT_FALSE(masked.packed);
  EXPECT_EQ(masked.offsets, (std::vector<int64_t>{0, 6, 12}));
  EXPECT_EQ(masked.targets_across_documents, 0);
  EXPECT_FALSE(pack(ids, {}, {}, {}, kVocabulary).packed);

  const Batch shared = pack(ids, {}, {}, rows({{0, 1, 2, 0, 1, 2}}), kVocabulary);
  EXPECT_EQ(shared.offsets, (std::vector<int64_t>{0, 3, 6, 9, 12})) << "one row of positions for all";
}

TEST(Pack, DocumentsArePartedAndPutTogetherAsSequences) {
  const at::Tensor ids = rows({{1, 2, 3, 4, 5, 6}, {7, 8, 9, 10, 11, 12}});
  const at::Tensor positions = rows({{0, 1, 0, 0, 5, 6}, {4, 5, 6, 7, 8, 9}});
  Batch batch = pack(ids, {}, ids, positions, kVocabulary);
  batch.scalar_inputs["divisor"] = 9.0;
  const std::vector<Batch> parts = micro_batches(batch, 2, /*pairs=*/false);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].offsets, (std::vector<int64_t>{0, 2, 3}));
  EXPECT_EQ(list(parts[0].targets), (std::vector<int64_t>{2, 3, 4}));
  EXPECT_EQ(list(parts[1].tokens), (std::vector<int64_t>{4, 5, 6, 7, 8, 9, 10, 11, 12}));
  for (const Batch& part : parts) {
    EXPECT_TRUE(part.packed);
    EXPECT_EQ(rope_length(part), 10);
    EXPECT_EQ(part.scalar_inputs.at("divisor"), 9.0);
  }
  EXPECT_TRUE(at::equal(unpack(batch, batch.tokens), ids));
}

TEST(Pack, PaddingCountsForTheRotaryLength) {
  const at::Tensor ids = rows({{5, 6, 0, 0}, {7, 0, 0, 0}});
  const at::Tensor mask = rows({{1, 1, 0, 0}, {1, 0, 0, 0}});
  EXPECT_EQ(pack(ids, mask, {}, {}, kVocabulary).rope_length, 4) << "columns";
  const at::Tensor positions = rows({{0, 1, 1, 1}, {0, 1, 1, 8}});
  const Batch batch = pack(ids, mask, {}, positions, kVocabulary);
  EXPECT_EQ(rope_length(batch), 9);
  const Batch first = select_sequences(batch, {0});
  EXPECT_EQ(rope_length(first), 9);
  EXPECT_EQ(first.padded_rows, 2);
  EXPECT_EQ(first.padded_columns, 4) << "values go back where they came from";
  EXPECT_EQ(rope_length(random_batch({3, 2}, kVocabulary, 1)), 3);
  EXPECT_NE(refusal([] {
              random_batch({3, kMaxTokens - 2}, kVocabulary, 1);
            }).find("at most 67108864"),
            std::string::npos);
  const at::Tensor far = rows({{0, 1, 1, 1}, {0, 1, 1, int64_t{1} << 40}});
  EXPECT_NE(refusal([&] { pack(ids, mask, {}, far, kVocabulary); }).find("position_ids[1, 3] is"),
            std::string::npos);
}

TEST(Pack, FirstLabelsThatPaddingWouldPredictAreIgnoredOnRequest) {
  const at::Tensor ids = rows({{0, 0, 5, 6}, {7, 8, 9, 10}, {0, 11, 12, 13}});
  const at::Tensor mask = rows({{0, 0, 1, 1}, {1, 1, 1, 1}, {0, 1, 1, 1}});
  const at::Tensor labels = ids.masked_fill(mask.eq(0), kNoTarget);
  EXPECT_NE(
      refusal([&] {
        pack(ids, mask, labels, {}, kVocabulary);
      }).find("labels[0, 2] would be predicted from padding: expected -100 there, or --first-labels ignore"),
      std::string::npos);
  const Batch batch = pack(ids, mask, labels, {}, kVocabulary, FirstLabels::kIgnore);
  EXPECT_EQ(batch.first_labels_ignored, 2);
  EXPECT_TRUE(at::equal(batch.targets, pack(ids, mask, {}, {}, kVocabulary).targets));
  // A label of padding itself stays refused.
  const std::string other = refusal([&] { pack(ids, mask, ids, {}, kVocabulary, FirstLabels::kIgnore); });
  EXPECT_NE(other.find("labels[0, 1] would be predicted from padding: expected -100 there"),
            std::string::npos);
  EXPECT_NE(other.find("--first-labels ignore-all"), std::string::npos) << other;
}

TEST(Pack, RefusesWhatItCannotMean) {
  const at::Tensor ids = rows({{5, 6, 7}});
  const auto with = [&](const at::Tensor& mask, const at::Tensor& labels, const at::Tensor& positions) {
    return refusal([&] { pack(ids, mask, labels, positions, kVocabulary); });
  };
  EXPECT_NE(refusal([] {
              pack(rows({{5, 50}}), {}, {}, {}, kVocabulary);
            }).find("input_ids[0, 1] is 50"),
            std::string::npos);
  EXPECT_NE(refusal([] {
              pack(rows({{-1, 5}}), {}, {}, {}, kVocabulary);
            }).find("input_ids[0, 0] is -1"),
            std::string::npos);
  EXPECT_NE(with(rows({{1, 0, 1}}), {}, {}).find("hole at column 1"), std::string::npos);
  EXPECT_NE(with(rows({{1, 2, 1}}), {}, {}).find("attention_mask[0, 1] is 2"), std::string::npos);
  EXPECT_NE(with(rows({{0, 0, 0}}), {}, {}).find("no row has a token"), std::string::npos);
  EXPECT_NE(with({}, rows({{-100, 6}}), {}).find("labels: expected the shape"), std::string::npos);
  EXPECT_NE(with({}, rows({{-100, 6, 99}}), {}).find("labels[0, 2] is 99"), std::string::npos);
  EXPECT_NE(
      with(rows({{0, 1, 1}}), rows({{-100, 6, 7}}), {}).find("labels[0, 1] would be predicted from padding"),
      std::string::npos);
  EXPECT_NE(with({}, {}, rows({{0, -1, 2}})).find("position_ids[0, 1] is -1"), std::string::npos);
  EXPECT_NE(refusal([&] { pack(ids.to(at::kFloat), {}, {}, {}, kVocabulary); }).find("integer"),
            std::string::npos);
  EXPECT_NE(refusal([&] { pack(ids.flatten(), {}, {}, {}, kVocabulary); }).find("[rows, columns]"),
            std::string::npos);
}

TEST(StreamRows, KnowWhichSequenceTheyContinue) {
  Stream stream;
  stream.batch = random_batch({4, 1, 1, 5}, kVocabulary, 1);
  stream.rope = {at::zeros({11, 2}), at::zeros({11, 2})};
  const Rows middle = stream.rows(2, 7);
  EXPECT_EQ(middle.sequence_begin, 0);
  EXPECT_EQ(middle.offsets, (std::vector<int64_t>{0, 2, 3, 4, 5}));
  const Rows from_boundary = stream.rows(4, 6);
  EXPECT_EQ(from_boundary.sequence_begin, 4);
  EXPECT_EQ(from_boundary.offsets, (std::vector<int64_t>{0, 1, 2}));
  const Rows last = stream.rows(10, 11);
  EXPECT_EQ(last.sequence_begin, 6);
  EXPECT_EQ(last.offsets, (std::vector<int64_t>{0, 1}));
}

TEST(StreamRows, SkipEmptySequences) {
  Stream stream;
  stream.batch = random_batch({3, 3}, kVocabulary, 1);
  stream.batch.offsets = {0, 0, 3, 3, 3, 6, 6};
  stream.rope = {at::zeros({6, 2}), at::zeros({6, 2})};
  EXPECT_EQ(stream.rows(0, 6).offsets, (std::vector<int64_t>{0, 3, 6}));
  EXPECT_EQ(stream.rows(3, 5).sequence_begin, 3);
  EXPECT_EQ(stream.rows(3, 5).offsets, (std::vector<int64_t>{0, 2}));
  EXPECT_EQ(stream.rows(4, 6).sequence_begin, 3);
}

}  // namespace
}  // namespace streambp
