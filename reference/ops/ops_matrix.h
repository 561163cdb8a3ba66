// Products, sums and selections of matrices.
#pragma once

#include <vector>

#include "reference/tape.h"

namespace streambp::STREAMBP_REFERENCE {

/// Y = A B, [m, k] [k, n] -> [m, n].   dA = dY B^T, dB = A^T dY. Throws std::invalid_argument if A.cols() !=
/// B.rows().
Var matmul(const Var& a, const Var& b);

/// Y = X W^T, [rows, in] and W [out, in] -> [rows, out]: a linear layer in the layout of Hugging Face's
/// weights. dX = dY W, dW = dY^T X. Throws std::invalid_argument if X.cols() != W.cols().
Var linear(const Var& x, const Var& weight);

/// Y = X W^T + 1 b with the bias b [1, out] added to every row.   db = the sum of the rows of dY.
Var linear(const Var& x, const Var& weight, const Var& bias);

/// Y_ij = X_ji, [rows, cols] -> [cols, rows].   dX = dY^T
Var transpose(const Var& x);

/// Y_ij = X_ij s_i: every row times its own number, [rows, cols] and s [rows, 1] -> [rows, cols].
/// dX_ij = dY_ij s_i,   ds_i = sum_j dY_ij X_ij. Throws std::invalid_argument if s is not [rows, 1].
Var scale_rows(const Var& x, const Var& s);

/// The same with constant numbers, s.size() = rows.
Var scale_rows(const Var& x, const std::vector<Number>& s);

/// Y_ij = X_{i, first + j} for 0 <= j < count: neighbouring columns, [rows, cols] -> [rows, count].   dX is
/// dY in those columns and 0 elsewhere. Throws std::invalid_argument if there are not as many.
Var slice_columns(const Var& x, Index first, Index count);

/// The sum of all entries, [1, 1] (0 for an empty matrix).   dX = dy in every entry.
Var sum(const Var& x);

/// The sum of every row, [rows, cols] -> [rows, 1].   dX_ij = dy_i
Var row_sum(const Var& x);

/// Y_i = X_{rows[i]}: chosen rows, any of them any number of times. With X an embedding table this is the
/// embedding. dX_r = sum of dY_i over all i with rows[i] = r. Throws std::invalid_argument if a row does not
/// exist.
Var gather_rows(const Var& x, const std::vector<int>& rows);

/// Y_ij = X_{i, columns[j]}: the same of columns, made of the transpose.
Var gather_columns(const Var& x, const std::vector<int>& columns);

/// Y_r = the sum of X_i over all i with rows[i] = r, [rows.size(), cols] -> [count, cols]; zeros where there
/// is none. It sums the tokens of every sequence, and puts rows back where they were that gather_rows took
/// out. dX_i = dY_{rows[i]}. Throws std::invalid_argument if a row is not below count or there is not one for
/// every row of X.
Var scatter_rows(const Var& x, const std::vector<int>& rows, Index count);

/// y_i = X_{i, columns[i]}, [rows, 1]: one entry of every row.   dX is dy_i at that entry and 0 elsewhere.
/// Throws std::invalid_argument if a column does not exist or there is not one for every row.
Var pick(const Var& x, const std::vector<int>& columns);

/// The parts below one another; at least one, all with the same number of columns, else
/// std::invalid_argument.
Var concat_rows(const std::vector<Var>& parts);

}  // namespace streambp::STREAMBP_REFERENCE
