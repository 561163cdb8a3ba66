#include "streambp/distributed/transport/agreement.h"

#include <algorithm>
#include <cstring>

#include "streambp/error.h"

namespace streambp {
namespace {

/// What one rank lacks is empty there.
std::string fact_of(const std::map<std::string, std::string>& facts, const std::string& name) {
  const auto found = facts.find(name);
  return found == facts.end() ? "" : found->second;
}

/// Names and texts as one text, from which unpacked() has them again: each with its length before it.
std::string packed(const std::map<std::string, std::string>& facts) {
  std::string all;
  for (const auto& [name, text] : facts)
    all += fmt::format("{} {} {}{}", name.size(), text.size(), name, text);
  return all;
}

std::map<std::string, std::string> unpacked(const std::string& all) {
  std::map<std::string, std::string> facts;
  for (size_t next = 0; next < all.size();) {
    size_t digits = 0;
    const size_t name = std::stoul(all.substr(next), &digits);
    next += digits + 1;
    const size_t text = std::stoul(all.substr(next), &digits);
    next += digits + 1;
    facts[all.substr(next, name)] = all.substr(next + name, text);
    next += name + text;
  }
  return facts;
}

}  // namespace

std::vector<std::string> gather_texts(Communicator& communicator, const std::string& text) {
  const auto length = static_cast<int64_t>(text.size());
  const at::Tensor lengths = communicator.all_gather(at::full({1}, length, at::kLong));
  const int64_t longest = lengths.max().item<int64_t>();
  const at::Tensor bytes = at::zeros({longest}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = communicator.all_gather(bytes);
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < communicator.size(); ++rank) {
    texts.emplace_back(static_cast<const char*>(all[rank].const_data_ptr()),
                       static_cast<size_t>(lengths[rank].item<int64_t>()));
  }
  return texts;
}

void require_agreement(Communicator& communicator, const std::map<std::string, std::string>& facts) {
  const std::vector<std::string> all = gather_texts(communicator, packed(facts));
  const std::map<std::string, std::string> first = unpacked(all.front());
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all.front()) continue;
    std::map<std::string, std::string> other = unpacked(all[rank]), names = first;
    names.insert(other.begin(), other.end());
    for (const auto& [name, text] : names) {
      if (fact_of(first, name) == fact_of(other, name) && first.contains(name) == other.contains(name))
        continue;
      throw InputError("rank {} disagrees with rank 0 on {}: '{}' and '{}', expected the same on all ranks",
                       rank, name, fact_of(other, name), fact_of(first, name));
    }
  }
}

}  // namespace streambp
