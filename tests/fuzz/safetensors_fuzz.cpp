// Feeds bytes to the safetensors reader and to the attention-trace reader on top. An InputError is a good answer; anything else
// that stops the program is a bug.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/safetensors.h"
#include "traces/attention_trace.h"

namespace {

// An odd file is read tensor by tensor: ranges promised by the header must be inside the data.
void read_tensors(const kvlab::SafetensorsFile& file) {
  for (const auto& [name, info] : file.tensors()) {
    std::size_t elements = 0;
    try {
      elements = info.dtype[0] == 'I' ? file.ints(name, info.shape).size() : file.floats(name, info.shape).size();
    } catch (const kvlab::InputError&) {
      continue;
    }
    if (elements * kvlab::safetensors_element_bytes(info.dtype) != file.raw(name).size()) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto file = kvlab::SafetensorsFile::from_bytes("fuzz", std::as_bytes(std::span(data, size)));
    read_tensors(file);
    kvlab::check_attention_trace(kvlab::attention_trace_from(file, "fuzz"), "fuzz");
  } catch (const kvlab::InputError&) {
  }
  return 0;
}
