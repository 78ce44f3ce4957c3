#include "kvpress_run.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/model/record.h"
#include "policies/kv/scorer/scorer_wrapper.h"
#include "sim/replay/trace_observer.h"

namespace kvlab {

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Passes everything on to another scorer and writes down what tokens are ranked by.
class Spy final : public Scorer {
 public:
  Spy(std::unique_ptr<Scorer> inner, KeptSets& seen, std::int32_t tokens) : inner_(std::move(inner)), seen_(seen), tokens_(tokens) {}
  [[nodiscard]] Needs needs() const override { return inner_->needs(); }
  [[nodiscard]] std::int32_t num_words() const override { return inner_->num_words(); }
  void bind(std::int32_t first_word) override { inner_->bind(first_word); }
  void set_budget(const Budget& budget) override { inner_->set_budget(budget); }
  void observe(LayerStep& step) override { inner_->observe(step); }
  void score(LayerStep& step, float* scores) override {
    inner_->score(step, scores);
    write_down(step, scores, seen_.scored);
  }
  void refine(LayerStep& step, std::int32_t* keep, float* scores) override {
    write_down(step, scores, seen_.first_stage);
    inner_->refine(step, keep, scores);
    write_down(step, scores, seen_.ranked);
  }
  [[nodiscard]] Protected protects() const override { return inner_->protects(); }
  [[nodiscard]] bool comparable_across_heads() const override { return inner_->comparable_across_heads(); }

 private:
  [[nodiscard]] static std::size_t place(const LayerStep& step, std::int32_t row) {
    return static_cast<std::size_t>(step.layer * step.kv.num_rows + row);
  }

  void write_down(const LayerStep& step, const float* scores, std::vector<std::vector<float>>& to) const {
    to.resize(static_cast<std::size_t>(step.model.num_layers * step.kv.num_rows));
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) {
      std::vector<float>& row = to[place(step, r)];
      row.assign(static_cast<std::size_t>(tokens_), kNan);
      for (std::int32_t i = 0; i < step.kv.len[r]; ++i)
        row[static_cast<std::size_t>(step.kv.position[step.kv.slot(r, i)])] = scores[step.kv.first[r] + i];
    }
  }

  std::unique_ptr<Scorer> inner_;
  KeptSets& seen_;
  std::int32_t tokens_;
};

void read_tokens(KvStore& store, std::int32_t tokens, KeptSets& sets) {
  const KvRows kv = store.rows();
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    std::vector<std::uint8_t>& keep = sets.keep.emplace_back(static_cast<std::size_t>(tokens));
    for (std::int32_t i = 0; i < kv.len[r]; ++i) keep[static_cast<std::size_t>(kv.position[kv.slot(r, i)])] = 1;
  }
}

void read_channels(KvStore& store, KeptSets& sets) {
  const KvRows kv = store.rows();
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    std::vector<std::uint8_t>& keep = sets.keep.emplace_back(static_cast<std::size_t>(kv.head_dim));
    for (std::int32_t i = 0; i < kv.len[r]; ++i)
      for (std::int32_t c = 0; c < kv.head_dim; ++c)
        if (kv.key(r, i)[c] != 0) keep[static_cast<std::size_t>(c)] = 1;
  }
}

// The probe with another RoPE scaling.
Transformer load_probe(const std::string& rope) {
  const std::string probe = KVLAB_SOURCE_DIR "/engine/probe";
  if (rope.empty()) return Transformer::load(probe);
  using Json = nlohmann::json;
  namespace fs = std::filesystem;
  Json config = Json::parse(std::ifstream(probe + "/config.json"));
  config["rope_scaling"] = Json::parse(std::ifstream(KVLAB_SOURCE_DIR "/tests/parity/kvpress/rope_scaling.json")).at(rope);
  const fs::path folder = fs::temp_directory_path() / ("kvlab_rope_" + std::to_string(::getpid()));
  fs::create_directories(folder);
  std::ofstream(folder / "config.json") << config;
  fs::create_symlink(probe + "/model.safetensors", folder / "model.safetensors");
  Transformer model = Transformer::load(folder.string());
  fs::remove_all(folder);
  return model;
}

}  // namespace

PeerResults::PeerResults(std::int32_t tokens, std::string rope)
    : rope_(std::move(rope)),
      file_(SafetensorsFile::open(KVLAB_SOURCE_DIR "/tests/parity/kvpress/results/prompt_" + std::to_string(tokens) +
                                  (rope_.empty() ? "" : "." + rope_) + ".safetensors")),
      ids_(file_.ints("ids", {tokens})) {}

std::int32_t PeerResults::question_tokens() const { return std::stoi(file_.metadata().at("question_tokens")); }

std::vector<std::vector<std::uint8_t>> PeerResults::kept(const std::string& press, const std::string& ratio, std::int32_t units) const {
  const std::span<const std::byte> bytes = file_.raw(press + "." + ratio + ".keep");
  const auto row_bytes = static_cast<std::size_t>((units + 7) / 8);
  std::vector<std::vector<std::uint8_t>> keep;
  for (std::size_t at = 0; at < bytes.size(); at += row_bytes) {
    std::vector<std::uint8_t>& row = keep.emplace_back();
    for (std::size_t i = 0; i < static_cast<std::size_t>(units); ++i)
      row.push_back(static_cast<std::uint8_t>(static_cast<unsigned>(bytes[at + i / 8]) >> i % 8 & 1U));
  }
  return keep;
}

std::vector<PeerResults::Edge> PeerResults::edges(const std::string& press, const std::string& ratio, const std::string& which) const {
  const std::string name = press + "." + ratio + "." + which;
  if (!file_.has(name)) return {};
  const std::span<const std::byte> bytes = file_.raw(name);
  std::vector<Edge> edges(bytes.size() / sizeof(Edge));
  std::memcpy(edges.data(), bytes.data(), edges.size() * sizeof(Edge));
  return edges;
}

AttentionTrace record_prompt(const PeerResults& prompt) {
  static std::map<std::string, Transformer> probes;
  auto at = probes.find(prompt.rope());
  if (at == probes.end()) at = probes.emplace(prompt.rope(), load_probe(prompt.rope())).first;
  const Transformer& probe = at->second;
  RecordOptions options;
  options.pre_rope = options.hidden = options.w_o = true;
  options.passes = {"reconstruct", "reconstruct_gradient", "repeat"};
  AttentionTrace trace = record(probe, prompt.ids(), options);
  trace.question_begin = trace.prompt_tokens - prompt.question_tokens();
  return trace;
}

KeptSets run_prompt(AttentionTrace& trace, Recipe recipe, bool channels) {
  KeptSets sets;
  trace.chunk_ends = {trace.prompt_tokens};
  if (recipe.make_scorer)
    recipe.make_scorer = [make = recipe.make_scorer, &sets, n = trace.prompt_tokens] { return std::make_unique<Spy>(make(), sets, n); };
  const ModelShape model = shape_of(trace, 4);
  KvPolicy policy(recipe, model);
  check_needs(policy.needs(), trace, recipe.name);
  TraceObserver observer(trace, policy.needs());
  Ops ops(Ops::Backend::kCpu);
  ops.keep_log(false);
  std::vector<KvStore> stores;
  for (std::int32_t l = 0; l < model.num_layers; ++l) stores.emplace_back(model, 1, policy.num_words(), true);
  const SeqStep seq{0, 0, trace.prompt_tokens, trace.prompt_tokens, trace.question_begin};
  observer.set_step(seq);
  const PolicyStep step{ops, model, std::span(&seq, 1), stores, observer, 1};
  for (std::int32_t l = 0; l < model.num_layers; ++l) {
    const LayerTensors& layer = trace.layers[static_cast<std::size_t>(l)];
    stores[static_cast<std::size_t>(l)].append(0, layer.k.data(), layer.v.data(), trace.prompt_tokens, 0);
    const std::clock_t start = std::clock();
    policy.after_attention(step, l);
    sets.cpu_ms += 1e3 * static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  }
  for (KvStore& store : stores) channels ? read_channels(store, sets) : read_tokens(store, trace.prompt_tokens, sets);
  return sets;
}

}  // namespace kvlab
