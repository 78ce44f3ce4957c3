#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/text.h"
#include "traces/arrivals.h"
#include "traces/distributions.h"
#include "traces/make_trace.h"
#include "traces/numbers.h"

namespace kvlab {

namespace {

// For kPrefix.
enum PrefixDraw : std::uint64_t { kWhichGroup, kWhetherShared, kPrefixLength, kCycle };
// For content hashes.
enum ContentOwner : std::uint64_t { kOfGroup, kOfSession, kOfPrompt };

constexpr std::int64_t kMostPrompts = 10'000'000;  // of all groups

// Fisher and Yates.
std::vector<std::uint32_t> shuffled(std::uint64_t n, std::uint64_t seed) {
  std::vector<std::uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  for (std::uint64_t i = n; i > 1; --i) std::swap(order[i - 1], order[Draw{seed, Purpose::kPrefix, i, kCycle}.below(i)]);
  return order;
}

// A turn comes `think_time` after the answer; its prompt is all before plus new tokens.
struct SessionShape {
  CountDistribution turns;
  CountDistribution new_tokens;  // later turns; empty: as prompt_tokens
  SpanDistribution think_time;
  std::int32_t max_context_tokens = 0;  // ends sessions; cuts a first turn
};

// One of `num_groups` texts first, group k with P ~ k^-zipf_s.
struct SharedPrefixShape {
  std::uint64_t num_groups = 1;
  double zipf_s = 0;
  double share_frac = 1;     // of sessions, else requests
  CountDistribution tokens;  // added to prompt_tokens
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
  CountDistribution per_request;
};

struct GeneratorShape {
  std::uint64_t num_requests = 1;  // 0: until arrivals end
  ArrivalProcess arrivals;
  CountDistribution prompt_tokens, output_tokens;
  std::optional<SessionShape> sessions;
  std::optional<SharedPrefixShape> shared_prefix;
  std::optional<ClientShape> clients;
  std::vector<ClassShape> classes;  // shares sum to 1
  std::optional<ImageShape> images;
  std::int32_t hash_tokens = 16;
};

SessionShape read_sessions(Params p) {
  SessionShape shape;
  shape.turns = read_counts(p, "turns", "", TraceColumn::kPromptTokens, "turns per session");
  if (p.has("new_tokens") || p.is_describing()) {
    shape.new_tokens =
        read_counts(p, "new_tokens", "", TraceColumn::kPromptTokens, "tokens that a turn after the first adds; else as prompt_tokens");
  }
  shape.think_time = read_spans(p, "think_time", "pause between an answer and the next turn");
  shape.max_context_tokens = p.optional<std::int32_t>("max_context_tokens", 131'072, 2, static_cast<std::int32_t>(kMaxTokens),
                                                      "a session ends before prompt and output exceed this");
  p.reject_unread();
  return shape;
}

SharedPrefixShape read_shared_prefix(Params p) {
  SharedPrefixShape shape;
  shape.num_groups = static_cast<std::uint64_t>(p.required<std::int64_t>("num_groups", 1, 1LL << 40, "different prefixes"));
  shape.tokens = read_counts(p, "tokens", "", TraceColumn::kPromptTokens, "length of a group's prefix");
  shape.zipf_s = p.optional<double>("zipf_s", 0, 0, 10, "popularity: group k is chosen with probability ~ k^-s; 0: all alike");
  shape.share_frac = p.optional<double>("share_frac", 1, 0, 1, "share of sessions that begin with a group's prefix");
  shape.prompts_per_group = static_cast<std::uint64_t>(p.optional<std::int64_t>(
      "prompts_per_group", 0, 0, kMostPrompts, "whole prompts of a group, which requests take again and again; 0: no prompt comes twice"));
  if (shape.prompts_per_group > static_cast<std::uint64_t>(kMostPrompts) / shape.num_groups)
    p.fail_at("prompts_per_group", "'num_groups' x 'prompts_per_group' is more than 10,000,000 prompts");
  if (shape.prompts_per_group > 0 && shape.zipf_s > 0)
    p.fail_at("zipf_s", "with 'prompts_per_group' every prompt comes equally often: leave 'zipf_s' out");
  p.reject_unread();
  return shape;
}

ClientShape read_clients(Params p) {
  ClientShape shape;
  shape.num = static_cast<std::uint64_t>(p.required<std::int64_t>("num", 1, 1LL << 40, "different clients, numbered from 0"));
  shape.zipf_s =
      p.optional<double>("zipf", 0, 0, 10, "how requests are spread: client k sends with probability ~ (k + 1)^-zipf; 0: all alike");
  p.reject_unread();
  return shape;
}

ClassShape read_class(Params p, const std::string& name) {
  ClassShape shape;
  constexpr double kMostMs = 1e9;
  shape.facts.request_class = ClassName(name);
  shape.share_frac = p.required<double>("share_frac", 0, 1, "share of the sessions (of the requests, without sessions)");
  const auto target = [&](const char* key, const char* meaning) {
    if (!p.has(key) && !p.is_describing()) return RequestFacts::kNoTarget;
    return p.milliseconds(key, 0, 0, kMostMs, meaning);
  };
  shape.facts.ttft_slo = target("ttft_slo_ms", "target of the time to first token; absent: none");
  shape.facts.tpot_slo = target("tpot_slo_ms", "target of the time per output token after the first; absent: none");
  shape.facts.tbt_slo = target("tbt_slo_ms", "target of each gap between tokens; absent: none");
  if (p.has("priority") || p.is_describing())
    shape.facts.priority = p.optional<std::int32_t>("priority", 0, -1'000'000, 1'000'000, "smaller is more urgent; absent: none");
  p.reject_unread();
  return shape;
}

ImageShape read_images(Params p) {
  ImageShape shape;
  shape.share_frac = p.optional<double>("share_frac", 1, 0, 1, "share of the requests that have images");
  shape.per_request = read_counts(p, "per_request", "1", TraceColumn::kPromptTokens, "images of a request that has any");
  p.reject_unread();
  return shape;
}

std::vector<ClassShape> read_classes(const Params& parent, Params p) {
  std::vector<ClassShape> classes;
  double sum = 0;
  for (const std::string& name : p.keys()) {
    if (const std::string fault = fault_of_class_name(name); !fault.empty()) parent.fail_at("classes", fault);
    classes.push_back(read_class(p.child(name, "class '" + name + "'"), name));
    sum += classes.back().share_frac;
  }
  if (classes.empty()) parent.fail_at("classes", "'classes' needs at least one class, as 'chat: {share_frac: 1}'");
  if (std::abs(sum - 1) > 1e-6) parent.fail_at("classes", fmt::format("the 'share_frac' of all classes add up to {:.6g}, not to 1", sum));
  return classes;
}

GeneratorShape read_generator(Params& p, std::uint64_t seed) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  const std::string meaning = "how many, turns of sessions included";
  GeneratorShape shape;
  auto [name, inner] = p.named("arrival", "", "arrivals of sessions: " + join(arrival_names(), ", "));
  if (name == "trace") p.fail_at("arrival", "'arrival: trace' needs 'file': generated requests have no recorded arrivals");
  if (!p.is_describing()) shape.arrivals = make_arrivals(name, inner, seed);
  shape.num_requests =
      static_cast<std::uint64_t>(shape.arrivals.ends ? p.optional<std::int64_t>("requests", 0, 0, kMany, meaning + "; 0: all of the stages")
                                                     : p.required<std::int64_t>("requests", 1, kMany, meaning));
  shape.prompt_tokens = read_counts(p, "prompt_tokens", "", TraceColumn::kPromptTokens, "prompt length; of a session its first turn's");
  shape.output_tokens = read_counts(p, "output_tokens", "", TraceColumn::kOutputTokens, "output length");
  if (p.has("sessions")) shape.sessions = read_sessions(p.child("sessions", "sessions"));
  if (p.has("shared_prefix")) shape.shared_prefix = read_shared_prefix(p.child("shared_prefix", "shared_prefix"));
  if (p.has("clients")) shape.clients = read_clients(p.child("clients", "clients"));
  if (p.has("classes")) shape.classes = read_classes(p, p.child("classes", "classes"));
  if (shape.sessions && shape.shared_prefix && shape.shared_prefix->prompts_per_group > 0)
    p.fail_at("sessions", "'prompts_per_group' of 'shared_prefix' repeats whole prompts, which turns of 'sessions' are not: leave one out");
  if (!shape.classes.empty() && shape.arrivals.ends)
    p.fail_at("classes", "the class of a request is its stage ('arrival: stages'): leave 'classes' out");
  if (p.has("images")) shape.images = read_images(p.child("images", "images"));
  if (shape.sessions || shape.shared_prefix || p.is_describing()) {
    shape.hash_tokens = p.optional<std::int32_t>("block_tokens", 16, 1, 1 << 20, "tokens per content hash, with sessions or shared_prefix");
  }
  p.reject_unread();
  return shape;
}

// With sessions or shared prefixes, chunk i is hashed from (group, i) in the prefix and (session, i) after it, over prompt and output:
// hashes are equal exactly for shared content.
class GeneratedTrace final : public TraceSource {
 public:
  GeneratedTrace(GeneratorShape shape, std::uint64_t seed) : shape_(std::move(shape)), seed_(seed) {
    if (const auto& shared = shape_.shared_prefix; shared && shared->prompts_per_group > 0)
      cycle_ = shuffled(shared->num_groups * shared->prompts_per_group, seed_);
  }

  bool next(TraceRequest& request) override {
    if (shape_.num_requests > 0 && num_given_ == shape_.num_requests) return false;
    request = TraceRequest{};
    if (!continue_session(request) && !start_session(request)) return false;
    ++num_given_;
    ++turn_;
    context_tokens_ = request.prompt_tokens + request.output_tokens;
    if (shape_.sessions || shape_.shared_prefix) name_content(request);
    if (shape_.clients || !shape_.classes.empty() || shape_.images || stage_ != nullptr) give_facts(request);
    return true;
  }
  [[nodiscard]] ClosedLoop closed_loop() const override { return shape_.arrivals.loop; }

 private:
  // And, with prompts_per_group, the prompt.
  void choose_prefix(std::uint64_t session) {
    prefix_tokens_ = 0;
    is_repeated_ = false;
    const auto& shared = shape_.shared_prefix;
    if (!shared || Draw{seed_, Purpose::kPrefix, session, kWhetherShared}.uniform() >= shared->share_frac) return;
    if (cycle_.empty()) {
      group_ = Zipf(shared->num_groups, shared->zipf_s)(Draw{seed_, Purpose::kPrefix, session, kWhichGroup});
    } else {
      is_repeated_ = true;
      prompt_ = cycle_[num_shared_++ % cycle_.size()];
      group_ = 1 + prompt_ / shared->prompts_per_group;
    }
    prefix_tokens_ = shared->tokens(Draw{seed_, Purpose::kPrefix, group_, kPrefixLength});
  }

  // False: no arrivals.
  bool start_session(TraceRequest& request) {
    const Arrival arrival = shape_.arrivals.next(kStart);
    request.arrival = arrival.at;
    stage_ = arrival.request_class;
    if (request.arrival == kNever) return false;
    const std::uint64_t session = num_sessions_++;
    turn_ = 0;
    num_turns_ = shape_.sessions ? static_cast<std::uint64_t>(shape_.sessions->turns(Draw{seed_, Purpose::kSession, session})) : 1;
    choose_prefix(session);
    const Draw of_length =
        is_repeated_ ? Draw{seed_, Purpose::kPromptLength, prompt_, kOfPrompt} : Draw{seed_, Purpose::kPromptLength, session};
    request.prompt_tokens = prefix_tokens_ + shape_.prompt_tokens(of_length);
    request.output_tokens = shape_.output_tokens(Draw{seed_, Purpose::kOutputLength, session});
    if (!shape_.sessions) return true;
    request.session = static_cast<std::int64_t>(session);
    request.output_tokens = std::min(request.output_tokens, shape_.sessions->max_context_tokens - 1);
    request.prompt_tokens = std::min(request.prompt_tokens, shape_.sessions->max_context_tokens - request.output_tokens);
    return true;
  }

  bool continue_session(TraceRequest& request) {
    if (turn_ >= num_turns_) return false;
    const SessionShape& sessions = *shape_.sessions;
    const std::uint64_t session = num_sessions_ - 1;
    const CountDistribution& new_tokens = sessions.new_tokens ? sessions.new_tokens : shape_.prompt_tokens;
    request.prompt_tokens = context_tokens_ + new_tokens(Draw{seed_, Purpose::kPromptLength, session, turn_});
    request.output_tokens = shape_.output_tokens(Draw{seed_, Purpose::kOutputLength, session, turn_});
    if (request.prompt_tokens + request.output_tokens > sessions.max_context_tokens) return false;
    request.session = static_cast<std::int64_t>(session);
    request.is_follow_up = true;
    request.delay = sessions.think_time(Draw{seed_, Purpose::kThinkTime, session, turn_});
    return true;
  }

  void name_content(TraceRequest& request) {
    const std::uint64_t of_group = Draw{seed_, Purpose::kContent, group_, kOfGroup}.bits();
    const Draw rest =
        is_repeated_ ? Draw{seed_, Purpose::kContent, prompt_, kOfPrompt} : Draw{seed_, Purpose::kContent, num_sessions_ - 1, kOfSession};
    const std::uint64_t of_session = rest.bits();
    const auto num_chunks = static_cast<std::uint64_t>(context_tokens_ / shape_.hash_tokens);
    const auto num_shared = static_cast<std::uint64_t>(std::min(prefix_tokens_, request.prompt_tokens) / shape_.hash_tokens);
    hashes_.clear();
    for (std::uint64_t i = 0; i < num_chunks; ++i) hashes_.push_back(hash_combine(i < num_shared ? of_group : of_session, i));
    request.hash_tokens = hashes_.empty() ? 0 : shape_.hash_tokens;
    request.hashes = hashes_;
  }

  // Once per session; turns differ in `turn` and `images`.
  void give_facts(TraceRequest& request) {
    const std::uint64_t session = num_sessions_ - 1;
    if (turn_ == 1) {
      facts_ = {};
      if (!shape_.classes.empty()) {
        double left = Draw{seed_, Purpose::kClass, session}.uniform();
        auto chosen = shape_.classes.begin();
        while (left >= chosen->share_frac && std::next(chosen) != shape_.classes.end()) left -= (chosen++)->share_frac;
        facts_ = chosen->facts;
      }
      if (stage_ != nullptr) facts_.request_class = *stage_;
      if (shape_.clients) {
        const Zipf zipf(shape_.clients->num, shape_.clients->zipf_s);
        facts_.client = static_cast<std::int64_t>(zipf(Draw{seed_, Purpose::kClient, session})) - 1;
      }
    }
    if (shape_.sessions) facts_.turn = static_cast<std::int32_t>(turn_) - 1;
    if (shape_.images) {
      constexpr std::uint64_t kHowMany = 1;
      const bool has_images = Draw{seed_, Purpose::kImages, session, turn_}.uniform() < shape_.images->share_frac;
      facts_.images = has_images ? shape_.images->per_request(Draw{seed_, Purpose::kImages, session, turn_, kHowMany}) : 0;
    }
    request.facts = &facts_;
  }

  GeneratorShape shape_;
  std::uint64_t seed_;
  std::uint64_t num_given_ = 0, num_sessions_ = 0;
  std::uint64_t turn_ = 0, num_turns_ = 0, group_ = 0;
  std::uint64_t prompt_ = 0, num_shared_ = 0;  // with prompts_per_group: this one; number with a prefix
  bool is_repeated_ = false;                   // the prompt is one of the groups'
  std::vector<std::uint32_t> cycle_;           // prompts of groups, in order
  std::int32_t prefix_tokens_ = 0, context_tokens_ = 0;
  std::vector<std::uint64_t> hashes_;
  const ClassName* stage_ = nullptr;  // of the last arrival
  RequestFacts facts_;
};

}  // namespace

std::unique_ptr<TraceSource> generated_trace(Params& p, std::uint64_t seed) {
  return std::make_unique<GeneratedTrace>(read_generator(p, seed), seed);
}

}  // namespace kvlab
