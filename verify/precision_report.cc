#include "verify/precision_report.h"

#include <cmath>
#include <cstdlib>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "bench/cli/records.h"
#include "streambp/model/files/tensor_file.h"

namespace streambp::verify {
namespace {

using nlohmann::json;

/// StreamBP, table 6: sizes of gradient errors against float32, in absolute terms and in percent.
struct Published {
  Method method;
  const char* precision;
  double head, head_percent, layers, layers_percent;
};
constexpr Published kTable6[] = {
    {Method::kStandard, "bfloat16", 2.56e-7, 1.43, 2.46e-5, 6.63},
    {Method::kStreambp, "bfloat16", 2.64e-7, 1.47, 2.47e-5, 6.59},
    {Method::kStreambp, "float32", 6.66e-9, 0.04, 1.75e-7, 0.04},
};

/// "model.layers.0.self_attn.k_norm.weight" without what all names have.
std::string short_name(const std::string& parameter) {
  const std::string ending = ".weight";
  return parameter.ends_with(ending) ? parameter.substr(0, parameter.size() - ending.size()) : parameter;
}

std::string size_text(int64_t size) {
  return size > 0 ? std::to_string(size) : "-";
}

int64_t parts(int64_t tokens, int64_t chunk) {
  return chunk > 0 ? (tokens + chunk - 1) / chunk : 0;
}

/// Six digits: enough for a picture, and a third of the characters. Null where it is not finite.
json rounded(double number) {
  if (!std::isfinite(number)) return nullptr;
  return std::strtod(fmt::format("{:.6g}", number).c_str(), nullptr);
}

std::map<std::string, EntryErrors> entries_by_part(const Precision& errors) {
  std::map<std::string, EntryErrors> of_parts;
  for (const auto& [name, entries] : errors.entries) of_parts[part_of(name)].add(entries);
  return of_parts;
}

std::vector<std::string> part_cells(const std::map<std::string, EntryErrors>& of_parts) {
  std::vector<std::string> cells;
  for (const char* part : {"head", "layers"}) {
    const auto found = of_parts.find(part);
    const bool known = found != of_parts.end();
    cells.push_back(known ? fmt::format("{:.2e}", found->second.mean_absolute()) : "-");
    cells.push_back(known ? fmt::format("{:.2g}", 100.0 * found->second.relative()) : "-");
  }
  return cells;
}

}  // namespace

const std::vector<PrecisionKind>& precision_kinds() {
  static const std::vector<PrecisionKind> all{{"float32", at::kFloat, at::kFloat, at::kFloat},
                                              {"bfloat16", at::kBFloat16, at::kBFloat16, at::kBFloat16},
                                              {"mixed", at::kBFloat16, at::kFloat, at::kFloat}};
  return all;
}

const char* PrecisionRow::verdict() const {
  if (within()) return "ok";
  return gated ? "worse" : "rounded sums";
}

int64_t PrecisionRow::chunks() const {
  return parts(subject.tokens(), settings.chunk);
}

int64_t PrecisionRow::head_chunks() const {
  return parts(subject.tokens(), settings.head_chunk);
}

PrecisionRow precision_row(const PrecisionKind& kind, const PrecisionSubject& subject,
                           const Settings& settings, std::vector<Precision> of,
                           const std::vector<Precision>& standard) {
  PrecisionRow row;
  row.kind = &kind;
  row.subject = subject;
  row.settings = settings;
  row.seeds = std::move(of);
  std::vector<std::map<std::string, double>> times;
  for (size_t seed = 0; seed < row.seeds.size(); ++seed) {
    times.push_back(times_by_parameter(row.seeds[seed], standard[seed], rounding_of(kind.gradient_dtype)));
    row.most_times = worse(row.most_times, worst_of(times.back()).second);
  }
  row.times = median_of(times);
  return row;
}

StreamingTable precision_table(bool several_seeds) {
  using enum StreamingTable::Align;
  std::vector<StreamingTable::Column> columns{
      {"precision", 0, kLeft}, {"method", 11, kLeft},   {"chunk", 0, kRight},     {"head", 5, kRight},
      {"loss", 7, kRight},     {"gradient", 0, kRight}, {"x standard", 0, kRight}};
  if (several_seeds) columns.push_back({"most", 5, kRight});
  columns.push_back({"x standard in", 0, kLeft});
  return StreamingTable(columns);
}

std::vector<std::string> table_cells(const PrecisionRow& row) {
  const Precision errors = row.errors();
  const auto [worst, times] = row.worst_times();
  std::vector<std::string> cells{row.kind->name,
                                 method_name(row.settings.method),
                                 size_text(row.settings.chunk),
                                 size_text(row.settings.head_chunk),
                                 error_text(errors.loss),
                                 error_text(errors.worst().second),
                                 fmt::format("{:.2f}", times)};
  if (row.seeds.size() > 1) cells.push_back(fmt::format("{:.2f}", row.most_times));
  cells.push_back(short_name(worst));
  return cells;
}

StreamingTable ulp_table() {
  using enum StreamingTable::Align;
  std::vector<StreamingTable::Column> columns{
      {"precision", 0, kLeft}, {"method", 11, kLeft}, {"chunk", 0, kRight}, {"head", 5, kRight}};
  for (int bin = 0; bin < EntryErrors::kBins; ++bin)
    columns.push_back({EntryErrors::bin_name(bin), 5, kRight});
  return StreamingTable(columns);
}

std::vector<std::string> ulp_cells(const PrecisionRow& row) {
  EntryErrors all;
  for (const auto& [name, entries] : row.errors().entries) all.add(entries);
  std::vector<std::string> cells{row.kind->name, method_name(row.settings.method),
                                 size_text(row.settings.chunk), size_text(row.settings.head_chunk)};
  for (int bin = 0; bin < EntryErrors::kBins; ++bin)
    cells.push_back(all.ulps[static_cast<size_t>(bin)] == 0 ? "-"
                                                            : fmt::format("{:.1f}", 100.0 * all.share(bin)));
  return cells;
}

std::string part_of(const std::string& parameter) {
  if (parameter == "lm_head.weight") return "head";
  return parameter.starts_with("model.layers.") ? "layers" : "other";
}

void print_published(const std::vector<PrecisionRow>& rows) {
  using enum StreamingTable::Align;
  StreamingTable table(
      {{"", 32, kLeft}, {"LM head", 9, kRight}, {"%", 8, kRight}, {"layers", 9, kRight}, {"%", 8, kRight}});
  for (const Published& published : kTable6) {
    for (const PrecisionRow& row : rows) {
      if (row.settings.method != published.method || row.kind->name != published.precision) continue;
      const std::string chunk = row.settings.chunk > 0 ? fmt::format(", chunk {}", row.settings.chunk) : "";
      const std::string name = fmt::format("{} {}", method_name(published.method), published.precision);
      std::vector<std::string> cells = part_cells(entries_by_part(row.errors()));
      cells.insert(cells.begin(), name + chunk);
      table.add(cells);
      table.add({"  the paper", fmt::format("{:.2e}", published.head),
                 fmt::format("{:.2f}", published.head_percent), fmt::format("{:.2e}", published.layers),
                 fmt::format("{:.2f}", published.layers_percent)});
      break;  // the first of several chunks
    }
  }
}

json row_members(const PrecisionRow& row) {
  const Precision errors = row.errors();
  const auto [worst, error] = errors.worst();
  const auto [at, times] = row.worst_times();
  return {{"model", row.subject.model},
          {"objective", row.subject.objective},
          {"seq_len", row.subject.seq_len},
          {"batches", row.subject.batches},
          {"seed", row.subject.seed},
          {"seeds", row.seeds.size()},
          {"precision", row.kind->name},
          {"dtype", dtype_name(row.kind->dtype)},
          {"gradient_dtype", dtype_name(row.kind->gradient_dtype)},
          {"head_dtype", dtype_name(row.kind->head_dtype)},
          {"method", method_name(row.settings.method)},
          {"chunk", row.settings.chunk},
          {"chunks", row.chunks()},
          {"head_chunk", row.settings.head_chunk},
          {"head_chunks", row.head_chunks()},
          {"loss_error", errors.loss},
          {"log_probability_error", errors.log_probabilities},
          {"worst_parameter", worst},
          {"worst_error", error},
          {"times_standard", times},
          {"times_standard_in", at},
          {"times_standard_most", row.most_times},
          {"limit", kPrecisionFactor},
          {"verdict", row.verdict()}};
}

json row_record(const PrecisionRow& row, const json& environment) {
  json configuration{{"sequences", row.subject.sequences}, {"device", row.subject.device.str()}};
  json record = row_members(row);
  for (const char* member : {"model", "objective", "seq_len", "batches", "seed", "seeds", "dtype",
                             "gradient_dtype", "head_dtype", "method", "chunk", "head_chunk"})
    configuration[member] = record.at(member);
  if (row.subject.lead > 0.0) configuration["lead"] = row.subject.lead;
  record.update(configuration);
  record["schema"] = kRecordSchema;
  record["kind"] = "precision";
  record["key"] = record_key(configuration);
  const Precision errors = row.errors();
  json& parameters = record["parameters"] = json::object();
  for (const auto& [name, error] : errors.gradients)
    parameters[name] = {{"error", rounded(error)}, {"times_standard", rounded(row.times.at(name))}};
  json& of_parts = record["parts"] = json::object();
  for (const auto& [part, entries] : entries_by_part(errors)) {
    of_parts[part] = {{"ulps", entries.ulps},
                      {"zeros", entries.zeros},
                      {"entries", entries.entries},
                      {"mean_absolute_error", rounded(entries.mean_absolute())},
                      {"relative_error", rounded(entries.relative())}};
  }
  json& ends = record["ulp_ends"] = json::array();
  for (int bin = 0; bin < EntryErrors::kBins; ++bin) ends.push_back(rounded(EntryErrors::upper_end(bin)));
  record["environment"] = environment;
  return record;
}

}  // namespace streambp::verify
