#include "verify/diagnose/trials/hypotheses.h"

#include <algorithm>
#include <cstdlib>
#include <fmt/ranges.h>
#include <functional>
#include <set>
#include <tuple>
#include <utility>

#include "streambp/model/scored.h"
#include "streambp/objective/terms.h"
#include "verify/diagnose/parts/row_words.h"
#include "verify/diagnose/trials/hypotheses_table.h"

namespace streambp::verify {
namespace {

/// Starts of documents are looked at one by one where there are no more.
constexpr int64_t kMostDocuments = 6;

}  // namespace

bool Hypothesis::is_of_the_loss() const {
  static const std::set<std::string> kAbout{"options", "reference", "old", "normaliser", "advantages"};
  return kAbout.contains(about);
}

HypothesisTable::HypothesisTable(const WrongSubject& subject, const std::vector<int64_t>& chunks)
    : subject_(subject),
      config_(subject.model.config()),
      batch_(subject.batch),
      kind_(objective_kind(subject.objective)),
      options_(complete_options(kind_, subject.options, batch_)),
      indices_(token_indices(batch_, false)),
      padding_(left_padding(indices_)),
      live_(live_tokens()),
      given_chunks_(chunks) {}

std::vector<Hypothesis> HypothesisTable::all() {
  labels();
  inputs();
  attention();
  documents();
  rotary();
  weights();
  backward_rules();
  lost_paths();
  slopes();
  experts();
  recurrences();
  quantised();
  kinds_of_weights();
  gradients();
  chunked_labels();
  normalisers();
  turned_heads();
  layer_orders();
  merged_blocks();
  chunked();
  return std::move(table_);
}

void HypothesisTable::add(std::string name, std::string about, std::string sentence,
                          std::function<void(WrongSettings&)> make) {
  table_.push_back({std::move(name), std::move(sentence), std::move(about), std::move(make)});
}

bool HypothesisTable::has_right_padding() const {
  const at::Tensor last =
      at::full({batch_.padded_rows}, batch_.padded_columns, at::kLong)
          .scatter_reduce(0, indices_.row, indices_.column, "amax", /*include_self=*/false);
  return last.lt(batch_.padded_columns - 1).any().item<bool>();
}

bool HypothesisTable::is_recurrent() const {
  bool any = false;
  for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer)
    any = any || config_.is_recurrent(layer);
  return any;
}

/// Padding on the left is seen by real tokens, on the right scored: it has to be known, and be tokens.
bool HypothesisTable::knows_padding() const {
  if (!has_padding() || has_documents()) return false;
  const at::Tensor& ids = subject_.input_ids;
  return ids.defined() && ids.ge(0).all().item<bool>() && ids.lt(config_.vocab_size).all().item<bool>();
}

bool HypothesisTable::has_documents() const {
  return indices_.in_sequence.numel() > 0 &&
         !indices_.in_sequence.eq(indices_.column - padding_).all().item<bool>();
}

/// Tokens with a scored one of their sequence at their index or after it; all where experts are balanced.
at::Tensor HypothesisTable::live_tokens() const {
  at::Tensor live = at::zeros({batch_.size()}, at::kLong);
  if (is_balanced()) return live.fill_(1);
  const at::Tensor scored = scored_indices(batch_);
  for (size_t i = 0; i + 1 < batch_.offsets.size(); ++i) {
    const at::Tensor own = scored.index({scored.ge(batch_.offsets[i]) & scored.lt(batch_.offsets[i + 1])});
    if (own.numel() > 0) live.slice(0, batch_.offsets[i], own.max().item<int64_t>() + 1).fill_(1);
  }
  return live;
}

void HypothesisTable::labels() {
  add("labels-not-shifted", "targets",
      "labels are not shifted: logits are scored on the token at their own position",
      [](WrongSettings& s) { s.target_shift = 1; });
  if (kind_.layout == Layout::kLabels) {
    add("labels-not-shifted-first-counts", "targets",
        "labels are not shifted: logits are scored on the token at their own position, a row's first token "
        "included",
        [](WrongSettings& s) {
          s.target_shift = 1;
          s.first_label = true;
        });
    if (has_left_padding())
      add("labels-not-shifted-last-left-out", "targets",
          "labels are not shifted: tokens are scored where their own label is given, one token too late, the "
          "last column left out",
          [](WrongSettings& s) { s.target_shift = 1, s.first_label = s.no_last_column = true; });
  }
  if (subject_.teacher != nullptr) {
    const auto given = subject_.options.find("temperature");
    const double temperature =
        given == subject_.options.end() ? 1.0 : std::strtod(given->second.c_str(), nullptr);
    if (temperature > 0.0 && temperature != 1.0)
      add("teacher-temperature", "teacher", "the teacher's logits are not divided by the temperature",
          [temperature](WrongSettings& s) { s.teacher_logits = temperature; });
  }
  add("labels-shifted-twice", "targets",
      "labels are shifted twice: logits are scored on the token after the next",
      [](WrongSettings& s) { s.target_shift = -1; });
  if (knows_padding() && has_left_padding()) {
    for (const BlindQueries blind :
         {BlindQueries::kRowWithSlope, BlindQueries::kRow, BlindQueries::kThemselves, BlindQueries::kNothing})
      add("labels-shifted-twice", "targets",
          "labels are shifted twice: logits are scored on the token after the next, those of padding too",
          [blind](WrongSettings& s) {
            s.target_shift = -1;
            s.padding_runs = true;
            s.blind = blind;
          });
  }
  if (kind_.layout == Layout::kLabels && scored_indices(batch_).size(0) < batch_.size() - sequences()) {
    add("prompt-scored", "targets",
        "tokens whose label is masked, as a prompt's are, are scored on the next token",
        [](WrongSettings& s) { s.prompt_scored = true; });
  }
  if (!knows_padding()) return;
  if (has_left_padding() && is_recurrent()) {
    for (const BlindQueries blind : {BlindQueries::kThemselves, BlindQueries::kRow, BlindQueries::kNothing})
      add("padding-in-states", "padding",
          "recurrent layers take padding for tokens: their state and convolution are not told of it, "
          "attention "
          "is",
          [blind](WrongSettings& s) {
            s.padding_in_states = true;
            s.blind = blind;
          });
  }
  if (has_left_padding()) {
    add("padding-not-masked", "padding", "padding is not masked: real tokens see it",
        [](WrongSettings& s) { s.padding_visible = true; });
  }
  if (kind_.layout != Layout::kLabels) return;
  if (has_right_padding()) {
    add("padding-scored", "padding", "padding on the right counts among the labels",
        [](WrongSettings& s) { s.padding_scored = true; });
  }
  add("padding-not-masked-and-scored", "padding", "padding is neither masked nor left out of the labels",
      [](WrongSettings& s) { s.padding_visible = s.padding_scored = true; });
}

void HypothesisTable::inputs() {
  // With a term of its own, that is then zero, it is one that is missing.
  if (kind_.uses_reference && kind_.uses_reference(options_) && !options_.has("kl_estimator")) {
    add("reference-is-policy", "reference", "the reference's log-probabilities are the policy's own",
        [](WrongSettings& s) { s.reference_is_policy = true; });
  }
  if (batch_.token_inputs.contains(inputs::kOldLogProbabilities)) {
    add("old-missing", "old", "the old log-probabilities are not used: they are the policy's own",
        [](WrongSettings& s) { s.old_is_policy = true; });
  }
  shifted_inputs();
  // Those that are alike in a row are explained by its weight.
  if (batch_.token_inputs.contains(inputs::kAdvantages) && row_facts(batch_, kind_.layout).advantages.empty())
    advantages();
  other_options();
}

/// Log-probabilities that belong to the token before, or after.
void HypothesisTable::shifted_inputs() {
  for (const auto& [name, about, text, field] :
       {std::tuple{inputs::kOldLogProbabilities, "old", "old", &WrongSettings::old_shift},
        std::tuple{inputs::kReferenceLogProbabilities, "reference", "reference's",
                   &WrongSettings::reference_shift}}) {
    if (!batch_.token_inputs.contains(name)) continue;
    for (const int64_t by : {int64_t{1}, int64_t{-1}})
      add(fmt::format("{}-shifted{}", about, by > 0 ? "" : "-back"), about,
          fmt::format(
              "the {} log-probabilities are shifted by one token: each token has those of the one {} it",
              text, by > 0 ? "before" : "after"),
          [field = field, by](WrongSettings& s) { s.*field = by; });
  }
}

/// Packed documents, one of which begins elsewhere, or nowhere.
void HypothesisTable::documents() {
  if (kind_.layout != Layout::kLabels || !batch_.positions.eq(indices_.in_sequence).all().item<bool>())
    return;
  std::vector<int64_t> numbers;  // of documents that begin within a row
  for (int64_t i = 1; i < sequences(); ++i) {
    const int64_t first = batch_.offsets[static_cast<size_t>(i)];
    if (indices_.row[first].equal(indices_.row[first - 1])) numbers.push_back(i);
  }
  if (numbers.empty()) return;
  const auto starts_with = [&](const std::vector<int64_t>& moved, int64_t by) {
    std::vector<int64_t> starts = batch_.offsets;
    for (const int64_t number : moved) starts[static_cast<size_t>(number)] += by;
    return std::is_sorted(starts.begin(), starts.end(), std::less_equal<>()) ? starts
                                                                             : std::vector<int64_t>{};
  };
  const auto add_starts = [&](std::string name, std::string sentence, std::vector<int64_t> starts,
                              bool stay = false) {
    if (starts.empty()) return;
    add(std::move(name), "documents", std::move(sentence),
        [starts = std::move(starts), stay](WrongSettings& s) {
          s.document_starts = starts;
          s.positions_stay = stay;
        });
  };
  for (const int64_t by : {int64_t{1}, int64_t{-1}})
    add_starts(by > 0 ? "documents-late" : "documents-early",
               fmt::format("documents of a row begin one token {}", by > 0 ? "late" : "early"),
               starts_with(numbers, by));
  if (std::ssize(numbers) > kMostDocuments) return;
  std::vector<int64_t> last_of_rows;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto row_of = [&](int64_t number) {
      return indices_.row[batch_.offsets[static_cast<size_t>(number)]].item<int64_t>();
    };
    if (i + 1 == numbers.size() || row_of(numbers[i]) != row_of(numbers[i + 1]))
      last_of_rows.push_back(numbers[i]);
  }
  const auto without = [&](const std::vector<int64_t>& lost) {
    std::vector<int64_t> starts;
    for (int64_t i = 0; i < std::ssize(batch_.offsets); ++i) {
      if (std::find(lost.begin(), lost.end(), i) == lost.end())
        starts.push_back(batch_.offsets[static_cast<size_t>(i)]);
    }
    return starts;
  };
  for (const bool stay : {false, true}) {
    const char* const positions = stay ? ", and its positions begin anew" : ", and its positions go on";
    const char* const name = stay ? "-lost-positions-stay" : "-lost";
    if (last_of_rows.size() < numbers.size() && last_of_rows.size() > 1)
      add_starts(fmt::format("last-documents{}", name),
                 fmt::format("the last document of each row goes on from the one before: its start is lost "
                             "(the last of cu_seqlens){}",
                             positions),
                 without(last_of_rows), stay);
    for (const int64_t number : numbers)
      add_starts(fmt::format("document-{}{}", number, name),
                 fmt::format("document {}{} goes on from the one before: its start is lost{}", number,
                             number + 1 == sequences() ? ", the last document," : "", positions),
                 without({number}), stay);
  }
  for (const int64_t number : numbers) {
    for (const int64_t by : {int64_t{1}, int64_t{-1}})
      add_starts(fmt::format("document-{}-{}", number, by > 0 ? "late" : "early"),
                 fmt::format("document {} begins one token {}", number, by > 0 ? "late" : "early"),
                 starts_with({number}, by));
  }
}

/// Options that are ignored, or have another of the values that they may have.
void HypothesisTable::other_options() {
  const auto add_value = [&](const Option& option, const std::string& value, const std::string& text) {
    add(fmt::format("{}-{}", option.name, value.empty() ? "ignored" : value), "options",
        fmt::format("{} is {}", option.name, text),
        [name = option.name, value](WrongSettings& s) { s.options[name] = value; });
  };
  for (const Option& option : kind_.options) {
    const auto found = subject_.options.find(option.name);
    const std::string& given = found == subject_.options.end() ? option.default_value : found->second;
    for (const std::string& choice : option.choices) {
      if (choice == given || option.name == "vocabulary" || option.name == "reduction") continue;
      // Those are other weights of rows.
      if (kind_.name == "grpo" && (choice == "grpo" || choice == "bnpo" || choice == "dapo")) continue;
      add_value(option, choice, fmt::format("{} instead of {}", choice, given));
    }
    // Weights of terms are fitted.
    static const std::set<std::string> kFitted{
        "divisor", "beta", "kl_coef", "entropy_coef", "cpo_alpha", "vf_coef", "center_rewards_coefficient"};
    const bool fitted = kFitted.contains(option.name) && !has_pairs(kind_.layout) && kind_.name != "distill";
    if (const double number = std::strtod(given.c_str(), nullptr);
        kind_.name == "distill" && option.choices.empty() && number > 0.0 && number < 1.0 && number != 0.5) {
      const std::string rest = fmt::format("{:.12g}", 1.0 - number);
      add_value(option, rest, fmt::format("{} instead of {}: what is left of 1", rest, given));
    }
    if (given == option.default_value || !option.choices.empty() || fitted) continue;
    add_value(option, option.default_value,
              fmt::format("ignored: {} where {} is asked for",
                          option.default_value.empty() ? "its default" : option.default_value, given));
  }
}

void HypothesisTable::advantages() {
  const auto change = [&](const AdvantageChange& advantages, const std::string& of) {
    const bool whitened = advantages.kind == AdvantageChange::Kind::kWhitened;
    std::string name = whitened ? "advantages-normalised" : "advantages-centred";
    if (advantages.over_tokens) name += "-tokens";
    if (advantages.group > 0) name += fmt::format("-groups-of-{}", advantages.group);
    WrongSettings settings;
    settings.advantages = advantages;
    const at::Tensor changed = wrong_advantages(batch_, settings);
    if (!is_new_advantage(changed)) return;
    add(name, "advantages",
        fmt::format("the given advantages are {} again, over {}",
                    whitened ? "centred and divided by their deviation" : "centred", of),
        [advantages](WrongSettings& s) { s.advantages = advantages; });
  };
  for (const auto kind : {AdvantageChange::Kind::kCentred, AdvantageChange::Kind::kWhitened}) {
    change({kind, 0, false, 0.0}, "all rows");
    change({kind, 0, true, 0.0}, "all tokens");
    for (int64_t group = 2; group <= sequences() / 2; ++group) {
      if (sequences() % group == 0)
        change({kind, group, false, 1e-4}, fmt::format("groups of {} rows", group));
    }
  }
}

/// Another normalisation that comes to the same is no hypothesis of its own.
bool HypothesisTable::is_new_advantage(const at::Tensor& changed) {
  const auto is_same = [&](const at::Tensor& other) { return at::allclose(changed, other, 1e-9, 1e-12); };
  if (advantages_.empty()) advantages_.push_back(batch_.token_inputs.at(inputs::kAdvantages));
  if (is_zero(changed) || std::any_of(advantages_.begin(), advantages_.end(), is_same)) return false;
  advantages_.push_back(changed);
  return true;
}

std::vector<Hypothesis> hypotheses(const WrongSubject& subject, const std::vector<int64_t>& chunks) {
  return HypothesisTable(subject, chunks).all();
}

}  // namespace streambp::verify
