// What a fuzz target gives besides LLVMFuzzerTestOneInput, so that replay_main.cc can run it as an ordinary
// test.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// Runs one input. An InputError is the expected answer to a bad one; anything else that escapes is a
/// finding.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace streambp::fuzz {

/// Inputs to start from, good and bad.
std::vector<std::string> corpus();

/// Pieces of text that mean something to the format; mutations put them anywhere.
std::vector<std::string> dictionary();

/// Number of inputs the target has accepted so far: shows that the mutations get past the first check.
int64_t accepted();

}  // namespace streambp::fuzz
