#include "streambp/printable.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <optional>
#include <utility>

namespace streambp {
namespace {

struct Character {
  char32_t code = 0;
  size_t bytes = 1;
};

/// The character of UTF-8 (RFC 3629) that `text`, not empty, begins with; nothing where it is none.
std::optional<Character> first_character(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return Character{byte(0), 1};
  const size_t bytes = byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : 2;
  if (byte(0) < 0xC2 || byte(0) > 0xF4 || text.size() < bytes) return {};
  char32_t code = byte(0) & (0xFFu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3F);
  }
  constexpr std::array<char32_t, 5> kLeast{0, 0, 0x80, 0x800, 0x10000};
  if (code < kLeast[bytes] || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return {};
  return Character{code, bytes};
}

/// Ranges of characters that a terminal obeys or that can't be seen.
constexpr std::array<std::pair<char32_t, char32_t>, 11> kEscaped{{{0x00, 0x1F},
                                                                  {0x7F, 0x9F},
                                                                  {0xAD, 0xAD},
                                                                  {0x61C, 0x61C},
                                                                  {0x180E, 0x180E},
                                                                  {0x200B, 0x200F},
                                                                  {0x2028, 0x202E},
                                                                  {0x2060, 0x206F},
                                                                  {0xFEFF, 0xFEFF},
                                                                  {0xFFF9, 0xFFFB},
                                                                  {0xE0000, 0xE007F}}};

std::string escaped(char32_t code) {
  switch (code) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      break;
  }
  const auto number = static_cast<uint32_t>(code);
  if (number < 0x80) return fmt::format("\\x{:02x}", number);
  return number < 0x10000 ? fmt::format("\\u{:04x}", number) : fmt::format("\\U{:08x}", number);
}

bool is_plain(char c) {
  return c >= ' ' && c <= '~';
}

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

}  // namespace

std::string printable(std::string_view text, size_t most) {
  std::string shown;
  shown.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    size_t end = at;  // of a run of characters that are shown as they are, which most are
    while (end < text.size() && is_plain(text[end])) ++end;
    shown.append(text, at, end - at);
    at = end;
    if (at == text.size()) break;
    const std::optional<Character> next = first_character(text.substr(at));
    if (!next) {
      shown += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at++]));
      continue;
    }
    const bool is_escaped = std::any_of(kEscaped.begin(), kEscaped.end(), [&](const auto& range) {
      return range.first <= next->code && next->code <= range.second;
    });
    if (is_escaped) {
      shown += escaped(next->code);
    } else {
      shown += text.substr(at, next->bytes);
    }
    at += next->bytes;
  }
  constexpr std::string_view kDots = "...";
  if (shown.size() <= most || most <= kDots.size()) return shown;
  size_t head = (most - kDots.size() + 1) / 2, tail = shown.size() - (most - kDots.size()) / 2;
  while (head > 0 && continues_character(shown[head])) --head;
  while (tail < shown.size() && continues_character(shown[tail])) ++tail;
  return shown.replace(head, tail - head, kDots);
}

}  // namespace streambp
