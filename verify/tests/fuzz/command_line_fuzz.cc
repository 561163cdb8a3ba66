// Any words, one a line, as the command line of streambp-bench are refused as bad usage or with an
// InputError, or give options that keep their promises, and that a file of --write-config holds as they are.
// Nothing is run.
#include <cstdlib>
#include <sstream>
#include <string_view>

#include "bench/commands.h"
#include "streambp/backprop/settings.h"
#include "verify/tests/fuzz/bench_command_line.h"
#include "verify/tests/fuzz/fuzz.h"
#include "verify/tests/fuzz/scratch.h"

namespace {

using streambp::fuzz::Glance;

int64_t accepted_count = 0;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::string> arguments;
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    arguments.push_back(line.substr(0, line.find('\0')));  // as the system hands them over
  const Glance glance = streambp::fuzz::glance_at(arguments);
  if (!streambp::fuzz::is_worth_reading(glance, text)) return 0;
  const streambp::fuzz::CommandLine line = streambp::fuzz::read_command_line(arguments);
  if ((glance == Glance::kRefused) == line.parsed) std::abort();
  accepted_count += line.parsed ? 1 : 0;
  if (!line.sweep) return 0;
  streambp::fuzz::require_promises(*line.sweep);
  static const streambp::fuzz::Scratch folder;
  const streambp::fuzz::CommandLine again = streambp::fuzz::read_command_line(
      {"--config", folder.write("sweep.toml", line.config).string(), "sweep"});
  using streambp::fuzz::in_words;
  if (!again.sweep || in_words(*again.sweep) != in_words(*line.sweep)) std::abort();
  return 0;
}

namespace streambp::fuzz {

std::vector<std::string> corpus() {
  return {"sweep",
          "--version",
          "sweep\n--seq-len\n512,2048\n--chunk\nauto,512\n--out\nout/cpu",
          "sweep\n--objective\nsft,dpo\n--lora-rank\n32\n--seq-len=4096\n--set\nbeta=0.1\n--quiet",
          "sweep\n--method\nauto\n--budget\n80GiB\n--model\nqwen3-8b\n--dtype\nbfloat16\n--device\nmeta",
          "sweep\n--method\nstreambp\n--every\n2\n--repeats\nauto\n--memory-limit\n2GB\n--resume",
          "sweep\n--fuse-optimizer\nadamw\n--learning-rate\n1e-3\n--freeze\nembed,norm\n--seed\n7",
          "max-length\n--model\nqwen3-8b\n--budget\n24GB\n--method\nstreambp\n--weights\nhost",
          "sweep\n--model\na#b\n--out\na b\\",
          "records\nout/main\n--flat",
          "report\na\nb\n--diff\n--threshold\n0.1",
          "bytes-per-token\n--model\nqwen3-8b",
          "ranks\n--ranks\n8,16\n--zero\nzero-2\n--optimizer\nadamw",
          "train\n--model\nqwen3-cpu\n--text\nREADME.md\n--steps\n20",
          "export\n--model\nqwen3-cpu\n--out\nx",
          "paper\n--table\n1,2\n--scale\ncpu"};
}

std::vector<std::string> dictionary() {
  std::vector<std::string> words{"\n--seq-len\n",
                                 "\n--batch\n",
                                 "\n--method\n",
                                 "\n--objective\n",
                                 "\n--set\n",
                                 "\n--budget\n",
                                 "\n--repeats\n",
                                 "\n--divisor\n",
                                 "\n--dtype\n",
                                 "\n--lora-rank\n",
                                 "\n--lora-alpha\n",
                                 "\n--quantize\n",
                                 "\n--seed\n",
                                 "\n--prompt\n",
                                 "\n--device\n",
                                 "\n--tokens\n",
                                 "\n--optimizer\n",
                                 "\n--micro-batches\n",
                                 "\n--help\n",
                                 "\n--\n",
                                 "\n--freeze\n",
                                 "\n--host-budget\n",
                                 "\n--optimizer-bits\n",
                                 "auto",
                                 "all",
                                 "none",
                                 "streambp",
                                 "checkpoint",
                                 "grpo",
                                 "ppo",
                                 "kto",
                                 "infonce",
                                 "distillation",
                                 "meta:cuda",
                                 "model",
                                 "nf4",
                                 "80GiB",
                                 "1e308GB",
                                 "-1",
                                 "0",
                                 "9223372036854775808",
                                 "67108864",
                                 "nan",
                                 "inf",
                                 "1e-320",
                                 ",",
                                 "=",
                                 "beta="};
  for (const SettingKind& kind : setting_kinds()) words.push_back("\n" + kind.flag + "\n");
  for (const bench::CommandKind& kind : bench::command_kinds()) words.emplace_back(kind.name);
  return words;
}

int64_t accepted() {
  return accepted_count;
}

}  // namespace streambp::fuzz
