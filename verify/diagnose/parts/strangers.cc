#include "verify/diagnose/parts/strangers.h"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <vector>

#include "verify/diagnose/parts/longer_rows.h"

namespace streambp::verify {
namespace {

bool are_padding(const WrongSubject& subject, const std::vector<int64_t>& tokens) {
  if (!subject.input_ids.defined()) return false;
  at::Tensor real = at::zeros({subject.input_ids.numel()}, at::kBool);
  real.index_fill_(0, subject.batch.padded_indices, true);
  const at::Tensor under = subject.input_ids.flatten().masked_select(real.logical_not());
  return std::all_of(tokens.begin(), tokens.end(),
                     [&](int64_t token) { return under.eq(token).any().item<bool>(); });
}

}  // namespace

std::optional<Strangers> find_strangers(const WrongSubject& subject, const Tensors& gradients) {
  const std::vector<int64_t> others = strangers(subject, gradients);
  const auto own = static_cast<int64_t>(std::get<0>(at::_unique(subject.batch.tokens)).numel());
  if (others.empty() || own + std::ssize(others) == subject.model.config().vocab_size) return std::nullopt;
  const std::vector<int64_t> some(others.begin(),
                                  others.begin() + std::min<std::ptrdiff_t>(8, std::ssize(others)));
  const std::string list =
      fmt::format("{}{}", fmt::join(some, ", "), others.size() > some.size() ? ", ..." : "");
  if (are_padding(subject, others))
    return Strangers{
        "padding-tokens",
        fmt::format("padding is among the tokens: its embedding (of {}) has gradients, so that some layer "
                    "or the loss is not told of it",
                    list),
        true};
  return Strangers{
      "other-tokens",
      fmt::format("gradients of other tokens than this batch's are in: {} of the embedding (another batch "
                  "was run, or its gradients were not set to zero)",
                  list)};
}

}  // namespace streambp::verify
