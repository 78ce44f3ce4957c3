#pragma once

#include <memory>
#include <string>

#include "base/ids.h"
#include "bindings/policies/python_policy.h"
#include "policies/request.h"

namespace kvlab {

// The objects lent to one call of Python: those of an earlier call are refused. Ending a call raises `call`.
struct Lease {
  std::uint64_t call = 1;
};
using LeasePtr = std::shared_ptr<Lease>;

// Stops (RuntimeError of Python) an object that was lent to an earlier call.
void require_lent(const LeasePtr& lease, std::uint64_t call, const char* what);

// A request as Python sees it, during one call.
class PythonRequest {
 public:
  PythonRequest() = default;
  PythonRequest(LeasePtr lease, const RequestRecord& record) : lease_(std::move(lease)), call_(lease_->call), record_(&record) {}
  PythonRequest(LeasePtr lease, const Request& request, RequestId id) : PythonRequest(std::move(lease), request) {
    request_ = &request;
    id_ = id;
  }
  // is_arriving: attributes that change while the request is served are refused. predicted_tokens: 0 where no predictor was asked.
  PythonRequest& with(std::int32_t predicted_tokens, bool is_arriving) {
    predicted_tokens_ = predicted_tokens;
    is_arriving_ = is_arriving;
    return *this;
  }

  [[nodiscard]] const RequestRecord& record() const {
    require_lent(lease_, call_, "a request");
    return *record_;
  }
  // AttributeError: this caller lends facts of the arrival alone.
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
  const Request* request_ = nullptr;  // null: not a request of a replica
  RequestId id_ = kNoRequest;
  bool is_arriving_ = false;
  std::int32_t predicted_tokens_ = 0;  // 0: not asked for
};

// Lends one Python object to call after call, as long as no policy keeps it.
class RequestLender {
 public:
  RequestLender() = default;
  ~RequestLender();
  RequestLender(const RequestLender&) = delete;
  RequestLender& operator=(const RequestLender&) = delete;
  [[nodiscard]] const LeasePtr& lease() const { return lease_; }
  // Holding the GIL.
  nb::handle lend(const PythonRequest& request);
  // The call is over.
  void take_back() { ++lease_->call; }

 private:
  LeasePtr lease_ = std::make_shared<Lease>();
  nb::object object_;
  PythonRequest* at_ = nullptr;  // in object_
};

// Ends a lease when it goes out of scope.
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

}  // namespace kvlab
