#pragma once

#include <functional>

#include "app/why/why.h"

namespace CLI {
class App;
}

namespace kvlab {

void add_why_command(CLI::App& app, WhyCommand& command, const std::function<void()>& choose);

}  // namespace kvlab
