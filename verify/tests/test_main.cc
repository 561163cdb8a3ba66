// The main program of the GoogleTest programs.
#include <gtest/gtest.h>

#include "streambp/runtime/end_process.h"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  streambp::end_process(RUN_ALL_TESTS());
}
