// Embeddings of whole sequences: instead of the head where an objective compares texts, without any logits.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>

#include "streambp/backprop/head/head.h"

namespace streambp {

/// The embeddings [S, D] float64 of final hidden states [N, D], under autograd where they are.
at::Tensor embeddings(const HeadPass& pass, const at::Tensor& hidden);

/// The same by runs of at most `chunk` tokens, without a graph.
at::Tensor streamed_embeddings(const HeadPass& pass, int64_t chunk, const at::Tensor& hidden);

/// Adds the gradient of the norm and writes that of the hidden states over them, for that of the
/// embeddings [S, D].
void embeddings_backward(const HeadPass& pass, int64_t chunk, const at::Tensor& d_embeddings,
                         at::Tensor& hidden);

/// The loss of the embeddings; its gradient by them replaces them.
double embeddings_gradient(const Objective& objective, at::Tensor& embeddings);

/// Throws InputError for an objective that balances the load of the model's experts: that is no sum over
/// parts of a batch.
void require_no_balance(const Model& model, const Objective& objective);

/// The objective of each part of `batch` (micro_batches), so that losses and gradients sum to those of the
/// whole: with normalisers of the whole or, where it compares embeddings, in two phases (BASIC, arXiv
/// 2111.10050; GradCache, arXiv 2101.06983): first the embeddings of all parts without a graph, the loss of
/// all of them and its gradient, which a part's objective then passes on. Throws InputError as make_objective
/// and, for several parts, require_no_balance do.
std::vector<std::unique_ptr<Objective>> part_objectives(Model& model, const std::string& name,
                                                        const Batch& batch, const std::vector<Batch>& parts,
                                                        const std::map<std::string, std::string>& given);

}  // namespace streambp
