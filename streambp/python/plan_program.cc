// streambp_plan: questions on stdin, two lines each, its name and the request; a line on stdout for each, the
// answer (planning.h) or, of a failure that is no bad input, {"failed": "..."}. Ends with stdin, or after ten
// seconds without a question. For streambp/python/streambp_bench/_planner.py.
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <string>

#include "streambp/python/planning.h"
#include "streambp/runtime/end_process.h"
#include "streambp/runtime/processor.h"

namespace {

/// Whether somebody asks, or has gone, before nobody can be expected to ask again.
bool is_asked() {
  constexpr int kMilliseconds = 10'000;
  pollfd input{.fd = 0, .events = POLLIN, .revents = 0};
  return poll(&input, 1, kMilliseconds) > 0;
}

std::string answer(const std::string& question, const std::string& request) {
  try {
    return streambp::python::answer_question(question, request);
  } catch (const std::exception& error) {
    return nlohmann::json{{"failed", error.what()}}.dump();
  }
}

}  // namespace

int main() {
  streambp::avoid_refused_instructions();
  std::string question, request;
  while (is_asked() && std::getline(std::cin, question) && std::getline(std::cin, request))
    std::cout << answer(question, request) << std::endl;
  streambp::end_process(0);
}
