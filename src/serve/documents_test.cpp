#include "serve/documents.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/csv.h"
#include "base/error.h"
#include "plan/calculus.h"
#include "serve/footprint.h"
#include "serve/page.h"

namespace molen::serve {
namespace {

// 2 kWh led somewhere and half a kWh was undone; all of it came to 3.75 kWh and 1.2 kg at two sites.
RunData run_at_two_sites() {
  RunData run;
  run.path = "runs/a, \"b\"";
  run.id = "77";
  run.energy_totals = Json::parse(R"({"event":"totals","total_j":7.2e6,"undone_j":1.8e6,"kg_co2e":0.9,"seconds":3000,
      "spent_s":3600,"partial":"without dram","energy_j":{"cpu-package0":7.2e6},"spent_site_j":13.5e6,"spent_kg_co2e":1.2,
      "spent_water_l":5,"spent_eur":0.75,"spent_market_kg_co2e":0.6,"spent_embodied_kg_co2e":0.25,
      "spent_j":{"cpu-package0":5.4e6,"cpu-package1":3.6e6,"gpu0":7.2e6,"gpu1":7.2e6,"node":9e7,"dram":3e6,"dram0":1.2e6,"dram1":2.4e6}})");
  run.energy_site = Json::parse(R"({"event":"site","name":"Here <i>","country":"NL","pue":{"value":9},
      "intensity_g_per_kwh":{"value":400,"source":"a table"},"intensity_file":"grid.csv"})");
  run.energy_sites = {"There", "Here <i>"};
  run.emissions_spread = 0.13;
  run.environment =
      Json::parse(R"({"cpu":"a processor","cores":8,"gpu":"H100 *SXM*","system":"Linux 6","memory_bytes":8589934592})");
  run.events = {
      Json::parse(R"({"event":"start","attempt":1,"step":0,"ranks":4,"arch":"small","wall_time_s":1e9})"),
      Json::parse(R"({"event":"resume","attempt":2,"step":1,"ranks":2,"arch":"small","wall_time_s":1.0000001e9})")};
  store::StepMetrics m;
  m.step = 1;
  m.attempt = 1;
  m.wall_time_s = 1e9 + 60;
  m.step_s = 0.5;
  m.loss = 2.0;
  m.flops_formula = "causal";
  m.model_tflops_per_device = 3.0;
  run.metrics.steps = {m, m};
  run.metrics.steps[1].step = 2, run.metrics.steps[1].attempt = 2, run.metrics.steps[1].model_tflops_per_device = 5.0;
  run.values = {{"data.train", "[{path = 'web|x'}]"}};
  return run;
}

std::map<std::string, std::string> row_of(const std::string& csv) {
  CsvReader reader(csv, "emissions.csv", 64);
  std::vector<std::string> names, cells, more;
  EXPECT_TRUE(reader.next(names) && reader.next(cells));
  EXPECT_FALSE(reader.next(more));
  EXPECT_EQ(names.size(), cells.size());
  std::map<std::string, std::string> row;
  for (std::size_t i = 0; i < std::min(names.size(), cells.size()); ++i) row[names[i]] = cells[i];
  return row;
}

TEST(Footprint, IsThatOfAllAttempts) {
  const auto f = footprint_of(run_at_two_sites());
  ASSERT_TRUE(f);
  EXPECT_EQ(f->computers_j, 9e6);
  EXPECT_EQ(f->undone_j, 1.8e6);
  EXPECT_EQ(f->seconds, 3600.0);
  EXPECT_EQ(f->sites, "There, Here <i>");
  EXPECT_EQ(f->site_j, 13.5e6);
  EXPECT_EQ(f->kg_co2e, 1.2);
  EXPECT_DOUBLE_EQ(*f->pue, 1.5) << "the mean, and not that of the last site";
  EXPECT_DOUBLE_EQ(*f->grams_per_kwh, 320.0);
  EXPECT_EQ(f->water_l, 5.0);
  EXPECT_EQ(f->eur, 0.75);
  EXPECT_EQ(f->market_kg_co2e, 0.6);
  EXPECT_EQ(f->embodied_kg_co2e, 0.25);
  EXPECT_EQ(f->kg_co2e_spread, 0.13);
  EXPECT_DOUBLE_EQ(*f->car_km, 1.2 / plan::car_emissions().value / 1e3);
}

TEST(Footprint, SaysNothingThatIsNotKnown) {
  RunData run = run_at_two_sites();
  for (const char* key : {"spent_site_j", "spent_kg_co2e", "spent_water_l", "spent_eur", "spent_market_kg_co2e",
                          "spent_embodied_kg_co2e"})
    run.energy_totals[key] = nullptr;
  const auto unknown = footprint_of(run);
  ASSERT_TRUE(unknown);
  EXPECT_FALSE(unknown->site_j || unknown->kg_co2e || unknown->water_l || unknown->eur || unknown->car_km ||
               unknown->pue || unknown->market_kg_co2e || unknown->embodied_kg_co2e || unknown->kg_co2e_spread);
  EXPECT_NE(footprint_table(run).find("an attempt that measured energy named no site"), std::string::npos);
  const auto refusal = [&] {
    try {
      emissions_csv(run);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_NE(refusal().find("an attempt of the run named no site"), std::string::npos) << refusal();
  run.energy_site = Json(), run.energy_sites.clear();
  EXPECT_NE(footprint_table(run).find("No site is named"), std::string::npos);
  EXPECT_NE(refusal().find("energy.site takes a country"), std::string::npos) << refusal();
  run.energy_totals = Json();
  EXPECT_FALSE(footprint_of(run));
  EXPECT_EQ(footprint_table(run), "");
  EXPECT_NE(refusal().find("no energy was measured"), std::string::npos) << refusal();
  for (const char* damage : {"7", "[]", R"({"pue":7})", R"({"name":[],"intensity_g_per_kwh":7})"}) {
    run = run_at_two_sites();
    run.energy_site = Json::parse(damage);
    run.events.clear(), run.metrics.steps.clear();
    EXPECT_NO_THROW(footprint_table(run)) << damage;
    EXPECT_NO_THROW(model_card(run)) << damage;
    EXPECT_NE(emissions_csv(run).find("\n,"), std::string::npos) << "no date is known, so the time stamp is empty";
  }
}

TEST(Footprint, TheTableIsEscaped) {
  const std::string html = footprint_table(run_at_two_sites());
  EXPECT_NE(html.find("At the site There, Here &lt;i&gt;"), std::string::npos) << html;
  EXPECT_NE(html.find("<th scope=row>energy with the site<td>3.75 kWh"), std::string::npos) << html;
  EXPECT_NE(html.find("<th scope=row>emissions<td>1.2 kg CO2e<td class=text>320 g CO2e/kWh, within 13 % with a "
                      "probability of 80 %; grid.csv, and where it has no value: a table"),
            std::string::npos)
      << html;
}

TEST(Emissions, ARowOfCodeCarbon) {
  const auto row = row_of(emissions_csv(run_at_two_sites()));
  EXPECT_EQ(row.size(), 34u);
  const std::map<std::string, std::string> want{{"project_name", "a, \"b\""},
                                                {"duration", "3600"},
                                                {"emissions", "1.2"},
                                                {"cpu_energy", "3.75"},  // 9 MJ with the PUE
                                                {"gpu_energy", "6"},
                                                {"ram_energy", "1.5"},  // of dram0 and dram1, which are parts of dram
                                                {"cpu_power", "2500"},
                                                {"gpu_power", "4000"},
                                                {"energy_consumed", "3.75"},
                                                {"water_consumed", "5"},
                                                {"country_name", "Netherlands"},
                                                {"run_id", "77"},
                                                {"cpu_count", "8"},
                                                {"gpu_count", "2"},
                                                {"ram_total_size", "8"},
                                                {"tracking_mode", "machine"},
                                                {"pue", "1.5"},
                                                {"timestamp", "2001-09-09T01:48:20Z"}};
  for (const auto& [name, value] : want) EXPECT_EQ(row.at(name), value) << name;
  EXPECT_NEAR(std::stod(row.at("emissions_rate")), 1.2 / 3600, 1e-9);
  EXPECT_NEAR(std::stod(row.at("wue")), 5.0 / 3.75, 1e-8);
}

TEST(ModelCard, HasWhatTheRunKnows) {
  const std::string card = model_card(run_at_two_sites());
  EXPECT_TRUE(card.starts_with("---\nlibrary_name: molen\n")) << card;
  for (const char* text :
       {"  emissions: 1200\n", "  geographical_location: \"There, Here <i>\"\n",
        "  hardware_used: \"2 x H100 *SXM*\"\n", "- hardware: 2 x H100 \\*SXM\\*\n",
        "- data.train: \\[\\{path = 'web\\|x'\\}\\]\n",
        "- floating-point operations of the model: 1.1e+13 (causal; without steps that failures undid)\n",
        "- energy of the computers: 2.5 kWh, measured in part (without dram)\n",
        "- energy of steps that failures undid: 0.5 kWh\n", "- water: 5 l\n"})
    EXPECT_NE(card.find(text), std::string::npos) << text << "\n" << card;
  RunData run = run_at_two_sites();
  run.energy_totals = Json();
  const std::string unmeasured = model_card(run);
  EXPECT_EQ(unmeasured.find("co2_eq_emissions"), std::string::npos);
  EXPECT_NE(unmeasured.find("- energy: not measured\n"), std::string::npos);
  EXPECT_NE(unmeasured.find("- training time: 1.00 s in steps\n"), std::string::npos) << unmeasured;
}

}  // namespace
}  // namespace molen::serve
