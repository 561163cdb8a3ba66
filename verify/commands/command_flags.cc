#include "verify/commands/command_flags.h"

#include <algorithm>
#include <charconv>
#include <fmt/ranges.h>

#include "bench/cli/command_line.h"
#include "bench/cli/threads.h"
#include "streambp/error.h"
#include "streambp/runtime/device.h"
#include "verify/checked_device.h"

namespace streambp::verify {
namespace {

constexpr size_t kMaxParts = 1000;
constexpr int kMaxJobs = 256;

}  // namespace

void add_common_flags(CLI::App& command, CommonFlags& flags) {
  command.add_flag("--json", flags.json, "One JSON object a line on stdout instead of a table");
  command.add_option("--threads", flags.threads, "CPU threads (default: OMP_NUM_THREADS, else every core)");
}

void use_threads(const CommonFlags& flags) {
  if (flags.threads) set_threads(*flags.threads, "streambp-verify");
}

void add_device_flag(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "cpu or cuda: where the models lie")->capture_default_str();
}

void open_checked_device(const std::string& name, bool repeats_bits) {
  DeviceOptions options;
  options.deterministic = repeats_bits && name.starts_with("cuda");
  checked_device() = open_device(name, options);
  if (checked_device().is_meta()) throw InputError("--device {}: expected cpu or cuda", name);
}

void add_part_flag(CLI::App& command, std::string& part, const std::string& of_what) {
  command.add_option(
      "--part", part,
      fmt::format("I/N: every N-th {0} from the I-th on, so that N processes share them", of_what));
}

Part parse_part(const std::string& text) {
  if (text.empty()) return {};
  Part part{0, 0};
  const char* const end = text.data() + text.size();
  const auto [slash, error] = std::from_chars(text.data(), end, part.index);
  const bool cut = error == std::errc() && slash != end && *slash == '/';
  const auto [last, count_error] = std::from_chars(cut ? slash + 1 : end, end, part.count);
  if (!cut || count_error != std::errc() || last != end || part.index < 1 || part.index > part.count ||
      part.count > kMaxParts) {
    throw InputError("--part '{}': expected I/N with 1 <= I <= N <= {}", text, kMaxParts);
  }
  return part;
}

void add_jobs_flag(CLI::App& command, int& jobs) {
  command.add_option("--jobs", jobs, "Checks at the same time, each on one CPU thread")
      ->capture_default_str();
}

void check_jobs(int jobs, const CommonFlags& flags) {
  if (jobs < 1 || jobs > kMaxJobs) throw InputError("--jobs {}: expected 1 to {}", jobs, kMaxJobs);
  if (jobs > 1 && flags.threads)
    throw InputError("--threads: not with --jobs {}, whose checks have one each", jobs);
}

std::vector<std::string> words_or(const std::string& list, const std::string& flag,
                                  std::vector<std::string> otherwise) {
  return list.empty() ? otherwise : parse_words(list, flag);
}

void require_known(const std::vector<std::string>& words, const std::string& flag,
                   const std::vector<std::string>& known) {
  for (const std::string& word : words) {
    if (std::find(known.begin(), known.end(), word) == known.end())
      throw InputError("{} '{}': expected one of {}", flag, word, fmt::join(known, ", "));
  }
}

}  // namespace streambp::verify
