// The table of methods of back-propagation: one row says everything the rest of the project needs to know of
// one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace streambp {

struct Config;
struct HeadOutcome;
struct Pass;
struct Settings;

/// An index into method_kinds().
enum class Method {
  kStandard,
  kCheckpoint,
  kStreambp,
  kTiled,
  kLogitsOnly,
  kChunkMajor,
};

/// How often a method runs the parts of a layer in one step, in units of one run over all tokens. The
/// defaults are standard back-propagation, which runs everything once forward and once backward.
struct LayerRuns {
  double projections = 1.0;  // forward: those of queries, keys and values
  double queries = 0.0;      // forward: that of queries, in addition; -1: once less
  double attention = 1.0;    // forward: scores and their product with the values
  double output = 1.0;       // forward: attention's output projection
  double mlp = 1.0;          // forward: the MLP, or router and experts, without the next
  double down = 1.0;         // forward: the MLP's (or the experts') down projection
  double keys_values = 0.0;  // forward: the projections of keys and values, in addition to `projections`;
                             // below 0: as many of those without keys and values
  double keys_values_backward = 0.0;  // backward: the same, in addition to the one that every part has
  double prefixes = 0.0;  // rows of the prefixes that chunks look at, for every token: with latent attention
                          // their keys and values are made for each chunk, in each run of attention
  bool keeps_scores = false;  // of a layer that recurs as well: scores run once less than `attention` says
};

/// How a method takes the LM head where Settings::stream_head does not say.
enum class HeadDefault {
  kFull,            // all logits at once, as Hugging Face does
  kStreamed,        // over chunks of scored tokens
  kAlwaysStreamed,  // and it cannot be otherwise
};

struct MethodKind {
  Method method;
  std::string name;     // on the command line and in records
  std::string summary;  // one line for --help
  std::string source;   // the paper
  std::string keeps;    // from the forward to the backward pass, in a few words

  /// Names of the settings that it takes (setting_kinds()). The head's, which every method takes, are among
  /// them.
  std::vector<std::string> settings;
  /// Whether it takes Settings::optimizer, which consumes gradients layer by layer.
  bool fuses_optimizer = false;
  HeadDefault head = HeadDefault::kStreamed;

  /// Runs one pass. Never null.
  HeadOutcome (*run)(const Pass& pass) = nullptr;
  /// What it runs of layer `layer` of `config`, a layer with a backward pass, over a stream of sequences of
  /// `lengths` tokens; `settings.chunk` is resolved. `joined`: the layer is the last one and goes through the
  /// head chunk by chunk (joins_head). Never null.
  LayerRuns (*layer_runs)(const Settings& settings, const std::vector<int64_t>& lengths, const Config& config,
                          int64_t layer, bool joined) = nullptr;
  /// What it runs of the layer in addition, forward, where it has not kept the input of the layer above;
  /// nothing where it has. `first` is the lowest layer that has a backward pass. Null: it keeps all inputs.
  std::optional<LayerRuns> (*rebuild_runs)(const Settings& settings, const Config& config, int64_t layer,
                                           int64_t first) = nullptr;
  /// How many numbers of a token it keeps of the layer's activations in addition to the input. Null: none.
  int64_t (*kept_width)(const Settings& settings, const Config& config, int64_t layer) = nullptr;
  /// How many numbers of a token the layer sends to the host's memory; `first` as above. Null: none.
  int64_t (*offloaded_width)(const Settings& settings, const Config& config, int64_t layer,
                             int64_t first) = nullptr;
  /// What it keeps of the layers, for tables ("1/4 inputs+attention on host"); null: nothing to choose.
  std::string (*describe_kept)(const Settings& settings) = nullptr;

  /// Tokens of the chunk that `--chunk auto` stands for, of a stream of `tokens`. Null where it takes no
  /// chunk.
  int64_t (*auto_chunk)(int64_t tokens, bool on_gpu) = nullptr;
  /// Chunks that `--method auto` tries in addition to that one.
  std::vector<int64_t> candidate_chunks = {};
  /// Whether its chunks cut the MLP and the head alone, and hidden states are worked on whole.
  bool chunks_mlp_only = false;
  /// Whether the streamed head goes by the layers' chunks where the loss is a sum over tokens.
  bool head_by_chunks = false;
  /// Whether layers run forward a second time in the backward pass.
  bool recomputes = true;

  /// The method that gives the same bits where one chunk holds the whole stream.
  std::optional<Method> equal_with_one_chunk = {};
  /// The method that this one is when its head is streamed.
  std::optional<Method> with_streamed_head = {};

  bool takes(const std::string& setting) const;
};

/// All methods, in the order of enum Method, which is also the order in which they are listed.
const std::vector<MethodKind>& method_kinds();
const MethodKind& method_kind(Method method);

/// By its name. Throws InputError that lists the names.
Method parse_method(const std::string& name);
const std::string& method_name(Method method);
std::vector<std::string> method_names();

/// Whether the method takes `setting`, by its name in setting_kinds().
bool takes(Method method, const std::string& setting);

/// Whether the method cuts the layers' work into chunks of Settings::chunk.
inline bool is_chunked(Method method) {
  return takes(method, "chunk");
}

/// What each method is, where it is from, what it keeps and which settings it takes, for the end of --help.
std::string describe_methods();

}  // namespace streambp
