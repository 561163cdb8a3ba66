// What the programs write on the terminal, where names of other people's files may be in it.
#pragma once

#include <cstdio>
#include <fmt/format.h>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "streambp/printable.h"

namespace streambp {

/// One line on `stream`, printable() however long or strange what is formatted into it.
template <typename... Args>
void print_line(std::FILE* stream, fmt::format_string<Args...> format, Args&&... args) {
  fmt::print(stream, "{}\n", printable(fmt::format(format, std::forward<Args>(args)...)));
}

/// JSON on one line of ASCII, for stdout: what a terminal would obey is escaped as JSON has it; bytes that
/// are not UTF-8 are replaced.
std::string json_text(const nlohmann::json& value);

}  // namespace streambp
