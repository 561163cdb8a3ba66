// What the processor says it can do, and what it may do here.
#pragma once

namespace streambp {

/// Keeps oneDNN away from AMX where the processor advertises it but the machine refuses it, as some virtual
/// machines do: oneDNN asks only the processor and would end the program with an illegal instruction in
/// bfloat16. Sets ONEDNN_MAX_CPU_ISA, unless the user has. Call before the first tensor op.
void avoid_refused_instructions();

}  // namespace streambp
