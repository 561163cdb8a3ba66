// How a method is run: its settings, and the table in which each of them is declared.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "streambp/backprop/kept/kept_layers.h"
#include "streambp/backprop/method_kind.h"
#include "streambp/backprop/streamed/stream_buffer.h"

namespace streambp {

class GradientConsumer;

/// In which order streambp takes a layer's chunks in the backward pass.
enum class Order {
  kReverse,  // last to first: only one layer's keys and values are computed twice
  kForward,  // first to last, the keys and values of the whole prefix again for every chunk, as the published
             // code does
};

/// The settings of a pass. Which of them a method takes is in its row of method_kinds().
struct Settings {
  Method method = Method::kStreambp;
  /// Tokens of a chunk (or tile); 0: chosen by auto_chunk.
  int64_t chunk = 0;
  /// Activations to keep in addition to inputs. Attention's output alone is LightSeq's
  /// rematerialisation-aware checkpointing (arXiv 2310.03294).
  KeptLayers keep;
  /// Keep every k-th layer's input and compute the others again (Chen et al., 2016, arXiv 1604.06174).
  int64_t every = 1;
  /// Where what is kept of the layers lies.
  Offload offload = Offload::kNone;
  /// Of how many layers, from the lowest trained one, `keep`'s activations are offloaded, while inputs stay
  /// on the device. Nothing: all that is kept is offloaded.
  std::optional<int64_t> offload_layers;
  Order order = Order::kReverse;
  /// Whether the LM head is streamed over chunks of scored tokens. Default: as its method does.
  std::optional<bool> stream_head;
  /// Scored tokens of a streamed head's chunk; 0: chosen by auto_head_chunk.
  int64_t head_chunk = 0;
  /// Whose ops layers and a full head are made of: ours ("fair"), or those that were added under this name
  /// (add_model_ops): "hugging-face" and "trl" (bench/baseline) hold all that transformers 4.51 and TRL's
  /// trainers hold between forward and backward pass. The gradients are the same.
  std::string baseline = "fair";
  bool is_fair() const { return baseline == "fair"; }
  /// Is handed each layer's gradients as soon as they are final: an optimizer that takes the layer's step at
  /// once (LOMO, arXiv 2306.09782), or sums over ranks. Null: gradients are added to. An object, and so not
  /// in setting_kinds(): MethodKind::fuses_optimizer says which methods take it.
  GradientConsumer* consumer = nullptr;

  bool streams_head() const;
};

enum class SettingType { kSwitch, kNumber, kWord };

/// What a search for the cheapest configuration knows when it asks for the values of a setting to try.
struct SearchContext {
  int64_t layers = 0;
  bool may_offload = false;  // memory of the host is given
  Settings settings = {};    // with the settings that come before it in setting_kinds()
};

/// One setting: all that command lines, records, messages, searches and checks need to know of it.
struct SettingKind {
  std::string name;  // of the member in records and in MethodKind::settings
  std::string flag;  // on the command line; without its dashes, in descriptions
  SettingType type;
  std::string help;                  // for --help, where the methods that take it are put before it
  std::vector<std::string> choices;  // of a word; of a number the words allowed instead of it
  /// Values of a word that are no choices, as examples; `assign` throws InputError for what is neither.
  std::vector<std::string> examples = {};
  /// The value as typed and recorded: "true" or "false", "512" or "auto", "host".
  std::string (*text)(const Settings& settings);
  /// Sets the value from such a text, which set_setting() has checked.
  void (*assign)(Settings& settings, const std::string& text);
  /// Whether it means anything under the other settings; null: always.
  bool (*applies)(const Settings& settings) = nullptr;
  /// In place of "flag text" for a value that is not the default; "" where there is nothing to say.
  std::string (*describe)(const Settings& settings) = nullptr;

  /// Whether records name it where it has its default. Not so for a new setting: the keys of older records,
  /// by which --resume finds them, stay what they are.
  bool default_recorded = false;
  /// Whether methods that don't take it refuse another value than the default, or pass over it.
  bool refused_elsewhere = true;

  /// Whether `--method auto` chooses it where it is not given, and among which values. Null: by what else
  /// the method's row says (chunk and head).
  bool searched = false;
  std::vector<std::string> (*candidates)(const SearchContext& context) = nullptr;
  /// Names of other settings that are no longer open where this one is given.
  std::vector<std::string> fixes = {};

  /// Further values that `streambp-verify sweep` runs: those that leave every gradient the same to the last
  /// bit, in all combinations with other settings' ones, and those that change the order of sums.
  std::vector<std::string> same_bits = {};
  std::vector<std::string> same_gradients = {};
  /// Whether same_bits are run with the logits in full, where the method can.
  bool checked_with_full_head = false;
};

/// All settings, in the order in which they are described.
const std::vector<SettingKind>& setting_kinds();

/// By its name. Throws InputError that lists the names.
const SettingKind& setting_kind(const std::string& name);

/// Sets `kind` of `settings`. Throws InputError that names the flag for what is not one of its values.
void set_setting(const SettingKind& kind, Settings& settings, const std::string& text);

/// Whether `settings` has the default of `kind`.
bool is_default(const SettingKind& kind, const Settings& settings);

/// Whether the method of `settings` takes `kind`, and it means anything there.
bool applies(const SettingKind& kind, const Settings& settings);

/// The settings of `asked` that `method` takes, the defaults of the others.
Settings settings_for(Method method, const Settings& asked);

/// `settings` with each combination of same_bits values of those kinds that its method takes and that are
/// checked with a full head, or are not; without `settings` itself.
std::vector<Settings> same_bits_variants(const Settings& settings, bool with_full_head);

/// `settings` with each of same_gradients that its method takes.
std::vector<Settings> same_gradients_variants(const Settings& settings);

/// Names of the methods that take the setting of this name.
std::vector<std::string> methods_that_take(const std::string& setting);

/// A method with its settings: "streambp, chunk 1024, keep-attention, every 4, offload host"; "standard,
/// streamed head". What is as by default is left out.
std::string configuration_text(const Settings& settings);

/// Throws InputError for a setting that its method doesn't take, or that is out of range.
void check_settings(const Settings& settings);

}  // namespace streambp
