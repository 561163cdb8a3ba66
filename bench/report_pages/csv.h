// CSV (RFC 4180) of files that other programs of ours wrote.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace streambp::bench {

/// The rows of `text`, each with its cells; lines that begin with # and empty ones are passed over.
std::vector<std::vector<std::string>> csv_rows(std::string_view text);

}  // namespace streambp::bench
