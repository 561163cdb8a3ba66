// How rotary angles are rounded, for who wants another library's rounding errors.
#pragma once

namespace streambp {

/// While one is alive on a thread, tables of models below float64 have their frequencies, angles, cosines and
/// sines computed in float32, as transformers computes them, rather than in double: at position 2,048 an
/// angle is off by 1e-4 then, which is most of what correct float32 gradients of transformers are off by.
class Float32Angles {
 public:
  Float32Angles() : before_(wanted()) { wanted() = true; }
  ~Float32Angles() { wanted() = before_; }
  Float32Angles(const Float32Angles&) = delete;
  Float32Angles& operator=(const Float32Angles&) = delete;

  static bool& wanted() {
    static thread_local bool wanted = false;
    return wanted;
  }

 private:
  bool before_;
};

}  // namespace streambp
