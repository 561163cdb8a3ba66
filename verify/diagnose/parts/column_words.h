// Weights of tokens that are alike in runs of columns, in words.
#pragma once

#include <optional>
#include <string>

#include <ATen/ATen.h>

namespace streambp::verify {

struct ColumnWords {
  std::string name;
  std::string sentence;
};

/// Of scored tokens with a weight and its error each, [M], in `columns` [M] of the padded input: the few runs
/// of columns in which all count alike, or nothing. Where a run's weight times its tokens is one number, the
/// loss is the mean of the runs' means.
std::optional<ColumnWords> words_of_columns(const at::Tensor& columns, const at::Tensor& weights,
                                            const at::Tensor& errors);

/// Of scored tokens in `sequence` [M], in order, of which some are `gone` [M]: that these are as many of the
/// first, or the last, of each, or nothing.
std::optional<ColumnWords> words_of_ends(const at::Tensor& sequence, const at::Tensor& gone);

/// Of scored tokens in `columns` [M] of the padded input, of which some are `gone` [M]: that these are all of
/// a few columns, as the last of chunks whose labels are the next ones', or nothing.
std::optional<ColumnWords> words_of_lost_columns(const at::Tensor& columns, const at::Tensor& gone);

}  // namespace streambp::verify
