// Runs a fuzz target over files: `make test` replays every seed, without needing a fuzzer.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

void replay(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(in), {}};
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(content.data()), content.size());
  // Also runs the seed cut short, and with one bit flipped in each part: inputs near the seed.
  for (std::size_t part = 1; part < 16 && content.size() > 16; ++part) {
    const std::size_t at = content.size() * part / 16;
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(content.data()), at);
    std::string flipped = content;
    flipped[at] = static_cast<char>(flipped[at] ^ 1 << part % 8);
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(flipped.data()), flipped.size());
  }
}

}  // namespace

int main(int argc, char** argv) {
  LLVMFuzzerTestOneInput(nullptr, 0);
  int files = 0;
  for (int i = 1; i < argc; ++i)
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i]))
      if (entry.is_regular_file()) {
        replay(entry.path());
        ++files;
      }
  std::printf("%d seeds replayed\n", files);
  return files > 0 ? 0 : 1;  // a target without seeds proves nothing
}
