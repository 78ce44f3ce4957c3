#include "engine/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <queue>

#include "base/error.h"
#include "engine/tokenizer/unicode.h"

namespace kvlab::tokenization {

namespace {

constexpr std::size_t kMaxCachedBytes = 256;  // longer words rarely repeat

std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
  return static_cast<std::uint64_t>(left) << 32 | static_cast<std::uint32_t>(right);
}

void refuse_options(const JsonNode& model) {
  const JsonNode dropout = model.find("dropout");
  if (!dropout.is_null() && dropout.value() != 0) dropout.fail_value("null, 0");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonNode node = model.find(key);
    const auto* const text = node.value().get_ptr<const std::string*>();
    if (!node.is_null() && (text == nullptr || !text->empty())) node.fail_value("null, \"\"");
  }
}

}  // namespace

Bpe Bpe::read(const JsonNode& model) {
  if (model.has("type") || !model.has("merges")) model.type({"BPE"});  // absent in old files
  refuse_options(model);
  Bpe bpe;
  bpe.file_ = model.file();
  bpe.ignores_merges_ = model.flag("ignore_merges", false);
  bpe.falls_back_to_bytes_ = model.flag("byte_fallback", false);
  bpe.fuses_unknown_ = model.flag("fuse_unk", false);
  if (model.has("unk_token")) bpe.unknown_ = model.text("unk_token");
  bpe.read_vocabulary(model.at("vocab"));
  bpe.read_merges(model.at("merges"));
  return bpe;
}

void Bpe::read_vocabulary(const JsonNode& node) {
  if (!node.value().is_object()) node.fail_value("an object of token: id");
  vocabulary_.reserve(node.value().size());
  for (const auto& [token, value] : node.value().items()) {
    if (!value.is_number_integer() || value < 0 || value >= kMaxTokenId)
      node.find(token).fail_value(fmt::format("an id in [0, {})", kMaxTokenId));
    const auto id = value.get<std::int32_t>();
    const auto entry = vocabulary_.emplace(token, id).first;
    if (const auto [other, is_new] = tokens_.emplace(id, &entry->first); !is_new)
      node.fail(fmt::format("tokens '{}' and '{}' have the same id {}", *other->second, token, id));
    max_id_ = std::max(max_id_, id);
  }
  for (std::size_t code = 0; code < low_characters_.size(); ++code)
    low_characters_[code] = id_of(utf8(static_cast<char32_t>(code))).value_or(-1);
  for (std::size_t byte = 0; byte < bytes_.size(); ++byte) bytes_[byte] = id_of(fmt::format("<0x{:02X}>", byte)).value_or(-1);
}

void Bpe::read_merges(const JsonNode& node) {
  if (!node.value().is_array()) node.fail_value("a list of \"LEFT RIGHT\" or [\"LEFT\", \"RIGHT\"]");
  merges_.reset(node.value().size() + 1);
  std::int32_t rank = 0;
  for (const nlohmann::json& merge : node.value()) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      add_merge(node, rank++, merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>());
      continue;
    }
    const std::string_view text = merge.is_string() ? std::string_view(merge.get_ref<const std::string&>()) : std::string_view();
    if (text.starts_with("#version")) continue;  // as in merges.txt
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
      node.elements()[static_cast<std::size_t>(&merge - &node.value()[0])].fail_value("\"LEFT RIGHT\", [\"LEFT\", \"RIGHT\"]");
    add_merge(node, rank++, text.substr(0, space), text.substr(space + 1));
  }
}

void Bpe::add_merge(const JsonNode& node, std::int32_t rank, std::string_view left, std::string_view right) {
  const auto id = [&](const std::string& token) {
    const auto found = id_of(token);
    if (!found)
      node.fail(fmt::format("merge {} ('{}' and '{}') needs token '{}', which is not in the vocabulary", rank, left, right, token));
    return *found;
  };
  // The error names the first missing one.
  const std::int32_t left_id = id(std::string(left)), right_id = id(std::string(right));
  const std::int32_t both = id(std::string(left) + std::string(right));
  // The later rank, as in Hugging Face tokenizers.
  merges_.add(pair_key(left_id, right_id)).value = {rank, both};
  merged_ids_.push_back(both);
}

std::optional<std::int32_t> Bpe::id_of(std::string_view token) const {
  const auto found = vocabulary_.find(token);
  return found == vocabulary_.end() ? std::nullopt : std::optional(found->second);
}

const std::string* Bpe::token(std::int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : found->second;
}

std::int32_t Bpe::unknown_id() const {
  const auto id = id_of(*unknown_);
  if (!id)
    throw InputError(fmt::format("{}: 'model.unk_token' = '{}' is needed for this text, and is not in the vocabulary", file_, *unknown_));
  return *id;
}

std::int32_t Bpe::id_of_character(std::string_view character) const {
  if (const Utf8Unit unit = next_unit(character, 0); unit.code < low_characters_.size()) return low_characters_[unit.code];
  return id_of(character).value_or(-1);
}

std::vector<std::int32_t> Bpe::characters(std::string_view word) const {
  std::vector<std::int32_t> ids;
  ids.reserve(word.size());
  bool unknown_waits = false;  // written once no character can join
  const auto has_byte = [&](char c) { return bytes_[static_cast<unsigned char>(c)] >= 0; };
  for (std::size_t at = 0, length = 0; at < word.size(); at += length) {
    length = next_unit(word, at).length;
    const std::string_view character = word.substr(at, length);
    if (const std::int32_t id = id_of_character(character); id >= 0) {
      if (unknown_waits) ids.push_back(unknown_id());
      unknown_waits = false;
      ids.push_back(id);
    } else if (falls_back_to_bytes_ && std::all_of(character.begin(), character.end(), has_byte)) {
      // A waiting unknown token comes later, as in Hugging Face tokenizers.
      for (const char c : character) ids.push_back(bytes_[static_cast<unsigned char>(c)]);
    } else if (unknown_) {
      if (unknown_waits && !fuses_unknown_) ids.push_back(unknown_id());
      unknown_waits = true;
    }
  }
  if (unknown_waits) ids.push_back(unknown_id());
  return ids;
}

const Bpe::Merge* Bpe::merge_of(std::int32_t left, std::int32_t right) const {
  const auto* slot = merges_.find(pair_key(left, right));
  return slot == nullptr ? nullptr : &slot->value;
}

struct Bpe::Symbol {
  std::int32_t id, previous, next;  // neighbours; -1: none. id -1: merged into the previous one
};

// n log n. By rank, then place.
void Bpe::merge(std::vector<std::int32_t>& ids) const {
  const auto size = static_cast<std::int32_t>(ids.size());
  std::vector<Symbol> symbols;
  symbols.reserve(ids.size());
  for (std::int32_t i = 0; i < size; ++i) symbols.push_back({ids[static_cast<std::size_t>(i)], i - 1, i + 1 < size ? i + 1 : -1});
  const auto symbol = [&](std::int32_t at) -> Symbol& { return symbols[static_cast<std::size_t>(at)]; };
  std::vector<std::uint64_t> candidates;
  for (std::int32_t i = 0; i + 1 < size; ++i) {
    if (const Merge* m = merge_of(symbol(i).id, symbol(i + 1).id)) candidates.push_back(pair_key(m->rank, i));
  }
  std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>> queue({}, std::move(candidates));
  const auto offer = [&](std::int32_t at) {
    if (at < 0 || symbol(at).next < 0) return;
    if (const Merge* m = merge_of(symbol(at).id, symbol(symbol(at).next).id)) queue.push(pair_key(m->rank, at));
  };
  while (!queue.empty()) {
    const auto at = static_cast<std::int32_t>(queue.top() & 0xFFFFFFFF);
    const std::int32_t id = merged_ids_[queue.top() >> 32];
    queue.pop();
    Symbol& left = symbol(at);
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbol(left.next);
    const Merge* m = merge_of(left.id, right.id);
    if (m == nullptr || m->id != id) continue;  // has merged since
    left.id = id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbol(left.next).previous = at;
    offer(left.previous);
    offer(at);
  }
  ids.clear();
  for (const Symbol& s : symbols) {
    if (s.id >= 0) ids.push_back(s.id);
  }
}

void Bpe::encode(std::string_view word, Cache& cache, std::vector<std::int32_t>& ids) const {
  if (ignores_merges_) {
    if (const auto id = id_of(word)) return ids.push_back(*id);
  }
  if (const auto seen = cache.words.find(word); seen != cache.words.end()) {
    ids.insert(ids.end(), cache.ids.begin() + seen->second.begin, cache.ids.begin() + seen->second.end);
    return;
  }
  std::vector<std::int32_t> found = characters(word);
  merge(found);
  ids.insert(ids.end(), found.begin(), found.end());
  if (word.size() > kMaxCachedBytes) return;
  const auto begin = static_cast<std::uint32_t>(cache.ids.size());
  cache.ids.insert(cache.ids.end(), found.begin(), found.end());
  cache.words.emplace(word, Cache::Range{begin, static_cast<std::uint32_t>(cache.ids.size())});
}

}  // namespace kvlab::tokenization
