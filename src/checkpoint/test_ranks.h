// For tests: a save by several ranks, each a thread.
#pragma once

#include <atomic>
#include <barrier>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "store/lease.h"

namespace molen::checkpoint {

// Saves the spans of each rank, under the lease of the directory if there is one. Returns the error of each rank, which
// is empty when the rank had none.
inline std::vector<std::string> save_ranks(const std::vector<std::vector<Span>>& spans, const fs::path& directory,
                                           std::int64_t step, int keep = 0, const store::Lease* lease = nullptr) {
  const int ranks = static_cast<int>(spans.size());
  std::barrier barrier(ranks);
  std::atomic<int> failures = 0;
  std::vector<std::string> errors(spans.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const Agree agree = [&](bool ok) {
        if (!ok) ++failures;
        barrier.arrive_and_wait();
        const bool all = failures == 0;
        barrier.arrive_and_wait();
        return all;
      };
      try {
        save(spans[static_cast<std::size_t>(rank)], {.directory = directory,
                                                     .step = step,
                                                     .rank = rank,
                                                     .ranks = ranks,
                                                     .agree = agree,
                                                     .state = {{"step", step}},
                                                     .attachments = {},
                                                     .keep = keep,
                                                     .token = lease ? lease->token() : 0,
                                                     .still_owner = [&] {
                                                       if (lease) lease->require();
                                                     }});
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

}  // namespace molen::checkpoint
