#include <iostream>
#include <string>
#include <vector>

#include "app/cli.h"

int main(int argc, char** argv) { return kvlab::run_cli({argv + 1, argv + argc}, std::cout, std::cerr); }
