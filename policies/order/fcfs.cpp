#include "policies/order/fcfs.h"

namespace kvlab {

namespace {

KVLAB_REGISTER(Order, Fcfs, "fcfs", "first come, first served; preempted requests where the scheduler puts them", "");

}  // namespace

}  // namespace kvlab
