// JSON for model files, stricter than the library's own reader: what two readers could understand differently
// is refused.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace streambp {

/// Parses one JSON document (RFC 8259). Refused with an InputError that begins with `where`: syntax errors,
/// invalid UTF-8, a byte order mark, NUL bytes, a key that appears twice in one object (at any depth),
/// nesting deeper than 64, and numbers that overflow a double.
nlohmann::json parse_strict_json(std::string_view text, const std::string& where);

/// The same of a config.json, in which Python's json module writes, and reads, infinity as a bare word: it
/// becomes {"__float__": "Infinity"}, as transformers 5 writes it. Published Mamba-2 models have it as a
/// limit.
nlohmann::json parse_config_json(std::string_view text, const std::string& where);

/// The whole of a text file of at most 100,000,000 bytes. Throws InputError naming the file if it can't be
/// read.
std::string read_text_file(const std::filesystem::path& path);

/// `value` on one line of ASCII for an error message, shortened if it is long. Strings come out quoted and
/// escaped, so that nothing a file contains can break the line.
std::string shown(const nlohmann::json& value);

}  // namespace streambp
