#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

struct ServeGenLengths {
  std::vector<std::int32_t> tokens;
  std::vector<double> cumulative;
  // `uniform` in [0, 1).
  [[nodiscard]] std::int32_t at(double uniform) const;
};

// One window of a client.
struct ServeGenWindow {
  enum class Gaps : std::uint8_t { kNone, kGamma, kWeibull } gaps = Gaps::kNone;
  double rate_per_s = 0, shape = 1, scale = 1;
};

// chunk-N-trace.csv and chunk-N-dataset.json.
struct ServeGenClient {
  struct Lengths {
    ServeGenLengths prompt, output;
  };
  std::int64_t number = 0;
  std::map<std::int64_t, ServeGenWindow> windows;  // by start, s
  std::map<std::int64_t, Lengths> lengths;         // by start, s; only those with data
  // Last start up to `start_s`; may be null.
  [[nodiscard]] const Lengths* lengths_at(std::int64_t start_s) const;
};

// Throws InputError with file:line. `not_drawn`: other data fields.
ServeGenClient read_servegen_client(const std::string& folder, std::int64_t number, std::vector<std::string>& not_drawn);
// Ascending.
std::vector<std::int64_t> servegen_clients(const std::string& folder);

}  // namespace kvlab
