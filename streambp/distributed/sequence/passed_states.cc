#include "streambp/distributed/sequence/passed_states.h"

#include "streambp/distributed/sequence/rows_of_rank.h"
#include "streambp/memory/meter.h"
#include "streambp/ops/sum_dtype.h"

namespace streambp {

PassedStates::PassedStates(Communicator& communicator, const RowsOfRank& rows, const Model& model,
                           const Chunks& chunks, Holds holds, DeltaCarry& arrived)
    : communicator_(communicator),
      continues_(rows.continues()),
      is_continued_(rows.is_continued()),
      goes_back_(holds != Holds::kForward),
      model_(model),
      last_end_(chunks.rows(chunks.last()).end),
      within_(model, chunks, holds),
      arrived_(arrived) {}

DeltaCarry PassedStates::empty() const {
  const MemoryScope scope("recurrent states");
  const DeltaRuleSettings& rule = model_.config().delta_rule;
  const auto options = at::TensorOptions().device(model_.device()).dtype(model_.dtype());
  at::Tensor state;
  if (!rule.convolution_alone)
    state = at::empty({rule.value_heads, rule.key_head_dim, rule.value_head_dim},
                      options.dtype(sum_dtype(model_.dtype())));
  return {std::move(state), at::empty({rule.conv_kernel - 1, rule.channels()}, options)};
}

void PassedStates::send(const DeltaCarry& carry, int64_t to) {
  for (const at::Tensor& tensor : {carry.state, carry.tail}) {
    if (tensor.defined()) communicator_.send_receive(tensor.contiguous(), to, tensor.new_empty({0}), to);
  }
}

DeltaCarry PassedStates::receive(int64_t from) {
  DeltaCarry carry = empty();
  for (const at::Tensor& tensor : {carry.state, carry.tail}) {
    if (tensor.defined()) communicator_.send_receive(tensor.new_empty({0}), from, tensor, from);
  }
  return carry;
}

void PassedStates::allocate_gradients() {
  within_.allocate_gradients();
  if (!continues_) return;
  of_first_ = empty();
  if (of_first_.state.defined()) of_first_.state.zero_();
  of_first_.tail.zero_();
}

void PassedStates::store(const Rows& rows, const Carry& own) {
  if (rows.end == last_end_) {
    left_ = own.recurrent;
  } else {
    within_.store(rows, own);
  }
}

Before PassedStates::before(const Rows& rows) {
  if (rows.begin > 0 || !continues_) return within_.before(rows);
  return {.attention = {}, .recurrent = {{arrived_.state, of_first_.state}, {arrived_.tail, of_first_.tail}}};
}

Carry PassedStates::received(const Rows& rows) const {
  if (rows.end == last_end_) return {.attention = {}, .recurrent = of_left_};
  return within_.received(rows);
}

void PassedStates::begin() {
  if (goes_back_) {
    if (is_continued_) of_left_ = receive(communicator_.rank() + 1);
  } else if (continues_) {
    arrived_ = receive(communicator_.rank() - 1);
  }
}

bool PassedStates::end() {
  if (goes_back_) {
    if (continues_) send(of_first_, communicator_.rank() - 1);
    arrived_ = {};
  } else if (is_continued_) {
    send(left_, communicator_.rank() + 1);
  }
  left_ = {};
  return false;
}

}  // namespace streambp
