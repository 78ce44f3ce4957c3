#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "policies/order/order.h"

namespace kvlab {

namespace {

// Algorithm 2. A client that returns to an empty queue is lifted to the smallest waiting counter, or to that of the client with the last
// emptied queue. No preemption. Weights divide costs.
class Vtc final : public Order {
 public:
  explicit Vtc(Params& p)
      : input_(p.optional<double>("input_weight", 1, 0, 1000, "cost of a prompt token, charged at admission (w_in)")),
        output_(p.optional<double>("output_weight", 2, 0, 1000, "cost of an output token, charged when it is emitted (w_out)")),
        profiled_(p.choice("cost", {{"weighted", false}, {"profiled", true}}, false,
                           "weighted sum of tokens, or the paper's profiled function of prompt and output length")),
        predicts_(p.flag("charge_predicted", false,
                         "whether the predicted output is charged at admission and corrected as tokens appear; needs 'predictor'")) {
    Params weights = p.optional_child("weights", "weights of order 'vtc'");
    if (p.is_describing()) weights.optional<double>("CLIENT", 1, 1e-3, 1e3, kWeight);
    for (const std::string& name : weights.keys()) {
      weights_[number_of_name(name)] = weights.required<double>(name, 1e-3, 1e3, kWeight);
      named_.push_back(name);
    }
    weights.reject_unread();
    if (profiled_ && (p.has("input_weight") || p.has("output_weight")))
      p.fail_at(p.has("input_weight") ? "input_weight" : "output_weight",
                "'input_weight' and 'output_weight' mean nothing with 'cost: profiled': leave them out");
  }
  [[nodiscard]] std::vector<std::string> named_clients() const override { return named_; }

  [[nodiscard]] std::vector<Fact> needs() const override { return {Fact::kClient}; }
  [[nodiscard]] bool uses_predictor() const override { return predicts_; }

  [[nodiscard]] std::uint32_t size() const override { return size_; }
  [[nodiscard]] RequestId at(std::uint32_t position) const override {
    if (!has_cursor_ || position < cursor_.position) start_walk();
    for (; cursor_.position < position; ++cursor_.position) step_walk();
    return cursor_.request->second;
  }

  void insert(RequestId r, Entry entry) override {
    has_cursor_ = false;
    Job& job = slot(jobs_, r);
    if (entry == Entry::kArrival) job = {client_of(r), 0, -1};
    Client& client = clients_[job.client];
    if (client.queue.empty()) {
      if (entry == Entry::kArrival) lift(client);
      client.key = client.counter;
      active_.emplace(client.key, job.client);
    }
    job.place = entry == Entry::kPreemptedToFront ? front_-- : back_++;
    client.queue.emplace(job.place, r);
    ++size_;
  }

  void erase(RequestId r) override {
    has_cursor_ = false;
    const Job& job = jobs_[index(r)];
    Client& client = clients_[job.client];
    if (client.queue.erase(job.place) != 1) throw InternalError("request is not waiting");
    --size_;
    if (!client.queue.empty()) return;
    active_.erase({client.key, job.client});
    last_left_ = job.client;
  }

  [[nodiscard]] RequestId victim(RequestId usual) const override { return usual; }
  [[nodiscard]] bool watches_steps() const override { return true; }

  void on_admit(RequestId r) override {
    Job& job = jobs_[index(r)];
    if (job.charged_output >= 0) return;  // it pays for its prompt once
    job.charged_output = predicts_ ? predictor().output_tokens(info(r)) : 0;
    charge(job, cost(job, job.charged_output, r));
  }
  void on_tokens(RequestId r, std::int32_t /*count*/) override {
    Job& job = jobs_[index(r)];
    const Request& request = info(r);
    if (request.output_tokens <= job.charged_output) return;
    charge(job, cost(job, request.output_tokens, r) - cost(job, job.charged_output, r));
    job.charged_output = request.output_tokens;
  }
  void on_leave(RequestId r) override {
    const Job& job = jobs_[index(r)];
    const Request& request = info(r);
    if (job.charged_output <= request.output_tokens) return;
    charge(job, cost(job, request.output_tokens, r) - cost(job, job.charged_output, r));
  }

  // Counters grow linearly; the head changes when its counter passes another's.
  [[nodiscard]] Horizon stable_for() const override {
    if (size_ == 0 || active_.size() == 1) return Horizon::whatever_is_cached();
    if (profiled_ || predicts_ || active_.size() > kMostCompared) return Horizon::none();
    rates_.assign(clients_.size(), 0);
    for (const RequestId r : view().running()) rates_[jobs_[index(r)].client] += clients_[jobs_[index(r)].client].output;
    const std::uint32_t head = settled(active_.begin())->second;
    std::int64_t plans = std::numeric_limits<std::int64_t>::max();
    for (const auto& [key, other] : active_) {
      const std::int64_t nearer = rates_[head] - rates_[other];  // per plan
      if (other == head || nearer <= 0) continue;
      plans = std::min(plans, std::max<std::int64_t>(0, clients_[other].counter - clients_[head].counter - 1) / nearer);
    }
    return {plans, false};
  }

 private:
  static constexpr std::size_t kMostCompared = 64;
  struct Client {
    std::int64_t counter = 0;  // millionths of a weighted token
    double weight = 1;
    std::int64_t input = 0, output = 0;       // cost per token
    std::int64_t key = 0;                     // counter when put into active_
    std::map<std::int64_t, RequestId> queue;  // by place
  };
  struct Job {
    std::uint32_t client = 0;
    std::int64_t place = 0;
    std::int32_t charged_output = -1;  // output tokens charged; -1: none yet
  };
  using Active = std::set<std::pair<std::int64_t, std::uint32_t>>;

  static std::int64_t micro(double weight) { return std::llround(weight * 1e6); }
  // An integer: partial charges add up exactly.
  [[nodiscard]] std::int64_t cost(const Job& job, std::int64_t output, RequestId r) const {
    const Client& client = clients_[job.client];
    const std::int64_t prompt = info(r).prompt_tokens;
    if (!profiled_) return client.input * prompt + client.output * output;
    const auto x = static_cast<double>(prompt), y = static_cast<double>(output);
    return micro((0.210 * x + 0.1008 * y + 0.00399 * x * y + 0.00325 * y * y + 1.146) / client.weight);
  }

  [[nodiscard]] std::uint32_t client_of(RequestId r) {
    const auto [found, is_new] = numbers_.try_emplace(info(r).facts->client, static_cast<std::uint32_t>(clients_.size()));
    if (!is_new) return found->second;
    Client& client = clients_.emplace_back();
    const auto weight = weights_.find(found->first);
    if (weight != weights_.end()) client.weight = weight->second;
    client.input = micro(input_ / client.weight);
    client.output = micro(output_ / client.weight);
    return found->second;
  }
  [[nodiscard]] std::int64_t counter_of_last() const { return last_left_ < clients_.size() ? clients_[last_left_].counter : 0; }
  void lift(Client& client) {
    const auto first = settled(active_.begin());
    client.counter = std::max(client.counter, first == active_.end() ? counter_of_last() : first->first);
  }
  void charge(const Job& job, std::int64_t amount) {
    Client& client = clients_[job.client];
    client.counter += amount;
    if (amount == 0 || client.queue.empty()) return;
    has_cursor_ = false;
    if (amount > 0) return;  // moves when looked at
    active_.erase({client.key, job.client});
    client.key = client.counter;
    active_.emplace(client.key, job.client);
  }

  // Keys may be below their counters. Returns the first entry from `at` on with a current key.
  [[nodiscard]] Active::iterator settled(Active::iterator at) const {
    while (at != active_.end() && clients_[at->second].counter != at->first) {
      const std::uint32_t client = at->second;
      const auto next = active_.erase(at);
      clients_[client].key = clients_[client].counter;
      const auto moved = active_.emplace(clients_[client].key, client).first;
      at = next == active_.end() || *moved < *next ? moved : next;
    }
    return at;
  }

  struct Cursor {
    std::uint32_t position = 0;
    Active::iterator client;
    std::map<std::int64_t, RequestId>::const_iterator request;
  };
  void start_walk() const {
    const auto first = settled(active_.begin());
    cursor_ = {0, first, clients_[first->second].queue.begin()};
    has_cursor_ = true;
  }
  void step_walk() const {
    if (++cursor_.request != clients_[cursor_.client->second].queue.end()) return;
    cursor_.client = settled(std::next(cursor_.client));
    if (cursor_.client != active_.end()) cursor_.request = clients_[cursor_.client->second].queue.begin();
  }

  static constexpr const char* kWeight = "share of the client, as the trace's column names it, against one of weight 1";
  static constexpr std::uint32_t kNobody = UINT32_MAX;

  double input_, output_;
  bool profiled_, predicts_;
  std::unordered_map<std::int64_t, std::uint32_t> numbers_;
  mutable std::vector<Client> clients_;
  mutable Active active_;  // clients with waiting requests
  std::vector<Job> jobs_;  // by slot
  std::uint32_t size_ = 0;
  std::int64_t front_ = -1, back_ = 0;
  std::uint32_t last_left_ = kNobody;
  std::map<std::int64_t, double> weights_;
  std::vector<std::string> named_;
  mutable Cursor cursor_;
  mutable bool has_cursor_ = false;
  mutable std::vector<std::int64_t> rates_;
};

KVLAB_REGISTER(Order, Vtc, "vtc", "virtual token counter: the client with the least service first (column 'client')",
               "Sheng et al. 2024, arXiv:2401.00588");

}  // namespace

}  // namespace kvlab
