#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

// tokenizer.json with BPE: byte-level (GPT-2, Llama 3, Qwen) or SentencePiece-like (Llama 2, Mistral), with the ids of Hugging Face
// `tokenizers`. Ignores "truncation" and "padding". Copies share tables; thread-safe.
class Tokenizer {
 public:
  // DIR/tokenizer.json. Throws InputError with file and key.
  static Tokenizer load(const std::string& dir);
  static Tokenizer from_json(std::string_view json, const std::string& name);  // name: for messages

  // Recognises added tokens anywhere. add_special: post-processor tokens (<s> ...). Throws InputError for ill-formed UTF-8 or an unknown
  // token without id.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special) const;

  // With special tokens; without post-processor, bos_id (-1: none) first.
  std::vector<std::int32_t> encode_prompt(std::string_view text, std::int32_t bos_id) const;

  // Invalid UTF-8 becomes U+FFFD. Throws InputError for an unknown id.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special) const;

  std::int32_t vocab_size() const;                          // above all ids; some have no token
  std::optional<std::string> token(std::int32_t id) const;  // as in the file: "Ġthe" or "▁the"
  std::optional<std::int32_t> id_of(std::string_view token) const;

 private:
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts);
  std::shared_ptr<const Parts> parts_;
};

}  // namespace kvlab
