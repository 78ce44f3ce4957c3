#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/config/params.h"
#include "traces/arrivals.h"
#include "traces/distributions.h"
#include "traces/trace.h"

namespace kvlab {

// A turn comes `think_time` after the answer; its prompt is all before plus new tokens.
struct SessionShape {
  std::unique_ptr<CountDistribution> turns;
  std::unique_ptr<CountDistribution> new_tokens;  // later turns; null: as prompt_tokens
  std::unique_ptr<SpanDistribution> think_time;
  std::int32_t max_context_tokens = 0;  // ends sessions; cuts a first turn
};

// One of `num_groups` texts first, group k with P ~ k^-zipf_s.
struct SharedPrefixShape {
  std::uint64_t num_groups = 1;
  double zipf_s = 0;
  double share_frac = 1;                      // of sessions, else requests
  std::unique_ptr<CountDistribution> tokens;  // added to prompt_tokens
  // Above 0: per group; requests cycle through all in an order drawn by seed.
  std::uint64_t prompts_per_group = 0;
};

// Client k - 1 has P ~ k^-zipf_s per session, else request.
struct ClientShape {
  std::uint64_t num = 1;
  double zipf_s = 0;
};

// Share of sessions, else requests.
struct ClassShape {
  double share_frac = 1;
  RequestFacts facts;
};

// Share of requests.
struct ImageShape {
  double share_frac = 1;
  std::unique_ptr<CountDistribution> per_request;
};

struct GeneratorShape {
  std::uint64_t num_requests = 1;  // 0: until arrivals end
  std::unique_ptr<ArrivalProcess> arrivals;
  std::unique_ptr<CountDistribution> prompt_tokens, output_tokens;
  std::optional<SessionShape> sessions;
  std::optional<SharedPrefixShape> shared_prefix;
  std::optional<ClientShape> clients;
  std::vector<ClassShape> classes;  // shares sum to 1
  std::optional<ImageShape> images;
  std::int32_t hash_tokens = 16;
};

// With sessions or shared prefixes, chunk i is hashed from (group, i) in the prefix and (session, i) after it, over prompt and output:
// hashes are equal exactly for shared content.
class GeneratedTrace final : public TraceSource {
 public:
  GeneratedTrace(GeneratorShape shape, std::uint64_t seed);
  // Reads `generate:`.
  GeneratedTrace(Params& p, std::uint64_t seed);

  bool next(TraceRequest& request) override;
  [[nodiscard]] std::int32_t concurrency() const override { return shape_.arrivals->concurrency(); }
  [[nodiscard]] Span think_time(std::uint64_t session_index) const override { return shape_.arrivals->think_time(session_index); }
  [[nodiscard]] Span ramp() const override { return shape_.arrivals->ramp(); }
  [[nodiscard]] Span idle_cap() const override { return shape_.arrivals->idle_cap(); }

 private:
  bool start_session(TraceRequest& request);
  void choose_prefix(std::uint64_t session);
  bool continue_session(TraceRequest& request);
  void name_content(TraceRequest& request);
  void give_facts(TraceRequest& request);

  GeneratorShape shape_;
  std::uint64_t seed_;
  std::uint64_t num_given_ = 0, num_sessions_ = 0;
  std::uint64_t turn_ = 0, num_turns_ = 0, group_ = 0;
  std::uint64_t prompt_ = 0, num_shared_ = 0;  // with prompts_per_group: this one; number with a prefix
  bool is_repeated_ = false;                   // the prompt is one of the groups'
  std::vector<std::uint32_t> cycle_;           // prompts of groups, in order
  std::int32_t prefix_tokens_ = 0, context_tokens_ = 0;
  std::vector<std::uint64_t> hashes_;
  RequestFacts facts_;
};

}  // namespace kvlab
