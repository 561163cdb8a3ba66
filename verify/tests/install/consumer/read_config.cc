// Reads a preset's config and writes how many parameters it has.
#include <cstdint>
#include <cstdio>

#include "streambp/model/config/config.h"

int main() {
  const streambp::Config config = streambp::preset("qwen3-tiny");
  int64_t parameters = 0;
  for (const streambp::ParameterShape& shape : streambp::parameter_shapes(config)) {
    int64_t size = 1;
    for (const int64_t length : shape.shape) size *= length;
    parameters += size;
  }
  std::printf("%lld parameters\n", static_cast<long long>(parameters));
}
