// Text of files and command lines, made fit for a terminal.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace streambp {

/// Bytes that are left of a message, and of a cell of a table.
inline constexpr size_t kPrintedMessage = 900;
inline constexpr size_t kPrintedCell = 300;

/// `text` on one line that a terminal shows as it is: control characters (C0, DEL, C1), separators of lines
/// and paragraphs, and characters that are invisible or change the direction of writing come out escaped
/// (\n, \x1b, \u202e), as do bytes that are not UTF-8 (\xff). Of more than `most` bytes the middle is
/// replaced by "...". What has been through this once stays as it is.
std::string printable(std::string_view text, size_t most = kPrintedMessage);

}  // namespace streambp
