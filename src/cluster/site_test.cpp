#include "cluster/site.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.h"
#include "base/file.h"
#include "cluster/test_description.h"

namespace molen::cluster {
namespace {

constexpr double kGram = 1e-3 / 3.6e6;  // kg/J of a g/kWh

constexpr const char* kSiteText =
    "[site]\npue = { value = 1.2, spread = 0.05, source = \"bill\" }\ncountry = \"NL\"\n"
    "water_l_per_kwh = { value = 0.5, source = \"meter\" }\n";

TEST(RunSites, ACountryHasItsGridAndNoPue) {
  const RunSite site = find_site("FI");
  EXPECT_EQ(site.name, "Finland");
  EXPECT_EQ(site.country, "FI");
  EXPECT_EQ(find_site("fi").name, "Finland");
  EXPECT_DOUBLE_EQ(site.intensity.value, 79 * kGram);
  EXPECT_GT(site.intensity.spread, 0.0);
  EXPECT_NE(site.intensity.source.find("2023"), std::string::npos);
  EXPECT_EQ(site.pue.value, 1.0);
  EXPECT_FALSE(site.water || site.price || site.series);
  EXPECT_NE(reason([] { find_site("XX"); }).find("no carbon intensity for the country 'XX'"), std::string::npos);
}

TEST(RunSites, CountriesAreSortedAndSensible) {
  EXPECT_TRUE(std::ranges::is_sorted(countries(), {}, &Country::code));
  for (const Country& c : countries()) {
    EXPECT_EQ(c.code.size(), 2u);
    EXPECT_GE(c.grams_per_kwh, 20.0) << c.name;    // hydropower and nuclear power alone have some 25
    EXPECT_LE(c.grams_per_kwh, 1000.0) << c.name;  // coal alone
  }
}

TEST(RunSites, AShippedDescription) {
  const RunSite site = find_site("lumi-g");
  const Cluster lumi = find("lumi-g");
  EXPECT_EQ(site.name, "lumi-g");
  EXPECT_EQ(site.pue.value, lumi.site.pue.value);
  EXPECT_EQ(site.intensity.value, lumi.site.intensity.value);
  EXPECT_EQ(site.water->value, lumi.site.water.value);
  EXPECT_NE(reason([] { find_site("lumi"); }).find("did you mean 'lumi-g'"), std::string::npos);
}

TEST(RunSites, AFileOfItsOwn) {
  const RunSite site = parse_site(kSiteText, "cellar.toml");
  EXPECT_EQ(site.name, "cellar.toml");
  EXPECT_EQ(site.pue.value, 1.2);
  EXPECT_DOUBLE_EQ(site.intensity.value, 268 * kGram);
  EXPECT_DOUBLE_EQ(site.water->value, 0.5e-3 / 3.6e6);
  EXPECT_FALSE(site.price);
  EXPECT_EQ(site.country, "NL");
  EXPECT_DOUBLE_EQ(
      parse_site(std::string(kSiteText) + "price_eur_per_kwh = { value = 0.36, source = \"bill\" }\n", "s.toml")
          .price->value,
      1e-7);
  const RunSite own = parse_site(
      std::string(kSiteText) + "intensity_g_per_kwh = { value = 20, source = \"contract\" }\n", "cellar.toml");
  EXPECT_DOUBLE_EQ(own.intensity.value, 20 * kGram) << "the file's own figure goes before the country's";
  const RunSite whole = parse_site(shipped_text("lumi-g"), "mine.toml");
  EXPECT_EQ(whole.name, "mine.toml");
  EXPECT_EQ(whole.pue.value, find("lumi-g").site.pue.value);
}

TEST(RunSites, ContractsAndTheMakingOfTheComputers) {
  constexpr std::string_view kMore =
      "market_intensity_g_per_kwh = { value = 20, spread = 0.1, source = \"contract\" }\n"
      "embodied_g_per_device_hour = { value = 36, source = \"maker\" }\n";
  const auto expect = [](const RunSite& site) {
    EXPECT_DOUBLE_EQ(site.market_intensity.value().value, 20 * kGram);
    EXPECT_EQ(site.market_intensity->spread, 0.1);
    EXPECT_DOUBLE_EQ(site.embodied.value().value, 1e-5) << "kg of a second";
  };
  expect(parse_site(std::string(kSiteText) + std::string(kMore), "s.toml"));
  const RunSite none = parse_site(kSiteText, "s.toml");
  EXPECT_FALSE(none.market_intensity || none.embodied);
  // The [site] of a description has the same keys.
  std::string whole(shipped_text("lumi-g"));
  whole.insert(whole.find("[site]") + std::string_view("[site]\n").size(), kMore);
  expect(parse_site(whole, "s.toml"));
  EXPECT_NE(reason([] {
              parse_site(std::string(kSiteText) + "embodied_g_per_device_hour = { value = 2e4, source = \"x\" }\n",
                         "s.toml");
            }).find("0 to 10000 g CO2e/h"),
            std::string::npos);
}

TEST(RunSites, ASeriesBesideItsFile) {
  const TemporaryDirectory directory(fs::temp_directory_path() / "molen-site-test");
  write_file_atomic(directory.path() / "grid.csv", "time,g_per_kwh\n2026-11-29T00:00Z,100\n2026-11-29T01:00Z,300\n");
  write_file_atomic(directory.path() / "site.toml", std::string(kSiteText) + "intensity_file = \"grid.csv\"\n");
  const RunSite site = find_site((directory.path() / "site.toml").string());
  const double midnight = parse_time("2026-11-29").value();
  EXPECT_NEAR(site.mean_intensity(midnight + 1800, midnight + 5400), 200 * kGram, 1e-12 * kGram);
  EXPECT_DOUBLE_EQ(site.mean_intensity(midnight, midnight), 100 * kGram);
  // The last value holds for two hours in all, and before and after the series the site's own figure.
  EXPECT_NEAR(site.mean_intensity(midnight + 3600, midnight + 3 * 3600), (300 + 268) / 2.0 * kGram, 1e-12 * kGram);
  EXPECT_NEAR(site.mean_intensity(midnight - 3600, midnight + 3600), (268 + 100) / 2.0 * kGram, 1e-12 * kGram);
  for (const double beyond : {-1.0, 2.0 * 3600 + 1}) {
    EXPECT_DOUBLE_EQ(site.mean_intensity(midnight + beyond, midnight + beyond), 268 * kGram);
  }
  write_file_atomic(directory.path() / "grid.csv", "time,g_per_kwh\n2026-11-29,x\n");
  const std::string why = reason([&] { find_site((directory.path() / "site.toml").string()); });
  EXPECT_NE(why.find("site.toml: site.intensity_file: "), std::string::npos) << why;
  EXPECT_NE(why.find("grid.csv:2: g_per_kwh: 'x'"), std::string::npos) << why;
}

TEST(RunSites, RefusesWhatIsWrong) {
  const auto refusal = [](const std::string& text) { return reason([&] { parse_site(text, "s.toml"); }); };
  EXPECT_NE(refusal("").find("s.toml:1: site: the key is missing"), std::string::npos) << refusal("");
  EXPECT_NE(refusal("[site]\n").find("s.toml:1: site.pue: the key is missing"), std::string::npos)
      << refusal("[site]\n");
  EXPECT_NE(refusal("[site]\npue = { value = 0.9, source = \"x\" }\n").find("0.9 is out of range"), std::string::npos);
  EXPECT_NE(
      refusal("[site]\npue = { value = 1.1, source = \"x\" }\n").find("site.intensity_g_per_kwh: the key is missing"),
      std::string::npos);
  EXPECT_NE(refusal(std::string(kSiteText) + "pues = 1\n").find("did you mean 'site.pue'"), std::string::npos);
  EXPECT_NE(refusal("[site]\npue = { value = 1.1, source = \"x\" }\ncountry = \"Holland\"\n")
                .find("s.toml:3: site.country: molen has no carbon intensity of a country 'Holland'"),
            std::string::npos);
}

}  // namespace
}  // namespace molen::cluster
