
// Appended to one file of a test program by scripts/mutants.py: the mutants that each of its tests reaches.
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace streambp {
unsigned char* mutants_reached();
namespace {

class ReachedMutants : public testing::EmptyTestEventListener {
  void OnTestEnd(const testing::TestInfo& test) override {
    unsigned char* const reached = mutants_reached();
    std::ofstream file(std::getenv("STREAMBP_MUTANTS_TESTS"), std::ios::app);
    file << test.test_suite_name() << "." << test.name() << "\t" << test.result()->elapsed_time() << "\t"
         << (test.result()->Passed() && !test.result()->Skipped());
    for (int i = 0; i < (1 << 16); ++i) {
      if (reached[i]) file << "\t" << i;
    }
    file << "\n";
    std::memset(reached, 0, 1 << 16);
  }
};

const bool recorded = [] {
  if (std::getenv("STREAMBP_MUTANTS_TESTS") != nullptr)
    testing::UnitTest::GetInstance()->listeners().Append(new ReachedMutants);
  return true;
}();

}  // namespace
}  // namespace streambp
