// Flight records: refused with a UsageError, or consistent and sufficient for a report. A seed is stored short: zeros
// fill it up to the size that its head names.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"
#include "store/flight.h"
#include "store/flight_report.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace molen;
  constexpr std::size_t kHead = 4096, kSlot = 64, kMost = 64;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size >= 384) {
    std::uint32_t records = 0;
    std::memcpy(&records, bytes.data() + 20, sizeof records);
    std::uint32_t streams = 0;
    std::memcpy(&streams, bytes.data() + 24, sizeof streams);
    const std::size_t whole = kHead + kSlot * std::min<std::uint32_t>(streams, store::kFlightStreams) * records;
    if (records <= kMost && bytes.size() < whole) bytes.resize(whole);
  }
  try {
    store::FlightState s = store::parse_flight(bytes, "fuzz");
    for (const auto& stream : s.streams) {
      if (stream.op < 0 || stream.step < 0) std::abort();
      for (std::size_t i = 1; i < stream.records.size(); ++i)
        if (stream.records[i].sequence <= stream.records[i - 1].sequence) std::abort();
    }
    store::Sighting seen;
    seen.rank = s.identity.rank;
    seen.flight = std::move(s);
    const auto judgement = store::judge({seen}, {});
    const std::string text = store::to_text(judgement, {}) + store::to_json(judgement, {}).dump();
    for (const char c : text)
      if (c != '\n' && (c < ' ' || c > '~')) std::abort();
  } catch (const UsageError&) {
  }
  return 0;
}
