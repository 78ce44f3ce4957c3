#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/config/params.h"
#include "base/config/registration.h"
#include "base/text.h"
#include "base/usage.h"
