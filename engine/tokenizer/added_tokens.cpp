#include "engine/tokenizer/added_tokens.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/unicode.h"

namespace kvlab::tokenization {

namespace {

// \w of Unicode Technical Standard 18, annex C.
bool is_word_character(std::string_view text, std::size_t at) {
  static const Pattern word = Pattern::regex("[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}]");
  std::vector<Slice> slices;
  word.cut(text.substr(at, next_unit(text, at).length), slices);
  return slices[0].is_match;
}

bool stands_alone(std::string_view text, std::size_t begin, std::size_t end) {
  const bool word_before = begin > 0 && is_word_character(text, last_character(text.substr(0, begin)));
  return !word_before && (end == text.size() || !is_word_character(text, end));
}

std::size_t before_white_space(std::string_view text, std::size_t end) {
  while (end > 0) {
    const std::size_t last = last_character(text.substr(0, end));
    if (!is_white_space(next_unit(text, last).code)) break;
    end = last;
  }
  return end;
}

std::size_t behind_white_space(std::string_view text, std::size_t begin) {
  while (begin < text.size() && is_white_space(next_unit(text, begin).code)) begin += next_unit(text, begin).length;
  return begin;
}

}  // namespace

void AddedTokens::Search::add(const std::string& text, std::int32_t id) {
  std::int32_t at = 0;
  for (const char c : text) {
    const auto fresh = static_cast<std::int32_t>(nodes_.size());
    const auto [child, is_new] = nodes_[static_cast<std::size_t>(at)].next.emplace(c, fresh);
    at = child->second;
    if (is_new) nodes_.emplace_back();
  }
  // The first of equally normalized texts wins.
  if (nodes_[static_cast<std::size_t>(at)].id < 0) nodes_[static_cast<std::size_t>(at)].id = id;
}

AddedTokens::Search::Found AddedTokens::Search::at(std::string_view text, std::size_t begin) const {
  Found longest;
  const Node* node = nodes_.data();
  for (std::size_t i = begin; i < text.size(); ++i) {
    const auto child = node->next.find(text[i]);
    if (child == node->next.end()) break;
    node = &nodes_[static_cast<std::size_t>(child->second)];
    if (node->id >= 0) longest = {i + 1 - begin, node->id};
  }
  return longest;
}

AddedTokens AddedTokens::read(const JsonNode& list, const Bpe& model, const Normalizer& normalizer) {
  AddedTokens added;
  if (list.is_null()) return added;
  std::vector<std::pair<std::string, std::int32_t>> special, others;  // special ones win over equally normalized others
  for (const JsonNode& node : list.elements()) {
    const std::int32_t id = added.add(node, model);
    const AddedToken& token = added.tokens_.at(id);
    if (!token.is_normalized) added.as_written_.add(token.content, id);
    if (!token.is_normalized) continue;
    Piece content = Piece::whole(token.content, 0);
    normalizer(content);
    if (content.text.empty()) node.at("content").fail("nothing is left of it when it is normalized");
    (token.is_special ? special : others).emplace_back(content.text, id);
  }
  for (const auto& tokens : {special, others}) {
    for (const auto& [content, id] : tokens) added.normalized_.add(content, id);
  }
  return added;
}

std::int32_t AddedTokens::add(const JsonNode& node, const Bpe& model) {
  AddedToken token;
  token.content = node.text("content");
  if (token.content.empty()) node.at("content").fail("is empty");
  token.single_word = node.flag("single_word", false);
  token.takes_left = node.flag("lstrip", false);
  token.takes_right = node.flag("rstrip", false);
  token.is_special = node.flag("special", false);
  token.is_normalized = node.flag("normalized", !token.is_special);
  const std::int32_t id = node.at("id").integer(0, kMaxTokenId - 1);
  const std::int32_t expected = model.id_of(token.content).value_or(std::max(max_id_ + 1, model.num_tokens()));
  if (ids_.contains(token.content)) node.fail(fmt::format("token '{}' is named twice", token.content));
  if (id != expected) node.at("id").fail(fmt::format("token '{}' has id {}, but its place is {}", token.content, id, expected));
  max_id_ = std::max(max_id_, id);
  ids_.emplace(token.content, id);
  if (!tokens_.emplace(id, std::move(token)).second) node.at("id").fail(fmt::format("id {} is given twice", id));
  return id;
}

void AddedTokens::cut(std::vector<Piece>& pieces, const Normalizer& normalizer) const {
  std::vector<Piece> once, twice;
  for (Piece& piece : pieces) cut(std::move(piece), as_written_, once);
  for (Piece& piece : once) {
    if (piece.added_id < 0) normalizer(piece);
    cut(std::move(piece), normalized_, twice);
  }
  pieces = std::move(twice);
}

void AddedTokens::cut(Piece&& piece, const Search& search, std::vector<Piece>& out) const {
  if (piece.added_id >= 0) return out.push_back(std::move(piece));
  const std::string_view text = piece.text;
  std::size_t done = 0;
  const auto rest_until = [&](std::size_t end) {
    if (done < end) out.push_back(piece.part(done, end));
  };
  for (std::size_t at = 0; at < text.size();) {
    const Search::Found found = search.at(text, at);
    if (found.id < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_.at(found.id);
    std::size_t begin = at, end = at + found.length;
    at = end;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.takes_left) begin = std::max(done, before_white_space(text, begin));
    if (token.takes_right) end = behind_white_space(text, end);
    if (begin >= end) continue;  // an earlier token took its white space
    rest_until(begin);
    // Tokens in white space already taken are still found, as in Hugging Face tokenizers.
    out.push_back({"", false, 0, found.id});
    done = end;
  }
  rest_until(text.size());
}

const AddedToken* AddedTokens::token(std::int32_t id) const {
  const auto found = tokens_.find(id);
  return found == tokens_.end() ? nullptr : &found->second;
}

std::optional<std::int32_t> AddedTokens::id_of(std::string_view content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace kvlab::tokenization
