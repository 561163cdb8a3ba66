#include "streambp/model/files/strict_json.h"

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "streambp/error.h"
#include "streambp/printable.h"

namespace streambp {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxDepth = 64;
constexpr std::size_t kMaxShown = 120;
constexpr std::uintmax_t kMaxTextFile = 100'000'000;

// Builds the document from parser events. The library's own builder keeps the last of two equal keys; this
// one refuses.
class Builder : public nlohmann::json_sax<json> {
 public:
  explicit Builder(const std::string& where) : where_(where) {}

  json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { throw InputError("{}: binary value in JSON text", where_); }

  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    const auto [entry, is_new] =
        open_.back()->get_ref<json::object_t&>().try_emplace(std::move(name), nullptr);
    if (!is_new) throw InputError("{}: the key {} appears twice in one object", where_, shown(entry->first));
    slot_ = &entry->second;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    // what() starts with the library's own error id in brackets, and may quote any bytes of the text.
    std::string reason = error.what();
    reason.erase(0, reason.find("] ") == std::string::npos ? 0 : reason.find("] ") + 2);
    throw InputError("{}: not valid JSON at byte {}: {}", where_, position, printable(reason, kMaxShown));
  }

 private:
  bool put(json value) {
    *slot() = std::move(value);
    return true;
  }

  bool open(json container) {
    if (open_.size() >= kMaxDepth)
      throw InputError("{}: JSON nested deeper than {} levels", where_, kMaxDepth);
    json* const at = slot();
    *at = std::move(container);
    open_.push_back(at);
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  // Where the next value goes. A parent array does not grow while one of its elements is open, so the
  // pointers hold.
  json* slot() {
    if (open_.empty()) return &root_;
    if (!open_.back()->is_array()) return slot_;
    auto& elements = open_.back()->get_ref<json::array_t&>();
    return &elements.emplace_back();
  }

  const std::string& where_;
  json root_;
  std::vector<json*> open_;
  json* slot_ = nullptr;
};

}  // namespace

json parse_strict_json(std::string_view text, const std::string& where) {
  // The library skips a byte order mark and takes a NUL byte for the end of the text.
  if (text.starts_with("\xEF\xBB\xBF")) throw InputError("{}: starts with a byte order mark", where);
  if (text.find('\0') != std::string_view::npos) throw InputError("{}: NUL byte in JSON text", where);
  Builder builder(where);
  json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

json parse_config_json(std::string_view text, const std::string& where) {
  constexpr std::string_view kWord = "Infinity", kObject = R"({"__float__":"Infinity"})";
  if (text.find(kWord) == std::string_view::npos) return parse_strict_json(text, where);
  std::string plain;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool is_word = !in_string && text.substr(i).starts_with(kWord);
    plain += is_word ? kObject : text.substr(i, 1);
    if (is_word) i += kWord.size() - 1;
    if (in_string && text[i] == '\\' && i + 1 < text.size())
      plain += text[++i];
    else if (text[i] == '"')
      in_string = !in_string;
  }
  return parse_strict_json(plain, where);
}

std::string read_text_file(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found)
    throw InputError("{}: no such file", path.string());
  if (error) throw InputError("{}: {}", path.string(), error.message());
  if (!std::filesystem::is_regular_file(status)) throw InputError("{}: not a regular file", path.string());
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  if (error) throw InputError("{}: {}", path.string(), error.message());
  if (size > kMaxTextFile) {
    throw InputError("{}: {} bytes, expected at most {}", path.string(), size, kMaxTextFile);
  }
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<std::size_t>(size), '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(size))) {
    throw InputError("{}: cannot be read", path.string());
  }
  return text;
}

std::string shown(const json& value) {
  return printable(value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace), kMaxShown);
}

}  // namespace streambp
