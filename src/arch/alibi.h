// ALiBi's slopes (Press, Smith, Lewis, arXiv 2108.12409, section 3). The rule for head counts that are not a power of
// two is that of the authors' published code, which BLOOM and Poro use.
#pragma once

#include <cstdint>
#include <vector>

namespace molen::arch {

// Returns slope m_h of each head: score(i, j) = q_i k_j / sqrt(D) + m_h * (j - i).
std::vector<double> alibi_slopes(std::int64_t heads);

}  // namespace molen::arch
