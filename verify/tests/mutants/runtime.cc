// What the schemata of scripts/house/mutants.py call: which mutant is chosen, and which ones a run reaches.
#include <atomic>
#include <cstdlib>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace streambp {

namespace {

constexpr int kMost = 1 << 16;

unsigned char* reached_bytes() {
  static unsigned char own[kMost];
  const char* const path = std::getenv("STREAMBP_MUTANTS_REACHED");
  if (path == nullptr) return own;
  const int file = open(path, O_RDWR | O_CREAT, 0644);
  if (file < 0 || ftruncate(file, kMost) != 0) std::abort();
  void* const bytes = mmap(nullptr, kMost, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (bytes == MAP_FAILED) std::abort();
  close(file);
  return static_cast<unsigned char*>(bytes);
}

}  // namespace

/// A byte a mutant: 1 where it was reached.
unsigned char* mutants_reached() {
  static unsigned char* const bytes = reached_bytes();
  return bytes;
}

bool mutant(int number) {
  static const int chosen = [] {
    const char* const text = std::getenv("STREAMBP_MUTANT");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  static const bool records = std::getenv("STREAMBP_MUTANTS_REACHED") != nullptr;
  if (records) mutants_reached()[number] = 1;
  return number == chosen;
}

}  // namespace streambp
