// The sizes beyond which the programs refuse to go.
#pragma once

#include <string>

namespace streambp {

/// For --help: what is refused beyond.
std::string describe_limits();

}  // namespace streambp
