#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kvlab {

// The last line or binary record, from 1.
class InputPlace {
 public:
  virtual ~InputPlace() = default;
  [[nodiscard]] virtual const std::string& name() const = 0;
  [[nodiscard]] virtual std::int64_t line_number() const = 0;

  // Throws InputError("name:line: message").
  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void fail(std::string_view column, const std::string& message) const;

  // A parser's position.
  void reached(const char* at) const { reached_ = at; }

 protected:
  InputPlace() = default;
  InputPlace(const InputPlace&) = default;
  InputPlace& operator=(const InputPlace&) = default;
  mutable const char* reached_ = nullptr;
};

// Printable and shortened, on one line.
std::string quoted(std::string_view text);

}  // namespace kvlab
