#include "verify/tests/fuzz/corpus_files.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "verify/tests/fuzz/fuzz.h"

namespace streambp::fuzz {
namespace {

// As a line of a text, and as an entry of libFuzzer's dictionary.
std::string escaped(const std::string& input) {
  std::string line;
  for (const char c : input) {
    char code[5];
    std::snprintf(code, sizeof code, "\\x%02x", static_cast<unsigned>(static_cast<unsigned char>(c)));
    line += c >= ' ' && c <= '~' && c != '\\' && c != '"' ? std::string(1, c) : code;
  }
  return line;
}

std::string unescaped(const std::string& line) {
  std::string input;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      input += line[i];
      continue;
    }
    input += static_cast<char>(std::stoi(line.substr(i + 2, 2), nullptr, 16));
    i += 3;
  }
  return input;
}

void unpack(const std::vector<std::string>& inputs, const std::string& folder) {
  for (std::size_t i = 0; i < inputs.size(); ++i)
    std::ofstream(folder + "/" + std::to_string(i), std::ios::binary) << inputs[i];
  std::ofstream words(folder + ".dict");
  for (const std::string& word : dictionary()) words << '"' << escaped(word) << "\"\n";
  if (!words) throw std::runtime_error(folder + ".dict: can't be written");
}

void pack(const std::vector<std::string>& files) {
  const std::vector<std::string> known = corpus();
  for (const std::string& file : files) {
    const std::string input = read_file(file);
    if (std::find(known.begin(), known.end(), input) == known.end())
      std::printf("%s\n", escaped(input).c_str());
  }
}

}  // namespace

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": can't be read");
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<std::string> whole_corpus(const std::string& found) {
  std::vector<std::string> inputs = corpus();
  if (found.empty()) return inputs;
  std::ifstream lines(found);
  if (!lines) throw std::runtime_error(found + ": can't be read");
  for (std::string line; std::getline(lines, line);) inputs.push_back(unescaped(line));
  return inputs;
}

bool run_corpus_command(const std::vector<std::string>& arguments) {
  if (arguments.size() >= 2 && arguments[0] == "--unpack") {
    unpack(whole_corpus(arguments.size() > 2 ? arguments[2] : ""), arguments[1]);
    return true;
  }
  if (arguments.empty() || arguments[0] != "--pack") return false;
  pack({arguments.begin() + 1, arguments.end()});
  return true;
}

}  // namespace streambp::fuzz
