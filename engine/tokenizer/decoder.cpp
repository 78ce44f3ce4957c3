#include <cctype>
#include <cstdlib>

#include "base/text.h"
#include "engine/tokenizer/parts.h"
#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/unicode.h"

namespace kvlab::tokenization {

namespace {

constexpr const char* kDecoder = "decoder";

std::size_t bytes_of_tokens(const std::vector<std::string>& tokens) {
  std::size_t bytes = 0;
  for (const std::string& token : tokens) bytes += token.size();
  return bytes;
}

// Tokens with a character that is no byte are appended as written.
void append_bytes_of_token(const std::string& token, std::string& bytes) {
  const std::size_t size = bytes.size();
  for (std::size_t at = 0; at < token.size();) {
    const Utf8Unit unit = next_unit(token, at);
    const int byte = byte_of_character(unit.code);
    if (byte < 0) {
      bytes.replace(size, std::string::npos, token);
      return;
    }
    bytes += static_cast<char>(byte);
    at += unit.length;
  }
}

void decode_byte_level(std::vector<std::string>& tokens) {
  std::string bytes;
  for (const std::string& token : tokens) append_bytes_of_token(token, bytes);
  tokens = {valid_utf8(bytes)};
}

// -1: not one of <0x00> ... <0xFF>.
int byte_of_token(const std::string& token) {
  const auto is_hex = [&](std::size_t i) { return std::isxdigit(static_cast<unsigned char>(token[i])) != 0; };
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>' || !is_hex(3) || !is_hex(4)) return -1;
  return static_cast<int>(std::strtol(token.substr(3, 2).c_str(), nullptr, 16));
}

// Byte tokens in a run are text if UTF-8; else each becomes U+FFFD.
void decode_byte_fallback(std::vector<std::string>& tokens) {
  std::vector<std::string> out;
  std::string run;
  const auto finish_run = [&] {
    if (run.empty()) return;
    if (first_invalid_utf8(run) == std::string_view::npos)
      out.push_back(run);
    else
      out.insert(out.end(), run.size(), utf8(0xFFFD));
    run.clear();
  };
  for (std::string& token : tokens) {
    const int byte = byte_of_token(token);
    if (byte < 0) finish_run();
    if (byte < 0)
      out.push_back(std::move(token));
    else
      run += static_cast<char>(byte);
  }
  finish_run();
  tokens = std::move(out);
}

Decoder decode_metaspace(const Metaspace& m) {
  return
      [mark = Pattern::literal(utf8(m.replacement)), has_prefix = m.scheme != Metaspace::Scheme::kNever](std::vector<std::string>& tokens) {
        for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = mark.replaced(tokens[i], i == 0 && has_prefix ? "" : " ");
      };
}

Decoder decode_replace(const JsonNode& node) {
  return [pattern = Pattern::read(node.at("pattern")), content = node.text("content"),
          limit = GrowthLimit(node, kDecoder)](std::vector<std::string>& tokens) {
    const std::size_t given = bytes_of_tokens(tokens);
    std::size_t made = 0;
    std::vector<Slice> slices;
    for (std::string& token : tokens) {
      pattern.cut(token, slices);
      limit.check(given, made += replaced_bytes(slices, content));
      token = replaced(token, slices, content);
    }
  };
}

Decoder decode_strip(const JsonNode& node) {
  constexpr std::int32_t kMost = 1 << 20;
  return [content = utf8(character_at(node, "content")), start = node.at("start").integer(0, kMost),
          stop = node.at("stop").integer(0, kMost)](std::vector<std::string>& tokens) {
    for (std::string& token : tokens) {
      std::size_t begin = 0, end = token.size();
      for (std::int32_t i = 0; i < start && token.compare(begin, content.size(), content) == 0; ++i) begin += content.size();
      const auto ends = [&] { return std::string_view(token).substr(begin, end - begin).ends_with(content); };
      for (std::int32_t i = 0; i < stop && ends(); ++i) end -= content.size();
      token = token.substr(begin, end - begin);
    }
  };
}

Decoder decoder_step(const JsonNode& node) {
  if (node.is_null()) return [](std::vector<std::string>& tokens) { tokens = {join(tokens, " ")}; };
  const std::string type = node.type({"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip", "Sequence"});
  if (type == "ByteLevel") return decode_byte_level;
  if (type == "ByteFallback") return decode_byte_fallback;
  if (type == "Fuse") return [](std::vector<std::string>& tokens) { tokens = {join(tokens, "")}; };
  if (type == "Metaspace") return decode_metaspace(read_metaspace(node));
  if (type == "Replace") return decode_replace(node);
  return decode_strip(node);
}

}  // namespace

Decoder read_decoder(const JsonNode& node) { return chain_of(node, kDecoder, "decoders", decoder_step, bytes_of_tokens); }

}  // namespace kvlab::tokenization
