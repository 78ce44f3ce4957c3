#include "policies/kv/prefill_selector/head_patterns.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/config/params.h"
#include "base/error.h"
#include "base/json_node.h"
#include "base/read_file.h"

namespace kvlab {

namespace {

constexpr const char* kPatternNames = "vertical_and_slash, stream_llm, block_sparse";
constexpr std::initializer_list<Named<HeadPattern::Kind>> kPatternKinds{{"vertical_and_slash", HeadPattern::Kind::kVerticalSlash},
                                                                        {"stream_llm", HeadPattern::Kind::kAShape},
                                                                        {"block_sparse", HeadPattern::Kind::kBlocks}};
constexpr std::int32_t kMostTokens = 1 << 26;

std::optional<HeadPattern::Kind> pattern_kind(const std::string& name) {
  for (const auto& known : kPatternKinds)
    if (name == known.name) return known.value;
  return std::nullopt;
}

// Patterns that choose nothing are errors.
bool chooses(const HeadPattern& p) { return p.kind == HeadPattern::Kind::kBlocks ? p.first > 0 : p.first >= 0 && p.second > 0; }

std::optional<std::int32_t> whole_number(std::string_view text) {
  std::int32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0 || value > kMostTokens) return std::nullopt;
  return value;
}

void add_pattern(HeadPatterns& patterns, const std::string& entry) {
  const auto refuse = [&] {
    throw InputError(fmt::format("'{}' is not LAYER.HEAD=PATTERN:NUMBER:NUMBER, such as 0.1=vertical_and_slash:1000:6096; patterns: {}",
                                 entry, kPatternNames));
  };
  std::string layer, head, kind, first, second;
  std::istringstream in(entry);
  if (!std::getline(in, layer, '.') || !std::getline(in, head, '=') || !std::getline(in, kind, ':') || !std::getline(in, first, ':') ||
      !std::getline(in, second))
    refuse();
  const auto l = whole_number(layer), h = whole_number(head), a = whole_number(first), b = whole_number(second);
  const auto known = pattern_kind(kind);
  if (!l || !h || !a || !b || !known || !chooses({*known, *a, *b})) refuse();
  patterns[{*l, *h}] = {*known, *a, *b};
}

}  // namespace

std::string PatternTable::refuses(std::int32_t num_layers, std::int32_t num_heads) const {
  if (file.empty() || (layers == num_layers && (q_heads == 0 || q_heads == num_heads))) return "";
  return fmt::format(
      "{} has patterns of another model: of {} layers{}, and the model has {} layers of {} query heads; `kvlab label prefill "
      "--model DIR --out FILE.json` finds those of a model",
      file, layers, q_heads == 0 ? "" : fmt::format(" of {} query heads", q_heads), num_layers, num_heads);
}

PatternTable read_head_patterns(const std::string& file) {
  const nlohmann::json json = nlohmann::json::parse(read_file(file), nullptr, false);
  if (json.is_discarded() || !json.is_array()) throw InputError(file + ": not a JSON list with an element per layer");
  HeadPatterns patterns;
  std::int32_t heads = 0;
  const std::vector<JsonNode> layers = JsonNode(json, file).elements();
  for (std::size_t l = 0; l < layers.size(); ++l) {
    if (!layers[l].value().is_object()) layers[l].fail_value("an object from head index to [pattern, number, number, score]");
    for (const auto& item : layers[l].value().items()) {
      const JsonNode node = layers[l].at(item.key());
      const auto head = whole_number(item.key());
      const std::vector<JsonNode> fields = node.value().is_array() ? node.elements() : std::vector<JsonNode>{};
      const auto kind = fields.size() >= 3 && fields[0].value().is_string() ? pattern_kind(fields[0].text()) : std::nullopt;
      if (!head || !kind) node.fail_value(fmt::format("[pattern, number, number, score] with one of the patterns {}", kPatternNames));
      const HeadPattern pattern{*kind, fields[1].integer(0, kMostTokens), fields[2].integer(0, kMostTokens)};
      if (!chooses(pattern)) node.fail_value("numbers above 0");
      patterns[{static_cast<std::int32_t>(l), *head}] = pattern;
      heads = std::max(heads, *head + 1);
    }
  }
  const bool is_whole = patterns.size() == layers.size() * static_cast<std::size_t>(heads);
  return {std::move(patterns), file, static_cast<std::int32_t>(layers.size()), is_whole ? heads : 0};
}

HeadPatterns parse_head_patterns(const std::string& text) {
  HeadPatterns patterns;
  std::istringstream in(text);
  for (std::string entry; in >> entry;) add_pattern(patterns, entry);
  return patterns;
}

std::string head_patterns_inline(const HeadPatterns& patterns) {
  std::string text;
  for (const auto& [place, p] : patterns)
    text += fmt::format("{}{}.{}={}:{}:{}", text.empty() ? "" : " ", place.first, place.second, name_of(kPatternKinds, p.kind), p.first,
                        p.second);
  return text;
}

std::string head_patterns_text(const std::vector<std::pair<HeadPattern, double>>& found, std::int32_t q_heads) {
  std::string text = "[";
  for (std::size_t i = 0; i < found.size(); ++i) {
    const auto& [pattern, score] = found[i];
    const std::size_t head = i % static_cast<std::size_t>(q_heads);
    text += fmt::format("{}\"{}\": [\"{}\", {}, {}, {:.6g}]",
                        head > 0 ? ", "
                        : i > 0  ? "},\n {"
                                 : "{",
                        head, name_of(kPatternKinds, pattern.kind), pattern.first, pattern.second, score);
  }
  return text + (found.empty() ? "]\n" : "}]\n");
}

}  // namespace kvlab
