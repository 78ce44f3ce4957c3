#pragma once

#include <memory>
#include <string>

#include "base/ids.h"
#include "bindings/policies/python_policy.h"
#include "policies/request.h"

namespace kvlab {

// Identifies the current Python call.
struct Lease {
  std::uint64_t call = 1;
};
using LeasePtr = std::shared_ptr<Lease>;

// Raises RuntimeError for an object of an earlier call.
void require_lent(const LeasePtr& lease, std::uint64_t call, const char* what);

// Lent to one Python call.
class PythonRequest {
 public:
  PythonRequest() = default;
  PythonRequest(LeasePtr lease, const RequestRecord& record) : lease_(std::move(lease)), call_(lease_->call), record_(&record) {}
  PythonRequest(LeasePtr lease, const Request& request, RequestId id) : PythonRequest(std::move(lease), request) {
    request_ = &request;
    id_ = id;
  }
  // is_arriving: refuses attributes that change while it is served. predicted_tokens: 0 without predictor.
  PythonRequest& with(std::int32_t predicted_tokens, bool is_arriving) {
    predicted_tokens_ = predicted_tokens;
    is_arriving_ = is_arriving;
    return *this;
  }

  [[nodiscard]] const RequestRecord& record() const {
    require_lent(lease_, call_, "a request");
    return *record_;
  }
  // Raises AttributeError if only arrival facts are lent.
  [[nodiscard]] const Request& request(const char* attribute) const;
  [[nodiscard]] RequestId id() const {
    require_lent(lease_, call_, "a request");
    return id_;
  }
  [[nodiscard]] bool is_lent_by(const LeasePtr& lease) const { return lease_ == lease; }
  [[nodiscard]] std::int32_t predicted_tokens() const;
  [[nodiscard]] bool operator==(const PythonRequest& other) const { return &record() == &other.record(); }

 private:
  LeasePtr lease_;
  std::uint64_t call_ = 0;
  const RequestRecord* record_ = nullptr;
  const Request* request_ = nullptr;  // null: not in a replica
  RequestId id_ = kNoRequest;
  bool is_arriving_ = false;
  std::int32_t predicted_tokens_ = 0;  // 0: none
};

// Reuses one Python object, as long as no policy keeps it.
class Lender {
 public:
  Lender() = default;
  ~Lender();
  Lender(const Lender&) = delete;
  Lender& operator=(const Lender&) = delete;
  [[nodiscard]] const LeasePtr& lease() const { return lease_; }
  // Requires the GIL.
  nb::handle lend(const PythonRequest& request);

 private:
  LeasePtr lease_ = std::make_shared<Lease>();
  nb::object object_;
  PythonRequest* at_ = nullptr;  // in object_
};

// Ends a lease at scope exit.
class Lending {
 public:
  explicit Lending(Lease& lease) : lease_(lease) {}
  ~Lending() { ++lease_.call; }
  Lending(const Lending&) = delete;
  Lending& operator=(const Lending&) = delete;

 private:
  Lease& lease_;
};

void bind_requests(nb::module_& m);
void bind_planning(nb::module_& m);
void bind_replicas(nb::module_& m);

}  // namespace kvlab
