#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/params.h"
#include "traces/arrivals.h"
#include "traces/distributions.h"
#include "traces/trace.h"

namespace kvlab {

// Turns of one conversation: each is sent `think_time` after the answer before it, and its prompt is all that was said
// before (prompt and answer) and new tokens.
struct SessionShape {
  std::unique_ptr<CountDistribution> turns;
  std::unique_ptr<CountDistribution> new_tokens;  // of turns after the first; null: as prompt_tokens
  std::unique_ptr<SpanDistribution> think_time;
  std::int32_t max_context_tokens = 0;  // a session ends before the turn that would exceed it; a first turn is cut to it
};

// Prompts that begin with one of `num_groups` texts, group k with a probability proportional to k^-zipf_s.
struct SharedPrefixShape {
  std::uint64_t num_groups = 1;
  double zipf_s = 0;
  double share_frac = 1;                      // of the sessions (of the requests, without sessions)
  std::unique_ptr<CountDistribution> tokens;  // one length per group; comes on top of prompt_tokens
};

// Clients 0 to num - 1; a session (a request, without sessions) is of client k - 1 with a probability proportional to k^-zipf_s.
struct ClientShape {
  std::uint64_t num = 1;
  double zipf_s = 0;
};

// A class of requests: its share of the sessions (of the requests, without sessions) and the facts of each of them.
struct ClassShape {
  double share_frac = 1;
  RequestFacts facts;
};

// A share of the requests has images: this number each.
struct ImageShape {
  double share_frac = 1;
  std::unique_ptr<CountDistribution> per_request;
};

struct GeneratorShape {
  std::uint64_t num_requests = 1;
  std::unique_ptr<ArrivalProcess> arrivals;
  std::unique_ptr<CountDistribution> prompt_tokens, output_tokens;
  std::optional<SessionShape> sessions;
  std::optional<SharedPrefixShape> shared_prefix;
  std::optional<ClientShape> clients;
  std::vector<ClassShape> classes;  // shares that add up to 1; empty: none
  std::optional<ImageShape> images;
  std::int32_t hash_tokens = 16;
};

// Makes up requests, in constant memory. Content hashes are given where something can be shared, that is with sessions or shared prefixes:
// chunk i is hashed from (group, i) inside the group's prefix, from (session, i) after it, over prompt and output, so turns of a session
// and sessions of a group share exactly what they have in common.
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
  void start_session(TraceRequest& request);
  bool continue_session(TraceRequest& request);
  void name_content(TraceRequest& request);
  void give_facts(TraceRequest& request);

  GeneratorShape shape_;
  std::uint64_t seed_;
  std::uint64_t num_given_ = 0, num_sessions_ = 0;
  // State of the session in progress.
  std::uint64_t turn_ = 0, num_turns_ = 0, group_ = 0;
  std::int32_t prefix_tokens_ = 0, context_tokens_ = 0;
  std::vector<std::uint64_t> hashes_;
  RequestFacts facts_;  // of the session in progress
};

}  // namespace kvlab
