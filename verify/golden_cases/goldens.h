// `streambp-verify goldens`: every method, at several chunk sizes, against losses and gradients that other
// people's code gave.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace streambp::verify {

struct GoldensOptions {
  std::vector<std::string> folders;  // sets or single cases
  std::vector<std::string> methods;  // those of method_names(), and "reference"; empty: all
  std::vector<int64_t>
      chunks;  // of streambp, 0 for auto; empty: 1, 7, 16 and those around the case's lengths
  double limit = 1e-10;
  bool json = false;
};

/// Prints a row (or, with json, an object) for each case. Returns 0 if every supported case passes, 1 if one
/// fails. Throws InputError for bad input, and where not a single case could be run.
int run_goldens(const GoldensOptions& options);

}  // namespace streambp::verify
