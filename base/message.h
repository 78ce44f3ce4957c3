#pragma once

#include <exception>
#include <string>

namespace kvlab {

// Cuts words over 200 bytes to 60 and their length, the whole to 4,000.
std::string short_message(const std::string& text);

// An exception's text, short, on one line.
std::string message_of(const std::exception& error);

}  // namespace kvlab
