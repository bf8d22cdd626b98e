// ALiBi's slopes (Press, Smith, Lewis, arXiv 2108.12409, section 3; the rule for head counts that are no power of two
// is the authors' published code and what BLOOM and Poro use).
#pragma once

#include <cstdint>
#include <vector>

namespace molen::arch {

// Slope m_h of each head: score(i, j) = q_i k_j / sqrt(D) + m_h * (j - i).
std::vector<double> alibi_slopes(std::int64_t heads);

}  // namespace molen::arch
