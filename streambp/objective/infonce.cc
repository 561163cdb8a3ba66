// Contrastive learning of embeddings: with q_i the anchors' and d_j the documents' embeddings (positives,
// then negatives), the loss is the mean over anchors of -s_ii + log sum_j e^(s_ij), s_ij = scale sim(q_i,
// d_j), sim the cosine or the product: every other anchor's documents are negatives. With `symmetric`, half
// of that and half of the same from the positives to the anchors. InfoNCE, arXiv 1807.03748, equation 4;
// sentence-transformers, MultipleNegativesRankingLoss (symmetric: directions query_to_doc and doc_to_query,
// partition_mode per_direction).
#include "streambp/error.h"
#include "streambp/objective/kinds.h"
#include "streambp/objective/terms.h"

namespace streambp {
namespace {

/// What torch.nn.functional.normalize divides by at least.
constexpr double kSmallestNorm = 1e-12;

class InfoNce final : public Objective {
 public:
  InfoNce(const Batch& batch, const Options& options, const Counts& whole)
      : cosine_(options.word("similarity") == "cosine"),
        symmetric_(options.word("symmetric") == "true"),
        pooling_(options.word("pooling") == "mean" ? Pooling::kMean : Pooling::kLast),
        scale_(options.positive("scale")) {
    const auto sequences = count(batch).sequences;
    const auto blocks = 2 + static_cast<int64_t>(options.number("negatives", 0.0, 1e6));
    if (whole.sequences != sequences) {
      throw InputError("infonce: {} of {} sequences, expected all of them: each one's loss depends on all",
                       sequences, whole.sequences);
    }
    if (sequences % blocks != 0) {
      throw InputError("infonce: {} sequences, expected a multiple of {}: anchors, positives{}", sequences,
                       blocks, blocks > 2 ? fmt::format(" and {} negatives each", blocks - 2) : "");
    }
    anchors_ = sequences / blocks;
    for (size_t i = 0; i + 1 < batch.offsets.size(); ++i) {
      if (batch.offsets[i] == batch.offsets[i + 1])
        throw InputError("infonce: sequence {} has no token, expected one to embed", i);
    }
  }

  std::string name() const override { return "infonce"; }
  bool separable() const override { return false; }
  HeadRequest request() const override {
    HeadRequest request;
    request.log_probabilities = false;
    request.pooling = pooling_;
    return request;
  }

  at::Tensor loss(const TokenValues& values, int64_t, int64_t) const override {
    at::Tensor all = values.embeddings;
    if (cosine_) all = all / at_least(all.square().sum(1, /*keepdim=*/true).sqrt(), kSmallestNorm);
    const at::Tensor documents = all.narrow(0, anchors_, all.size(0) - anchors_);
    const at::Tensor scores = at::mm(all.narrow(0, 0, anchors_), documents.t()) * scale_;
    const at::Tensor forward = mean_loss(scores);
    return symmetric_ ? (forward + mean_loss(scores.narrow(1, 0, anchors_).t())) * 0.5 : forward;
  }

 private:
  /// Of scores [anchors, candidates], the positives' on the diagonal.
  at::Tensor mean_loss(const at::Tensor& scores) const {
    return at::log_softmax(scores, 1).diagonal().sum() * (-1.0 / static_cast<double>(anchors_));
  }

  bool cosine_, symmetric_;
  Pooling pooling_;
  double scale_;
  int64_t anchors_ = 0;
};

}  // namespace

ObjectiveKind infonce_kind() {
  ObjectiveKind kind;
  kind.name = "infonce";
  kind.summary = "InfoNCE: contrastive learning of embeddings with in-batch negatives";
  kind.source = "arXiv 1807.03748; sentence-transformers, MultipleNegativesRankingLoss";
  kind.layout = Layout::kTexts;
  kind.options = {{"pooling", "last", "the last token's hidden state, or the mean of all", {"last", "mean"}},
                  {"scale", "20", "of the similarities: one over the temperature"},
                  {"similarity", "cosine", "of two embeddings", {"cosine", "dot"}},
                  {"negatives", "0", "negatives that each anchor brings, in blocks after the positives"},
                  {"symmetric", "false", "the loss from positives to anchors too", {"true", "false"}}};
  kind.make = [](const Batch& batch, const Options& options,
                 const Counts& whole) -> std::unique_ptr<Objective> {
    return std::make_unique<InfoNce>(batch, options, whole);
  };
  kind.compares_rows = [](const Batch&, const Options&) { return true; };
  kind.knows_router_loss = false;
  return kind;
}

}  // namespace streambp
