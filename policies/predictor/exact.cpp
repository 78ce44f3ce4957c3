#include "policies/predictor/exact.h"

namespace kvlab {

namespace {

KVLAB_REGISTER(Predictor, ExactPredictor, "exact", "the true output length: an oracle", "");

}  // namespace

}  // namespace kvlab
