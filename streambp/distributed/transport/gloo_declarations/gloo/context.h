// What c10d's header says of a context (gloo/context.h, BSD licence, github.com/pytorch/gloo).
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
