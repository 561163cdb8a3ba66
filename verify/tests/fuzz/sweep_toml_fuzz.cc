// Any text as the TOML file of `streambp-bench --config FILE sweep` is refused as bad usage or with an
// InputError, or gives options that keep their promises; and what --write-config writes of them is read as
// the same options.
#include <cstdlib>
#include <string_view>

#include "streambp/backprop/settings.h"
#include "verify/tests/fuzz/bench_command_line.h"
#include "verify/tests/fuzz/fuzz.h"
#include "verify/tests/fuzz/scratch.h"

namespace {

using streambp::fuzz::Glance;

int64_t accepted_count = 0;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const streambp::fuzz::Scratch folder;
  const auto arguments = [](std::string_view text) {
    return std::vector<std::string>{"--config", folder.write("sweep.toml", text).string(), "sweep"};
  };
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string> words = arguments(text);
  const Glance glance = streambp::fuzz::glance_at(words);
  // What its text has led to is new for one file in five: flags made anew for one in four of those are a
  // third of the time, for all of them three quarters.
  if (!streambp::fuzz::is_worth_reading(glance, text) || std::hash<std::string>()(text) / 16 % 4 != 0)
    return 0;
  const streambp::fuzz::CommandLine first = streambp::fuzz::read_command_line(words, text);
  if ((glance == Glance::kRefused) == first.parsed) std::abort();
  if (!first.sweep) return 0;
  ++accepted_count;
  streambp::fuzz::require_promises(*first.sweep);
  const streambp::fuzz::CommandLine again = streambp::fuzz::read_command_line(arguments(first.config));
  using streambp::fuzz::in_words;
  if (!again.sweep || in_words(*again.sweep) != in_words(*first.sweep)) std::abort();
  return 0;
}

namespace streambp::fuzz {

std::vector<std::string> corpus() {
  return {"",
          "[sweep]\nseq-len = \"512,1024\"\nmethod = [\"standard\", \"streambp\"]\nrepeats = 3\n",
          "# of a sweep\n[sweep]\nmodel = 'qwen3-cpu'\nquiet = true\nevery = 2\nset = \"beta=0.1\"\n",
          "[sweep]\nmethod = \"auto\"\nbudget = \"80GiB\"\ndevice = \"meta\"\nseq-len = [65536]\n",
          "sweep.seed = 7\nsweep.lora-rank = 4\nsweep.lora-targets = [\"q_proj\",\"v_proj\"]\n",
          "[sweep]\nout = \"a b\\\\c\"\nfreeze = \"norm\"\ndeterministic = false\n",
          "[sweep]\nout = [a\"e b\\\\c",  // was read without its last character, and not written as it was
          "[sweep]\nout = 'a b\\'\nmodel = \"a#b\"\n",
          "[sweep]\no\n[train]\nfreeze = i\n",
          "[swep]\nseq-len = 1\n"};
}

std::vector<std::string> dictionary() {
  std::vector<std::string> words{
      "[sweep]\n", "[train]\n", "sweep.", "[[", "]]",   "\"",   "'",  "\"\"\"", "'''",     "[",
      "]",         ",",         " = ",    "#",  ";",    "\\",   "\n", "\t",     "true",    "false",
      "{}",        "nan",       "1e308",  "-1", "0x10", "auto", "++", "--",     "default", "config = "};
  for (const char* flag :
       {"seq-len", "batch", "method", "objective", "set", "model", "out", "seed", "divisor", "quiet",
        "budget", "repeats", "freeze", "dtype", "lora-rank", "lora-targets", "resume"})
    words.push_back(std::string(flag) + " = ");
  for (const SettingKind& kind : setting_kinds()) words.push_back(kind.flag.substr(2) + " = ");
  return words;
}

int64_t accepted() {
  return accepted_count;
}

}  // namespace streambp::fuzz
