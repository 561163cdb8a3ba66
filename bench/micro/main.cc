// streambp-microbench: single ops and whole passes under Google Benchmark. --help lists its flags.
#include <benchmark/benchmark.h>

#include "bench/cli/command_line.h"
#include "bench/cli/environment.h"
#include "bench/cli/standard_streams.h"
#include "streambp/memory/meter.h"

int main(int argc, char** argv) {
  streambp::open_standard_streams();
  streambp::install_meters();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::AddCustomContext("streambp", streambp::version_text());
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  streambp::end_program("streambp-microbench", streambp::kExitGood);
}
