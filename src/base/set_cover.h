// A small selection of sets that has what all of them have.
#pragma once

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <vector>

namespace molen {

// Returns the indices, ascending, of sets that together have every member of `sets`: the set with the most members that
// are still missing is taken next, and of equal ones the first. So the selection is not always the smallest (Chvatal
// 1979, "A greedy heuristic for the set-covering problem"). Sets have no member twice. Members have an order `<`.
template <typename Member>
std::vector<std::size_t> set_cover(const std::vector<std::vector<Member>>& sets) {
  std::map<Member, std::size_t> numbers;
  std::vector<std::vector<std::size_t>> members, having;  // members of each set; the sets that have each member
  for (std::size_t i = 0; i < sets.size(); ++i) {
    members.emplace_back();
    for (const Member& member : sets[i]) {
      const std::size_t number = numbers.emplace(member, numbers.size()).first->second;
      members[i].push_back(number);
      having.resize(numbers.size());
      having[number].push_back(i);
    }
  }
  std::vector<bool> covered(having.size(), false);
  std::vector<std::size_t> missing;  // members of each set that are not covered yet
  missing.reserve(sets.size());
  for (const auto& m : members) missing.push_back(m.size());
  std::set<std::size_t> chosen;
  while (!missing.empty()) {
    const auto best = static_cast<std::size_t>(std::max_element(missing.begin(), missing.end()) - missing.begin());
    if (missing[best] == 0) break;
    chosen.insert(best);
    for (const std::size_t m : members[best])
      if (!covered[m]) {
        covered[m] = true;
        for (const std::size_t i : having[m]) --missing[i];
      }
  }
  return {chosen.begin(), chosen.end()};
}

}  // namespace molen
