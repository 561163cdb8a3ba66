// What a decoder has in addition to its products and its attention: the embedding of tokens, the norm and the
// rotary position embedding.
#pragma once

#include <vector>

#include "reference/tape.h"

namespace streambp::STREAMBP_REFERENCE {

/// Row tokens[t] of a table for each t: y_t = table(tokens_t). One row, `padding`, is held constant, as
/// nn.Embedding holds that of its padding_idx, although its tokens may be real; -1: none is.
///     dtable(v) = sum of dy_t over t with tokens_t = v, but 0 for v = padding
/// Throws std::invalid_argument if a token is not a row of the table.
Var embedding(const Var& table, const std::vector<int>& tokens, int padding);

/// Root-mean-square norm (Zhang & Sennrich 2019, https://arxiv.org/abs/1910.07467) of each group of n =
/// weight.cols() neighbouring entries in a row; x [rows, groups * n], weight [1, n] -> [rows, groups * n]:
///     r = 1 / sqrt(mean(x^2) + epsilon),   z = x r,   y = z w
/// One group is the norm of a row; with n = head_dim it is the norm of every head's query or key.
///     dw = sum over rows and groups of dy z,   dx = r (dz - z mean(dz z)) with dz = dy w
/// Throws std::invalid_argument if weight is not one row or n does not divide x.cols().
Var rms_norm(const Var& x, const Var& weight, Number epsilon);

struct RopeOptions {
  std::vector<Number> inverse_frequencies = {};  // f
  int head_dim = 0;                              // E; 0: 2 f.size(), so that all entries rotate
  Number attention_factor = 1.0;                 // c, by which what rotates is stretched
  bool interleaved = false;                      // pairs are neighbours
};

/// Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864) in Hugging Face's order of
/// entries: the first d = 2 f.size() of the E entries of a head are the pairs (x_i, x_{i + d/2}), and pair i
/// of row t is rotated by the angle a = positions[t] f[i]:
///     y_i = c (x_i cos a - x_{i+d/2} sin a),   y_{i+d/2} = c (x_{i+d/2} cos a + x_i sin a)
/// or, interleaved, the same of the pairs (x_{2i}, x_{2i+1}), as the paper has them. The other entries pass
/// as they are. x [rows, heads * E]. A rotation is orthogonal, so dx is dy rotated back and stretched by c.
/// Throws std::invalid_argument if f is empty, d is more than E, E does not divide x.cols(), or there is not
/// one position for every row.
Var rope(const Var& x, const std::vector<double>& positions, const RopeOptions& options);

/// The same with trained frequencies f_i e^{alpha_i}, alpha [1, f.size()] (transformers,
/// modeling_mistral_large4.py). By its angle the first of a pair has the derivative -y_second and the second
/// y_first, and the angle by alpha_i is itself:
///     dalpha_i = sum over rows and heads of a (dy_second y_first - dy_first y_second)
/// Throws std::invalid_argument as well if alpha has another shape.
Var rope(const Var& x, const Var& alpha, const std::vector<double>& positions, const RopeOptions& options);

}  // namespace streambp::STREAMBP_REFERENCE
