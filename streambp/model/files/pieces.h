// Tensors of files that hold several parameters, and parameters that files hold in several tensors.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "streambp/model/config/config.h"
#include "streambp/model/files/safetensors.h"

namespace streambp {

/// Whether a safetensors dtype is one of weights.
bool is_floating(const std::string& dtype);

/// The parameters that `tensor` of this name holds, where it holds several: all experts of a layer, or Kimi
/// Linear's convolutions. Empty: it doesn't, or has another shape.
std::vector<std::pair<std::string, StoredTensor>> parameters_in(const std::string& name,
                                                                const StoredTensor& tensor,
                                                                const Config& config);

/// What files hold by itself and parameters hold together: of MiniMax M3, as it is published, each expert's
/// maps, and gate and up projections; of Qwen4-Exp parts of tables of n-grams.
class Pieces {
 public:
  explicit Pieces(const Config& config) : config_(config) {}

  /// Takes `tensor` if its name is that of a piece.
  bool take(const std::string& name, const StoredTensor& tensor);

  /// The parameters of which pieces have been taken. Throws InputError that names a piece that is missing, or
  /// of another shape or dtype than the others.
  std::vector<std::pair<std::string, StoredTensor>> joined() const;

 private:
  StoredTensor table_of(const std::string& parameter, const std::map<int64_t, StoredTensor>& pieces) const;

  const Config& config_;
  /// By the name of the parameter, and where in it a piece begins, counted in pieces.
  std::map<std::string, std::map<int64_t, StoredTensor>> pieces_;
};

}  // namespace streambp
