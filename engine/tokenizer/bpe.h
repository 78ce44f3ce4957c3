#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/config/key_map.h"
#include "base/json_node.h"

namespace kvlab::tokenization {

constexpr std::int32_t kMaxTokenId = 1 << 24;

struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};
template <class Value>
using TextMap = std::unordered_map<std::string, Value, TextHash, std::equal_to<>>;

// Byte-pair encoding (Sennrich et al. 2016): merges by rank, leftmost first.
class Bpe {
 public:
  // Throws InputError for another kind, invalid or repeated ids, merges outside the vocabulary, and unsupported options.
  static Bpe read(const JsonNode& model);
  Bpe() = default;
  Bpe(Bpe&&) = default;
  Bpe& operator=(Bpe&&) = default;

  std::optional<std::int32_t> id_of(std::string_view token) const;
  const std::string* token(std::int32_t id) const;  // null: none
  std::int32_t num_tokens() const { return static_cast<std::int32_t>(vocabulary_.size()); }
  std::int32_t max_id() const { return max_id_; }

  struct Cache {
    struct Range {
      std::uint32_t begin, end;
    };
    TextMap<Range> words;
    std::vector<std::int32_t> ids;
  };
  // Appends ids of well-formed text. An unknown character becomes byte tokens, else the unknown token, else nothing, as in Hugging Face
  // tokenizers. Throws InputError if the unknown token has no id.
  void encode(std::string_view word, Cache& cache, std::vector<std::int32_t>& ids) const;

 private:
  struct Merge {
    std::int32_t rank = -1, id = -1;
    bool operator==(const Merge&) const = default;
  };
  struct Symbol;

  void read_vocabulary(const JsonNode& node);
  void read_merges(const JsonNode& node);
  void add_merge(const JsonNode& node, std::int32_t rank, std::string_view left, std::string_view right);
  std::int32_t unknown_id() const;
  std::int32_t id_of_character(std::string_view character) const;
  std::vector<std::int32_t> characters(std::string_view word) const;
  void merge(std::vector<std::int32_t>& ids) const;
  const Merge* merge_of(std::int32_t left, std::int32_t right) const;

  TextMap<std::int32_t> vocabulary_;
  std::unordered_map<std::int32_t, const std::string*> tokens_;  // into vocabulary keys
  std::array<std::int32_t, 512> low_characters_{};               // of the first code points; -1: none
  std::array<std::int32_t, 256> bytes_{};                        // of <0x00> ... <0xFF>; -1: none
  KeyMap<Merge> merges_;                                         // by left << 32 | right
  std::vector<std::int32_t> merged_ids_;
  std::int32_t max_id_ = -1;
  std::string file_;
  std::optional<std::string> unknown_;
  bool ignores_merges_ = false, falls_back_to_bytes_ = false, fuses_unknown_ = false;
};

}  // namespace kvlab::tokenization
