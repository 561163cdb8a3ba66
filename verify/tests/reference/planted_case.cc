#include "planted_case.h"

#ifdef STREAMBP_REFERENCE_IN_EXTENDED_PRECISION
#include "reference/check/truth_of.h"
#endif
#include "reference/ops/ops.h"

namespace streambp::STREAMBP_REFERENCE {
namespace {

const DoubleMatrix kPlantedPoint = random_matrix(3, 4, 20261125);

}  // namespace

Case case_with_wrong_factor(double error, bool joint) {
  const Function f = [error](Tape&, const std::vector<Var>& inputs) {
    const Var& x = inputs[0];
    const Matrix squares = x.value().cwiseProduct(x.value());
    const Matrix exponentials = x.value().unaryExpr([](const Scalar& t) { return math::exp(t); });
    return Tape::record({x}, exponentials - squares.cwiseProduct(x.value()), [=](const Var& y) {
      const Matrix slope = exponentials - Scalar(3) * squares;
      x.gradient() += Scalar(1 + Number{error}) * y.gradient().cwiseProduct(slope);
    });
  };
  Case planted{"planted factor", f, {kPlantedPoint}};
  if (joint) planted.options.max_entries = 0;
  return planted;
}

Case case_with_lost_dependence() {
  const Function f = [](Tape& tape, const std::vector<Var>& x) {
    return mul(tape.leaf(held_constant(x[0].value())), x[0]);
  };
  return {"lost dependence", f, {kPlantedPoint}};
}

#ifdef STREAMBP_REFERENCE_IN_EXTENDED_PRECISION
Truth truth_with_wrong_factor(double error, bool joint) {
  return truth_of(case_with_wrong_factor(error, joint));
}

Truth truth_with_lost_dependence() {
  return truth_of(case_with_lost_dependence());
}
#endif

}  // namespace streambp::STREAMBP_REFERENCE
