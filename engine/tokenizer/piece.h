#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace kvlab::tokenization {

// Rewritten text comes from the last original character that it replaces, or the next one if put in front. Metaspace ("first") asks if a
// piece comes from the first, as Hugging Face tokenizers do (`offsets_original().0 == 0`).
struct Piece {
  std::string text;
  bool at_start = false;        // from the first character when cut
  std::size_t first_bytes = 0;  // leading bytes from the first character
  std::int32_t added_id = -1;   // -1: still to be tokenized

  static Piece whole(std::string text, std::size_t first_bytes) { return {std::move(text), true, first_bytes, -1}; }

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
