#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

// A tokenizer.json of Hugging Face with a BPE model: byte-level (GPT-2, Llama 3, Qwen) or of SentencePiece's kind (Llama 2, Mistral).
// Gives the ids that the `tokenizers` library gives. "truncation" and "padding" in the file are not applied, as transformers does by
// default. Copies share the tables; all members may be called from several threads.
class Tokenizer {
 public:
  // Reads DIR/tokenizer.json. Errors (InputError, with file and key): no such file, not JSON, a model, normalizer, pre-tokenizer,
  // post-processor, decoder or regular expression that is not supported, a merge or added token at odds with the vocabulary.
  static Tokenizer load(const std::string& dir);
  static Tokenizer from_json(std::string_view json, const std::string& name);  // name: of the file, for messages

  // Added tokens in the text, special ones too, are recognised wherever they occur. add_special: with the tokens that the post-processor's
  // template for one text adds (<s> ...). Throws InputError where the text is not UTF-8, or needs an unknown token that has no id.
  std::vector<std::int32_t> encode(std::string_view text, bool add_special) const;

  // A prompt from its beginning: encode() with what the template adds, or, of a file without post-processor, bos_id (config.json's; -1:
  // none) and what encode() gives.
  std::vector<std::int32_t> encode_prompt(std::string_view text, std::int32_t bos_id) const;

  // skip_special: without the tokens that the file marks as special. Bytes that are no UTF-8 become U+FFFD. Throws InputError for an
  // id that no token has.
  std::string decode(std::span<const std::int32_t> ids, bool skip_special) const;

  std::int32_t vocab_size() const;                          // all ids are below it; some may have no token
  std::optional<std::string> token(std::int32_t id) const;  // as the file writes it, such as "Ġthe" or "▁the"
  std::optional<std::int32_t> id_of(std::string_view token) const;

 private:
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts);
  std::shared_ptr<const Parts> parts_;
};

}  // namespace kvlab
