// A comparison as JUnit's XML, which CI servers show: a test case for each parameter, and one for the
// verdict.
#pragma once

#include <string>

#include "verify/compare/report.h"

namespace streambp::verify {

/// `diagnosis`: what is said of wrong gradients; empty: nothing.
std::string junit_text(const CompareOptions& options, const CompareReport& report,
                       const std::string& diagnosis);

}  // namespace streambp::verify
