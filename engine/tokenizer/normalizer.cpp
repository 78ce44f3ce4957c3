#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/parts.h"
#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/unicode.h"

namespace kvlab::tokenization {

namespace {

constexpr const char* kNormalizer = "normalizer";

// Bytes of the first character, or 0.
std::size_t first_character(std::string_view text) { return text.empty() ? 0 : next_unit(text, 0).length; }

// Bytes of the form from the first character: those it becomes alone, unless changed by later ones, at least one character.
std::size_t first_bytes_of_form(std::string_view first, std::string_view all, NormalForm form) {
  const std::string alone = normalized(first, form);
  std::size_t same = 0;
  while (same < alone.size() && same < all.size()) {
    const std::size_t length = next_unit(all, same).length;
    if (alone.compare(same, length, all.substr(same, length)) != 0) break;
    same += length;
  }
  return std::max(same, first_character(all));
}

Normalizer form(NormalForm form) {
  return [form](Piece& piece) {
    std::string all = normalized(piece.text, form);
    if (piece.first_bytes > 0)
      piece.first_bytes = first_bytes_of_form(std::string_view(piece.text).substr(0, piece.first_bytes), all, form);
    piece.text = std::move(all);
  };
}

Normalizer prepend(const std::string& prefix) {
  return [prefix](Piece& piece) {
    if (!piece.text.empty()) piece.put_in_front(prefix);
  };
}

Normalizer strip(bool left, bool right) {
  return [left, right](Piece& piece) {
    const std::string& text = piece.text;
    std::size_t begin = 0, end = text.size();
    while (left && begin < end && is_white_space(next_unit(text, begin).code)) begin += next_unit(text, begin).length;
    const auto last = [&] { return last_character(std::string_view(text).substr(0, end)); };
    while (right && begin < end && is_white_space(next_unit(text, last()).code)) end = last();
    const bool at_start = piece.at_start;
    piece = piece.part(begin, end);
    piece.at_start = at_start;  // rewritten, not cut out
  };
}

// A replacement comes from the match's last character; an empty one at the start from the next character, once the piece is cut out.
Normalizer replace(const JsonNode& node) {
  return
      [pattern = Pattern::read(node.at("pattern")), content = node.text("content"), limit = GrowthLimit(node, kNormalizer)](Piece& piece) {
        std::vector<Slice> slices;
        pattern.cut(piece.text, slices);
        limit.check(piece.text.size(), replaced_bytes(slices, content));
        std::size_t first_bytes = 0;
        for (const Slice& slice : slices) {
          const bool is_first = slice.end == 0 ? piece.at_start : slice.end <= piece.first_bytes;
          if (slice.is_match)
            first_bytes += is_first ? content.size() : 0;
          else
            first_bytes += piece.part(slice.begin, slice.end).first_bytes;
        }
        piece.text = replaced(piece.text, slices, content);
        piece.first_bytes = first_bytes;
      };
}

Normalizer normalizer_step(const JsonNode& node) {
  if (node.is_null()) return [](Piece&) {};
  const std::string type = node.type({"NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace", "Strip", "Sequence"});
  if (type == "NFC") return form(NormalForm::kC);
  if (type == "NFD") return form(NormalForm::kD);
  if (type == "NFKC") return form(NormalForm::kKC);
  if (type == "NFKD") return form(NormalForm::kKD);
  if (type == "Prepend") return prepend(node.text("prepend"));
  if (type == "Strip") return strip(node.flag("strip_left", true), node.flag("strip_right", true));
  return replace(node);
}

}  // namespace

Normalizer read_normalizer(const JsonNode& node) {
  return chain_of(node, kNormalizer, "normalizers", normalizer_step, [](const Piece& piece) { return piece.text.size(); });
}

}  // namespace kvlab::tokenization
