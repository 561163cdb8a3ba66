// A target's corpus: what it starts from, made in code, and what libFuzzer found from there, a text under
// corpus/ with an input a line in printable ASCII, other bytes as \xNN.
#pragma once

#include <string>
#include <vector>

namespace streambp::fuzz {

/// The bytes of a file; std::runtime_error naming it where it can't be read.
std::string read_file(const std::string& path);

/// corpus(), and what the text `found` holds; without a name, corpus() alone.
std::vector<std::string> whole_corpus(const std::string& found);

/// Runs `--unpack FOLDER [TEXT]`, which writes the corpus as files into FOLDER and the dictionary to
/// FOLDER.dict, as libFuzzer wants them, or `--pack FILE ...`, which prints the files that corpus() does not
/// have as lines of a text. False where the arguments begin with neither.
bool run_corpus_command(const std::vector<std::string>& arguments);

}  // namespace streambp::fuzz
