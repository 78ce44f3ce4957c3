#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kvlab {

// A row of requests.csv; instants in ns from the simulation's start, nullopt if never reached.
struct RequestRow {
  std::string request, replica, session, state;
  std::optional<std::int64_t> arrival_ns, queued_ns, scheduled_ns, first_token_ns, last_token_ns;
  std::int64_t prompt_tokens = 0, output_tokens = 0, hit_tokens = 0, preemptions = 0;
  double prefill_policy_ns = 0, decode_policy_ns = 0;  // of the KV policy; 0: not measured
  bool is_warm_up = false;                             // arrived before 'warmup_ms'; set by the reader's caller

  [[nodiscard]] bool is_completed() const { return state == "completed" && first_token_ns && last_token_ns && arrival_ns; }
  [[nodiscard]] double ttft_ms() const { return static_cast<double>(*first_token_ns - *arrival_ns) * 1e-6; }
  [[nodiscard]] double e2e_ms() const { return static_cast<double>(*last_token_ns - *arrival_ns) * 1e-6; }
  // nullopt for one output token.
  [[nodiscard]] std::optional<double> tpot_ms() const;
};

// Throws InputError if the file is absent, lacks a column or has a field that is not a number.
std::vector<RequestRow> read_request_rows(const std::filesystem::path& file);

}  // namespace kvlab
