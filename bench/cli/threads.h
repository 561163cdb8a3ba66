// --threads of both programs.
#pragma once

#include <string>

namespace streambp {

/// How many threads --threads may ask for: 1024, or four for each core that this process may use.
int most_threads();

/// Sets the number of threads of the CPU's ops; more than cores are a warning on stderr that begins with
/// `program`. Throws InputError for a number below 1 or beyond most_threads().
void set_threads(int threads, const std::string& program);

}  // namespace streambp
