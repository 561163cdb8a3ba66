// A scope for work that is put off: an op's backward pass allocates in the name that its forward pass had.
#pragma once

namespace streambp {

/// Remembers the innermost MemoryScope at its construction.
class RememberedScope {
 public:
  RememberedScope();

  /// Makes the remembered scope the innermost one while it lives.
  class Reopened {
   public:
    explicit Reopened(const RememberedScope& scope);
    ~Reopened();
    Reopened(const Reopened&) = delete;
    Reopened& operator=(const Reopened&) = delete;

   private:
    int outer_;
    int latest_;
  };

 private:
  int number_;
};

}  // namespace streambp
