#include <algorithm>
#include <functional>

#include "engine/tokenizer/parts.h"
#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/unicode.h"

namespace kvlab::tokenization {

namespace {

// For matches of a Split.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// joins(a, b): a slice joins the one before it, by their is_match.
template <class Joins>
void merge(std::vector<Slice>& slices, Joins joins) {
  std::vector<Slice> merged;
  bool was_match = false;
  for (const Slice& slice : slices) {
    if (!merged.empty() && joins(was_match, slice.is_match)) {
      merged.back().begin = std::min(merged.back().begin, slice.begin);
      merged.back().end = std::max(merged.back().end, slice.end);
    } else {
      merged.push_back(slice);
    }
    was_match = slice.is_match;
  }
  slices = std::move(merged);
}

void apply(Behavior behavior, std::vector<Slice>& slices) {
  if (behavior == Behavior::kRemoved) std::erase_if(slices, [](const Slice& slice) { return slice.is_match; });
  if (behavior == Behavior::kContiguous) merge(slices, std::equal_to<bool>());
  const bool is_backward = behavior == Behavior::kMergedWithNext;
  if (behavior != Behavior::kMergedWithPrevious && !is_backward) return;
  if (is_backward) std::reverse(slices.begin(), slices.end());
  merge(slices, [](bool was_match, bool is_match) { return is_match && !was_match; });
  if (is_backward) std::reverse(slices.begin(), slices.end());
}

PreTokenizer splitter(const Pattern& pattern, Behavior behavior, bool inverts) {
  return [pattern, behavior, inverts](std::vector<Piece>& pieces) {
    std::vector<Piece> cut;
    std::vector<Slice> slices;
    for (Piece& piece : pieces) {
      if (piece.added_id >= 0) {
        cut.push_back(std::move(piece));
        continue;
      }
      pattern.cut(piece.text, slices);
      for (Slice& slice : slices) slice.is_match ^= inverts;
      apply(behavior, slices);
      for (const Slice& slice : slices) {
        if (slice.begin < slice.end) cut.push_back(piece.part(slice.begin, slice.end));
      }
    }
    pieces = std::move(cut);
  };
}

template <class Change>
PreTokenizer rewriter(Change change) {
  return [change](std::vector<Piece>& pieces) {
    for (Piece& piece : pieces) {
      if (piece.added_id < 0) change(piece);
    }
  };
}

template <class Change>
PreTokenizer character_wise(Change change) {
  return rewriter([change](Piece& piece) {
    std::string text;
    std::size_t first_bytes = 0;
    for (std::size_t at = 0; at < piece.text.size();) {
      if (at == piece.first_bytes) first_bytes = text.size();
      const std::size_t length = next_unit(piece.text, at).length;
      text += change(std::string_view(piece.text).substr(at, length));
      at += length;
    }
    piece.first_bytes = piece.first_bytes == piece.text.size() ? text.size() : first_bytes;
    piece.text = std::move(text);
  });
}

PreTokenizer in_order(std::vector<PreTokenizer> parts) {
  return [parts = std::move(parts)](std::vector<Piece>& pieces) {
    for (const PreTokenizer& part : parts) part(pieces);
  };
}

// GPT-2 (Radford et al. 2019): words, numbers and marks with the space before.
constexpr const char* kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+)";

PreTokenizer byte_level(const JsonNode& node) {
  std::vector<PreTokenizer> parts;
  if (node.flag("add_prefix_space", true)) {
    parts.push_back(rewriter([](Piece& piece) {
      if (!piece.text.starts_with(' ')) piece.put_in_front(" ");
    }));
  }
  if (node.flag("use_regex", true)) parts.push_back(splitter(Pattern::regex(kGpt2), Behavior::kIsolated, false));
  parts.push_back(character_wise([](std::string_view character) {
    std::string text;
    for (const char c : character) append_utf8(text, character_of_byte(static_cast<unsigned char>(c)));
    return text;
  }));
  return in_order(std::move(parts));
}

PreTokenizer metaspace(const Metaspace& m) {
  const std::string mark = utf8(m.replacement);
  std::vector<PreTokenizer> parts;
  parts.push_back(character_wise([mark](std::string_view character) { return character == " " ? mark : std::string(character); }));
  parts.push_back(rewriter([mark, scheme = m.scheme](Piece& piece) {
    const bool wants_prefix = scheme == Metaspace::Scheme::kAlways || (scheme == Metaspace::Scheme::kFirst && piece.at_start);
    if (wants_prefix && !piece.text.starts_with(mark)) piece.put_in_front(mark);
  }));
  if (m.splits) parts.push_back(splitter(Pattern::literal(mark), Behavior::kMergedWithNext, false));
  return in_order(std::move(parts));
}

PreTokenizer split(const JsonNode& node) {
  const std::vector<std::string> names{"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
  const auto found = std::find(names.begin(), names.end(), node.text("behavior"));
  if (found == names.end()) node.at("behavior").fail_value("Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous");
  return splitter(Pattern::read(node.at("pattern")), static_cast<Behavior>(found - names.begin()), node.flag("invert", false));
}

PreTokenizer pre_tokenizer_step(const JsonNode& node) {
  if (node.is_null()) return [](std::vector<Piece>&) {};
  const std::string type = node.type({"ByteLevel", "Metaspace", "Split", "Digits", "Sequence"});
  if (type == "ByteLevel") return byte_level(node);
  if (type == "Metaspace") return metaspace(read_metaspace(node));
  if (type == "Split") return split(node);
  return splitter(Pattern::regex("\\p{N}"), node.flag("individual_digits", false) ? Behavior::kIsolated : Behavior::kContiguous, false);
}

std::size_t bytes_of_pieces(const std::vector<Piece>& pieces) {
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.text.size();
  return bytes;
}

}  // namespace

PreTokenizer read_pre_tokenizer(const JsonNode& node) {
  return chain_of(node, "pre_tokenizer", "pretokenizers", pre_tokenizer_step, bytes_of_pieces);
}

Metaspace read_metaspace(const JsonNode& node) {
  Metaspace m;
  m.replacement = character_at(node, "replacement");
  m.splits = node.flag("split", true);
  const bool adds_prefix = node.flag("add_prefix_space", true);  // older key, must agree
  if (!node.has("prepend_scheme")) {
    m.scheme = adds_prefix ? Metaspace::Scheme::kAlways : Metaspace::Scheme::kNever;
    return m;
  }
  const std::string scheme = node.text("prepend_scheme");
  if (scheme != "always" && scheme != "first" && scheme != "never") node.at("prepend_scheme").fail_value("always, first, never");
  if (!adds_prefix && scheme != "never") node.at("prepend_scheme").fail("contradicts 'add_prefix_space' = false");
  m.scheme = scheme == "always" ? Metaspace::Scheme::kAlways : scheme == "first" ? Metaspace::Scheme::kFirst : Metaspace::Scheme::kNever;
  return m;
}

}  // namespace kvlab::tokenization
