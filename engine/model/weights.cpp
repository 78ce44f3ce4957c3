#include "engine/model/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "base/ceil_div.h"
#include "base/error.h"
#include "base/free_memory.h"
#include "base/hash.h"
#include "base/parallel.h"
#include "base/safetensors.h"
#include "base/text.h"
#include "engine/model/json_config.h"

namespace kvlab {

// DIR/model.safetensors or the shards of its index, mapped.
class WeightFiles {
 public:
  // Throws InputError for missing or invalid files, or tensors (except RoPE buffers) not in the indexed shard.
  explicit WeightFiles(const std::string& dir);

  [[nodiscard]] bool has(const std::string& tensor) const { return places_.contains(tensor); }
  [[nodiscard]] const SafetensorsFile& file_of(const std::string& tensor) const { return files_.at(places_.at(tensor)); }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& [tensor, file] : places_) names.push_back(tensor);
    return names;
  }
  // Throws "FILE: message", FILE the only file or the index.
  [[noreturn]] void fail(const std::string& message) const { throw InputError(name_ + ": " + message); }

 private:
  void open_shards(const std::string& dir);

  std::string name_;                              // the only file or the index
  std::map<std::string, SafetensorsFile> files_;  // by file name
  std::map<std::string, std::string> places_;     // tensor -> file
};

namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Pickled PyTorch weights can run code.
void refuse_folder(const fs::path& dir) {
  const bool pickled = is_there(dir / "pytorch_model.bin") || is_there(dir / "pytorch_model.bin.index.json");
  throw InputError(fmt::format("{}: has neither {} nor {}{}", dir.string(), kSingleFile, kIndexFile,
                               pickled ? "; pytorch_model.bin is not read, convert it to safetensors" : ""));
}

std::map<std::string, std::string> read_weight_map(const JsonConfig& index) {
  const JsonConfig map = index.object("weight_map");
  std::map<std::string, std::string> places;
  for (const auto& [tensor, shard] : map.json().items()) {
    const std::string name = map.text(tensor);
    if (name.empty() || fs::path(name).filename() != name) map.refuse(tensor, "the name of a file in the same folder");
    places[tensor] = name;
  }
  if (places.empty()) index.fail("'weight_map' names no tensor");
  return places;
}

// RoPE frequencies in older files.
bool is_rope_buffer(const std::string& tensor) { return tensor.ends_with("rotary_emb.inv_freq"); }

}  // namespace

WeightFiles::WeightFiles(const std::string& dir) {
  const fs::path folder(dir);
  if (!is_there(folder / kSingleFile)) {
    if (!is_there(folder / kIndexFile)) refuse_folder(folder);
    open_shards(dir);
    return;
  }
  name_ = (folder / kSingleFile).string();
  const SafetensorsFile& file = files_.emplace(kSingleFile, SafetensorsFile::open(name_)).first->second;
  for (const auto& [tensor, info] : file.tensors()) places_[tensor] = kSingleFile;
}

void WeightFiles::open_shards(const std::string& dir) {
  const fs::path folder(dir);
  name_ = (folder / kIndexFile).string();
  places_ = read_weight_map(JsonConfig(name_));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : places_) shards.insert(shard);
  std::vector<std::string> missing;
  for (const std::string& shard : shards)
    if (!is_there(folder / shard)) missing.push_back(shard);
  if (!missing.empty()) fail(fmt::format("{} of {} shards are missing: {}", missing.size(), shards.size(), join(missing, ", ")));
  for (const std::string& shard : shards) files_.emplace(shard, SafetensorsFile::open((folder / shard).string()));
  for (const auto& [shard, file] : files_) {
    for (const auto& [tensor, info] : file.tensors()) {
      const auto place = places_.find(tensor);
      if (place == places_.end()) file.fail("tensor '" + tensor + "' is not in " + kIndexFile);
      if (place->second != shard) file.fail(fmt::format("tensor '{}' belongs into {} by {}", tensor, place->second, kIndexFile));
    }
  }
  std::erase_if(places_, [&](const auto& place) { return is_rope_buffer(place.first) && !files_.at(place.second).has(place.first); });
  for (const auto& [tensor, shard] : places_)
    if (!files_.at(shard).has(tensor)) fail(fmt::format("'weight_map' places tensor '{}' in {}, which does not have it", tensor, shard));
}

namespace {

using Shape = std::vector<std::int64_t>;

struct WantedTensor {
  std::string name;
  Shape shape;
  Weight* to;

  [[nodiscard]] std::size_t size() const {
    std::size_t n = 1;
    for (const std::int64_t extent : shape) n *= static_cast<std::size_t>(extent);
    return n;
  }
};

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

void want_layer(const ModelConfig& c, const std::string& at, LayerWeights& w, std::vector<WantedTensor>& wanted) {
  const std::int64_t hidden = c.hidden_dim, inner = c.intermediate_dim;
  const std::int64_t q_dim = c.q_width(), kv_dim = c.kv_width();
  const auto vector = [&](const char* name, std::int64_t n, Weight& to) { wanted.push_back({at + name, {n}, &to}); };
  const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in, Weight& weight, bool biased, Weight& bias) {
    wanted.push_back({at + name + ".weight", {out, in}, &weight});
    if (biased) wanted.push_back({at + name + ".bias", {out}, &bias});
  };
  vector("input_layernorm.weight", hidden, w.attention_norm);
  vector("post_attention_layernorm.weight", hidden, w.mlp_norm);
  linear("self_attn.q_proj", q_dim, hidden, w.q, c.qkv_bias, w.q_bias);
  linear("self_attn.k_proj", kv_dim, hidden, w.k, c.qkv_bias, w.k_bias);
  linear("self_attn.v_proj", kv_dim, hidden, w.v, c.qkv_bias, w.v_bias);
  linear("self_attn.o_proj", hidden, q_dim, w.o, c.o_bias, w.o_bias);
  if (c.qk_norm) vector("self_attn.q_norm.weight", c.head_dim, w.q_norm);
  if (c.qk_norm) vector("self_attn.k_norm.weight", c.head_dim, w.k_norm);
  linear("mlp.gate_proj", inner, hidden, w.gate, c.mlp_bias, w.gate_bias);
  linear("mlp.up_proj", inner, hidden, w.up, c.mlp_bias, w.up_bias);
  linear("mlp.down_proj", hidden, inner, w.down, c.mlp_bias, w.down_bias);
}

std::vector<WantedTensor> wanted_tables(const ModelConfig& c, ModelWeights& w) {
  std::vector<WantedTensor> wanted{{kEmbedding, {c.vocab_size, c.hidden_dim}, &w.embedding},
                                   {"model.norm.weight", {c.hidden_dim}, &w.final_norm}};
  if (!c.tied_head) wanted.push_back({kHead, {c.vocab_size, c.hidden_dim}, &w.untied_head});
  return wanted;
}

// Layers from `first` on, the only ones in `w`.
void want_layers(const ModelConfig& c, std::int32_t first, std::int32_t n, ModelWeights& w, std::vector<WantedTensor>& wanted) {
  w.layers.resize(static_cast<std::size_t>(n));
  for (std::int32_t i = 0; i < n; ++i)
    want_layer(c, fmt::format("model.layers.{}.", first + i), w.layers[static_cast<std::size_t>(i)], wanted);
}

std::vector<WantedTensor> wanted_tensors(const ModelConfig& c, ModelWeights& w) {
  std::vector<WantedTensor> wanted = wanted_tables(c, w);
  want_layers(c, 0, c.layers, w, wanted);
  return wanted;
}

void refuse_missing(const WeightFiles& files, const std::vector<WantedTensor>& wanted) {
  std::vector<std::string> missing;
  for (const WantedTensor& tensor : wanted)
    if (!files.has(tensor.name)) missing.push_back(tensor.name);
  if (missing.empty()) return;
  const std::string more = missing.size() > 1 ? fmt::format(" nor {} more of this model", missing.size() - 1) : "";
  const std::string near = nearest_name(missing[0], files.names());
  files.fail(fmt::format("has no tensor '{}'{}{}{}", missing[0], more, near.empty() ? "" : "; the nearest is '" + near + "'",
                         missing[0] == kHead ? "; a model without a head says \"tie_word_embeddings\": true in config.json" : ""));
}

void check_tensor(const SafetensorsFile& file, const WantedTensor& tensor) {
  static constexpr std::array kTypes{"F32", "BF16", "F16"};
  const TensorInfo& found = file.info(tensor.name);
  if (found.shape != tensor.shape)
    file.fail(fmt::format("tensor '{}' has shape {}, expected {}", tensor.name, shape_text(found.shape), shape_text(tensor.shape)));
  if (std::find(kTypes.begin(), kTypes.end(), found.dtype) == kTypes.end())
    file.fail(fmt::format("tensor '{}' has dtype {}, expected F32, BF16 or F16", tensor.name, found.dtype));
}

void refuse_others(const WeightFiles& files, const std::vector<WantedTensor>& wanted, const ModelConfig& c) {
  std::set<std::string> known;
  for (const WantedTensor& tensor : wanted) known.insert(tensor.name);
  if (c.tied_head) known.insert(kHead);
  for (const std::string& name : files.names())
    if (!known.contains(name) && !is_rope_buffer(name))
      files.file_of(name).fail(fmt::format("tensor '{}' has no place in a {} model of this config.json", name, c.type));
}

// Some files also store the table.
void check_tied_head(const WeightFiles& files) {
  if (!files.has(kHead)) return;
  const SafetensorsFile &head = files.file_of(kHead), &embedding = files.file_of(kEmbedding);
  const std::span<const std::byte> a = head.raw(kHead), b = embedding.raw(kEmbedding);
  const TensorInfo &of_head = head.info(kHead), &of_table = embedding.info(kEmbedding);
  const bool same = of_head.dtype == of_table.dtype && of_head.shape == of_table.shape;
  if (!same || std::memcmp(a.data(), b.data(), a.size()) != 0)
    head.fail(fmt::format("tensor '{}' is not '{}', to which \"tie_word_embeddings\" in config.json ties it", kHead, kEmbedding));
}

// `all`: the whole model.
void refuse_beyond_memory(const ModelConfig& c, std::size_t weights, bool all) {
  const std::optional<std::uint64_t> given = free_memory();
  if (!given) return;
  const auto free = static_cast<double>(*given + big_memory::idle_bytes()), bytes = 4 * static_cast<double>(weights);
  if (bytes <= free) return;
  throw InputError(
      fmt::format("model '{}' does not fit into memory: {} {:.3g} billion weights in float32 take {:.1f} GiB, {:.1f} GiB are free; "
                  "{:.3g} billion weights would fit{}",
                  c.name, all ? "its" : "of its weights the", static_cast<double>(weights) * 1e-9, bytes / 0x1p30, free / 0x1p30,
                  free / 4 * 1e-9, all ? ", with no room for a KV cache" : ""));
}

// One allocation, for large pages; tensors begin at cache lines.
void lay_out(const ModelConfig& c, const std::vector<WantedTensor>& wanted, ModelWeights& w, std::vector<float*>& begins) {
  constexpr std::size_t kLine = 64 / sizeof(float);
  std::size_t all = 0;
  for (const WantedTensor& tensor : wanted) all += round_up(tensor.size(), kLine);
  refuse_beyond_memory(c, all, w.layers.size() == static_cast<std::size_t>(c.layers));
  auto memory = std::make_shared<BigArray<float>>(all);
  float* next = memory->data();
  for (const WantedTensor& tensor : wanted) {
    *tensor.to = {next, tensor.size()};
    begins.push_back(next);
    next += round_up(tensor.size(), kLine);
  }
  w.memory = std::move(memory);
}

// In pieces: threads share the large table.
void convert(const WeightFiles& files, const std::vector<WantedTensor>& wanted, const std::vector<float*>& begins) {
  struct Piece {
    const std::string* name;
    std::size_t first;
    std::span<float> to;
  };
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const std::size_t size = wanted[i].size();
    for (std::size_t first = 0; first < size; first += kPiece)
      pieces.push_back({&wanted[i].name, first, {begins[i] + first, std::min(kPiece, size - first)}});
  }
  for_each_in_parallel(std::ssize(pieces), [&](std::int64_t i) {
    const Piece& p = pieces[static_cast<std::size_t>(i)];
    files.file_of(*p.name).copy_floats(*p.name, p.first, p.to);
  });
}

void read(const ModelConfig& c, const WeightFiles& files, const std::vector<WantedTensor>& wanted, ModelWeights& w) {
  std::vector<float*> begins;
  lay_out(c, wanted, w, begins);
  convert(files, wanted, begins);
}

}  // namespace

ModelWeights make_weights(const ModelConfig& c, const FillTensor& fill) {
  ModelWeights w;
  const std::vector<WantedTensor> wanted = wanted_tensors(c, w);
  std::vector<float*> begins;
  lay_out(c, wanted, w, begins);
  for (std::size_t i = 0; i < wanted.size(); ++i) fill(wanted[i].name, wanted[i].shape, {begins[i], wanted[i].size()});
  return w;
}

ModelWeights random_weights(const ModelConfig& c, std::uint64_t seed) {
  return make_weights(c, [&](const std::string& name, const std::vector<std::int64_t>& shape, std::span<float> to) {
    if (shape.size() == 1) return std::fill(to.begin(), to.end(), name.ends_with("norm.weight") ? 1.0F : 0.0F);
    std::uint64_t state = hash_combine(seed, std::hash<std::string>()(name));
    const float scale = std::sqrt(12.0F / static_cast<float>(shape[1]));  // uniform, variance 1 / in
    for (float& x : to) {
      state = state * 6364136223846793005U + 1442695040888963407U;  // Knuth's MMIX generator
      x = (static_cast<float>(state >> 40) * 0x1p-24F - 0.5F) * scale;
    }
  });
}

WeightReader::WeightReader(const std::string& dir, ModelConfig config)
    : config_(std::move(config)), files_(std::make_shared<const WeightFiles>(dir)) {
  ModelWeights none;
  const std::vector<WantedTensor> wanted = wanted_tensors(config_, none);
  refuse_missing(*files_, wanted);
  for (const WantedTensor& tensor : wanted) check_tensor(files_->file_of(tensor.name), tensor);
  refuse_others(*files_, wanted, config_);
  if (config_.tied_head) check_tied_head(*files_);
}

std::int64_t WeightReader::num_weights() const {
  ModelWeights none;
  std::size_t n = 0;
  for (const WantedTensor& tensor : wanted_tensors(config_, none)) n += tensor.size();
  return static_cast<std::int64_t>(n);
}

ModelWeights WeightReader::all() const {
  ModelWeights w;
  read(config_, *files_, wanted_tensors(config_, w), w);
  return w;
}

ModelWeights WeightReader::tables() const {
  ModelWeights w;
  read(config_, *files_, wanted_tables(config_, w), w);
  return w;
}

ModelWeights WeightReader::layer(std::int32_t layer) const {
  ModelWeights w;
  std::vector<WantedTensor> wanted;
  want_layers(config_, layer, 1, w, wanted);
  read(config_, *files_, wanted, w);
  return w;
}

ModelWeights load_weights(const std::string& dir, const ModelConfig& c) { return WeightReader(dir, c).all(); }

}  // namespace kvlab
