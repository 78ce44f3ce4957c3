#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

// Lengths with their probabilities, as cumulative sums.
struct ServeGenLengths {
  std::vector<std::int32_t> tokens;
  std::vector<double> cumulative;
  // The length at `uniform` in [0, 1).
  [[nodiscard]] std::int32_t at(double uniform) const;
};

// A window of one client: requests per second, and the distribution of the gaps between them.
struct ServeGenWindow {
  enum class Gaps : std::uint8_t { kNone, kGamma, kWeibull } gaps = Gaps::kNone;
  double rate_per_s = 0, shape = 1, scale = 1;
};

// One client of ServeGen's data: chunk-N-trace.csv and chunk-N-dataset.json.
struct ServeGenClient {
  struct Lengths {
    ServeGenLengths prompt, output;
  };
  std::int64_t number = 0;
  std::map<std::int64_t, ServeGenWindow> windows;  // by their starts, s
  std::map<std::int64_t, Lengths> lengths;         // likewise; those without data are left out
  // Those of the last start up to `start_s`; null: none.
  [[nodiscard]] const Lengths* lengths_at(std::int64_t start_s) const;
};

// InputError with file:line. Fields of the data set other than the two token counts go to `not_drawn`.
ServeGenClient read_servegen_client(const std::string& folder, std::int64_t number, std::vector<std::string>& not_drawn);
// The numbers of the clients of a folder, in order.
std::vector<std::int64_t> servegen_clients(const std::string& folder);

}  // namespace kvlab
