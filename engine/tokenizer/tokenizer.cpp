#include "engine/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/json_text.h"
#include "base/text.h"
#include "engine/tokenizer/added_tokens.h"
#include "engine/tokenizer/parts.h"
#include "engine/tokenizer/unicode.h"

namespace kvlab {

struct Tokenizer::Parts {
  std::string file;
  tokenization::Normalizer normalizer;
  tokenization::PreTokenizer pre_tokenizer;
  tokenization::Bpe model;
  tokenization::AddedTokens added;
  tokenization::PostProcessor post_processor;
  bool has_post_processor = false;
  tokenization::Decoder decoder;
};

Tokenizer::Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}

Tokenizer Tokenizer::load(const std::string& dir) {
  const std::string path = (std::filesystem::path(dir) / "tokenizer.json").string();
  if (is_no_regular_file(path)) throw InputError(path + ": is not a regular file; a JSON file is expected");
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw InputError(path + ": cannot be read; a tokenizer in Hugging Face's fast format is needed");
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  refuse_lfs_pointer(text, path);
  return from_json(text, path);
}

Tokenizer Tokenizer::from_json(std::string_view json, const std::string& name) {
  const nlohmann::json root = parse_json(json, name);
  const JsonNode file(root, name);
  if (!root.is_object()) file.fail("not a JSON object");
  auto parts = std::make_shared<Parts>();
  parts->file = name;
  parts->normalizer = tokenization::read_normalizer(file.find("normalizer"));
  parts->pre_tokenizer = tokenization::read_pre_tokenizer(file.find("pre_tokenizer"));
  parts->post_processor = tokenization::read_post_processor(file.find("post_processor"));
  parts->has_post_processor = root.contains("post_processor") && !root["post_processor"].is_null();
  parts->decoder = tokenization::read_decoder(file.find("decoder"));
  parts->model = tokenization::Bpe::read(file.at("model"));
  parts->added = tokenization::AddedTokens::read(file.find("added_tokens"), parts->model, parts->normalizer);
  return Tokenizer(std::move(parts));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  if (const std::size_t at = tokenization::first_invalid_utf8(text); at != std::string_view::npos)
    throw InputError(fmt::format("byte {} of the text is not UTF-8; {} tokenizes UTF-8 only", at, parts_->file));
  const std::size_t first_bytes = text.empty() ? 0 : tokenization::next_unit(text, 0).length;
  std::vector<tokenization::Piece> pieces{tokenization::Piece::whole(std::string(text), first_bytes)};
  parts_->added.cut(pieces, parts_->normalizer);
  parts_->pre_tokenizer(pieces);
  std::vector<std::int32_t> ids;
  tokenization::Bpe::Cache cache;
  for (const tokenization::Piece& piece : pieces) {
    if (piece.added_id >= 0)
      ids.push_back(piece.added_id);
    else
      parts_->model.encode(piece.text, cache, ids);
  }
  parts_->post_processor(ids, add_special);
  return ids;
}

std::vector<std::int32_t> Tokenizer::encode_prompt(std::string_view text, std::int32_t bos_id) const {
  std::vector<std::int32_t> ids = encode(text, true);
  if (bos_id >= 0 && !parts_->has_post_processor) ids.insert(ids.begin(), bos_id);
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::vector<std::string> tokens;
  for (const std::int32_t id : ids) {
    const tokenization::AddedToken* added = parts_->added.token(id);
    if (added != nullptr && added->is_special && skip_special) continue;
    std::optional<std::string> text = token(id);
    if (!text) throw InputError(fmt::format("{}: no token has id {}; ids lie in [0, {})", parts_->file, id, vocab_size()));
    tokens.push_back(std::move(*text));
  }
  parts_->decoder(tokens);
  return join(tokens, "");
}

std::int32_t Tokenizer::vocab_size() const { return std::max(parts_->model.max_id(), parts_->added.max_id()) + 1; }

std::optional<std::string> Tokenizer::token(std::int32_t id) const {
  if (const tokenization::AddedToken* added = parts_->added.token(id)) return added->content;
  if (const std::string* token = parts_->model.token(id)) return *token;
  return std::nullopt;
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  if (const auto id = parts_->added.id_of(token)) return id;
  return parts_->model.id_of(token);
}

}  // namespace kvlab
