#include "streambp/plan/cards.h"

#include <algorithm>
#include <fmt/format.h>

#include "streambp/plan/longest.h"

namespace streambp::plan {
namespace {

/// From hundredths of a GiB, as torch's messages state capacities.
constexpr int64_t gib(int64_t hundredths) {
  return hundredths * (int64_t{1} << 30) / 100;
}

}  // namespace

int64_t Card::usable() const {
  return less_margin(memory, std::nullopt, c10::kCUDA);
}

const std::vector<Card>& cards() {
  constexpr int64_t kKiB = 1024;
  static const std::vector<Card> all{
      {"rtx-3090", "GeForce RTX 3090", gib(2350), {86, 82, 99 * kKiB}},
      {"rtx-4090", "GeForce RTX 4090", gib(2351), {89, 128, 99 * kKiB}},
      {"l40s", "L40S", gib(4439), {89, 142, 99 * kKiB}},
      {"a100-40", "A100, 40 GB", gib(3939), {80, 108, 163 * kKiB}},
      {"a100-80", "A100, 80 GB", gib(7915), {80, 108, 163 * kKiB}},
      {"h100-80", "H100, 80 GB", gib(7911), {90, 132, 227 * kKiB}},
      {"h200", "H200", gib(13980), {90, 132, 227 * kKiB}},
      {"b200", "B200", gib(17835), {100, 148, 227 * kKiB}},
  };
  return all;
}

const Card* find_card(const std::string& name) {
  const auto found =
      std::find_if(cards().begin(), cards().end(), [&](const Card& card) { return card.name == name; });
  return found == cards().end() ? nullptr : &*found;
}

std::string describe_cards() {
  std::string text =
      "Cards (--budget NAME), as torch counts their memory, and what tensors can have of it:\n";
  for (const Card& card : cards()) {
    text +=
        fmt::format("  {:<9} {:<17} {:6.2f} GiB, {:6.2f} GiB\n", card.name, card.title,
                    static_cast<double>(card.memory) / 0x1p30, static_cast<double>(card.usable()) / 0x1p30);
  }
  return text;
}

}  // namespace streambp::plan
