#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/parts.h"

namespace kvlab::tokenization {

struct AddedToken {
  std::string content;
  bool single_word = false;                      // no word character next to it
  bool takes_left = false, takes_right = false;  // adjacent white space
  bool is_normalized = true;                     // normalized, and searched in the normalized text
  bool is_special = false;
};

// Texts that are always one token, such as <s>.
class AddedTokens {
 public:
  // Null: none. Throws InputError for empty or repeated tokens and ids that leave a gap after the vocabulary, as in Hugging Face
  // tokenizers.
  static AddedTokens read(const JsonNode& list, const Bpe& model, const Normalizer& normalizer);

  // First from the original text, then from the normalized rest.
  void cut(std::vector<Piece>& pieces, const Normalizer& normalizer) const;

  const AddedToken* token(std::int32_t id) const;  // null: none
  std::optional<std::int32_t> id_of(std::string_view content) const;
  std::int32_t max_id() const { return max_id_; }

 private:
  // A trie; the longest token at each place.
  class Search {
   public:
    void add(const std::string& text, std::int32_t id);
    struct Found {
      std::size_t length = 0;
      std::int32_t id = -1;
    };
    Found at(std::string_view text, std::size_t begin) const;

   private:
    struct Node {
      std::unordered_map<char, std::int32_t> next;
      std::int32_t id = -1;
    };
    std::vector<Node> nodes_ = std::vector<Node>(1);
  };

  std::int32_t add(const JsonNode& node, const Bpe& model);
  void cut(Piece&& piece, const Search& search, std::vector<Piece>& out) const;

  std::unordered_map<std::int32_t, AddedToken> tokens_;
  TextMap<std::int32_t> ids_;
  Search as_written_, normalized_;
  std::int32_t max_id_ = -1;
};

}  // namespace kvlab::tokenization
