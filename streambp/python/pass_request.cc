#include "streambp/python/pass_request.h"

#include <charconv>

#include "streambp/error.h"

namespace streambp::python {
namespace {

int64_t whole_number(const std::string& name, const std::string& text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < 1)
    throw InputError("{} '{}': expected a whole number from 1 on", name, text);
  return number;
}

}  // namespace

PassRequest read_pass_request(const std::map<std::string, std::string>& given) {
  PassRequest request;
  for (const auto& [name, text] : given) {
    if (name == "method") {
      request.settings.method = parse_method(text);
    } else if (name == "micro_batches") {
      request.micro_batches = whole_number(name, text);
    } else if (name == "first_labels") {
      request.first_labels = text;
    } else {
      const SettingKind& kind = setting_kind(name);
      set_setting(kind, request.settings, text);
      request.fixed.insert(name);
      request.fixed.insert(kind.fixes.begin(), kind.fixes.end());
    }
  }
  if (!request.settings.is_fair())
    throw InputError("baseline '{}': imitates other libraries in the programs alone",
                     request.settings.baseline);
  check_settings(request.settings);
  return request;
}

}  // namespace streambp::python
