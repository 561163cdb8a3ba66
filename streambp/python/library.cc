// What torch.ops.load_library() registers: torch.classes.streambp and torch.ops.streambp.
#include <nlohmann/json.hpp>

#include <torch/library.h>
#include <torch/version.h>

#include "streambp/memory/counted.h"
#include "streambp/memory/meter.h"
#include "streambp/python/attention.h"
#include "streambp/python/engine.h"
#include "streambp/python/guest.h"
#include "streambp/python/ranks.h"
#include "streambp/python/scopes.h"
#include "streambp/runtime/processor.h"

namespace streambp::python {
namespace {

void meter_install() {
  avoid_refused_instructions();
  install_meters();
}

void meter_reset(const std::string& device) {
  answered([&] { reset_peak(c10::Device(device)); });
}

std::string meter_read(const std::string& device) {
  return answered([&] {
    const MemoryReading reading = read_meter(c10::Device(device));
    return nlohmann::json{{"live_bytes", reading.live_bytes},
                          {"peak_bytes", reading.peak_bytes},
                          {"at_peak", reading.at_peak},
                          {"host_peak_bytes", reading.host_peak_bytes},
                          {"reserved_peak_bytes", reading.reserved_peak_bytes}}
        .dump();
  });
}

bool meter_counts(const at::Tensor& tensor) {
  return tensor.has_storage() && is_counted(tensor.storage().data_ptr());
}

void refuse_on_ranks(const std::string& process_group, const std::string& problem) {
  answered([&] { begin_together(*ranks_of_group(process_group), problem, {}); });
}

std::string built_with() {
  return TORCH_VERSION;
}

}  // namespace

TORCH_LIBRARY(streambp, m) {
  m.class_<StreamHandle>("Stream")
      .def("size", &StreamHandle::size)
      .def("rows", &StreamHandle::rows)
      .def("columns", &StreamHandle::columns)
      .def("indices", [](const c10::intrusive_ptr<StreamHandle>& self) { return self->indices(); });
  m.class_<Engine>("Engine")
      .def(torch::init<const std::string&, const std::string&, const std::string&, const std::string&,
                       const std::string&, const std::string&>())
      .def("objectives", [](const c10::intrusive_ptr<Engine>&) { return objectives_json(); })
      .def("settings", [](const c10::intrusive_ptr<Engine>&) { return settings_json(); })
      .def("parameters", &Engine::parameters)
      .def("layer_parameters", &Engine::layer_parameters)
      .def("set_rope", &Engine::set_rope)
      .def("head_parameters", &Engine::head_parameters)
      .def("backward", &Engine::backward)
      .def("sizes", &Engine::sizes)
      .def("needs_reference", &Engine::needs_reference)
      .def("evaluate", &Engine::evaluate)
      .def("stream", &Engine::stream)
      .def("layer_forward", &Engine::layer_forward)
      .def("layer_backward", &Engine::layer_backward)
      .def("head_loss", &Engine::head_loss)
      .def("head_log_probabilities", &Engine::head_log_probabilities)
      .def("head_log_probabilities_backward", &Engine::head_log_probabilities_backward);
  m.def("attention", attention);
  m.def("attention_backward", attention_backward);
  m.def("available_memory", [] { return available_memory(); });
  m.def("built_with", built_with);
  m.def("meter_install", meter_install);
  m.def("meter_reset", meter_reset);
  m.def("meter_read", meter_read);
  m.def("meter_counts", meter_counts);
  m.def("refuse_on_ranks", refuse_on_ranks);
  m.def("scope_push", scope_push);
  m.def("scope_pop", scope_pop);
  m.def("objectives", objectives_json);
  m.def("settings", settings_json);
}

}  // namespace streambp::python
