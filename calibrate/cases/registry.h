#pragma once

#include <vector>

#include "calibrate/cases/kernel_case.h"

namespace kvlab {

// One function per file.
void add_model_cases(std::vector<KernelFamily>& families);
void add_attention_cases(std::vector<KernelFamily>& families);
void add_score_cases(std::vector<KernelFamily>& families);
void add_selection_cases(std::vector<KernelFamily>& families);
void add_format_cases(std::vector<KernelFamily>& families);
void add_unpack_cases(std::vector<KernelFamily>& families);
void add_model_cuda_cases(std::vector<KernelFamily>& families);
void add_step_cuda_cases(std::vector<KernelFamily>& families);
void add_attention_cuda_cases(std::vector<KernelFamily>& families);
void add_transfer_cuda_cases(std::vector<KernelFamily>& families);

}  // namespace kvlab
