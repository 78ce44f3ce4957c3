// Feeds bytes as a trace file to the readers. The first byte chooses the format (or sniffing), the second the options; the
// rest is the file. An InputError is a good answer; anything else that stops the program is a bug.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/error.h"
#include "traces/block_hashes.h"
#include "traces/formats.h"
#include "traces/in_memory.h"

namespace {

void check(const kvlab::TraceRequest& request) {
  if (request.prompt_tokens < 1 || request.output_tokens < 1 || request.session < -1 || kvlab::ns(request.delay) < 0) __builtin_trap();
  if (request.hashes.empty() != (request.hash_tokens == 0)) __builtin_trap();
  for (const std::int32_t block_tokens : {1, 16, 512}) {
    const std::uint32_t count = kvlab::num_block_hashes(request, block_tokens);
    if (std::int64_t{count} * block_tokens > std::int64_t{request.prompt_tokens} + request.output_tokens) __builtin_trap();
    if (count > 0) kvlab::block_hash(request.hash_tokens, request.hashes, block_tokens, count - 1);
  }
}

void read(std::span<const char> bytes, std::size_t choice, std::uint8_t bits) {
  kvlab::Params own = kvlab::Params::from_text(std::string((bits & 1) != 0 ? "block_size: 64\n" : "") +
                                               "block_tokens: " + std::to_string(1 + (bits >> 1 & 7)) +
                                               "\nskip_failed: " + ((bits & 16) != 0 ? "true" : "false"));
  const kvlab::TraceFormats formats(own);
  kvlab::ReaderOptions options;
  options.any_order = (bits & 32) != 0;
  options.uses_arrivals = (bits & 64) == 0;
  auto lines = std::make_unique<kvlab::LineReader>("fuzz", kvlab::bytes_in_memory("fuzz", bytes));
  const std::vector<std::string> names = kvlab::TraceFormatRegistry::names();
  const std::string format = choice < names.size() ? names[choice] : formats.find("", *lines);
  kvlab::InMemoryTrace trace(formats.read(std::move(lines), format, options));
  if (options.any_order) trace.sort_by_arrival();
  kvlab::Time before = kvlab::kStart;
  for (kvlab::TraceRequest request; trace.next(request);) {
    check(request);
    if (request.is_follow_up) continue;
    if (request.arrival < before) __builtin_trap();
    before = request.arrival;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  try {
    read({reinterpret_cast<const char*>(data) + 2, size - 2}, data[0] % (kvlab::TraceFormatRegistry::names().size() + 1), data[1]);
  } catch (const kvlab::InputError&) {
    return 0;
  }
  return 0;
}
