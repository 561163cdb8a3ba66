// The commands of streambp-verify. Each adds its subcommand to `app`; when it is the one that is called,
// `action` receives its work.
#pragma once

#include <CLI/App.hpp>
#include <functional>

namespace streambp::verify {

/// Every method on golden cases: losses and gradients that other people's code gave.
void add_goldens_command(CLI::App& app, std::function<int()>& action);

/// Every method on random small models: equal to standard back-propagation and to the reference.
void add_sweep_command(CLI::App& app, std::function<int()>& action);

/// The reference against finite differences.
void add_gradcheck_command(CLI::App& app, std::function<int()>& action);

/// Errors of float32 and bfloat16 against the float64 truth, method by method. Records hold `argv`.
void add_precision_command(CLI::App& app, std::function<int()>& action, int argc, const char* const* argv);

/// A file of gradients, from any framework, against the float64 truth.
void add_compare_command(CLI::App& app, std::function<int()>& action);

/// Completions that an inference engine sampled: what its log-probabilities do to the gradient.
void add_rollout_command(CLI::App& app, std::function<int()>& action);

/// Lengths, products and element counts across 2^16, 2^31 and 2^32.
void add_long_command(CLI::App& app, std::function<int()>& action);

}  // namespace streambp::verify
