// Runs a fuzz target without libFuzzer: its corpus, then a fixed number of seeded random mutations of what
// the target starts from, or the files named.
//
//   safetensors_fuzz [--corpus TEXT] [--count N] [--seed S] [FILE ...]
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <random>
#include <string_view>

#include "verify/tests/fuzz/corpus_files.h"
#include "verify/tests/fuzz/fuzz.h"

namespace {

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t limit) {
  return static_cast<std::size_t>(random() % limit);
}

// One to six edits of `input`, of the kinds libFuzzer makes.
std::string mutated(std::string input, const std::vector<std::string>& corpus,
                    const std::vector<std::string>& words, Random& random) {
  for (std::size_t edits = 1 + below(random, 6); edits > 0; --edits) {
    const std::size_t at = below(random, input.size() + 1);
    const std::size_t length = std::min(below(random, 17), input.size() - at);
    switch (below(random, 7)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(random());
        break;
      case 1:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(random, 8)));
        break;
      case 2:
        input.erase(at, length);
        break;
      case 3:
        input.insert(at, input.substr(at, length));
        break;
      case 4:
        input.insert(at, words[below(random, words.size())]);
        break;
      case 5:
        input.replace(at, length, words[below(random, words.size())]);
        break;
      default: {
        const std::string& other = corpus[below(random, corpus.size())];
        input = input.substr(0, at) + other.substr(below(random, other.size() + 1));
      }
    }
  }
  return input;
}

// Runs one input; false, with the input on stderr as a C string, if something other than an InputError comes
// out of it.
bool run(const std::string& input) {
  const char* what = "an exception of unknown type";
  std::string message;
  try {
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
    return true;
  } catch (const std::exception& error) {
    message = error.what();
    what = message.c_str();
  } catch (...) {
  }
  std::fprintf(stderr, "escaped: %s\ninput: \"", what);
  for (const char c : input)
    std::fprintf(stderr, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
  std::fprintf(stderr, "\"\n");
  return false;
}

// `all`, then `count` mutations of those that the target is given in code, until one fails: what libFuzzer
// found is mostly refused, and so would mutations of it be.
bool replay(const std::vector<std::string>& all, uint64_t count, uint64_t seed) {
  const std::vector<std::string> corpus = streambp::fuzz::corpus();
  const std::vector<std::string> words = streambp::fuzz::dictionary();
  bool good = true;
  for (const std::string& input : all) good = run(input) && good;
  auto inputs = static_cast<int64_t>(all.size());
  const int64_t accepted_corpus = streambp::fuzz::accepted();
  Random random(seed);
  for (uint64_t i = 0; i < count && good; ++i, ++inputs) {
    good = run(mutated(corpus[below(random, corpus.size())], corpus, words, random));
  }
  // A target that refuses everything, or takes everything, tests nothing.
  const int64_t accepted = streambp::fuzz::accepted();
  if (accepted_corpus == 0 || accepted >= inputs) {
    std::fprintf(stderr, "%lld of %lld inputs accepted\n", static_cast<long long>(accepted),
                 static_cast<long long>(inputs));
    good = false;
  }
  std::printf("%lld inputs, %lld accepted, seed %llu\n", static_cast<long long>(inputs),
              static_cast<long long>(accepted), static_cast<unsigned long long>(seed));
  return good;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t count = 20'000, seed = 1;
  std::string found;
  std::vector<std::string> files;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const bool has_value = i + 1 < argc;
    if ((argument == "--count" || argument == "--seed") && has_value) {
      (argument == "--count" ? count : seed) = std::strtoull(argv[++i], nullptr, 10);
    } else if (argument == "--corpus" && has_value) {
      found = argv[++i];
    } else {
      files.emplace_back(argv[i]);
    }
  }
  try {
    bool good = true;
    for (const std::string& file : files) good = run(streambp::fuzz::read_file(file)) && good;
    if (files.empty()) good = replay(streambp::fuzz::whole_corpus(found), count, seed);
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  }
}
