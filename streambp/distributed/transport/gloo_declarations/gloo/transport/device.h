// What c10d's header names of a transport (gloo/transport/*.h, BSD licence, github.com/pytorch/gloo).
#pragma once

namespace gloo::transport {

class Device;
class UnboundBuffer;

}  // namespace gloo::transport
