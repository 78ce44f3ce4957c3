#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/tokenizer/bpe.h"
#include "engine/tokenizer/normalizer.h"
#include "engine/tokenizer/pre_tokenizer.h"

namespace kvlab::tokenization {

struct AddedToken {
  std::string content;
  bool single_word = false;                      // found only without a word character beside it
  bool takes_left = false, takes_right = false;  // white space beside it belongs to it
  bool is_normalized = true;                     // it is searched, normalized itself, in the normalized text
  bool is_special = false;
};

// Texts that are tokens of their own wherever they occur: special ones such as <s>, and others that a fine-tuning added.
class AddedTokens {
 public:
  // The value of "added_tokens"; null: none. Ids outside the model's vocabulary must follow it without a gap, as Hugging Face
  // tokenizers gives them out whatever the file says. Errors (InputError): another id, a token that is empty or named twice.
  static AddedTokens read(const JsonNode& list, const Bpe& model, const Normalizer& normalizer);

  // Cuts the added tokens out of the pieces: first in the text as it is, then, after the normalizer has been at the rest, in that.
  void cut(std::vector<Piece>& pieces, const Normalizer& normalizer) const;

  const AddedToken* token(std::int32_t id) const;  // nullptr: none of these
  std::optional<std::int32_t> id_of(std::string_view content) const;
  std::int32_t max_id() const { return max_id_; }

 private:
  // A tree of the bytes of all tokens that are searched in the same text: at each place the longest one is found.
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
