// What Python draws: pages of a report, and tables as Parquet.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace streambp::bench {

/// The file that `render.py KIND` (bench/pages/) makes of `input`: "html", "markdown" or "parquet". The
/// script is in the folder streambp-pages next to the program; Python is STREAMBP_PYTHON, else that of the
/// project's environment, else python3. Throws InputError, beginning with `what` (the flag that asks for it),
/// where there is no Python, where it lacks a package, which is named with the command that installs it, or
/// where it fails.
std::string rendered(const std::string& what, const std::string& kind, const nlohmann::json& input);

}  // namespace streambp::bench
