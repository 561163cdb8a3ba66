// All operations of the reference, by theme. Every one has the same form: check the shapes, compute the
// value, and write down the chain rule. L stands for the scalar at the end of the computation, dy for dL/dy.
#pragma once

#include "reference/ops/ops_attention.h"
#include "reference/ops/ops_elementwise.h"
#include "reference/ops/ops_layer.h"
#include "reference/ops/ops_matrix.h"
#include "reference/ops/ops_recurrent.h"
#include "reference/ops/ops_softmax.h"
