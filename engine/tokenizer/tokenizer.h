#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

// A Hugging Face tokenizer.json with BPE: byte-level (GPT-2, Llama 3, Qwen) or SentencePiece-like (Llama 2, Mistral), with the ids of the
// `tokenizers` library. "truncation" and "padding" are not applied. Copies share the tables; thread-safe.
class Tokenizer {
 public:
  // Reads DIR/tokenizer.json. Throws InputError with file and key if it is missing, invalid, unsupported or contradicts its vocabulary.
  static Tokenizer load(const std::string& dir);
  static Tokenizer from_json(std::string_view json, const std::string& name);  // name: the file in messages

  // Recognises added tokens anywhere. add_special: with the post-processor's tokens (<s> ...). Throws InputError if the text is not UTF-8
  // or needs an unknown token without id.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special) const;

  // encode() with special tokens; without post-processor, bos_id (-1: none) and encode().
  std::vector<std::int32_t> encode_prompt(std::string_view text, std::int32_t bos_id) const;

  // skip_special: omit special tokens. Invalid UTF-8 becomes U+FFFD. Throws InputError for an unknown id.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special) const;

  std::int32_t vocab_size() const;                          // above all ids; some may have no token
  std::optional<std::string> token(std::int32_t id) const;  // as in the file: "Ġthe" or "▁the"
  std::optional<std::int32_t> id_of(std::string_view token) const;

 private:
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts);
  std::shared_ptr<const Parts> parts_;
};

}  // namespace kvlab
