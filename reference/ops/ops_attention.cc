#include "reference/ops/ops_attention.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "reference/ops/ops_softmax.h"
#include "reference/require.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

/// The entries of a head's queries and keys, and of its values.
struct Sizes {
  Index key, value;
};

/// Where the operands of one query of one head lie: columns of its query, keys, values and output, and the
/// rows it sees.
struct View {
  Index query_column, key_column, value_column, output_column, first, count;
  const std::vector<int>* listed;  // the rows it sees, where they are no run of rows

  /// `size` columns of those rows of x.
  Matrix of(const Matrix& x, Index column, Index size) const {
    if (listed != nullptr) return x(*listed, Eigen::seqN(column, size));
    return x.block(first, column, count, size);
  }
  void add_to(Matrix& x, Index column, const Matrix& more) const {
    if (listed != nullptr) {
      x(*listed, Eigen::seqN(column, more.cols())) += more;
    } else {
      x.block(first, column, count, more.cols()) += more;
    }
  }
};

/// Calls visit(head, i, view) for every head and query.
template <typename Visit>
void for_each_query(Index length, const Sizes& size, const AttentionOptions& options, Visit visit) {
  const Index group = options.query_heads / options.key_value_heads;
  for (Index head = 0; head < options.query_heads; ++head) {
    for (Index i = 0; i < length; ++i) {
      const Index first = options.window == 0 ? 0 : std::max<Index>(0, i - options.window + 1);
      const std::vector<int>* const listed =
          options.seen.empty() ? nullptr : &options.seen[static_cast<std::size_t>(i)];
      visit(head, i,
            View{head * size.key, head / group * size.key, head / group * size.value, head * size.value,
                 first, listed != nullptr ? static_cast<Index>(listed->size()) : i - first + 1, listed});
    }
  }
}

/// Throws what the header says of wrong shapes and options.
Sizes require_valid(const Var& q, const Var& k, const Var& v, const AttentionOptions& options) {
  const Index length = q.rows();
  const int heads = options.query_heads;
  const int key_value_heads = options.key_value_heads;
  require(heads > 0 && key_value_heads > 0 && heads % key_value_heads == 0, "causal_attention",
          "expected query heads that are a multiple of the key/value heads, got " + std::to_string(heads) +
              " and " + std::to_string(key_value_heads));
  require(options.window >= 0, "causal_attention",
          "expected a window of at least 0, got " + std::to_string(options.window));
  require(options.softcap >= 0.0, "causal_attention",
          "expected a cap of at least 0, got " + std::to_string(options.softcap));
  require(options.seen.empty() || options.seen.size() == static_cast<std::size_t>(length), "causal_attention",
          "expected lists of keys of none or each of " + std::to_string(length) + " queries");
  for (std::size_t i = 0; i < options.seen.size(); ++i) {
    const std::vector<int>& keys = options.seen[i];
    const bool is_good = std::all_of(keys.begin(), keys.end(), [&](int key) {
      return (key >= 0 && key <= static_cast<int>(i)) || (key >= length && key < k.rows());
    });
    require(is_good && !keys.empty(), "causal_attention",
            "expected a list of keys up to query " + std::to_string(i));
  }
  require(q.cols() % heads == 0, "causal_attention",
          "expected queries of " + std::to_string(heads) + " heads, got " + shape_text(q.value()));
  const Index head_dim = q.cols() / heads;
  const Index rows = options.seen.empty() ? length : std::max(length, k.rows());
  require_shape("causal_attention", "the keys", k.value(), rows, key_value_heads * head_dim);
  require(v.cols() % key_value_heads == 0, "causal_attention",
          "expected values of " + std::to_string(key_value_heads) + " heads, got " + shape_text(v.value()));
  require_shape("causal_attention", "the values", v.value(), rows, v.cols());
  return {head_dim, v.cols() / key_value_heads};
}

/// With `sinks` (null: there are none) the probability of the sink is behind those of the keys.
Var attention(const Var& q, const Var& k, const Var& v, const Var* sinks, const AttentionOptions& options) {
  const Sizes size = require_valid(q, k, v, options);
  const Index length = q.rows();
  const Number cap = options.softcap;
  const bool has_sinks = sinks != nullptr;
  const Var sink = has_sinks ? *sinks : Var();
  if (has_sinks) {
    require_shape("causal_attention", "the sinks", sink.value(), 1, options.query_heads);
  }

  std::vector<Vector> probabilities;  // of every query, head by head; the backward pass needs them again
  probabilities.reserve(static_cast<std::size_t>(options.query_heads * length));
  Matrix value(length, options.query_heads * size.value);
  for_each_query(length, size, options, [&](Index head, Index i, const View& at) {
    const Matrix keys = at.of(k.value(), at.key_column, size.key);
    const Matrix values = at.of(v.value(), at.value_column, size.value);
    const auto query = q.value().row(i).segment(at.query_column, size.key);
    Vector scores = options.scale * (keys * query.transpose());
    if (cap > 0.0) scores = cap * (scores / cap).array().tanh();
    if (has_sinks) {
      scores.conservativeResize(at.count + 1);
      scores(at.count) = sink.value()(0, head);
    }
    probabilities.push_back(softmax(scores));
    value.row(i).segment(at.output_column, size.value) =
        probabilities.back().head(at.count).transpose() * values;
  });

  const std::vector<Var> inputs = has_sinks ? std::vector<Var>{q, k, v, sink} : std::vector<Var>{q, k, v};
  return Tape::record(
      inputs, std::move(value),
      [q, k, v, sink, has_sinks, options, cap, length, size, probabilities](const Var& y) {
        for_each_query(length, size, options, [&](Index head, Index i, const View& at) {
          const Vector& all = probabilities[static_cast<std::size_t>(head * length + i)];
          const auto p = all.head(at.count);
          const Matrix keys = at.of(k.value(), at.key_column, size.key);
          const Matrix values = at.of(v.value(), at.value_column, size.value);
          const auto query = q.value().row(i).segment(at.query_column, size.key);
          const auto d_output = y.gradient().row(i).segment(at.output_column, size.value);

          const Vector dp = values * d_output.transpose();
          Vector ds = p.array() * (dp.array() - p.dot(dp));
          if (has_sinks) sink.gradient()(0, head) -= all(at.count) * p.dot(dp);
          if (cap > 0.0) {
            const Vector scores = options.scale * (keys * query.transpose());
            ds.array() /= (scores / cap).array().cosh().square();  // 1 - tanh^2, without cancellation
          }
          at.add_to(v.gradient(), at.value_column, p * d_output);
          q.gradient().row(i).segment(at.query_column, size.key) += options.scale * (ds.transpose() * keys);
          at.add_to(k.gradient(), at.key_column, options.scale * (ds * query));
        });
      });
}

}  // namespace

Var causal_attention(const Var& q, const Var& k, const Var& v, const AttentionOptions& options) {
  return attention(q, k, v, nullptr, options);
}

Var causal_attention(const Var& q, const Var& k, const Var& v, const Var& sinks,
                     const AttentionOptions& options) {
  return attention(q, k, v, &sinks, options);
}

}  // namespace streambp::STREAMBP_REFERENCE
