#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/config/params.h"
#include "base/request_facts.h"
#include "base/time.h"

namespace kvlab {

class ArrivalProcess {
 public:
  virtual ~ArrivalProcess() = default;
  // `recorded`: in the trace. kNever: no more.
  virtual Time next(Time recorded) = 0;
  // Closed loop: sessions at once (else 0); pause before session i replaces an ended one.
  [[nodiscard]] virtual std::int32_t concurrency() const { return 0; }
  [[nodiscard]] virtual Span think_time(std::uint64_t /*session_index*/) const { return Span{0}; }
  [[nodiscard]] virtual Span ramp() const { return Span{0}; }
  [[nodiscard]] virtual Span idle_cap() const { return Span{0}; }
  // next() returns kNever eventually.
  [[nodiscard]] virtual bool ends() const { return false; }
  // Null: none.
  [[nodiscard]] virtual const ClassName* request_class() const { return nullptr; }
};

// `arrival:` (docs/traces.md). Random gaps precede each request. Throws InputError beyond 106 days.
std::unique_ptr<ArrivalProcess> make_arrivals(const std::string& name, Params& p, std::uint64_t seed);

const std::vector<std::string>& arrival_names();

// "" if `name` can name a request class.
std::string fault_of_class_name(const std::string& name);

}  // namespace kvlab
