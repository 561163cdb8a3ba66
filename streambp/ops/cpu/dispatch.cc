#include <cstdlib>
#include <fmt/ranges.h>
#include <string>
#include <string_view>
#include <vector>

#include "streambp/error.h"
#include "streambp/ops/cpu/kernels.h"

namespace streambp::cpu {

// Each is defined in table.cc, compiled for that set.
namespace baseline {
KernelSet all_kernels();
}
#ifdef STREAMBP_HAS_X86_SETS
namespace avx2 {
KernelSet all_kernels();
}
namespace avx512 {
KernelSet all_kernels();
}
#endif

std::vector<KernelSet> available_kernels() {
  std::vector<KernelSet> sets;
#ifdef STREAMBP_HAS_X86_SETS
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    sets.push_back(avx512::all_kernels());
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) sets.push_back(avx2::all_kernels());
#endif
  sets.push_back(baseline::all_kernels());
  return sets;
}

namespace {

KernelSet choose() {
  const std::vector<KernelSet> sets = available_kernels();
  const char* const wanted = std::getenv("STREAMBP_ISA");
  if (wanted == nullptr || *wanted == '\0') return sets.front();
  std::vector<std::string> names;
  for (const KernelSet& set : sets) {
    names.emplace_back(set.instruction_set);
    if (names.back() == wanted) return set;
  }
  throw InputError("STREAMBP_ISA '{}': this machine has {}", wanted, fmt::join(names, ", "));
}

}  // namespace

const KernelSet& kernels() {
  static const KernelSet chosen = choose();
  return chosen;
}

bool has_fast_products() {
#ifdef STREAMBP_HAS_X86_SETS
  return kernels().instruction_set != std::string_view("baseline");
#else
  return true;
#endif
}

}  // namespace streambp::cpu
