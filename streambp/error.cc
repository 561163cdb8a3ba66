#include "streambp/error.h"

#include "streambp/printable.h"

namespace streambp {

InputError::InputError(const std::string& message) : std::runtime_error(printable(message)) {}

}  // namespace streambp
