// Bytes up to the first NUL are a tokenizer.json, the rest is a text. An InputError is a good answer; ids without a token, or decoded text
// that is not UTF-8, are bugs.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/error.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/unicode.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::size_t end = std::min(bytes.find('\0'), size);
  try {
    const auto tokenizer = kvlab::Tokenizer::from_json(bytes.substr(0, end), "fuzz");
    const std::string_view text = bytes.substr(std::min(end + 1, size));
    std::vector<std::int32_t> ids = tokenizer.encode(text, false);
    for (const std::int32_t id : ids) {
      if (!tokenizer.token(id)) __builtin_trap();
    }
    ids = tokenizer.encode(text, true);  // a template may name ids that nothing has: then decoding says so
    const std::string decoded = tokenizer.decode(ids, (size & 1) != 0);
    if (kvlab::tokenization::first_invalid_utf8(decoded) != std::string_view::npos) __builtin_trap();
  } catch (const kvlab::InputError&) {
  }
  return 0;
}
