#include "traces/attention_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "traces/line_reader.h"
#include "traces/numbers.h"

namespace kvlab {

namespace {

// A tensor name's place in the layout.
struct Place {
  std::string pass;         // "": not in a pass
  std::int64_t layer = -1;  // -1: the ids
  std::string_view kind;
};

std::optional<std::int64_t> number_in(std::string_view text) {
  std::uint64_t number = 0;
  if (!parse_unsigned(text, number) || number > static_cast<std::uint64_t>(kMaxTokens)) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

std::optional<Place> place_of(std::string_view name) {
  Place place;
  if (name.starts_with("pass.")) {
    const std::size_t dot = name.find('.', 5);
    if (dot == std::string_view::npos) return std::nullopt;
    place.pass = name.substr(5, dot - 5);
    if (!is_pass_name(place.pass)) return std::nullopt;
    name.remove_prefix(dot + 1);
  }
  if (name == "ids") return place;
  for (const LayerTensorKind& kind : kLayerTensors) {
    if (!kind.is_of(!place.pass.empty())) continue;
    const bool is_weight = kind.in == LayerTensorKind::In::kWeights;
    const std::string begin = is_weight ? fmt::format("{}.L", kind.name) : "L", end = is_weight ? "" : fmt::format(".{}", kind.name);
    if (!name.starts_with(begin) || !name.ends_with(end) || name.size() < begin.size() + end.size()) continue;
    const std::optional<std::int64_t> layer = number_in(name.substr(begin.size(), name.size() - begin.size() - end.size()));
    if (layer) return Place{place.pass, *layer, kind.name};
  }
  return std::nullopt;
}

class TraceReader {
 public:
  TraceReader(const SafetensorsFile& file, const std::string& name) : file_(file) { trace_.name = name; }

  AttentionTrace read() {
    read_metadata();
    read_names();
    read_dimensions();
    for (std::int32_t l = 0; l < trace_.num_layers; ++l)
      trace_.layers.push_back(read_layer("", static_cast<std::size_t>(l), trace_.num_tokens));
    if (file_.has("ids")) trace_.ids = file_.ints("ids", {trace_.num_tokens});
    if (trace_.chunk_ends.empty()) trace_.chunk_ends = {trace_.prompt_tokens};
    for (auto& [name, pass] : trace_.passes) read_pass(name, pass);
    check_attention_trace(trace_, file_.name());
    return std::move(trace_);
  }

 private:
  [[noreturn]] void fail_value(const std::string& key, const std::string& message) const {
    file_.fail("metadata '" + key + "' = " + kvlab::quoted(file_.metadata().at(key)) + ": " + message);
  }

  const std::string& required(const std::string& key) const {
    const auto found = file_.metadata().find(key);
    if (found == file_.metadata().end()) file_.fail("has no metadata '" + key + "'");
    return found->second;
  }

  std::int32_t tokens(const std::string& key, std::string_view text) const {
    const std::optional<std::int64_t> number = number_in(text);
    if (!number) fail_value(key, kvlab::quoted(text) + " is no whole number from 0 to " + std::to_string(kMaxTokens));
    return static_cast<std::int32_t>(*number);
  }

  std::pair<std::int32_t, std::int32_t> span(const std::string& key, std::string_view text) const {
    const std::size_t dash = text.find('-');
    if (dash == std::string_view::npos) fail_value(key, kvlab::quoted(text) + " is no span begin-end");
    return {tokens(key, text.substr(0, dash)), tokens(key, text.substr(dash + 1))};
  }

  // Calls each(part) for a comma-separated list.
  template <class Each>
  static void each_part(std::string_view list, Each&& each) {
    while (!list.empty()) {
      const std::size_t comma = list.find(',');
      each(list.substr(0, comma));
      if (comma == std::string_view::npos) return;
      list.remove_prefix(comma + 1);
      if (list.empty()) each(list);
    }
  }

  void read_metadata() {
    if (const std::string& format = required("format"); format != kAttentionFormat) {
      fail_value("format", fmt::format("expected '{}'", kAttentionFormat));
    }
    trace_.model = required("model");
    trace_.prompt_tokens = tokens("prompt_tokens", required("prompt_tokens"));
    if (!parse_real(required("rope_base"), trace_.rope_base)) fail_value("rope_base", "is no decimal number");
    for (const auto& [key, text] : file_.metadata()) read_optional(key, text);
  }

  void read_optional(const std::string& key, const std::string& text) {
    static const std::vector<std::string> kKnown{"chunk_ends",    "format",         "made_for",  "model",        "needles",
                                                 "prompt_tokens", "question_begin", "rope_base", "rope_scaling", "task"};
    if (key == "task") trace_.task = text;
    if (key == "made_for") trace_.made_for = text;
    if (key == "rope_scaling") trace_.rope_scaling = text;
    if (key == "question_begin") trace_.question_begin = tokens(key, text);
    if (key == "chunk_ends") each_part(text, [&](std::string_view part) { trace_.chunk_ends.push_back(tokens(key, part)); });
    if (key == "needles") each_part(text, [&](std::string_view part) { trace_.needles.push_back(span(key, part)); });
    if (std::find(kKnown.begin(), kKnown.end(), key) != kKnown.end()) return;
    constexpr std::string_view kBefore = "pass.", kBehind = ".chunks";
    if (!key.starts_with(kBefore) || !key.ends_with(kBehind) || key.size() <= kBefore.size() + kBehind.size()) {
      file_.fail("unknown metadata " + kvlab::quoted(key) + suggestion(key.substr(0, 64), kKnown));
    }
    ExtraPass& pass = trace_.passes[key.substr(kBefore.size(), key.size() - kBefore.size() - kBehind.size())];
    each_part(text, [&](std::string_view part) { pass.chunks.push_back(pass_chunk(key, part)); });
  }

  PassChunk pass_chunk(const std::string& key, std::string_view text) const {
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos) fail_value(key, kvlab::quoted(text) + " is no chunk begin-end:ctx_begin-ctx_end");
    const auto [begin, end] = span(key, text.substr(0, colon));
    const auto [ctx_begin, ctx_end] = span(key, text.substr(colon + 1));
    return {begin, end, ctx_begin, ctx_end};
  }

  void read_names() {
    std::int64_t last = 0;
    for (const auto& [name, info] : file_.tensors()) {
      const std::optional<Place> place = place_of(name);
      if (!place)
        file_.fail("unknown tensor " + kvlab::quoted(name) +
                   "; a trace has L0.q, L0.k, L0.v, L0.pre_q, L0.pre_k, L0.hidden, W_o.L0, W_q.L0, b_q.L0, ids, pass.NAME.L0.q, "
                   "pass.NAME.L0.gradient");
      last = std::max(last, place->layer);
      if (!place->pass.empty() && !trace_.passes.contains(place->pass)) {
        file_.fail("tensor " + kvlab::quoted(name) + " belongs to a pass without metadata 'pass." + place->pass + ".chunks'");
      }
    }
    trace_.num_layers = static_cast<std::int32_t>(last + 1);
  }

  // Extents of a tensor of `rank` axes, each in [1, 2^30 - 1].
  std::vector<std::int32_t> extents(const std::string& name, std::size_t rank) const {
    const std::vector<std::int64_t>& shape = file_.info(name).shape;
    if (shape.size() != rank) {
      file_.fail(
          fmt::format("tensor '{}' has shape {}, expected {}", name, shape_text(shape), shape_text(std::vector<std::int64_t>(rank, -1))));
    }
    for (const std::int64_t extent : shape) {
      if (extent < 1 || extent > kMaxTokens) {
        file_.fail(fmt::format("tensor '{}' has shape {}; extents are from 1 to {}", name, shape_text(shape), kMaxTokens));
      }
    }
    return {shape.begin(), shape.end()};
  }

  void read_dimensions() {
    const std::vector<std::int32_t> q = extents("L0.q", 3), k = extents("L0.k", 3);
    trace_.num_tokens = q[0];
    trace_.q_heads = q[1];
    trace_.kv_heads = k[1];
    trace_.head_dim = q[2];
    for (const auto& [name, info] : file_.tensors()) {
      const std::optional<Place> place = place_of(name);
      if (place->kind == "hidden") trace_.hidden_dim = extents(name, 2)[1];
      if (place->kind == "W_o") trace_.hidden_dim = extents(name, 2)[0];
      if (place->kind == "W_q") trace_.hidden_dim = extents(name, 2)[1];
      if (trace_.hidden_dim != 0) return;
    }
  }

  [[nodiscard]] LayerTensors read_layer(const std::string& before, std::size_t l, std::int64_t tokens) const {
    LayerTensors layer;
    for (const LayerTensorKind& kind : kLayerTensors) {
      if (!kind.is_of(!before.empty())) continue;
      const std::string name = kind.name_in(before, l);
      if (kind.is_required() || file_.has(name)) layer.*kind.values = file_.floats(name, kind.shape(trace_, tokens));
    }
    return layer;
  }

  void read_pass(const std::string& name, ExtraPass& pass) {
    const std::string before = "pass." + name + ".";
    pass.num_tokens = extents(before + "L0.q", 3)[0];
    if (file_.has(before + "ids")) pass.ids = file_.ints(before + "ids", {pass.num_tokens});
    for (std::size_t l = 0; l < trace_.layers.size(); ++l) pass.layers.push_back(read_layer(before, l, pass.num_tokens));
  }

  const SafetensorsFile& file_;
  AttentionTrace trace_;
};

}  // namespace

std::string LayerTensorKind::name_in(const std::string& before, std::size_t layer) const {
  return in == In::kWeights ? fmt::format("{}.L{}", name, layer) : fmt::format("{}L{}.{}", before, layer, name);
}

std::vector<std::int64_t> LayerTensorKind::shape(const AttentionTrace& trace, std::int64_t tokens) const {
  const std::map<char, std::int64_t> sizes{{'t', tokens},           {'q', trace.q_heads},
                                           {'k', trace.kv_heads},   {'d', trace.head_dim},
                                           {'h', trace.hidden_dim}, {'w', std::int64_t{trace.q_heads} * trace.head_dim}};
  std::vector<std::int64_t> all;
  for (const char extent : extents) all.push_back(sizes.at(extent));
  return all;
}

AttentionTrace attention_trace_from(const SafetensorsFile& file, const std::string& name) { return TraceReader(file, name).read(); }

AttentionTrace read_attention_trace(const std::string& path) {
  return attention_trace_from(SafetensorsFile::open(path), std::filesystem::path(path).stem().string());
}

}  // namespace kvlab
