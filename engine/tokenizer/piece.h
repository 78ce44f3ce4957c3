#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace kvlab::tokenization {

// A part of the text before it becomes tokens. Normalizers and pre-tokenizers rewrite it. Text that they write comes from one character of
// the text as given: from the one that it replaces, from the last of several that it replaces, or from the next one if it is put in front.
// Metaspace asks if a piece comes from the text's first character ("first"), as Hugging Face tokenizers do (`offsets_original().0 == 0`).
struct Piece {
  std::string text;
  bool at_start = false;        // when it was cut out, its first byte came from the first character
  std::size_t first_bytes = 0;  // the number of its bytes, all in front, that come from the first character now
  std::int32_t added_id = -1;   // it is this added token; -1: none, still to be tokenized

  // The text as given. first_bytes: of its first character.
  static Piece whole(std::string text, std::size_t first_bytes) { return {std::move(text), true, first_bytes, -1}; }

  // Bytes [begin, end) of it.
  [[nodiscard]] Piece part(std::size_t begin, std::size_t end) const {
    const std::size_t first = std::min(std::max(first_bytes, begin), end) - begin;
    return {text.substr(begin, end - begin), first > 0, first, -1};
  }

  void put_in_front(const std::string& prefix) {
    text.insert(0, prefix);
    if (first_bytes > 0) first_bytes += prefix.size();
  }
};

}  // namespace kvlab::tokenization
