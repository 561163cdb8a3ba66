// Random passes for properties: a small model of random sizes, random rows, an objective, a method with its
// settings. What RapidCheck makes of one that fails has fewer layers, shorter rows and simpler settings.
#pragma once

#include <ostream>
#include <rapidcheck.h>
#include <string>

#include "verify/equality/equality.h"
#include "verify/equality/subject.h"

namespace streambp::verify {

/// One run for check_row.
struct RandomCase {
  RowName name;
  EqualityOptions options;

  /// The command that repeats it.
  std::string command() const;
};

/// The command: RapidCheck prints it with a case that fails.
void showValue(const RandomCase& value, std::ostream& out);

rc::Gen<RandomCase> random_case();

}  // namespace streambp::verify
