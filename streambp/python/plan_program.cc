// streambp_plan predict|longest|suggest|choose: a request on stdin, its answer on stdout (planning.h). Any
// failure that is no bad input ends in a line on stderr and exit code 1. For
// streambp/python/streambp_bench/_plan.py.
#include <exception>
#include <iostream>
#include <iterator>
#include <string>

#include "streambp/python/planning.h"
#include "streambp/runtime/end_process.h"
#include "streambp/runtime/processor.h"

int main(int argc, char** argv) {
  try {
    streambp::avoid_refused_instructions();
    const std::string request{std::istreambuf_iterator<char>(std::cin), {}};
    std::cout << streambp::python::answer_question(argc == 2 ? argv[1] : "", request) << std::endl;
    streambp::end_process(0);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
