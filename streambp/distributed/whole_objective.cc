#include "streambp/distributed/whole_objective.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "streambp/distributed/gathered_rows.h"
#include "streambp/distributed/transport/agreement.h"
#include "streambp/error.h"
#include "streambp/model/scored.h"

namespace streambp {
namespace {

/// The tensor [n, ...] of every rank, of its own n each.
std::vector<at::Tensor> gather_rows(Communicator& communicator, const at::Tensor& own) {
  const at::Tensor lengths = communicator.all_gather(at::full({1}, own.size(0), at::kLong));
  std::vector<int64_t> shape = own.sizes().vec();
  shape[0] = lengths.max().item<int64_t>();
  const at::Tensor padded = at::zeros(shape, own.options());
  padded.narrow(0, 0, own.size(0)).copy_(own);
  const at::Tensor all = communicator.all_gather(padded);
  std::vector<at::Tensor> rows;
  for (int64_t rank = 0; rank < communicator.size(); ++rank)
    rows.push_back(all[rank].narrow(0, 0, lengths[rank].item<int64_t>()));
  return rows;
}

/// All ranks' sequences, one rank's after another's.
struct Gathered {
  Batch batch;
  std::vector<int64_t> sequences;  // of each rank
  std::vector<int64_t> tokens;     // of each rank
};

std::map<std::string, at::Tensor> gather_inputs(Communicator& communicator,
                                                const std::map<std::string, at::Tensor>& own) {
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, input] : own) all[name] = at::cat(gather_rows(communicator, input));
  return all;
}

Gathered gather(Communicator& communicator, const Batch& own) {
  std::string names;
  for (const auto& [name, input] : own.token_inputs) names += name + " ";
  for (const auto& [name, input] : own.sequence_inputs) names += name + " ";
  if (own.value_mask.defined()) names += "value_mask";
  require_agreement(communicator, {{"the inputs of its batch", names}});
  Gathered all;
  Batch& batch = all.batch;
  batch.tokens = at::cat(gather_rows(communicator, own.tokens));
  batch.positions = at::cat(gather_rows(communicator, own.positions));
  batch.targets = at::cat(gather_rows(communicator, own.targets));
  if (own.value_mask.defined()) batch.value_mask = at::cat(gather_rows(communicator, own.value_mask));
  batch.token_inputs = gather_inputs(communicator, own.token_inputs);
  batch.sequence_inputs = gather_inputs(communicator, own.sequence_inputs);
  batch.scalar_inputs = own.scalar_inputs;
  batch.offsets = {0};
  for (const at::Tensor& offsets : gather_rows(communicator, at::tensor(own.offsets, at::kLong))) {
    const int64_t begin = batch.offsets.back();
    for (int64_t i = 1; i < offsets.size(0); ++i) batch.offsets.push_back(begin + offsets[i].item<int64_t>());
    all.sequences.push_back(offsets.size(0) - 1);
    all.tokens.push_back(batch.offsets.back() - begin);
  }
  return all;
}

/// How many blocks of as many sequences a batch has, of which the i-th belong together.
int64_t blocks_of(const ObjectiveKind& kind, const Options& options) {
  if (has_pairs(kind.layout)) return 2;
  return kind.layout == Layout::kTexts ? 2 + static_cast<int64_t>(options.number("negatives", 0.0, 1e6)) : 1;
}

/// The gathered sequences in the whole batch's order: every rank's part of the first block, of the second,
/// ...
std::vector<int64_t> whole_order(const std::vector<int64_t>& sequences, int64_t blocks,
                                 const std::string& name) {
  std::vector<int64_t> order;
  for (int64_t block = 0; block < blocks; ++block) {
    int64_t begin = 0;
    for (size_t rank = 0; rank < sequences.size(); ++rank) {
      if (sequences[rank] % blocks != 0)
        throw InputError("{}: {} sequences on rank {}, expected a multiple of {}", name, sequences[rank],
                         rank, blocks);
      const int64_t of_block = sequences[rank] / blocks;
      for (int64_t i = 0; i < of_block; ++i) order.push_back(begin + block * of_block + i);
      begin += sequences[rank];
    }
  }
  return order;
}

/// Where the sequences of a batch are after select_sequences(batch, order), [S], and its tokens, [N].
std::pair<at::Tensor, at::Tensor> where_selected(const Batch& batch, const std::vector<int64_t>& order) {
  const at::Tensor sequences = at::empty({static_cast<int64_t>(order.size())}, at::kLong);
  const at::Tensor tokens = at::empty({batch.size()}, at::kLong);
  int64_t token = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const auto sequence = static_cast<size_t>(order[i]);
    const int64_t length = batch.offsets[sequence + 1] - batch.offsets[sequence];
    sequences[order[i]] = static_cast<int64_t>(i);
    tokens.narrow(0, batch.offsets[sequence], length).copy_(at::arange(token, token + length, at::kLong));
    token += length;
  }
  return {sequences, tokens};
}

/// `parts` of a tensor [n], n their sum.
std::vector<at::Tensor> split(const at::Tensor& tensor, const std::vector<int64_t>& parts) {
  return at::split_with_sizes(tensor, parts);
}

class WholeObjective final : public Objective {
 public:
  WholeObjective(std::unique_ptr<Objective> whole, GatheredRows scored, GatheredRows sequences,
                 at::Tensor own_tokens)
      : whole_(std::move(whole)),
        scored_(std::move(scored)),
        sequences_(std::move(sequences)),
        own_tokens_(std::move(own_tokens)) {
    router_loss = whole_->router_loss;
    router_loss.counted = own(router_loss.counted);
  }

  std::string name() const override { return whole_->name(); }
  HeadRequest request() const override { return whole_->request(); }
  bool separable() const override { return false; }
  at::Tensor targets() const override { return own(whole_->targets()); }

  at::Tensor loss(const TokenValues& values, int64_t, int64_t) const override {
    TokenValues all = scored_.assemble(values);
    if (values.embeddings.defined()) all.embeddings = sequences_.assemble(values.embeddings);
    return scored_.loss(*whole_, all);
  }

 private:
  /// This rank's of the whole stream's numbers [N].
  at::Tensor own(const at::Tensor& of_tokens) const {
    return of_tokens.defined() ? of_tokens.index_select(0, own_tokens_) : of_tokens;
  }

  std::unique_ptr<Objective> whole_;
  GatheredRows scored_, sequences_;
  at::Tensor own_tokens_;  // [N]: their indices in the whole stream
};

}  // namespace

std::unique_ptr<Objective> whole_objective(Communicator& communicator, const std::string& name,
                                           const Batch& batch,
                                           const std::map<std::string, std::string>& given) {
  const Gathered all = gather(communicator, batch);
  const ObjectiveKind& kind = objective_kind(name);
  const int64_t blocks = blocks_of(kind, complete_options(kind, given, batch));
  const std::vector<int64_t> order = whole_order(all.sequences, blocks, name);
  const auto [sequences, tokens] = where_selected(all.batch, order);
  const Batch whole = select_sequences(all.batch, order);
  const at::Tensor scored_of_whole = scored_indices(whole);
  std::vector<at::Tensor> scored;
  const at::Tensor is_scored = at::zeros({all.batch.size()}, at::kBool);
  is_scored.index_fill_(0, scored_indices(all.batch), 1);
  const std::vector<at::Tensor> tokens_of = split(tokens, all.tokens);
  const std::vector<at::Tensor> are_scored = split(is_scored, all.tokens);
  for (size_t rank = 0; rank < tokens_of.size(); ++rank)
    scored.push_back(at::searchsorted(scored_of_whole, tokens_of[rank].masked_select(are_scored[rank])));
  auto objective = std::make_unique<WholeObjective>(
      make_objective(name, whole, given), GatheredRows(communicator, std::move(scored)),
      GatheredRows(communicator, split(sequences, all.sequences)),
      tokens_of[static_cast<size_t>(communicator.rank())]);
  objective->set_batch(batch);
  return objective;
}

}  // namespace streambp
